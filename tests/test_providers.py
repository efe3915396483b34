"""Kernels that users bring, without a GPU: judged, ranked against the package's, tuned on a clock of ours."""

from __future__ import annotations

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
    register_kernel,
    register_provider,
)
from cutlass_py.arrays.gpu import ABSENT
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
        ({"epilogue": "fused_gated"}, GemmArguments(HOST, HOST, gated="relu"), None),
        (
            {"epilogue": "fused_gated"},
            GemmArguments(HOST, HOST, gated="relu_interleaved"),
            "takes gates, then values; here a value lies behind each gate",
        ),
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
