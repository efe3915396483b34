"""A call as code: a Python script of its own that makes operands like a call's and repeats it.

Operands have the call's shapes, strides, dtypes and alignments, and share memory where the call's do; their values are
random. Written for calls that failed (instrumentation.py), and for whoever wants a call's text (`script`).
"""

from __future__ import annotations

import os
import sys
import time
from cmath import isfinite
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from keyword import iskeyword
from pathlib import Path
from typing import Any

from .. import _core
from ..arrays.frameworks import carrier_of
from ..declaration.dtypes import COMPUTE, DTYPES, compute_of
from ..declaration.epilogue_ir import AXES, Node, Program
from ..declaration.epilogues import ACTIVATIONS, INTERLEAVED
from ..declaration.families import named
from ..epilogues.specialization import EpilogueSpecialization, specialization_of
from ..kernels import packs
from ..kernels.registry import kernel_by_id
from ..operations.gemm.arguments import GemmArguments
from ..operations.gemm.problem_text import describe
from ..providers.numpy import NumpyProvider
from ..providers.provider import ProvidedKernel
from ..support.versions import installed

_GRANULE = 256  # alignments beyond it make no difference


@dataclass(frozen=True)
class _Array:
    """One array: strides in elements; `address` of its first element, which may be made up."""

    name: str
    dtype: str
    device: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int

    @property
    def span(self) -> tuple[int, int]:
        """Addresses of its first byte and behind its last."""
        size, steps = DTYPES[self.dtype].itemsize, list(zip(self.shape, self.strides, strict=True))
        if 0 in self.shape:
            return self.address, self.address
        low = sum(min((extent - 1) * stride, 0) for extent, stride in steps)
        high = sum(max((extent - 1) * stride, 0) for extent, stride in steps)
        return self.address + low * size, self.address + (high + 1) * size


@dataclass
class _Block:
    """Memory that operands share; `low` is a multiple of the granule."""

    low: int
    high: int
    operands: list[_Array]


def script(args: GemmArguments, why: str = "") -> str:
    """A call as a script of its own.

    Args:
        args: the call; arrays or TensorSpecs.
        why: stands in the script's docstring.

    Raises:
        TypeError: the call is none of gemm.
    """
    if not isinstance(args, GemmArguments):
        raise TypeError(f"script: args is {_core.described_type(args)}; expected GemmArguments")
    given = {name: value for name, value in args.keywords.items() if value is not None}
    return _script(_core.call_facts(args.a, args.b, given), why)


def _script(facts: dict[str, Any], why: str) -> str:
    asked, operands = specialization_of(facts["problem"]), _operands(facts["operands"])
    own = sum(kind != "h" for kind in asked.kinds) if asked else 0  # a user's epilogue's arrays come last
    given = operands[: len(operands) - own]
    users = [replace(x, name=f"user_{x.name}") for x in operands[len(given) :]]
    operands = [*given, *users]
    library = _library(operands)
    lines = ['"""' + _title(facts, why) + '"""', "", *library.head(operands[0].device), "", "", *library.made(), ""]
    lines += _function(asked.program) if asked else []
    for number, block in enumerate(_blocks(operands)):
        lines.append(f"memory_{number} = made({block.high - block.low}, {library.dtype(block.operands[0].dtype)})")
        lines += [f"{_variable(x)} = {library.view(x, number, x.address - block.low)}" for x in block.operands]
    words = ", ".join([*_keywords(facts, given), *(_epilogue(asked, users, facts["numbers"]) if asked else ())])
    lines += ["", *_kernel_lost(facts["problem"]), f"result = cutlass_py.gemm({words})"]
    lines += [*library.wait(), "print(result)"]
    return "\n".join(lines) + "\n"


def _library(operands: Sequence[_Array]) -> _NumPy | _Torch | _CuPy:
    if operands[0].device == "cpu":
        return _NumPy()
    backwards = any(stride < 0 for operand in operands for stride in operand.strides)  # as no array of torch lies
    return _Torch() if find_spec("torch") and not backwards else _CuPy()


def _operands(found: Sequence[dict[str, Any]]) -> list[_Array]:
    """Operands by address; those without memory lie one behind the other, aligned as they say."""
    operands, free = [], 1 << 62
    for entry in found:
        aligned = entry.pop("alignment", None)
        operand = _Array(**({"address": free + aligned % _GRANULE} if aligned else {}), **entry)
        if aligned:
            free = -(-operand.span[1] // _GRANULE) * _GRANULE
        operands.append(operand)
    return operands


def _blocks(operands: Sequence[_Array]) -> list[_Block]:
    """Operands whose bytes overlap, together."""
    blocks: list[_Block] = []
    for operand in sorted(operands, key=lambda x: x.span):
        low, high = operand.span
        if blocks and low < blocks[-1].high:
            blocks[-1].operands.append(operand)
            blocks[-1].high = max(blocks[-1].high, high)
        else:
            blocks.append(_Block(low // _GRANULE * _GRANULE, high, [operand]))
    return blocks


def _variable(operand: _Array) -> str:
    return operand.name.replace("[", "_").replace("]", "")  # of a list: a[3]


def _keywords(facts: dict[str, Any], operands: Sequence[_Array]) -> list[str]:
    """The arguments of gemm. Factors that were numbers are in alpha by now."""
    given: dict[str, list[_Array]] = {}
    for operand in operands:
        given.setdefault(operand.name.split("[")[0], []).append(operand)
    names = {name: ", ".join(map(_variable, found)) for name, found in given.items()}
    names |= {name: f"[{names[name]}]" for name, found in given.items() if "[" in found[0].name}  # a list of matrices
    words = [names.pop("a"), names.pop("b"), *(f"{name}={value}" for name, value in names.items())]
    for name, usual in (("alpha", 1.0), ("beta", 1.0 if "c" in names else 0.0), ("scale_out", 1.0)):
        if name not in names and facts[name] != usual:
            words.append(f"{name}={_number(facts[name])}")
    p = facts["problem"]
    if p.pairs:
        words.append(f"gated={p.activation + INTERLEAVED * p.interleaved!r}")
    elif p.activation != "identity":
        count = len(ACTIVATIONS[p.activation].parameters)
        values = ", ".join(map(_number, facts["parameters"][:count]))
        words.append(f"activation={f'cutlass_py.{p.activation}({values})' if count else repr(p.activation)}")
    compute = compute_of(p.operand_a or "", p.accumulator or "")
    words += [f"compute={compute!r}"] if compute != next(iter(COMPUTE[p.a or ""])) else []
    words += [] if "out" in names else [f"out_dtype={p.d!r}"]
    if p.batch_invariant:  # which says the rest of this
        words += ["batch_invariant=True"]
    else:
        words += [f"splits={'stream' if p.splits < 0 else p.splits!r}"] if p.splits else []
        words += ["deterministic=True"] if p.deterministic else []
    words += [f"kernel={kernel_by_id(p.kernel).name!r}"] if p.kernel >= 0 and not _kernel_lost(p) else []
    return words


def _epilogue(asked: EpilogueSpecialization, arrays: Sequence[_Array], numbers: Sequence[float]) -> Iterator[str]:
    """The call of a user's epilogue."""
    values, variables = map(_number, numbers), map(_variable, arrays)
    given = (next(values if kind == "h" else variables) for kind in asked.kinds)
    found = dict(zip(asked.program.names, given, strict=True))
    words = [f"{name}={value}" for name, value in found.items() if not iskeyword(name)]
    others = [f"{name!r}: {value}" for name, value in found.items() if iskeyword(name)]  # as outputs may be called
    words += ["**{" + ", ".join(others) + "}"] if others else []
    yield f"epilogue=user({', '.join(words)})"


# Operations that are no functions of cutlass_py.functions.
_OPERATORS = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "equal": "==", "not_equal": "!=", "logical_and": "&", "logical_or": "|", "negative": "-",
    "logical_not": "~",
}  # fmt: skip


def _function(program: Program) -> list[str]:
    """A user's epilogue as it was traced, one line an operation."""
    first, functions = (_free(name, program) for name in ("accum", "functions"))
    head = f"def user({', '.join([first, *program.inputs])}):"
    v = "v"
    while any(name[: len(v)] == v and name[len(v) :].isdecimal() for name in program.inputs):
        v += "_"
    lines = [f"    {v}{i} = {_expression(program.nodes[i], first, functions, v)}" for i in sorted(program.used)]
    outputs = [
        f"{o.name!r}: {functions}.{o.reduction}({v}{o.node}, {AXES[o.axis]})" if o.reduction
        else f"{o.name!r}: {v}{o.node}"
        for o in program.outputs
    ]  # fmt: skip
    returned = f"{v}{program.result}" + (f", {{{', '.join(outputs)}}}" if outputs else "")
    what = f'    """{program.formula.replace(chr(34), "")}, as it was traced."""'
    return [
        f"from cutlass_py import functions{'' if functions == 'functions' else f' as {functions}'}  # noqa: E402",
        "",
        "",
        "@cutlass_py.epilogue",
        head,
        what,
        *lines,
        f"    return {returned}",
        "",
        "",
    ]


def _free(name: str, program: Program) -> str:
    """A name that no parameter has."""
    while name in program.inputs:
        name += "_"
    return name


def _expression(node: Node, first: str, functions: str, v: str) -> str:
    """What a node computes; `v` begins the names of those before."""
    x = [f"{v}{i}" for i in node.operands]
    if node.op in ("accum", "input"):
        return node.name or first
    if node.op == "constant":
        return _number(float(node.number))
    if node.op == "cast":
        return f"{functions}.cast({x[0]}, {node.name!r})"
    if sign := _OPERATORS.get(node.op):
        return f"{x[0]} {sign} {x[1]}" if len(x) > 1 else f"{sign}{x[0]}"
    return f"{functions}.{node.op}({', '.join(x)})"


def _number(value: float | complex) -> str:
    return repr(value) if isfinite(value) else f"{type(value).__name__}('{value}')"


def _kernel_lost(p: _core.Problem) -> list[str]:
    """A comment where the kernel that was asked for is one that this process brought, which a script cannot have."""
    if p.kernel < 0:
        return []
    kernel = kernel_by_id(p.kernel)
    own = isinstance(kernel, ProvidedKernel) and isinstance(kernel.provider, NumpyProvider)
    packed = (manifest.kernel for pack in packs.installed() for manifest in pack.kernels)
    if own or kernel.name in named("declared") or kernel.name in packed:
        return []
    return [f"# The call asked for kernel={kernel.name!r}, which its process brought; here gemm chooses."]


def _title(facts: dict[str, Any], why: str) -> str:
    """Docstring of the script."""
    from .. import __version__

    found = ", ".join(f"{name} {version}" for name, version in installed().items())
    where = [f"cutlass_py {__version__}", f"Python {sys.version.split()[0]}", found]
    ordinal = facts["problem"].device_id
    if 0 <= ordinal < _core.device_count():
        info = _core.device_info(ordinal)
        where.append(f"{info['name']}, driver {info['driver']}")
    said = f"\n\n{why}".replace("\\", "/").replace('"""', "'''") if why else ""
    by = f"Operands are random. Written by {', '.join(where)}."
    return f"cutlass_py.gemm of {describe(facts['problem'])}.{said}\n\n{by}\n"


# ---------------------------------------------------------------------------------------------------- libraries


class _NumPy:
    """How a script makes arrays: NumPy's on the CPU."""

    def head(self, device: str) -> list[str]:
        return ["import ml_dtypes  # noqa: F401  (bfloat16 and fp8)", "import numpy as np", "", "import cutlass_py"]

    def made(self) -> list[str]:
        return [
            "rng = np.random.default_rng(0)", "", "",
            "def made(size, dtype):", '    """Random elements in so many bytes, from a multiple of 256 on."""',
            "    raw = np.zeros(size + 512, np.uint8)", "    raw = raw[-raw.ctypes.data % 256 :][: size + 256]",
            "    elements = raw[: raw.size // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize].view(dtype)",
            "    elements[...] = (8 * rng.standard_normal(elements.size)).astype(dtype)", "    return raw", "",
        ]  # fmt: skip

    def dtype(self, name: str) -> str:
        return repr(DTYPES[name].numpy)

    def view(self, x: _Array, number: int, offset: int) -> str:
        strides = tuple(stride * DTYPES[x.dtype].itemsize for stride in x.strides)
        return f"np.ndarray({x.shape}, {self.dtype(x.dtype)}, memory_{number}, {offset}, {strides})"

    def wait(self) -> list[str]:
        return []


class _Torch:
    """torch's on a GPU."""

    def head(self, device: str) -> list[str]:
        return ["import torch", "", "import cutlass_py", "", f'device = "{device}"', "torch.manual_seed(0)"]

    def made(self) -> list[str]:
        return [
            "def made(size, dtype):", '    """Random elements in so many bytes, from a multiple of 256 on."""',
            "    raw = torch.zeros(size + 512, dtype=torch.uint8, device=device)",
            "    raw = raw[-raw.data_ptr() % 256 :][: (size + 15) // 16 * 16]", "    elements = raw.view(dtype)",
            "    elements.copy_((8 * torch.randn(elements.shape, device=device)).to(dtype))", "    return raw", "",
        ]  # fmt: skip

    def dtype(self, name: str) -> str:
        return f"torch.{DTYPES[name].numpy}"

    def view(self, x: _Array, number: int, offset: int) -> str:
        size = DTYPES[x.dtype].itemsize
        memory = f"memory_{number}.view({self.dtype(x.dtype)})"
        return f"{memory}.as_strided({x.shape}, {x.strides}, {offset // size})"

    def wait(self) -> list[str]:
        return ["torch.cuda.synchronize()"]


class _CuPy:
    """CuPy's on a GPU; what it cannot name goes as a view of integers."""

    def head(self, device: str) -> list[str]:
        ordinal = int(device.partition(":")[2] or 0)
        return ["import cupy", "", "import cutlass_py", "", f"cupy.cuda.Device({ordinal}).use()", "cupy.random.seed(0)"]

    def made(self) -> list[str]:
        return [
            "def made(size, dtype):", '    """Random bytes, as many, from a multiple of 256 on."""',
            "    return cupy.random.randint(0, 56, size + 256, dtype=cupy.uint8)", "",
        ]  # fmt: skip

    def dtype(self, name: str) -> str:
        return repr(DTYPES[name].numpy)

    def view(self, x: _Array, number: int, offset: int) -> str:
        size = DTYPES[x.dtype].itemsize
        carried = carrier_of(x.dtype)
        strides = tuple(stride * size for stride in x.strides)
        kind = repr(carried or DTYPES[x.dtype].numpy)
        array = f"cupy.ndarray({x.shape}, {kind}, memory_{number}.data + {offset}, {strides})"
        return f"cutlass_py.view({array}, {x.dtype!r})" if carried else array

    def wait(self) -> list[str]:
        return ["cupy.cuda.Device().synchronize()"]


# ---------------------------------------------------------------------------------------------------- failures


_directory: str | None = None
_written: dict[_core.Problem, str] = {}  # to that directory
_scripts = count()


def write_to(directory: str | None) -> None:
    """Where scripts of calls that fail from now on go; None: nowhere."""
    global _directory
    _directory = directory
    _written.clear()


def failed(facts: dict[str, Any], reason: str) -> str:
    """Writes the script of a call that failed, once for a class of problems; its path, "" where none is written.

    Said by instrumentation.cpp, which takes no error of this for the call's own.
    """
    if _directory is None:
        return ""
    problem = facts["problem"]
    if problem not in _written:
        place = Path(_directory)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"gemm-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_scripts)}.py"
        path.write_text(_script(facts, reason.strip().splitlines()[-1]), encoding="utf-8")
        _written[problem] = str(path)
    return _written[problem]


def note(error: BaseException, path: str) -> None:
    """Names the file in an exception that is not ours."""
    text = f"{path} repeats the call"
    if hasattr(error, "add_note"):
        error.add_note(text)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}; {text}", *error.args[1:])
