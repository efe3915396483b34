"""Kernels as values: what they say of themselves, and what is done with one by hand: compiled, run."""

from __future__ import annotations

import copy
import pickle
import re
from typing import get_type_hints

import numpy as np
import pytest
from reference import close, matrices
from specs import CORE, problem

from cutlass_py import (
    Artifact,
    EpilogueMetadata,
    GemmArguments,
    Kernel,
    KernelMetadata,
    Status,
    TensorSpec,
    _core,
    get_kernels,
)
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.declaration.families import FAMILIES, named
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import all_kernels, kernel_named
from cutlass_py.operations.gemm.call import KernelCall

CPU = kernel_named("cpu_gemm_numpy")

# ---------------------------------------------------------------------------------------- values


def test_kernels_share_no_metadata_that_can_be_written():
    lean = next(k for k in CORE if k.family.name == "sm90_lean")
    alike = [CutlassKernel(k.config, None) for k in CORE if k.interface == lean.interface]
    known = dict(alike[1].metadata.operands)
    alike[0].metadata.operands.clear()
    assert known and alike[1].metadata.operands == known == CutlassKernel(alike[0].config, None).metadata.operands


def test_status_is_true_or_has_a_reason():
    assert Status() and Status().error is None
    assert not Status("why") and Status("why").error == "why"
    assert Status("why") == Status("why") != Status()


EPILOGUE_KINDS = {c.epilogue: CutlassKernel(c, None) for c in named("declared").values()}


@pytest.mark.parametrize("k", [*CORE[::17], CORE[-1], *EPILOGUE_KINDS.values()], ids=lambda k: k.name)
def test_metadata_describes_the_config(k):
    c, metadata, e = k.config, k.metadata, EPILOGUES[k.config.epilogue]
    assert (metadata.name, metadata.family, metadata.api) == (c.name, c.family, FAMILIES[c.family].api)
    a, b, d = (metadata.operands[x] for x in "abd")
    assert (a.layout, b.layout, d.layout) == (*c.layout, "t")
    assert (a.dtype, b.dtype, d.dtype) == tuple(DTYPES[x].storage or x for x in (c.a, c.b, c.d))
    assert set(metadata.operands) - set("abd") == {
        *("c" for _ in range(e.source)),
        *("aux" for _ in range(e.aux or e.derivative or (e.gated and e.told))),
        *("gate" for _ in range(e.gated and not e.derivative and not e.pairs)),
        *("bias" for _ in range(bool(e.bias))),
        *("bias_grad" for _ in range(e.bias_grad)),
        *(name for name in ("scale_a", "scale_b") if k.interface.block),
    }
    if e.bias_grad:
        sums = metadata.operands["bias_grad"]
        assert (sums.dtype, sums.layout, sums.alignment) == ("f32", "n", 4)
    if e.bias:
        assert metadata.operands["bias"].layout == ("*" if e.told else e.bias)
        assert metadata.operands["bias"].dtype == c.bias
    assert (metadata.design.tile, metadata.design.cluster, metadata.design.schedule) == (c.tile, c.cluster, c.schedule)
    assert metadata.accumulator == c.accumulator and metadata.epilogue == metadata.fused.formula == e.formula
    aux = "read" if e.derivative or (e.gated and e.told) else "written" if e.aux else ""
    gate = e.gated and not e.derivative and not e.pairs
    parts = (e.bias, e.activation, e.source, gate, aux, e.scaled, e.bias_grad, e.pairs)
    assert metadata.fused == EpilogueMetadata(e.name, e.formula, *parts)
    assert a.alignment in (1, 2, 4, 8, 16) and metadata.deterministic is True
    assert hash(metadata.design) == hash(k.metadata.design)


def test_an_epilogue_by_name_or_by_formula_has_the_same_parts():
    for e in EPILOGUES.values():
        found = [KernelMetadata("x", {}, "f32", epilogue=text).fused for text in (e.name, e.formula)]
        assert found[0] == found[1] and found[0].name == e.name
    assert KernelMetadata("x", {}, "f32", epilogue="sin(acc)").fused == EpilogueMetadata("", "sin(acc)")
    assert CPU.metadata.fused == EpilogueMetadata("", CPU.metadata.epilogue)


def test_stages_are_known_before_a_kernel_is_compiled():
    configs = named("declared").values()
    for c in configs:
        stages = CutlassKernel(c, None).metadata.design.stages
        assert (stages == c.stages) if c.api != 3 else stages >= 2, c.name
    for k in get_kernels():
        if isinstance(k, CutlassKernel) and not k.interface.epilogue.user:
            assert CutlassKernel(k.config, None).metadata.design.stages == k.facts["stages"], k.name


def test_what_is_no_cutlass_kernel_has_no_source():
    with pytest.raises(ValueError, match="^source: kernel cpu_gemm_numpy computes on the CPU; expected a CUTLASS"):
        CPU.source()


def test_kernels_are_kernels_and_say_whether_they_are_compiled():
    for k in all_kernels():
        assert isinstance(k, Kernel) and k.compiled == (k.name in _core.kernel_facts() or k.metadata.cc == (0, 0))
    assert repr(CORE[0]) == f"<Kernel {CORE[0].name} (not compiled)>"


# ---------------------------------------------------------------------------------------- the CPU's


def test_cpu_kernel_refuses_device_operands():
    cpu = kernel_named("cpu_gemm_numpy")
    assert cpu.supports(problem()).error == "runs on the CPU; the operands are on cuda:63"


def test_cpu_kernel_says_what_it_reads():
    """Every operand of a call, as its own argument or in its formula."""
    metadata = kernel_named("cpu_gemm_numpy").metadata
    kinds = get_type_hints(KernelCall)
    arrays = {name for name, kind in kinds.items() if kind in (_core.Operand, _core.Operand | None)}
    factors = {"alpha", "beta", "scale_out"}
    assert arrays == set(metadata.operands)
    assert arrays - {"a", "b", "d"} | factors < set(re.findall(r"\w+", metadata.epilogue))


# ---------------------------------------------------------------------------------------- run by hand


def test_a_compiled_kernel_says_where_it_is():
    artifact = CPU.compile()
    assert artifact == Artifact("cpu_gemm_numpy", "cpu", None, False)
    spec = TensorSpec((4, 4), "f32", device="cpu")
    assert CPU.compile(GemmArguments(spec, spec)) == artifact


def test_compile_and_run_refuse_what_does_not_fit(rng):
    with pytest.raises(ValueError, match="kernel cpu_gemm_numpy does not fit .*: runs on the CPU; the operands are on"):
        CPU.compile(problem())
    a, b, out = matrices(rng)
    with pytest.raises(ValueError, match="artifact is of kernel other; expected one of cpu_gemm_numpy"):
        CPU.run(GemmArguments(a, b), Artifact("other", "80", None, True))
    with pytest.raises(ValueError, match=f"kernel {CORE[0].name} does not fit"):
        kernel_named(CORE[0].name).plan(GemmArguments(a, b))


def test_run_with_an_artifact_and_a_workspace(rng):
    a, b, out = matrices(rng)
    args = GemmArguments(a, b, out=out)
    assert CPU.workspace_size(args) == 0
    for workspace in (None, np.empty(0, np.uint8), np.empty(9, np.int8)):
        out[:] = np.nan
        assert CPU.run(args, CPU.compile(), workspace=workspace) is out
        close(out, a @ b)


@pytest.mark.parametrize(
    ("workspace", "error", "message"),
    [
        (3, TypeError, "workspace is an int; expected an array"),
        (np.empty(8, np.float32), TypeError, r"workspace is f32; expected bytes \(u8\)"),
        (
            np.empty((2, 8), np.uint8),
            ValueError,
            r"workspace is \(2, 8\) with strides \(8, 1\); expected one dimension",
        ),
        (np.empty(8, np.uint8)[::2], ValueError, r"workspace is \(4,\) with strides \(2,\); expected one dimension"),
        (np.frombuffer(bytes(8), np.uint8), ValueError, "workspace is read-only"),
        (TensorSpec((8,), "u8", device="cpu"), TypeError, "workspace is a .*TensorSpec; expected an array that can be"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_a_workspace_that_does_not_do(rng, workspace, error, message):
    a, b, out = matrices(rng)
    with pytest.raises(error, match=message):
        CPU.run(GemmArguments(a, b, out=out), workspace=workspace)
    assert np.isnan(out).all()


def test_a_workspace_lies_beside_the_operands(rng):
    a, b, out = matrices(rng)
    with pytest.raises(ValueError, match="workspace shares memory with out"):
        CPU.run(GemmArguments(a, b, out=out), workspace=out.reshape(-1).view(np.uint8))


def test_kernels_are_pickled_by_name():
    for kernel in (CPU, kernel_named(CORE[0].name)):
        assert pickle.loads(pickle.dumps(kernel)) is kernel and copy.deepcopy(kernel) is kernel
