"""Metadata of kernels that multiply: what CUTLASS's say of themselves, and what those of users may say.

provider.py asks this about the metadata of kernels that users bring.
"""

from __future__ import annotations

from functools import cache

from ..._core import Problem
from ...arrays.gpu import Gpu, gpu_of
from ...declaration.config import SCHEDULES
from ...declaration.dtypes import ARITHMETICS, DTYPES, PAIRS, STORAGE
from ...declaration.epilogues import EPILOGUES, Epilogue
from ...declaration.operands import OPERANDS
from ...declaration.shared_memory import stages_3x
from ...kernels.adaptation import Way
from ...kernels.kernel import CutlassKernel, Status
from ...kernels.metadata import CPU, Design, KernelMetadata, OperandMetadata
from .legality import Interface

# ---------------------------------------------------------------------------------------------------- of CUTLASS


def metadata_of(kernel: CutlassKernel) -> KernelMetadata:
    """From the declaration, and from the compiled kernel where there is one."""
    c, facts, interface = kernel.config, kernel.facts or {}, kernel.interface
    assert isinstance(interface, Interface)
    stages = facts.get("stages") or c.stages
    if not stages and not c.own_source and c.epilogue in EPILOGUES:  # of others it is not foreseen
        stages = _fitting(c.a, c.d, c.tile, c.schedule, c.epilogue)
    design = Design(
        c.tile, c.cluster, c.schedule, stages, facts.get("threads", 0), facts.get("smem_bytes", 0), kernel.name
    )
    invariant = kernel.batch_invariant and not interface.stream_k and not SCHEDULES[c.schedule].gemv
    return KernelMetadata(
        kernel.name, dict(operands_of(interface)), c.accumulator, interface.epilogue.formula, c.family, c.api, design,
        kernel.family.cc, kernel.deterministic, invariant,
    )  # fmt: skip


@cache
def _fitting(a: str, d: str, tile: tuple[int, int, int], schedule: str, epilogue: str) -> int:
    return stages_3x(a, d, tile, SCHEDULES[schedule], EPILOGUES[epilogue])


@cache
def operands_of(i: Interface) -> dict[str, OperandMetadata]:
    """The operands that kernels of an interface read and write as they lie."""
    epilogue, output = i.epilogue, OperandMetadata(i.d, "t", i.bytes_d)
    bytes_a, bytes_b = i.bytes_ab
    operands = {
        "a": OperandMetadata(DTYPES[i.a].stored, i.layout[0], bytes_a),
        "b": OperandMetadata(DTYPES[i.b].stored, i.layout[1], bytes_b),
        "d": output,
    }
    operands |= {"c": output} if epilogue.source else {}
    operands |= {"gate": output} if epilogue.gated and not epilogue.derivative and not epilogue.pairs else {}
    operands |= {"aux": output} if epilogue.aux or (epilogue.gated and (epilogue.derivative or epilogue.told)) else {}
    operands |= {"bias_grad": OperandMetadata("f32", "n", 4)} if epilogue.bias_grad else {}
    if i.block:
        operands["scale_a"] = OperandMetadata("f32", "n", 16) if i.tma_scales else OperandMetadata("f32", "*", 4)
        operands["scale_b"] = OperandMetadata("f32", "*", 4)
    axis = epilogue.bias if len(epilogue.bias) == 1 else "*"
    operands |= {"bias": OperandMetadata(i.bias, axis, DTYPES[i.bias].itemsize)} if epilogue.bias else {}
    return operands


# ---------------------------------------------------------------------------------------------------- of NumPy

_ANY = {"d" if x.name == "out" else x.name: OperandMetadata("*") for x in OPERANDS["gemm"] if x.shape != "factor"}
_FORMULA = (
    "scale_out * f(z), f(gate) * z or f'(aux) * z; (aux = z) and (bias_grad = sum of f(z)); "
    "z = alpha * scale_a * scale_b * acc + beta * c + bias"
)
HOST = KernelMetadata("cpu_gemm_numpy", _ANY, "*", _FORMULA, family="cpu_gemm", cc=CPU, batch_invariant=True)

# ---------------------------------------------------------------------------------------------------- of users

_FORMULAS = {e.formula: e for e in EPILOGUES.values()}
_LIKE_D = tuple(x.name for x in OPERANDS["gemm"] if x.shape == "result" and x.name != "out")
# The layouts that each operand may have: D, and what lies like it, is row-major; a vector goes along n or m.
_BY_SHAPE = {
    "left": ("t", "n", "*"), "right": ("t", "n", "*"), "result": ("t", "*"), "vector": ("n", "m", "*"),
    "sum": ("n", "m", "*"), "rows": ("t", "n", "m", "*"), "columns": ("t", "n", "m", "*"),
}  # fmt: skip
_LAYOUTS = {"d" if x.name == "out" else x.name: _BY_SHAPE[x.shape] for x in OPERANDS["gemm"] if x.shape in _BY_SHAPE}
_ALIGNMENTS = (1, 2, 4, 8, 16)  # bytes: a Problem tells no more
FACTORS = tuple(dict.fromkeys(x.operand for x in ARITHMETICS))  # dtypes that are multiplied
SUMS = tuple(dict.fromkeys(x.accumulator for x in ARITHMETICS))
_HOST = Gpu("the CPU", 0, 1, 0.0)


def metadata_fits(m: KernelMetadata, p: Problem) -> Status:
    """Whether a problem is what the metadata say: device, dtypes, layouts, alignments, sums and epilogue.

    Factors have to be numbers, and there has to be a product.

    Raises:
        ValueError: the metadata's epilogue is none of the package's formulas, which nothing can be concluded from.
    """
    gpu = gpu_of(p)
    if (m.cc == CPU) != (gpu is None):
        return Status(f"runs on {'the CPU' if m.cc == CPU else 'a GPU'}; the operands are on {p.device}")
    if p.empty_product:
        return Status("multiplies; there is no product (k = 0 or alpha = 0)")
    if p.device_alpha or p.device_beta or p.scale_out == "s":
        return Status("takes factors as numbers; one of them is an array")
    if p.interleaved:
        return Status("takes gates, then values; here a value lies behind each gate")
    way = _interface(m, p).way(p, gpu or _HOST)
    if isinstance(way, Way):
        return Status(way.detours[0] if way.detours else _other_than_said(m, p))
    return Status(way)


def _other_than_said(m: KernelMetadata, p: Problem) -> str | None:
    """Why c, gate, aux or bias is not as the metadata say of it: an Interface expects of all of them what D is."""
    for name in (*_LIKE_D, "bias"):
        said, dtype = m.operands.get(name), getattr(p, name)
        if not said or not dtype:
            continue
        if said.dtype not in ("*", dtype):
            return f"takes {name} in {said.dtype}; it is {dtype}"
        if (align := getattr(p, f"align_{name}")) < said.alignment:
            return f"takes {name} by {said.alignment} bytes; it is aligned to {align}"
    return None


def _interface(m: KernelMetadata, p: Problem) -> Interface:
    """Metadata as legality takes them; where they say "*", what the problem has."""
    if unknown := _unknown_formula(m):
        raise ValueError(unknown)
    a, b, d = (m.operands[name] for name in ("a", "b", "d"))
    dtypes = {"a": (a.dtype, p.operand_a), "b": (b.dtype, p.operand_b), "d": (d.dtype, p.d)}
    dtypes["accumulator"] = (m.accumulator, p.accumulator)
    known = {name: str(asked) if said == "*" else said for name, (said, asked) in dtypes.items()}
    return Interface(
        api=0,  # which metadata say for people alone
        cc=m.cc,
        bias=str(p.bias or known["d"]),
        layout=a.layout + b.layout,
        epilogue=_formula(m),
        align_a=a.alignment // DTYPES[known["a"]].itemsize or 1,
        align_b=b.alignment // DTYPES[known["b"]].itemsize or 1,
        align_d=d.alignment // DTYPES[known["d"]].itemsize or 1,
        granules=False,
        stream_k=False,
        pointers=False,
        block=0,
        tma_scales=False,
        takes_lists=False,
        bias_as_c=False,
        lean=False,
        grouping="",
        **known,
    )


def mistake(m: KernelMetadata, usual: bool) -> str | None:
    """What is wrong with metadata of a product in themselves; with `usual`, where `metadata_fits` is to be asked."""
    if missing := [name for name in ("a", "b", "d") if name not in m.operands]:
        return f"{m.name} has no operand {', '.join(missing)}"
    for name, x in m.operands.items():
        if wrong := _operand_mistake(name, x):
            return f"{m.name}{wrong}"
    if m.accumulator not in ("*", *SUMS):
        return f"{m.name}: accumulator is {m.accumulator!r}; expected one of {', '.join(SUMS)}, or '*'"
    if wrong := product_mistake(m.operands["a"].dtype, m.operands["b"].dtype, m.accumulator):
        return f"{m.name}: {wrong}"
    return (_unknown_formula(m) or _contradiction(m)) if usual else None


def _contradiction(m: KernelMetadata) -> str | None:
    """Why no problem is both what the metadata say of an operand and what is concluded from the rest."""
    d, axis = m.operands["d"].dtype, _formula(m).bias
    for name in _LIKE_D:
        said = m.operands.get(name, OperandMetadata("*")).dtype
        if "*" not in (d, said) and said != d:
            return f"{m.name}: {name} is {said!r}; expected d's dtype, {d!r}, or a provider with its own supports"
    along = m.operands.get("bias", OperandMetadata("*")).layout
    if axis and along not in ("*", *axis):
        expected = " or ".join(map(repr, axis))
        return f"{m.name}: bias has layout {along!r}; expected {expected}, as epilogue {m.epilogue!r} has it"
    return None


def _operand_mistake(name: str, x: OperandMetadata) -> str | None:
    if name not in _LAYOUTS:
        return f" has an operand {name!r}; expected {', '.join(_LAYOUTS)}"
    dtypes = FACTORS if name in ("a", "b") else tuple(STORAGE)
    if x.dtype not in ("*", *dtypes):
        return f": {name} is {x.dtype!r}; expected one of {', '.join(dtypes)}, or '*'"
    if x.layout not in _LAYOUTS[name]:
        return f": {name} has layout {x.layout!r}; expected {', '.join(map(repr, _LAYOUTS[name]))}"
    if type(x.alignment) is not int or x.alignment not in _ALIGNMENTS:
        return f": {name} has alignment {x.alignment!r}; expected bytes: {', '.join(map(str, _ALIGNMENTS))}"
    if x.layout == "*" and x.dtype != "*" and x.alignment > DTYPES[x.dtype].itemsize:
        return f": {name} has any strides and an alignment of {x.alignment}; expected one of an element"
    return None


def product_mistake(a: str, b: str, accumulator: str) -> str | None:
    """Why gemm never asks for such a product: it does not multiply the dtypes with each other, or not sum them so."""
    partners = next((pair for pair in PAIRS if a in pair), (a,))
    if "*" not in (a, b) and b not in partners:
        return f"b is {b!r}; expected what {a} is multiplied with: {', '.join(partners)}"
    sums = dict.fromkeys(x.accumulator for x in ARITHMETICS if x.operand in (a, b))
    if sums and accumulator not in ("*", *sums):
        return f"accumulator is {accumulator!r}; expected what {a if a != '*' else b} is summed in: {', '.join(sums)}"
    return None


def _unknown_formula(m: KernelMetadata) -> str | None:
    """Why nothing can be concluded from an epilogue."""
    if m.epilogue in EPILOGUES or m.epilogue in _FORMULAS:
        return None
    return f"{m.name}: epilogue is {m.epilogue!r}; expected a name of EPILOGUES, or a provider with its own supports"


def _formula(m: KernelMetadata) -> Epilogue:
    return EPILOGUES.get(m.epilogue) or _FORMULAS[m.epilogue]
