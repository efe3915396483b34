"""A kernel by name that computes what no function of a framework does: its problem, operands and check.

The problem is written from the kernel's declaration, with every operand that its epilogue takes. Beside the result
stands that of the CPU's kernel on some of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .._core import gemm
from ..arrays.tensor_spec import TensorSpec
from ..declaration.config import SCHEDULES, GemmConfig
from ..declaration.dtypes import DTYPES, compute_of
from ..declaration.epilogues import ACTIVATIONS, TOLD, epilogue_named
from ..operations.gemm.arguments import GemmArguments
from ..operations.gemm.problems import arguments
from ..operations.gemm.suites import Shape
from .frameworks import Framework
from .operands import Call, sets_of
from .suites import Case
from .timing import Arm

_CHECKED = 32  # rows, spread over the result
_BY_ROW = ("a", "out", "c", "gate", "aux", "bias", "scale_a")  # where they have rows
# What one operation of an arithmetic may cost, beside the rounding of sums: tf32 rounds both operands first.
ROUNDED = {"tf32": 2**-10, "tf32x3": 2**-20}
_TANH = 2**-10  # the hardware's, in kernels of 16-bit results
_FAST = 2**-13


@dataclass(frozen=True)
class KernelCase(Case):
    """A kernel and extents. `dtype` is that part of the kernel's name: A, B, accumulator, D."""

    config: GemmConfig
    compared = False

    @staticmethod
    def of(config: GemmConfig, shape: Shape) -> KernelCase:
        """The case of a kernel.

        Raises:
            ValueError: its epilogue is a user's; it takes lists of matrices, and there are too few of them.
        """
        if epilogue_named(config.epilogue).user:
            raise ValueError(f"bench: {config.name} fuses a user's epilogue, whose operands only the user knows")
        if SCHEDULES[config.schedule].pointers and shape[0] < 3:
            raise ValueError(f"bench: {config.name} takes lists of matrices: expected B M N K, with a B of 3 or more")
        dtypes = "_".join((config.a, config.b, config.accumulator, config.d))
        return KernelCase("kernel", dtypes, config.layout, shape, config)

    def problem(self) -> dict[str, Any]:
        """As in Case."""
        c, e = self.config, epilogue_named(self.config.epilogue)
        a, (batch, m, n, k) = DTYPES[c.a].stored, self.shape
        entry: dict[str, Any] = {"m": m, "n": n, "k": k, "batch": batch, "layout": c.layout, "a": a, "d": c.d}
        entry |= {"b": DTYPES[c.b].stored, "compute": compute_of(c.a, c.accumulator)}
        if e.source and c.d != "s32":  # sums in s32 are stored as they are
            entry["c"] = c.d
        if c.accumulator == "s32" and c.d != "s32":
            entry["alpha"] = 2**-7 / k  # within the range of f16
        if e.bias:
            entry |= {"bias": c.bias, "bias_axis": e.bias[0]}
        if e.activation not in ("identity", TOLD):
            given = [float(i) if x is None else x for i, (_, x) in enumerate(ACTIVATIONS[e.activation].parameters)]
            entry["activation"] = [e.activation, *given]
        if e.pairs:
            entry["gated"] = "d_silu" if e.gated else "silu"
        if e.gated:
            entry["aux" if e.derivative or e.pairs else "gate"] = c.d
        if e.aux:
            entry["aux"] = c.d
        if e.bias_grad:
            entry |= {"bias_grad": "f32", "bias_grad_axis": "n"}
        if e.scaled:
            entry |= {"scale_a": "vector", "scale_b": "vector", "scale_out": "one"}
        if block := SCHEDULES[c.schedule].block:
            entry |= {"scale_a": "block", "scale_b": "block" if block > 1 else "group"}
        return entry

    @property
    def flop(self) -> int:
        """As in Case; a complex product takes four."""
        return super().flop * (4 if self.config.a in ("c64", "c128") else 1)

    @property
    def moved_bytes(self) -> int:
        """As in Case, the operands of the epilogue included."""
        args, (batch, m, n, _) = arguments(self.problem()), self.shape
        specs = [x for x in (args.a, args.b, *args.keywords.values()) if isinstance(x, TensorSpec)]
        read = sum(math.prod(x.shape) * DTYPES[x.dtype].itemsize for x in specs)
        return read + batch * m * n * DTYPES[self.config.d].itemsize

    def facts(self) -> dict[str, Any]:
        """As in Case."""
        return super().facts() | {"kernel": self.config.name, "flop": self.flop, "moved_bytes": self.moved_bytes}

    def limit(self, largest: float) -> float:
        """Larger errors, relative to the largest element, do not come from rounding."""
        c = self.config
        own = _FAST if c.accumulator == "fast" else DTYPES[c.accumulator].roundoff
        stored = DTYPES[c.d].roundoff if DTYPES[c.d].mantissa else 1 / largest
        function = _TANH if epilogue_named(c.epilogue).activation not in ("identity", TOLD) else 0.0
        return 4 * (stored + ROUNDED.get(c.a, 0.0) + function + math.sqrt(self.shape[-1]) * own) + 1e-12


# ---------------------------------------------------------------------------------------------------- operands


class KernelOperands:
    """Random operands of such a case, everything that its kernel takes; sets as Operands has them."""

    def __init__(self, case: KernelCase, framework: Framework) -> None:
        self.framework = framework
        self.count = sets_of(case, framework)
        args = arguments(case.problem())
        self._calls = [_call(args, case, framework) for _ in range(self.count)]

    def call(self, index: int) -> Call:
        """A, B and the keywords of gemm."""
        return self._calls[index % self.count]


def _call(args: GemmArguments, case: KernelCase, framework: Framework) -> Call:
    batch, m, n, _ = case.shape
    n *= 2 if epilogue_named(case.config.epilogue).pairs == "d" else 1
    given = {"a": args.a, "b": args.b, **args.keywords}
    given["out"] = TensorSpec((batch, m, n) if batch > 1 else (m, n), given.pop("out_dtype"))
    made = {name: _made(x, framework) if isinstance(x, TensorSpec) else x for name, x in given.items()}
    if SCHEDULES[case.config.schedule].pointers:
        order = [0, 2, 1, *range(3, batch)]  # matrices that lie evenly would be a batch
        made |= {name: [made[name][i] for i in order] for name in ("a", "b", "c", "out") if made[name] is not None}
    return made.pop("a"), made.pop("b"), made


def _made(spec: TensorSpec, framework: Framework) -> Any:
    """An array of these extents and strides: rows or columns without gaps, or scales whose columns have some."""
    shape, strides = tuple(spec.shape), spec.strides
    if len(shape) < 2 or strides[-1] == 1:
        return framework.random(shape, spec.dtype)
    *lead, rows, cols = shape
    return framework.random((*lead, cols, strides[-1]), spec.dtype).swapaxes(-1, -2)[..., :rows, :]


# ---------------------------------------------------------------------------------------------------- the check


def errors(case: KernelCase, arms: Sequence[Arm], operands: KernelOperands) -> tuple[dict[str, float], float]:
    """Largest error of each arm, relative to the largest element of what the CPU's kernel has; and what is too large.

    Looks at every output, in some rows, the last among them; at a bias gradient beside the sums of what was stored.
    """
    gpu = operands.framework
    step = max(case.shape[1] // _CHECKED, 1)
    rows = slice((case.shape[1] - 1) % step, None, step)
    a, b, given = operands.call(0)
    on_host = {name: _on_host(name, x, rows, gpu) for name, x in given.items() if name not in ("out", "bias_grad")}
    on_host["out_dtype"] = case.config.d  # which the dtype of a bias goes with
    wanted = {"out": gemm(_on_host("a", a, rows, gpu), _on_host("b", b, rows, gpu), **on_host)}
    if epilogue_named(case.config.epilogue).aux:
        wanted["aux"] = on_host["aux"]
    written, sums = {name: _each(given[name]) for name in wanted}, given.get("bias_grad")
    found: dict[str, float] = {}
    for arm in arms:
        for array in (*chain(*written.values()), *([] if sums is None else [sums])):
            gpu.poison(array)
        arm.launch(0)
        results = (_on_host(name, x, rows, gpu) for name, arrays in written.items() for x in arrays)
        pairs = list(zip(results, chain(*map(_each, wanted.values())), strict=True))
        if sums is not None:
            stored = _wide(gpu.host(given["out"]))
            pairs.append((gpu.host(sums), stored.reshape(-1, stored.shape[-1]).sum(0)))
        differences = [float(abs(_wide(x) - _wide(y)).max() / abs(_wide(y)).max()) for x, y in pairs]
        found[arm.name] = math.nan if any(map(math.isnan, differences)) else max(differences)
    return found, case.limit(max(float(abs(_wide(x)).max()) for x in _each(wanted["out"])))


def _wide(array: Any) -> Any:
    return array.astype("complex128" if array.dtype.kind == "c" else "float64")


def _each(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _on_host(name: str, value: Any, rows: slice, gpu: Framework) -> Any:
    """An operand's rows in host memory; what is no array as it is."""
    if isinstance(value, list):
        return [_on_host(name, x, rows, gpu) for x in value]
    if not hasattr(value, "shape"):
        return value
    return gpu.host(value[..., rows, :] if name in _BY_ROW and len(value.shape) > 1 else value)
