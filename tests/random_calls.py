"""Random calls of gemm as plain data: call number i of a seed is the same whether it is drawn alone or among others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from random import Random
from typing import Any

import gpu
from reference import FP8
from wrong_calls import MISTAKES

from cutlass_py.declaration.dtypes import BLOCK, COMPUTE, DTYPES, Arithmetic

POOL = 1 << 21  # random values of each dtype, a part of which is an operand
INPUTS = (*COMPUTE, "bf16", "f32", "e4m3")  # dtypes of a; these come twice as often
EDGES = (8, 16, 32, 64, 128, 256)  # of tiles
NUMBERS, FRACTIONS = (1, 2, -1, 0.5, -1.5, 3.0), (0.3, -1.7)  # small integers stay exact times the former
COMPLEX_NUMBERS = (1, 2, 1 + 2j, 2 - 1j, -1j)
SCALES = (1, 0.5, 2.0)
PARAMETERS = {"leaky_relu": ((0.5,), (0.25,), (2.0,)), "clamp": ((-5.0, 6.0), (0.0, 6.0), (-1.0, 1.0))}
# Batch dimensions of a and of b.
BATCHES = {
    "both": lambda x: ((x,), (x,)),
    "a": lambda x: ((x,), ()),
    "b": lambda x: ((), (x,)),
    "one": lambda x: ((1,), (x,)),
    "two": lambda x: ((2, x), (x,)),
    "crossed": lambda x: ((2, 1), (x,)),
}

# ---------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Place:
    """How a matrix lies: `layout`, `pad` and `step` of gpu.guarded, its base moved by `offset` elements."""

    layout: str = "t"
    pad: int | None = None
    offset: int = 0
    step: int = 1


@dataclass(frozen=True)
class Array:
    """An operand, whose values are those of the pool from `start` on.

    Attributes:
        expanded: further batch dimensions, whose strides are 0.
    """

    dtype: str
    shape: tuple[int, ...]
    place: Place
    start: int = 0
    expanded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Factor:
    """A number; with a shape, an array of one element in device memory."""

    value: complex
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Call:
    """A call of gemm that is legal, and the mistake with which it may be made before.

    Attributes:
        integers: values are small integers and powers of two, otherwise normally distributed.
        d, place: dtype of the result, and how it lies where it is given.
        out: "new" where gemm allocates it, "given", or the operand that it is: "c", "gate" or "aux".
        named: out_dtype is given.
        blocks: scale_a and scale_b are factors of blocks of k.
        wrong: a name of MISTAKES.
    """

    seed: int
    index: int
    integers: bool
    a: Array
    b: Array
    d: str
    place: Place
    compute: str | None
    out: str = "given"
    named: bool = False
    alpha: Factor | None = None
    beta: Factor | None = None
    c: Array | None = None
    bias: Array | None = None
    activation: str | None = None
    parameters: tuple[float, ...] = ()
    gate: Array | None = None
    aux: Array | None = None
    scale_a: Factor | Array | None = None
    scale_b: Factor | Array | None = None
    scale_out: Factor | None = None
    blocks: bool = False
    bias_grad: Array | None = None
    splits: int | None = None
    deterministic: bool = False
    wrong: str | None = None

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n, k."""
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]

    @property
    def batch(self) -> tuple[int, ...]:
        """Of the result."""
        leads = [x.expanded + x.shape[:-2] for x in (self.a, self.b)]
        rank = max(map(len, leads))
        columns = zip(*((1,) * (rank - len(lead)) + lead for lead in leads), strict=True)
        return tuple(next((x for x in column if x != 1), 1) for column in columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return (*self.batch, *self.extents[:2])

    @property
    def arithmetic(self) -> Arithmetic:
        row = COMPUTE[self.a.dtype]
        return row[self.compute or next(iter(row))]

    @property
    def scalar(self) -> str:
        """The dtype of factors in memory."""
        return DTYPES[self.arithmetic.accumulator].scalar

    @property
    def complex(self) -> bool:
        return self.a.dtype in gpu.COMPLEX

    @property
    def derivative(self) -> bool:
        return self.activation in gpu.DERIVATIVES

    @property
    def reads_product(self) -> bool:
        """Whether a and b are read."""
        return self.extents[2] > 0 and not any(_is_zero(x) for x in (self.alpha, self.scale_a, self.scale_b))

    @property
    def reads_c(self) -> bool:
        return self.c is not None and not _is_zero(self.beta)


def _is_zero(x: Any) -> bool:
    return isinstance(x, Factor) and x.shape is None and x.value == 0


# ---------------------------------------------------------------------------------------------------- the draw


def drawn(seed: int, index: int, *, fp8: bool = True) -> Call:
    """Call number `index` of a seed; without `fp8` its operands are no 8-bit floats."""
    r = Random(f"{seed} {index}")
    call = _product(r, seed, index, fp8)
    often = r.choice((0.0, 0.2, 0.5))  # what is optional is there so often
    call = replace(call, **_linear(r, call, often))
    if not call.complex:
        call = replace(call, **_scales(r, call, often))
        call = replace(call, **_function(r, call, often))
        call = replace(call, **_sums(r, call, often))
    call = replace(call, **_result(r, call))
    if r.random() < 0.1:
        call = replace(call, wrong=r.choice([name for name, mistake in MISTAKES.items() if mistake.fits(call)]))
    return call


def _product(r: Random, seed: int, index: int, fp8: bool) -> Call:
    first = r.choice([x for x in INPUTS if fp8 or x not in FP8])
    a, b, compute = r.choice([row for row in gpu.ARITHMETIC if row[0] == first])
    by_default = compute == next(iter(COMPUTE[a])) and r.random() < 0.5
    m, n, k = _extents(r)
    lead_a, lead_b = _batches(r)
    return Call(
        seed,
        index,
        integers=r.random() < 0.7,
        a=_matrix(r, a, (*lead_a, m, k)),
        b=_matrix(r, b, (*lead_b, k, n)),
        d=COMPUTE[a][compute].output if r.random() < 0.5 else r.choice(_results(a)),
        place=_place(r),
        compute=None if by_default else compute,
        splits=r.choice((1, 2, 3, 7)) if r.random() < 0.1 else None,
        deterministic=r.random() < 0.05,
    )


def _results(a: str) -> tuple[str, ...]:
    return gpu.COMPLEX if a in gpu.COMPLEX else gpu.REAL


def _extents(r: Random) -> tuple[int, int, int]:
    def extent() -> int:
        near_an_edge = r.choice(EDGES) + r.randint(-1, 1)
        return r.choice((round(300 ** r.random()), near_an_edge, 8 * r.randint(1, 32), r.randint(1, 300)))

    found = [extent() for _ in range(3)]
    kind = r.random()
    if kind < 0.04:
        found[r.randrange(3)] = 0
    elif kind < 0.09:
        found = [min(x, 64) for x in found]
        found[r.randrange(3)] = r.randint(301, 3000)
    return found[0], found[1], found[2]


def _batches(r: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if r.random() < 0.6:
        return (), ()
    return BATCHES[r.choice(tuple(BATCHES))](0 if r.random() < 0.03 else r.randint(1, 4))


def _place(r: Random) -> Place:
    layout = r.choice("tn")
    if r.random() < 0.5:
        return Place(layout)
    return Place(layout, r.choice((None, 0, 0, 1, 3, 8)), r.choice((0, 0, 1, 2, 8)), 2 if r.random() < 0.15 else 1)


def _matrix(r: Random, dtype: str, shape: tuple[int, ...]) -> Array:
    expanded = shape[:-2] if r.random() < 0.1 else ()
    return _array(r, dtype, shape[len(expanded) :], _place(r), expanded)


def _array(r: Random, dtype: str, shape: tuple[int, ...], place: Place, expanded: tuple[int, ...] = ()) -> Array:
    return Array(dtype, shape, place, r.randrange(POOL - prod(shape) + 1), expanded)


def _beside(r: Random, call: Call) -> Array:
    """A matrix that is read like the result, of any dtype; its batch may broadcast."""
    dtype = call.d if r.random() < 0.5 else r.choice(_results(call.a.dtype))
    return _matrix(r, dtype, (*_broadcasting(r, call.batch), *call.extents[:2]))


def _broadcasting(r: Random, batch: tuple[int, ...]) -> tuple[int, ...]:
    if r.random() < 0.6:
        return batch
    return tuple(x if r.random() < 0.5 else 1 for x in batch[r.randint(0, len(batch)) :])


def _vector(r: Random, call: Call, axis: str, dtype: str, *, may_be_flat: bool, may_be_batched: bool = True) -> Array:
    """One value per row ('m') or per column ('n')."""
    m, n, _ = call.extents
    shape: tuple[int, ...] = (m, 1) if axis == "m" else (1, n)
    form = r.random()
    if may_be_flat and form < 0.4:
        shape = (prod(shape),)
    elif may_be_batched and form > 0.7:
        shape = (*_broadcasting(r, call.batch), *shape)
    layout = "n" if axis == "m" and len(shape) > 1 else "t"
    place = Place(layout, r.choice((None, 0, 1)), r.choice((0, 0, 1, 4)), r.choice((1, 1, 1, 2)))
    return _array(r, dtype, shape, place)


def _factor(r: Random, numbers: tuple[complex, ...], arrays: float = 0.3) -> Factor:
    """A number, or so often an array."""
    value = 0 if r.random() < 0.06 else r.choice(numbers)
    return Factor(value, r.choice(((), (1,), (1, 1))) if r.random() < arrays else None)


def _linear(r: Random, call: Call, often: float) -> dict[str, Any]:
    """Factors, addend and bias."""
    numbers = COMPLEX_NUMBERS if call.complex else NUMBERS if call.integers else NUMBERS + FRACTIONS
    found: dict[str, Any] = {}
    if r.random() < max(often, 0.2):
        found["alpha"] = _factor(r, numbers)
    if r.random() < often:
        found["c"] = _beside(r, call)
        found["beta"] = _factor(r, numbers) if r.random() < 0.7 else None
    if r.random() < often:
        sums = call.arithmetic.accumulator
        dtypes = ("f32", "s32") if call.d in gpu.INTEGER else (call.d, sums) if call.complex else (call.d, "f32")
        axis = r.choice("nm")
        dtype = r.choice((*dtypes, "f64") if sums == "f64" and call.d not in gpu.INTEGER else dtypes)
        found["bias"] = _vector(r, call, axis, dtype, may_be_flat=axis == "n")
    return found


def _scales(r: Random, call: Call, often: float) -> dict[str, Any]:
    m, n, k = call.extents
    arrays = 1.0 if call.alpha and call.alpha.shape is not None else 0.3  # a number does not go with an array
    found: dict[str, Any] = {}
    if r.random() < often / 2:
        found["scale_out"] = _factor(r, SCALES)
    if call.a.dtype in FP8 and 0 not in (m, n, k) and r.random() < 0.25:
        shapes = ((m, ceil(k / BLOCK)), (ceil(k / BLOCK), ceil(n / BLOCK)))  # finer ones few kernels are built for
        a, b = (_array(r, "f32", (*_broadcasting(r, call.batch), *shape), _place(r)) for shape in shapes)
        return {**found, "scale_a": a, "scale_b": b, "blocks": True}
    rate = often if DTYPES[call.a.dtype].bits == 8 else often / 2
    for name, axis in (("scale_a", "m"), ("scale_b", "n")):
        if r.random() < rate:
            one = r.random() < 0.5
            found[name] = _factor(r, SCALES, arrays) if one else _vector(r, call, axis, call.scalar, may_be_flat=True)
    return found


def _function(r: Random, call: Call, often: float) -> dict[str, Any]:
    """The activation, and the matrices that go with it."""
    found: dict[str, Any] = {}
    if r.random() < often:
        name = found["activation"] = r.choice((*gpu.PLAIN, *gpu.DERIVATIVES))
        found["parameters"] = r.choice(PARAMETERS.get(name, ((),)))
        if name in gpu.DERIVATIVES:
            return {**found, "aux": _beside(r, call)}
    if r.random() < often / 2:
        found["gate"] = _beside(r, call)
    if r.random() < often / 2:
        dtype = call.d if r.random() < 0.5 else r.choice(gpu.REAL)
        found["aux"] = _array(r, dtype, call.shape, _place(r))
    return found


def _sums(r: Random, call: Call, often: float) -> dict[str, Any]:
    """A bias gradient, where the batch has a single stride, and no sum is of infinities."""
    infinite = call.d == "f16" and "u8" in (call.a.dtype, call.b.dtype)
    if len(call.batch) > 1 or infinite or r.random() >= often / 2:
        return {}
    axis, dtypes = r.choice("nm"), ("f32", "f64") if call.d in gpu.INTEGER else ("f32", "f64", call.d)
    return {"bias_grad": _vector(r, call, axis, r.choice(dtypes), may_be_flat=axis == "n", may_be_batched=False)}


def _result(r: Random, call: Call) -> dict[str, Any]:
    """Whether the result is given, and in place of what."""
    by_default = call.d == call.arithmetic.output
    read = ["c"] * bool(call.c) + ["gate"] * bool(call.gate) + ["aux"] * call.derivative
    if read and r.random() < 0.25:
        name = r.choice(read)
        operand = _array(r, call.d, call.shape, call.place)
        return {"out": name, name: operand, "named": r.random() < 0.2}
    new = r.random() < 0.4
    return {"out": "new" if new else "given", "named": (new and not by_default) or r.random() < 0.2}
