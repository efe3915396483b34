"""CUDA C++ of users' own: declared, compiled, compared, run like the package's, gone. A script stands in for nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import ml_dtypes  # noqa: F401
import pytest
from nvcc import why_not
from own_kernels import fails, metadata, multiply
from specs import listed, operand, problem, vector

import cutlass_py
from cutlass_py import (
    Artifact,
    CompileError,
    CudaKernel,
    GemmArguments,
    KernelDescription,
    OperandMetadata,
    _core,
    explain,
    get_kernels,
    register_kernel,
    register_provider,
)
from cutlass_py.compiling import compiler
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels import registry

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("nothing_is_left")


# ---------------------------------------------------------------------------------------- CUDA C++

SOURCE = '#include "kernel.h"\nextern "C" const CutlassPyKernel cutlass_py_own_f16 = {};\n'
DECLARED = CudaKernel(
    "own_f16", family="sm80_gemm", a="f16", layout="tn", tile=(64, 64, 32), warp=(32, 32, 32), stages=4, source=SOURCE
)
HALF = problem(dtype="f16")
HOPPER = {"family": "sm90_gemm", "warp": (0, 0, 0), "stages": 0}


def test_a_cuda_kernel_is_declared_as_the_packages_own_are():
    with register_kernel(DECLARED) as registration:
        (kernel,) = registration.kernels
        assert not kernel.compiled and kernel not in get_kernels() and kernel in get_kernels(compiled=False)
        assert kernel.metadata.operands["a"] == OperandMetadata("f16", "t", 16)
        assert kernel.metadata.accumulator == "f32" and kernel.metadata.cc == (80, 999)
        assert kernel.supports(HALF)
        assert "reads b column-major; it is row-major" in kernel.supports(problem(dtype="f16", layout="tt")).error
        lists = GemmArguments(listed(64, 64, "t", "f16"), listed(64, 64, "n", "f16"))
        assert "the operands are lists of matrices" in kernel.supports(lists).error
        assert kernel in explain(HALF).not_compiled
        assert kernel is get_kernels(HALF, compiled=False)[-1]  # no estimate


def test_a_cuda_kernel_is_known_to_this_process_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_INCLUDE", str(Path(__file__).parents[1] / "src" / "cpp"))
    with register_kernel(DECLARED) as registration:
        (kernel,) = registration.kernels
        assert kernel.source().endswith(SOURCE.splitlines()[1] + "\n")
        with pytest.raises(ValueError, match="own_f16 is known to this process alone"):
            Artifact("own_f16", "80", None, False).save(tmp_path / "x")
        with pytest.raises(TypeError, match="own_f16.* is no CUTLASS kernel of this package's templates"):
            KernelDescription.of(kernel)


def test_what_the_launcher_of_the_package_adds():
    args = problem(dtype="f16", bias=vector(512, "f16"))
    with register_kernel(replace(DECLARED, epilogue="linearc")) as plain:
        assert plain.kernels[0].supports(args).error.startswith("adds no bias along n")
    with register_kernel(replace(DECLARED, epilogue="linearc", gemm2x=True)) as launched:
        assert launched.kernels[0].supports(args)
        assert launched.kernels[0].supports(GemmArguments(listed(64, 64, "t", "f16"), listed(64, 64, "n", "f16")))


@pytest.mark.parametrize(("estimate", "first"), [("model", False), (lambda p: 0.5, True), (lambda p: None, False)])
def test_the_rank_of_a_cuda_kernel(estimate, first):
    with register_kernel(DECLARED, estimate=estimate) as registration:
        ranking = get_kernels(HALF, compiled=False)
        assert (ranking[0] is registration.kernels[0]) == first
        assert (ranking[-1] is registration.kernels[0]) == (estimate != "model" and not first)


def test_gemm_takes_what_ranks_first_by_an_estimate_below_the_models_bounds(built):
    built(["sm90_gemm_f16_f16_f32_f16_nn_128x256x64_1x2x1_coop_linear"])
    with register_kernel(DECLARED, estimate=lambda p: 0.01) as registration:
        registration.kernels[0].loaded({})
        registry.forget()
        p = problem(2048, 2048, 2048, layout="nn", dtype="f16").problem  # which it has packed
        assert rank(p)[0] == best(p) and best(p).route.kernel is registration.kernels[0]


@pytest.mark.parametrize(
    ("estimate", "reason"), [(fails, "estimate raised KeyError"), (lambda p: "soon", "estimate returned 'soon'")]
)
def test_an_estimate_that_fails_names_the_kernel_and_is_none(estimate, reason):
    with register_kernel(DECLARED, estimate=estimate) as registration:
        with pytest.warns(RuntimeWarning, match=f"kernel own_f16: {reason}") as told:
            for _ in range(2):
                ranking = rank(HALF.problem, compiled=False)
        assert len(told) == 1
        (choice,) = (each for each in ranking if each.route.kernel is registration.kernels[0])
        assert choice.microseconds == 0 and ranking[0] is not choice


def test_a_kernel_that_does_not_repeat_itself_says_so():
    with register_kernel(replace(DECLARED, deterministic=False), estimate=lambda p: 0.5) as registration:
        (kernel,) = registration.kernels
        assert not kernel.metadata.deterministic and kernel in get_kernels(HALF, compiled=False)
        assert kernel not in get_kernels(problem(dtype="f16", deterministic=True), compiled=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": "own-f16"}, "name is 'own-f16'; expected letters"),
        ({"family": ["sm80_gemm"]}, "family is ['sm80_gemm']; expected one of sm90_gemm"),
        ({"family": "sm70"}, "family is 'sm70'; expected one of sm90_gemm"),
        ({"a": "f15"}, "a is 'f15'; expected one of f16"),
        ({"b": "f15"}, "b is 'f15'"),
        ({"layout": "cf"}, "layout is 'cf'; expected one of tn, tt, nt, nn"),
        ({"epilogue": "sin"}, "epilogue is 'sin'"),
        ({"schedule": "fast"}, "schedule is 'fast'"),
        ({"tile": (64, 64)}, "tile is (64, 64); expected three extents"),
        ({"tile": (64, 0, 64)}, "tile is (64, 0, 64)"),
        ({"cluster": [1, 1, 1]}, "cluster is [1, 1, 1]"),
        ({"stages": -1}, "stages is -1; expected a number"),
        ({"source": ""}, "neither source nor device_type is given"),
        ({"source": "int x;"}, "the source does not mention 'own_f16'"),
        ({"align": 3}, "align is 3; expected a power of two, 8 elements at most"),
        ({"align_d": 16}, "align_d is 16"),
        ({"a": "s32"}, "a is 's32'; expected one of f16"),
        ({"d": "tf32"}, "d is 'tf32'; expected one of f16"),
        ({"b": "f32"}, "b is 'f32'; expected what f16 is multiplied with: f16"),
        ({"accumulator": "f64"}, "accumulator is 'f64'; expected what f16 is summed in: f32, f16"),
        ({"schedule": "pingpong"}, "schedule is 'pingpong'; expected one that sm80_gemm has: tiled, streamk"),
        ({"family": "simt_gemm", "schedule": "coop"}, "schedule is 'coop'; expected one that simt_gemm has"),
        ({**HOPPER, "schedule": "tiled"}, "schedule is 'tiled'; expected one that sm90_gemm has: coop, pingpong"),
        ({**HOPPER, "schedule": "cooparray"}, "schedule is 'cooparray'; expected one that sm90_gemm has"),
        ({**HOPPER, "warp": (32, 32, 32)}, "warp is (32, 32, 32); expected none"),
        ({**HOPPER, "gemm2x": True}, "gemm2x is True; expected False: sm90_gemm is of 3.x"),
        ({"cluster": (2, 1, 1)}, "cluster is (2, 1, 1); expected (1, 1, 1): sm80_gemm is of 2.x"),
        ({"tile": (16, 16, 16)}, "warp is (32, 32, 32); expected parts of the tile (16, 16, 16)"),
        ({"warp": (32, 32, 0)}, "warp is (32, 32, 0); expected parts of the tile"),
        ({"source": 5}, "source is 5; expected a str"),
        ({"device_type": None}, "device_type is None; expected a str"),
        ({"deterministic": 1}, "deterministic is 1; expected a bool"),
    ],
)
def test_a_declaration_that_is_none(changes, reason):
    with pytest.raises(ValueError, match=re.escape(f"CudaKernel: {reason}")):
        replace(DECLARED, **changes)


@pytest.mark.parametrize(
    ("family", "schedule"), [("sm90_gemm", "coop"), ("sm90_array", "cooparray"), ("sm90_streamk", "coopstreamk")]
)
def test_the_usual_schedule_is_one_of_the_family(family, schedule):
    declared = replace(DECLARED, **{**HOPPER, "family": family, "tile": (128, 128, 64)})
    assert declared.config.schedule == schedule and declared.config.takes_lists == (family == "sm90_array")


@pytest.mark.parametrize(
    ("kernel", "arguments", "error", "reason"),
    [
        (DECLARED, {"run": multiply}, TypeError, "expected no function"),
        (DECLARED, {"estimate": 3}, ValueError, "estimate is 3; expected 'model' or a function"),
        (DECLARED, {"estimate": "modle"}, ValueError, "estimate is 'modle'; expected 'model' or a function"),
        (replace(DECLARED, warp=(0, 0, 0)), {"estimate": "model"}, ValueError, "no rate for f16 in sm80_gemm"),
        (replace(DECLARED, stages=0), {"estimate": "model"}, ValueError, "no warp tile and stages"),
        (replace(DECLARED, family="simt_gemm"), {"estimate": "model"}, ValueError, "no rate for f16 in simt_gemm"),
        (replace(DECLARED, name="cpu_gemm_numpy", device_type="X"), {}, ValueError, "'cpu_gemm_numpy' already"),
    ],
)
def test_a_cuda_kernel_that_cannot_be_registered(kernel, arguments, error, reason):
    with pytest.raises(error, match=re.escape(reason)):
        register_kernel(kernel, **arguments)


FACTS = """\
#include "kernel.h"
static const CutlassPyGemmFacts facts = {"f16", "f16", "f32", "void", "f16", "%s", 2, {64, 64, 32}, {1, 1, 1},
                                         128, 49152, %d, 8, 8, 8, 8, 0};
static const CutlassPyKernel kernel = {"%s", &facts, nullptr, nullptr};
static const CutlassPyKernel* const kernels[] = {&kernel};
static const CutlassPyLibrary library = {CUTLASS_PY_ABI, 1, kernels, nullptr, nullptr};
extern "C" const CutlassPyLibrary* cutlass_py_library() { return &library; }
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Makes compiling own_f16 give a library whose kernel has these facts, and no code."""
    if not shutil.which("g++"):
        pytest.skip("no g++")

    def make(name="own_f16", layout="tn", stages=4):
        source, path = tmp_path / "kernel.cpp", tmp_path / f"{name}{layout}{stages}.so"
        source.write_text(FACTS % (layout, stages, name))
        include = [f"-I{ROOT / 'src' / 'cpp' / name}" for name in ("", "include")]
        subprocess.run(["g++", "-shared", "-fPIC", *include, str(source), "-o", str(path)], check=True)
        monkeypatch.setattr(compiler, "_include", lambda kernel: ())
        monkeypatch.setattr(compiler, "find", lambda made, any_compiler: path)

    monkeypatch.setattr(compiler, "failed", {})
    return make


def test_a_compiled_kernel_is_there_until_it_is_unregistered(library):
    library()
    with register_kernel(DECLARED, estimate=lambda p: 0.5) as registration:
        (kernel,) = registration.kernels
        before = get_kernels()
        kernel.compile()
        assert kernel.compiled and get_kernels() == [*before, kernel] and kernel.metadata.design.threads == 128
        assert "own_f16" in _core.kernel_facts() and plan(HALF.problem).kernel == "own_f16"
        with pytest.raises(ValueError, match="'own_f16' is registered already"):
            register_kernel(metadata("own_f16"), multiply)
    assert "own_f16" not in _core.kernel_facts()
    with register_kernel(DECLARED) as again:
        assert not again.kernels[0].compiled
        again.kernels[0].compile()
        assert again.kernels[0].compiled


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"layout": "nn"}, "kernel own_f16 is not what was declared: layout is 'nn', declared 'tn'"),
        ({"layout": "tt", "stages": 3}, "layout is 'tt', declared 'tn'; stages is 3, declared 4"),
        ({"name": "another"}, "the source of own_f16 names its kernel otherwise"),
    ],
)
def test_facts_that_are_not_the_declared_ones(library, facts, reason):
    library(**facts)
    with register_kernel(DECLARED, estimate=lambda p: 0.5) as registration:
        with pytest.raises(CompileError, match=re.escape(reason)):
            registration.kernels[0].compile()
        assert not registration.kernels[0].compiled and "own_f16" not in _core.kernel_facts()
        with cutlass_py.jit(), pytest.raises(CompileError, match=re.escape(reason)):
            plan(HALF.problem)  # not compiled again
        library()
        registration.kernels[0].compile()  # the source was mended
    _core.forget_kernel("another")


WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_source_through_a_real_compiler(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from own_kernel import DGEMM

    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "failed", {})
    with register_kernel(DGEMM) as registration:
        registration.kernels[0].compile()
        assert registration.kernels[0].metadata.design.threads == 256
    with register_kernel(replace(DGEMM, layout="nt")) as registration:
        with pytest.raises(CompileError, match="layout is 'tt', declared 'nt'"):
            registration.kernels[0].compile()
    wrong = replace(DGEMM, source=DGEMM.source.replace('"f64",', "f64,", 1))
    with register_kernel(wrong) as registration, pytest.raises(CompileError, match="cannot compile own_dgemm: nvcc"):
        registration.kernels[0].compile()


def test_the_cute_dsl_kernel_compiles_without_a_gpu(monkeypatch):
    pytest.importorskip("cutlass.cute", reason="nvidia-cutlass-dsl is not installed")
    if version("nvidia-cutlass-dsl").startswith("4.4.") and not _core.device_count():
        pytest.skip("CuTe DSL 4.4 asks for a driver")
    monkeypatch.syspath_prepend(ROOT / "examples")
    from own_cute_dsl import CuteDsl

    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    provider = CuteDsl()
    with register_provider(provider) as registration:
        for kernel in registration.kernels:
            kernel.compile()
        assert all(map(callable, provider.compiled.values())) and len(provider.compiled) == 2
        args = problem(dtype="f64", layout="nn")
        assert all(kernel.supports(args) for kernel in registration.kernels)
        assert not registration.kernels[0].supports(problem(dtype="f64", bias=operand(1, 512, "t", "f64")))


def test_a_kernel_that_goes_while_it_is_compiled_leaves_its_name(monkeypatch):
    """To the next one of that name."""
    registration = register_kernel(DECLARED)
    (kernel,) = registration.kernels

    def compiles(config):
        registration.unregister()
        return registry.CutlassKernel  # never looked at

    forgotten = []
    monkeypatch.setattr(compiler, "load", compiles)
    monkeypatch.setattr(_core, "forget_kernel", forgotten.append)
    with pytest.raises(CompileError, match="kernel own_f16 is not registered any more"):
        kernel.compile()
    assert forgotten[-1] == "own_f16"


def test_the_number_of_a_name_is_that_of_the_kernel_that_has_it(monkeypatch):
    """Also where one goes while it is asked for."""
    first = register_kernel(metadata("mine"), multiply)
    look = registry.kernel_named

    def slowly(name, *caller):
        found = look(name, *caller)
        thread = threading.Thread(target=first.unregister)
        thread.start()
        thread.join(0.2)  # waits for the number
        waiting.append(thread)
        return found

    waiting = []
    monkeypatch.setattr(registry, "kernel_named", slowly)
    registry.kernel_id("mine")
    waiting[0].join()
    monkeypatch.undo()
    with register_kernel(metadata("mine"), multiply) as second:
        assert registry.kernel_by_id(registry.kernel_id("mine")) is second.kernels[0]
