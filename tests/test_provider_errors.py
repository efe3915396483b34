"""Providers that fail: passed over with a warning, named in what is raised, and the next call works."""

from __future__ import annotations

import re

import numpy as np
import pytest
from own_kernels import A, B, Own, fails, metadata
from specs import problem

import cutlass_py
from cutlass_py import (
    GemmArguments,
    NoKernelError,
    ProviderError,
    Status,
    explain,
    get_kernels,
    register_kernel,
    register_provider,
)
from cutlass_py.arrays.host import host_array
from cutlass_py.dispatch.planning import plan

pytestmark = pytest.mark.usefixtures("nothing_is_left")

SUPPORTS = [
    (fails, "supports raised KeyError: 'nothing in here'"),
    (lambda p: True, "supports returned bool; expected a Status"),
    (lambda p: None, "supports returned NoneType; expected a Status"),
]
ESTIMATES = [
    (fails, "estimate raised KeyError"),
    ("soon", "estimate returned 'soon'; expected microseconds or None"),
    (True, "estimate returned True"),
    (-1.0, "estimate returned -1.0"),
    (float("nan"), "estimate returned nan"),
]


@pytest.mark.parametrize(("supports", "reason"), SUPPORTS)
def test_a_provider_that_cannot_judge_is_passed_over(supports, reason):
    reason = f"provider own, kernel own_f64: {reason}"
    with register_provider(Own(estimate=1.0, supports=supports)) as registration:
        with pytest.warns(RuntimeWarning, match=re.escape(reason)) as told:
            for n in (5, 4):
                assert (cutlass_py.gemm(A, B[:, :n]) == A @ B[:, :n]).all()
        assert len(told) == 1
        args = GemmArguments(A, B)
        (kernel,) = registration.kernels
        ((rejected, said),) = explain(args).rejected
        assert rejected is kernel and reason in said and reason in kernel.supports(args).error
        assert kernel not in get_kernels(args)
        for ask in (
            lambda: cutlass_py.gemm(A, B, kernel="own_f64"),
            lambda: kernel.plan(args),
            lambda: kernel.run(args),
        ):
            with pytest.raises(ProviderError, match=re.escape(reason)):
                ask()


@pytest.mark.parametrize("reason", [True, False, 3])
def test_a_status_without_words(reason):
    with register_provider(Own(supports=lambda p: Status(reason))):
        with pytest.raises(ProviderError, match="supports returned a Status of .*; expected a reason, or None"):
            cutlass_py.gemm(A, B, kernel="own_f64")
        with pytest.warns(RuntimeWarning, match="returned a Status of"):
            cutlass_py.gemm(A, B)


def test_a_kernel_asked_for_by_name_is_asked_once_for_a_class_of_problems():
    asked = []
    with register_provider(Own(supports=lambda problem: asked.append(problem) or Status())) as registration:
        for _ in range(2):
            cutlass_py.gemm(A, B, kernel="own_f64")
        assert len(asked) == 1
        registration.kernels[0].supports(GemmArguments(A, B))
        assert len(asked) == 2


@pytest.mark.parametrize(("estimate", "reason"), ESTIMATES)
def test_an_estimate_that_fails_is_none(estimate, reason):
    with register_provider(Own(estimate=estimate)) as registration:
        with pytest.warns(RuntimeWarning, match=re.escape(f"provider own, kernel own_f64: {reason}")) as told:
            for n in (5, 4):
                assert (cutlass_py.gemm(A, B[:, :n]) == A @ B[:, :n]).all()
        assert len(told) == 1
        assert get_kernels(GemmArguments(A, B))[-1] is registration.kernels[0]
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == A @ B).all()


@pytest.mark.parametrize("number", [3, np.float32(2.5), np.int64(3), np.float64(1)])
def test_estimates_are_numbers_of_any_kind(number):
    with register_provider(Own(estimate=number)):
        assert explain(GemmArguments(A, B)).chosen.microseconds == number


def test_one_that_fails_does_not_hide_why_nothing_fits(built):
    built([])
    own = metadata(dtype="bf16", accumulator="f32", cc=(80, 999))
    with register_provider(Own(own, supports=fails)):
        with (
            pytest.warns(RuntimeWarning, match="supports raised KeyError"),
            pytest.raises(NoKernelError, match="own_f64: provider own, kernel own_f64: supports raised KeyError"),
        ):
            plan(problem(64, 64, 64).problem)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"estimate": 1.0, "run": fails}, "run raised KeyError: 'nothing in here'"),
        ({"estimate": 1.0, "run": lambda call: A}, "run returned numpy.ndarray; expected None: the result goes to"),
        ({"estimate": 1.0, "run": lambda call: np.copyto(host_array(call.d), np.ones(7))}, "run raised ValueError: "),
    ],
)  # fmt: skip
def test_a_provider_that_fails_is_named_and_the_next_call_works(given, reason):
    registration = register_provider(Own(**given))
    try:
        with pytest.raises(ProviderError, match=re.escape(f"provider own, kernel own_f64: {reason}")):
            cutlass_py.gemm(A, B)
        assert (cutlass_py.gemm(A, B, kernel="cpu_gemm_numpy") == A @ B).all()
        assert (cutlass_py.gemm(A.astype("f4"), B.astype("f4")) == A @ B).all()  # of another dtype: it is not asked
    finally:
        registration.unregister()
    assert (cutlass_py.gemm(A, B) == A @ B).all()


def test_what_a_run_raises_is_kept_as_the_cause():
    with register_kernel(metadata(), fails):
        with pytest.raises(ProviderError) as caught:
            cutlass_py.gemm(A, B, kernel="own_f64")
        assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_not_the_providers_fault_passes(error):
    def stops(call):
        raise error

    with register_kernel(metadata(), stops), pytest.raises(error):
        cutlass_py.gemm(A, B, kernel="own_f64")
