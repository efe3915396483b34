"""Kernels that users bring, without a GPU: judged, ranked, run on the CPU, failing, tuned on a clock of ours."""

from __future__ import annotations

import gc
import re
import sys
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import ml_dtypes  # noqa: F401
import numpy as np
import pytest
from own_kernels import HOST, A, B, Own, fails, metadata, multiply
from specs import DEVICE, listed, problem, vector

import cutlass_py
from cutlass_py import (
    GemmArguments,
    NoKernelError,
    OperandMetadata,
    Provider,
    ProviderError,
    Status,
    TensorSpec,
    _core,
    explain,
    get_kernels,
    register_kernel,
    register_provider,
)
from cutlass_py.arrays import frameworks
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.arrays.host import host_array
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.candidates import rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.operation import class_of

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# ---------------------------------------------------------------------------------------- chosen


def test_an_estimate_lets_a_kernel_compete():
    provider = Own(estimate=lambda p: 5.0 if p.n == 5 else None)
    assert (cutlass_py.gemm(A, B) == A @ B).all()
    with register_provider(provider):
        assert (cutlass_py.gemm(A, B) == A @ B).all() and provider.calls == 1  # the plan from before is forgotten
        cutlass_py.gemm(A, B[:, :4])
        cutlass_py.gemm(A, B, bias=np.ones(5))
        assert provider.calls == 1  # no estimate, and not its problem: NumPy's
        text = str(explain(GemmArguments(A, B)))
        assert "chosen: own_f64\n  estimated 5.0 us" in text and "no estimate  cpu_gemm_numpy" in text
    assert (cutlass_py.gemm(A, B) == A @ B).all() and provider.calls == 1


def test_the_faster_of_two_estimates():
    slow, fast = Own(metadata("slow"), estimate=9.0), Own(metadata("fast"), estimate=3.0)
    fast.name = "fast"
    with register_provider(slow), register_provider(fast):
        assert [choice.route.kernel.name for choice in rank(GemmArguments(HOST, HOST).problem)] == [
            "fast", "slow", "cpu_gemm_numpy",
        ]  # fmt: skip


def test_without_an_estimate_only_by_name():
    provider = Own()
    with register_provider(provider):
        cutlass_py.gemm(A, B)
        assert provider.calls == 0
        d = np.empty((3, 5))
        assert cutlass_py.gemm(A, B, alpha=2.0, out=d, kernel="own_f64") is d
        assert provider.calls == 1 and (d == 2 * A @ B).all()


def test_on_a_device_it_is_taken_where_nothing_else_fits(built):
    built([])
    args = problem(64, 64, 64)
    own = metadata(dtype="bf16", accumulator="f32", cc=(80, 999))
    with pytest.raises(NoKernelError):
        plan(args.problem)
    with register_kernel(own, multiply) as registration:
        (kernel,) = registration.kernels
        assert plan(args.problem).provided == kernel.call and plan(args.problem).kernel is None
        with pytest.raises(NoKernelError):
            plan(args.problem, provided=False)
        asked = _core.problem(args.a, args.b, kernel="own_f64", **args.keywords)
        assert plan(asked).provided == kernel.call
        with pytest.raises(ValueError, match="inside of a compiled computation"):
            plan(asked, provided=False)


def test_jax_computations_leave_python_out(built, monkeypatch):
    jax = pytest.importorskip("jax")
    import cutlass_py.jax as cj

    built(["sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_pingpong_linear"])
    monkeypatch.setattr(_core, "scratch_bytes", lambda *_: 0)  # the kernel is not there
    own = metadata(dtype="bf16", accumulator="f32", cc=(80, 999))
    x = jax.ShapeDtypeStruct((512, 512), "bfloat16")
    with register_kernel(own, multiply, estimate=lambda p: 0.001):
        assert plan(problem().problem).provided
        traced = jax.jit(lambda a, b: cj.gemm(a, b, layout="tn")).trace(x, x)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
        assert "sm90_gemm_bf16" in text


# ---------------------------------------------------------------------------------------- judged


F64 = {name: OperandMetadata("f64", "t", 16) for name in ("a", "b", "d")}
ALIGNED_A = F64 | {name: OperandMetadata("f64", "t") for name in ("b", "d")}
WIDE_C = {name: OperandMetadata("f64") for name in ("a", "b", "d")} | {"c": OperandMetadata("f64", "t", 16)}


@pytest.mark.parametrize(
    ("fields", "args", "reason"),
    [
        ({}, GemmArguments(HOST, HOST), None),
        ({}, problem(dtype="f64"), f"runs on the CPU; the operands are on {DEVICE}"),
        ({"cc": (80, 999)}, GemmArguments(HOST, HOST), "runs on a GPU; the operands are on cpu"),
        (
            {"cc": (80, 89)},
            problem(dtype="f64"),
            "runs on compute capability 8.0 to 8.9; an absent NVIDIA H200 has 9.0",
        ),
        ({"cc": (80, 999)}, problem(dtype="f32"), "multiplies f64; the operands are f32"),
        ({"cc": (80, 999), "dtype": "f32", "accumulator": "f32"}, problem(dtype="tf32"), "the operands are tf32"),
        ({"cc": (80, 999), "dtype": "f16", "accumulator": "f32"}, problem(dtype="f16", compute="f16"), None),
        (
            {"cc": (80, 999), "dtype": "f16", "accumulator": "f16"},
            problem(dtype="f16"),
            "sums in f16; f32 is asked for",
        ),
        ({"cc": (80, 999), "dtype": "*", "accumulator": "*"}, problem(dtype="e4m3", out_dtype="f16"), None),
        ({"cc": (80, 999)}, problem(dtype="f64", out_dtype="f32"), "writes f64; out is f32"),
        ({"cc": (80, 999)}, problem(layout="nn", dtype="f64"), None),
        ({"cc": (80, 999), "operands": F64}, problem(layout="tt", dtype="f64"), None),
        ({"cc": (80, 999), "operands": F64}, problem(dtype="f64"), "reads b row-major; it is column-major"),
        (
            {"cc": (80, 999), "operands": F64},
            problem(k=511, layout="tt", dtype="f64"),
            "reads vectors of 2 along k; k is",
        ),
        ({"cc": (80, 999)}, GemmArguments(vector((64, 64), "f64", [128, 2]), vector((64, 64), "f64")), None),
        ({"cc": (80, 999)}, problem(dtype="f64", bias=vector(512, "f64")), "adds no bias along n"),
        ({"cc": (80, 999), "epilogue": "bias_relu"}, problem(dtype="f64", bias=vector(512, "f64")), "computes relu("),
        (
            {"cc": (80, 999), "epilogue": "bias_relu"},
            problem(dtype="f64", bias=vector(512, "f64"), activation="relu"),
            None,
        ),
        ({"cc": (80, 999)}, problem(dtype="f64", alpha=vector(1, "f64")), "takes factors as numbers"),
        ({"cc": (80, 999)}, problem(dtype="f64", splits=4), "splits k as it likes; splits=4 is asked for"),
        ({"cc": (80, 999)}, problem(dtype="f64", splits="stream"), "splits k as it likes; splits='stream' is"),
        (
            {"cc": (80, 999)},
            GemmArguments(listed(64, 64, "t", "f64"), listed(64, 64, "t", "f64")),
            "the operands are lists of matrices",
        ),
        (
            {"cc": (80, 999), "epilogue": "linearc", "operands": WIDE_C},
            problem(layout="tt", dtype="f64", c=vector((512, 512), "f64")),
            None,
        ),
        (
            {"cc": (80, 999), "epilogue": "linearc", "operands": WIDE_C},
            problem(layout="tt", dtype="f64", c=vector((512, 512), "f64", alignment=8)),
            "takes c by 16 bytes; it is aligned to 8",
        ),
        (
            {
                "cc": (80, 999),
                "epilogue": "linearc",
                "operands": F64 | {"d": OperandMetadata("*"), "c": OperandMetadata("f64")},
            },
            problem(layout="tt", dtype="f64", out_dtype="f32", c=vector((512, 512), "f32")),
            "takes c in f64; it is f32",
        ),
        (
            {
                "cc": (80, 999),
                "epilogue": "gate_relu",
                "operands": F64 | {"gate": WIDE_C["c"], "d": OperandMetadata("f64")},
            },
            problem(layout="tt", dtype="f64", activation="relu", gate=vector((512, 512), "f64", alignment=8)),
            "takes gate by 16 bytes; it is aligned to 8",
        ),
        (
            {"cc": (80, 999), "epilogue": "bias", "operands": F64 | {"bias": OperandMetadata("f64", "n", 16)}},
            problem(layout="tt", dtype="f64", bias=vector(512, "f64", alignment=8)),
            "takes bias by 16 bytes; it is aligned to 8",
        ),
        (
            {"operands": F64, "api": 3},
            GemmArguments(TensorSpec((8, 7), "f64", (8, 1), "cpu"), TensorSpec((7, 8), "f64", device="cpu")),
            "reads vectors of 2 along k; k is 7",
        ),
        ({"operands": ALIGNED_A}, GemmArguments(HOST, TensorSpec((8, 5), "f64", device="cpu", alignment=8)), None),
        (
            {"operands": ALIGNED_A},
            GemmArguments(TensorSpec((8, 8), "f64", device="cpu", alignment=8), HOST),
            "reads a by 16 bytes; it is aligned to 8",
        ),
        ({}, GemmArguments(HOST, HOST, alpha=0.0), "multiplies; there is no product"),
        ({}, GemmArguments(HOST, HOST, c=HOST), "does not read c; c is given"),
    ],
)
def test_metadata_decide_by_themselves(fields, args, reason):
    with register_kernel(metadata(**fields), multiply) as registration:
        found = registration.kernels[0].supports(args)
    assert bool(found) == (reason is None), found
    assert reason is None or reason in found.error


def test_a_way_of_its_own_to_judge():
    odd = Own(supports=lambda p: Status(None if p.n % 2 else "computes odd extents"))
    with register_provider(odd) as registration:
        assert registration.kernels[0].supports(GemmArguments(A, B))
        assert registration.kernels[0].supports(GemmArguments(HOST, HOST)).error == "computes odd extents"
        with pytest.raises(ValueError, match="kernel own_f64 does not fit .*: computes odd extents"):
            cutlass_py.gemm(A, B[:, :4], kernel="own_f64")


def test_a_formula_that_the_package_does_not_know_needs_one():
    strange = metadata(epilogue="sin(acc)")
    reason = "own_f64: epilogue is 'sin\\(acc\\)'; expected a name of EPILOGUES, or a provider with its own supports"
    with pytest.raises(ValueError, match=reason):
        register_kernel(strange, multiply)
    with pytest.raises(ProviderError, match=reason):
        register_provider(
            type("Plain", (Provider,), {"name": "plain", "kernels": lambda self: [strange], "run": fails})()
        )
    with register_kernel(metadata(epilogue="alpha * acc"), multiply) as registration:
        assert registration.kernels[0].supports(GemmArguments(A, B))
    with register_provider(Own(strange)):  # its own supports asks Provider's
        with pytest.raises(ProviderError, match=reason):
            cutlass_py.gemm(A, B, kernel="own_f64")
    with register_provider(Own(metadata(epilogue="sin(acc)"), supports=lambda p: Status())):
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == A @ B).all()


def test_only_kernels_that_promise_it_are_deterministic():
    with register_kernel(metadata(deterministic=False), multiply, estimate=lambda p: 1.0):
        names = [
            [choice.route.kernel.name for choice in rank(GemmArguments(HOST, HOST, deterministic=promised).problem)]
            for promised in (False, True)
        ]
    assert names == [["own_f64", "cpu_gemm_numpy"], ["cpu_gemm_numpy"]]


def test_a_kernel_that_does_not_promise_it_is_refused_by_name():
    reason = "need not give the same bits again; deterministic=True is asked for"
    args = GemmArguments(A, B, deterministic=True)
    with register_kernel(metadata(deterministic=False), multiply) as registration:
        assert registration.kernels[0].supports(args).error == reason
        assert f"own_f64: {reason}" in str(explain(args))
        with pytest.raises(ValueError, match=f"kernel own_f64 does not fit .*: {reason}"):
            cutlass_py.gemm(A, B, deterministic=True, kernel="own_f64")
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == A @ B).all()


# ---------------------------------------------------------------------------------------- compiled


def test_compile_asks_the_provider():
    compiled = []
    provider = Own(estimate=1.0)
    with register_provider(provider) as registration:
        (kernel,) = registration.kernels
        kernel.compile()  # nothing, by default
        provider.compile = compiled.append
        artifact = kernel.compile(GemmArguments(A, B))
        assert compiled == [kernel.metadata] and artifact.kernel == "own_f64" and kernel.compiled
        cutlass_py.gemm(A, B)
        assert len(compiled) == 1 and kernel.workspace_size(GemmArguments(A, B)) == 0
        with pytest.raises(ValueError, match="compile: kernel own_f64 does not fit"):
            kernel.compile(GemmArguments(A, B, bias=np.ones(5)))
        provider.compile = fails
        with pytest.raises(ProviderError, match="provider own, kernel own_f64: compile raised KeyError") as caught:
            kernel.compile()
        assert isinstance(caught.value.__cause__, KeyError)


# ---------------------------------------------------------------------------------------- run


def test_operands_are_handed_over_without_a_copy():
    seen = []

    def look(call):
        a, b, d = (np.from_dlpack(x) for x in (call.a, call.b, call.d))
        seen.append((call, a.ctypes.data, a.shape, b.strides, call.b.strides, d.flags.writeable))
        assert call.a.address == a.ctypes.data and call.a.device == "cpu" and call.a.dtype == "f64"
        assert call.a.__dlpack_device__() == (1, 0) and call.stream is None and call.c is None
        d[...] = a @ b

    wide = np.arange(40.0).reshape(4, 10)[:, ::2]
    with register_kernel(metadata(), look):
        assert (cutlass_py.gemm(A, wide, kernel="own_f64") == A @ wide).all()
    call, address, shape, strides, elements, writeable = seen[0]
    assert address == A.ctypes.data and shape == (1, 3, 4) and writeable
    assert strides[1:] == wide.strides and elements[1:] == (10, 2)
    for lend in (call.a.__dlpack__, lambda: call.a.address, lambda: call.a.__array_interface__):
        with pytest.raises(BufferError, match="lent to a kernel for the length of its run"):
            lend()


def test_a_column_major_result_arrives_transposed_and_a_batch_in_one_piece():
    shapes = []

    def look(call):
        shapes.append((call.a.shape, call.b.shape, call.d.shape, call.a.strides[0]))
        multiply(call)

    with register_kernel(metadata(), look):
        out = np.empty((5, 3)).T
        assert (cutlass_py.gemm(A, B, out=out, kernel="own_f64") == A @ B).all()
        batch = np.arange(40.0).reshape(2, 4, 5)
        assert (cutlass_py.gemm(A, batch, kernel="own_f64") == A @ batch).all()
    assert shapes == [((1, 5, 4), (1, 4, 3), (1, 5, 3), 0), ((2, 3, 4), (2, 4, 5), (2, 3, 5), 0)]


def test_every_operand_of_the_formula_arrives():
    seen = []

    def look(call):
        seen.append(call)
        assert call.alpha.shape == () and call.scale_a.strides[2] == 0 and call.bias.strides == (0, 0, 1)
        assert call.bias_grad.shape == (1, 1, 5) and call.activation == "gelu" and call.problem.n == 5
        host_array(call.d)[...], host_array(call.aux)[...], host_array(call.bias_grad)[...] = 1, 2, 3

    every = Own(metadata(dtype="*", accumulator="*"), run=look, supports=lambda p: Status())
    x, aux, grad = A.astype("f4"), np.zeros((3, 5), "f4"), np.zeros(5, "f4")
    with register_provider(every):
        d = cutlass_py.gemm(
            x, B.astype("f4"), c=aux.copy(), beta=0.5, alpha=np.ones(1, "f4"), bias=np.ones(5, "f4"), activation="gelu",
            aux=aux, scale_a=np.ones(3, "f4"), scale_out=2.0, bias_grad=grad, kernel="own_f64",
        )  # fmt: skip
    assert (d == 1).all() and (aux == 2).all() and (grad == 3).all()
    assert seen[0].scale_out == 2.0 and seen[0].beta == 0.5 and seen[0].gate is None and seen[0].scale_b is None


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "e4m3", "s8", "u8", "c64", "c128"])
def test_numpy_reads_every_dtype(dtype):
    name, seen = DTYPES[dtype].numpy, []

    def look(call):
        assert np.asarray(call.a).view(name).dtype.name == name  # as docs/providers.md has it
        seen.append((host_array(call.a).dtype.name, host_array(call.b).copy()))

    x = np.arange(6).reshape(2, 3).astype(name)
    every = Own(metadata(dtype="*", accumulator="*"), run=look, supports=lambda p: Status())
    with register_provider(every):
        cutlass_py.gemm(x, x[:, ::-1].T, kernel="own_f64")
        cutlass_py.gemm(x[:, :0], x[:, :0].T, kernel="own_f64")
    assert seen[0][0] == name and (seen[0][1] == x[:, ::-1].T).all() and seen[1][1].shape == (1, 0, 2)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_take_what_is_lent(framework):
    pytest.importorskip(framework)
    import jax
    import torch

    def product(call):
        if framework == "torch":
            a, b, d = (torch.from_dlpack(x) for x in (call.a, call.b, call.d))
            torch.matmul(a, b, out=d)
        else:
            with jax.enable_x64(True):
                a, b = (jax.numpy.array(host_array(x)) for x in (call.a, call.b))
                host_array(call.d)[...] = a @ b

    with register_kernel(metadata(), product):
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == A @ B).all()
        x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
        assert torch.equal(cutlass_py.gemm(x, x.mT, kernel="own_f64"), x @ x.mT)


def test_bf16_goes_to_torch():
    torch = pytest.importorskip("torch")

    def product(call):
        assert torch.from_dlpack(call.a).dtype == torch.bfloat16
        torch.matmul(*(torch.from_dlpack(x) for x in (call.a, call.b)), out=torch.from_dlpack(call.d))

    x = np.ones((4, 4), "bfloat16")
    with register_kernel(metadata(dtype="bf16", accumulator="f32"), product):
        assert (cutlass_py.gemm(x, x, kernel="own_f64") == 4).all()


def test_a_prepared_call_and_a_run():
    with register_kernel(metadata(), multiply) as registration:
        (kernel,) = registration.kernels
        args = GemmArguments(A, B, alpha=2.0)
        prepared = kernel.plan(args)
        assert (kernel.run(args, kernel.compile(args)) == 2 * A @ B).all() and kernel.workspace_size(args) == 0
        assert (prepared(A + 1, B) == 2 * (A + 1) @ B).all()
    assert (prepared(A, B) == 2 * A @ B).all()  # it keeps what it was made with


def test_a_plan_and_what_runs_it_are_collected_together():
    def product(call):
        multiply(call)

    with register_kernel(metadata(), product) as registration:
        product.plan = registration.kernels[0].plan(GemmArguments(A, B))
    assert (product.plan() == A @ B).all()
    gone = weakref.ref(product)
    del product, registration
    gc.collect()
    assert gone() is None


def test_the_stream_of_a_call_becomes_the_current_one_of_imported_frameworks(monkeypatch):
    entered = []

    @contextmanager
    def under(device, stream):
        entered.append((device, stream))
        yield
        entered.append("left")

    here = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    absent = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    rows = {
        name: frameworks.Framework(name, lambda *_: None, under=under)
        for name in ("there", "without_cuda", "not_imported")
    }
    monkeypatch.setattr(frameworks, "_ROWS", rows)
    monkeypatch.setitem(sys.modules, "there", here)
    monkeypatch.setitem(sys.modules, "without_cuda", absent)
    with frameworks.launching_on(2, 77):
        assert entered == [(2, 77)]
    assert entered == [(2, 77), "left"]


# ---------------------------------------------------------------------------------------- failing


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


# ---------------------------------------------------------------------------------------- tuned


@pytest.fixture
def clock(table, monkeypatch):
    """A device on which kernels of providers take 1 us and all others 10."""
    monkeypatch.setattr(
        _core, "measure", lambda p, plans, rounds: [[1.0 if x.provided else 10.0] * rounds for x in plans]
    )
    info = {"name": ABSENT.name, "cc": 90, "sm_count": 132, "driver": 13000}
    monkeypatch.setattr(_core, "device_info", lambda ordinal: info)
    monkeypatch.setattr(_core, "clusters_at_once", lambda ordinal: ABSENT.clusters)


def test_tuning_measures_it_and_selection_takes_it_from_then_on(built, clock):
    built(["sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_pingpong_linear"])
    args, own = problem(), metadata(dtype="bf16", accumulator="f32", cc=(80, 999))
    with register_kernel(own, multiply):
        assert plan(args.problem).kernel
        best = cutlass_py.tune(args, candidates=1).best.choice  # beyond what can be ranked
        assert best.route.kernel.name == "own_f64"
        assert plan(args.problem).provided
        assert "chosen: own_f64\n  measured 1.0 us" in str(explain(args))
        with tuned.afresh():
            assert plan(args.problem).kernel
        assert plan(args.problem).provided
        assert not tuned.table(ABSENT) and not tuned.read(tuned.path_of(ABSENT), ABSENT)
    assert plan(args.problem).kernel
    with register_kernel(own, multiply):
        assert plan(args.problem).kernel  # another kernel, whatever its name: nobody has measured it


def test_a_table_that_names_a_registered_kernel_means_another(built, clock):
    name = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_pingpong_linear"
    built([name])
    args, own = problem(), metadata(dtype="bf16", accumulator="f32", cc=(80, 999))
    tuned.record(ABSENT, {class_of(args.problem): tuned.Entry("own_f64", 1, 0, 1, 0.5, 13000, "")})
    with register_kernel(own, multiply):
        assert not tuned.lookup(args.problem, ABSENT) and plan(args.problem).kernel == name
        cutlass_py.tune(args, candidates=1)
        assert plan(args.problem).provided
        tuned.record(ABSENT, {class_of(args.problem): tuned.Entry(name, 1, 0, 1, 0.5, 13000, "")})
        assert plan(args.problem).kernel == name  # what was measured last


@pytest.mark.parametrize("reason", [True, False, 3])
def test_a_status_without_words(reason):
    with register_provider(Own(supports=lambda p: Status(reason))):
        with pytest.raises(ProviderError, match="supports returned a Status of .*; expected a reason, or None"):
            cutlass_py.gemm(A, B, kernel="own_f64")
        with pytest.warns(RuntimeWarning, match="returned a Status of"):
            cutlass_py.gemm(A, B)
