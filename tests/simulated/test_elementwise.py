"""The elementwise kernels, thread by thread: every dtype, layout, edge and epilogue; nothing else is written."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any

import numpy as np
import pytest
import simulator
from helpers import NEGATIVE, NO_UNIT_STRIDE, UNIT_STRIDE, Placed, placed
from reference import COMPLEX, NUMPY, REAL, assert_exact, assert_near, integers, reference_epilogue

from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.epilogues import ACTIVATIONS

LAYOUTS = ("aligned", *UNIT_STRIDE, *NO_UNIT_STRIDE, *NEGATIVE)
NUMBERS = list(DTYPES)
SEEDS = range(240)


class Array(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("dtype", ctypes.c_int32)]
    _fields_ += [(name, ctypes.c_int64) for name in ("row", "col", "batch")]


class Scalar(ctypes.Structure):
    _fields_ = [("value", ctypes.c_double), ("imaginary", ctypes.c_double), ("device", ctypes.c_void_p)]


class Epilogue(ctypes.Structure):
    _fields_ = [(name, Scalar) for name in ("alpha", "beta", "scale_out")]
    _fields_ += [(name, Array) for name in ("c", "bias", "scale_a", "scale_b", "gate", "aux", "bias_grad")]
    _fields_ += [("activation", ctypes.c_int32), ("parameters", ctypes.c_double * 2), ("user", ctypes.c_void_p)]


_INT, _LONG, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_ARRAY, _EXTENTS = ctypes.POINTER(Array), [_LONG] * 3


class Groups(ctypes.Structure):
    """CutlassPyGroups."""

    _fields_ = [("numbers", _POINTER), ("kind", _INT), ("wide", _INT), ("axis", ctypes.c_char)]


class Elementwise(ctypes.Structure):
    """CutlassPyElementwise."""

    _fields_ = [
        (name, ctypes.CFUNCTYPE(result, *arguments))
        for name, result, arguments in (
            ("copy", _INT, [_ARRAY, _ARRAY, _INT, *_EXTENTS, _POINTER]),
            ("compose", _INT, [_ARRAY, _INT, _LONG, ctypes.POINTER(Epilogue), _ARRAY, *_EXTENTS, _POINTER, _POINTER]),
            ("compose_workspace", ctypes.c_size_t, [ctypes.POINTER(Epilogue), *_EXTENTS]),
            ("reduce", _INT, [_ARRAY, _ARRAY, _INT, *_EXTENTS, _POINTER, _POINTER]),
            ("reduce_workspace", ctypes.c_size_t, [_ARRAY, *_EXTENTS]),
            ("write_pointers", _INT, [ctypes.POINTER(_POINTER), _LONG, _POINTER, _POINTER]),
            ("gather", _INT, [_ARRAY, _LONG, _POINTER, _INT, _ARRAY, _INT, _LONG, _LONG, _POINTER]),
            ("clear_rest", _INT, [_ARRAY, _LONG, _LONG, ctypes.POINTER(Groups), _INT, _POINTER]),
        )
    ]


@pytest.fixture
def device() -> Elementwise:
    return simulator.exported("cutlass_py_elementwise", Elementwise)


def array(x: np.ndarray | None, dtype: str, shape: tuple[int, ...] = ()) -> Array:
    """As the kernels take it: absent, or (batch, rows, cols) where extents of 1 repeat if the shape has more."""
    if x is None:
        return Array()
    strides = np.broadcast_to(x, shape or x.shape).strides
    batch, row, col = ((0,) * (3 - len(strides)) + strides) if len(strides) < 3 else strides
    size = x.itemsize
    return Array(x.ctypes.data, NUMBERS.index(dtype), row // size, col // size, batch // size)


def workspace(size: int) -> np.ndarray:
    return np.full(size, 0xFF, np.uint8)


# ---------------------------------------------------------------------------------------------------- copies

SHAPES = [(1, 1, 1), (2, 3, 5), (1, 40, 64), (2, 16, 144), (1, 290, 144), (1, 131, 272), (3, 65, 33)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64", "c128"])  # one of each size
def test_copies(device, rng, dtype, layout):
    for shape, to_layout in itertools.product(SHAPES, ("row", "aligned", "column", "padded", "offset", "strided")):
        values = rng.integers(0, 100, shape).astype(np.float64)
        source, to = placed("numpy", values, dtype, layout), placed("numpy", None, dtype, to_layout, shape)
        found = array(source.array, dtype), array(to.array, dtype)
        assert device.copy(*found, to.array.itemsize, *shape, simulator.stream()) == 0
        simulator.run()
        np.testing.assert_array_equal(to.array, source.array)
        to.assert_rest_untouched()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64", "c128"])
def test_copies_read_no_word_without_an_element(device, rng, dtype, turned):
    """Which AddressSanitizer sees."""
    size = NUMPY[dtype].itemsize
    for (_, rows, cols), before in itertools.product(SHAPES, range(4 // min(size, 4))):
        words = np.zeros(-(-(before + rows * cols) * size // 4), np.uint32)
        source = words.view(NUMPY[dtype])[before : before + rows * cols].reshape(1, rows, cols)
        source[...] = rng.integers(0, 100, source.shape)
        source = source.swapaxes(1, 2) if turned else source
        to = placed("numpy", None, dtype, "row", source.shape)
        arrays = array(source, dtype), array(to.array, dtype)
        assert device.copy(*arrays, size, *source.shape, simulator.stream()) == 0
        simulator.run()
        np.testing.assert_array_equal(to.array, source)


def test_copies_of_what_repeats(device, rng):
    for shape, axis in itertools.product(SHAPES, range(3)):
        one = rng.standard_normal([extent if i != axis else 1 for i, extent in enumerate(shape)]).astype(np.float32)
        to = placed("numpy", None, "f32", "row", shape)
        assert device.copy(array(one, "f32", shape), array(to.array, "f32"), 4, *shape, simulator.stream()) == 0
        simulator.run()
        np.testing.assert_array_equal(to.array, np.broadcast_to(one, shape))
        to.assert_rest_untouched()


# ---------------------------------------------------------------------------------------------------- zeros

ENDS, STARTS, SIZES, FIRST = range(1, 5)


def cleared(device: Elementwise, to: Placed, dtype: str, axis: str, kind: int, told: np.ndarray) -> int:
    """The status, with D of 1 by rows by columns."""
    groups = Groups(told.ctypes.data, kind, told.itemsize == 8, axis.encode())
    count = len(told) - (kind == STARTS)
    status = device.clear_rest(array(to.array, dtype), *to.array.shape[1:], groups, count, simulator.stream())
    simulator.run()
    return status


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64", "c128"])
def test_lines_of_no_group_are_cleared(device, rng, dtype, layout):
    """More groups than a block has threads, and fewer; some of them empty; numbers of 32 and 64 bits."""
    for axis, kind, shape in itertools.product("mn", (ENDS, STARTS, SIZES), [(40, 24), (37, 5), (1, 300), (300, 1)]):
        lines, count = shape["mn".index(axis)], int(rng.choice([1, 5, 300]))
        begin = int(rng.integers(lines + 1)) if kind == STARTS else 0
        sizes = rng.multinomial(rng.integers(lines - begin + 1), np.full(count, 1 / count))
        starts = begin + np.concatenate([[0], np.cumsum(sizes)])
        told = {ENDS: starts[1:], STARTS: starts, SIZES: sizes}[kind].astype(rng.choice(["i4", "i8"]))
        values = rng.integers(1, 100, (1, *shape)).astype(np.float64)
        to = placed("numpy", values, dtype, layout)
        assert cleared(device, to, dtype, axis, kind, told) == 0
        kept = np.zeros(lines, bool)
        kept[begin : starts[-1]] = begin < starts[-1]
        expected = np.where(kept[:, None] if axis == "m" else kept, values, 0).astype(NUMPY[dtype])
        np.testing.assert_array_equal(to.array, expected)
        to.assert_rest_untouched()


def test_numbers_of_lines_that_are_cleared_are_cut_off(device):
    for kind, told, kept in (
        (SIZES, [3, -5, 4], 7), (SIZES, [2**31 - 1] * 3, 20), (SIZES, [4, 2**31 - 1, -(2**31)], 20), (SIZES, [], 0),
        (ENDS, [3, 99], 20), (ENDS, [-4], 0), (STARTS, [-7, 5, 2**31 - 1], 20),
    ):  # fmt: skip
        to = placed("numpy", np.ones((1, 20, 8)), "f32", "row")
        assert cleared(device, to, "f32", "m", kind, np.array(told, "i4")) == 0
        np.testing.assert_array_equal(to.array[0, :, 0], np.arange(20) < kept)
        to.assert_rest_untouched()
    for kind, axis in ((FIRST, "m"), (SIZES, "k")):  # which leave no lines
        assert cleared(device, placed("numpy", np.ones((1, 4, 4)), "f32"), "f32", axis, kind, np.array([1], "i4")) == 1


# ---------------------------------------------------------------------------------------------------- numbers


def every_number(dtype: str) -> np.ndarray:
    """All that a dtype of up to 16 bits holds."""
    bits = 8 * NUMPY[dtype].itemsize
    return np.arange(2**bits).astype(f"u{bits // 8}").view(NUMPY[dtype]).reshape(1, 1, -1)


def exact(x: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # of signalling NaN
        return x.astype(np.float64)


def compose(device: Elementwise, acc: Array, d: np.ndarray, dtype: str, parts: int = 1, stride: int = 0, **given: Any):
    """One call of `compose`, whose epilogue is `given`."""
    numbers = {"alpha": Scalar(1), "beta": Scalar(1), "scale_out": Scalar(1)}
    epilogue = Epilogue(**numbers | given)
    shape = d.shape
    held = workspace(device.compose_workspace(epilogue, *shape))
    status = device.compose(acc, parts, stride, epilogue, array(d, dtype), *shape, held.ctypes.data, simulator.stream())
    assert status == 0
    simulator.run()


@pytest.mark.parametrize("dtype", ["f16", "bf16", "e4m3", "e5m2", "s8", "u8"])
@pytest.mark.parametrize("to", ["f32", "f64"])
def test_every_number_is_read(device, dtype, to):
    numbers = every_number(dtype)
    found = np.empty(numbers.shape, NUMPY[to])
    compose(device, Array(dtype=NUMBERS.index(to)), found, to, c=array(numbers, dtype))
    np.testing.assert_array_equal(found, exact(numbers))


@pytest.mark.parametrize("wide", ["f32", "f64"])
@pytest.mark.parametrize("dtype", REAL)
def test_every_number_is_rounded_once(device, rng, dtype, wide):
    """What a dtype holds, what lies in the middle between its neighbours and just beside, and what is beyond it."""
    near = exact(every_number("f16" if dtype in ("f32", "f64", "s32") else dtype)).ravel()
    near = np.sort(near[np.isfinite(near)])
    middle = (near[1:] + near[:-1]) / 2
    beyond = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 2147483646.5, 1e300, -1e300, 5e-324])
    x = np.concatenate([near, middle, np.nextafter(middle, 9e99), np.nextafter(middle, -9e99), beyond])
    with np.errstate(all="ignore"):
        x = x.astype(NUMPY[wide]).reshape(1, 1, -1)
    found = np.empty(x.shape, NUMPY[dtype])
    compose(device, array(x, wide), found, dtype)
    assert_exact(found.astype(np.float64), x.astype(np.float64), dtype)


# ---------------------------------------------------------------------------------------------------- epilogues


def draws(seed: int) -> tuple[Any, np.random.Generator]:
    rng = np.random.default_rng(seed)
    return (lambda values: values[rng.integers(len(values))]), rng


class Operands:
    """Float64 values of what was drawn, and where they lie."""

    def __init__(self, pick: Any, rng: np.random.Generator, shape: tuple[int, int, int]) -> None:
        self.rng, self.shape = rng, shape
        layouts = pick([LAYOUTS, ("aligned",)])  # of which all can be read by vectors
        self.layout = lambda: str(pick(layouts))
        self.values: dict[str, np.ndarray] = {}
        self.places: dict[str, Placed] = {}
        self.arrays: dict[str, Array] = {}

    def draw(self, name: str, dtype: str, *repeated: int, high: int = 2) -> None:
        """Small integers; `repeated` are axes along which they repeat."""
        shape = tuple(1 if axis in repeated else extent for axis, extent in enumerate(self.shape))
        self.values[name] = integers(self.rng, shape, dtype, -2, high)
        self.places[name] = placed("numpy", self.values[name], dtype, self.layout())
        self.arrays[name] = array(self.places[name].array, dtype, self.shape)

    def drawn_to_write(self, name: str, dtype: str, *summed: int) -> None:
        shape = tuple(1 if axis in summed else extent for axis, extent in enumerate(self.shape))
        self.places[name] = placed("numpy", None, dtype, self.layout(), shape)
        self.arrays[name] = array(self.places[name].array, dtype, self.shape)

    def found(self, name: str) -> np.ndarray:
        self.places[name].assert_rest_untouched()
        return self.places[name].array.astype(np.float64)


@pytest.mark.parametrize("seed", SEEDS)
def test_epilogues(device, seed):
    """Whatever an epilogue may ask for, drawn by chance."""
    pick, rng = draws(seed)
    shape = pick([(1, 1, 1), (2, 3, 5), (1, 40, 64), (1, 300, 36), (3, 17, 260), (1, 5, 1), (1, 1, 300), (2, 130, 9)])
    x = Operands(pick, rng, shape)
    wide = bool(pick([True, False]))  # computed in double, by chance
    dtypes = REAL if wide else ("f16", "bf16", "f32", "e4m3", "u8")
    accumulator = pick(["f64", "s32"] if wide else ["f32", "bf16"])
    name = pick([*ACTIVATIONS])
    row = ACTIVATIONS[name]
    parameters = [0.25 if default is None else default for _, default in row.parameters]
    for operand, axes in (("c", ()), ("bias", (0, 1)), ("bias", (0, 2)), ("scale_a", (0, 2)), ("scale_b", (0, 1))):
        if operand not in x.values and pick([True, False]):
            x.draw(operand, pick(dtypes) if operand in ("c", "bias") else "f32", *axes)
    if row.derivative:
        x.draw("aux", pick(dtypes))
    elif pick([True, False]):
        x.draw("gate", pick(dtypes))
    if not row.derivative and pick([True, False]):
        x.drawn_to_write("aux", pick(["f32", "f64"] if wide else ["f32"]))
    summed = pick([(), (), (0, 1), (0, 2)])
    if summed:
        x.drawn_to_write("bias_grad", pick(["f32", "f64"] if wide else ["f32"]), *summed)
    d = pick(dtypes)
    x.drawn_to_write("d", d)

    parts = pick([1, 1, 2, 6])
    products = integers(rng, (parts, *shape), accumulator)
    held, stride = placed("numpy", products[0], accumulator, x.layout()).array, 0
    if parts > 1:
        stride = products[0].size + int(pick([0, 1]))
        flat = np.zeros(parts * stride, NUMPY[accumulator])
        for i, part in enumerate(products):
            flat[i * stride :][: part.size] = part.ravel()
        held = flat[: products[0].size].reshape(shape)
    numbers = {name: float(pick([1, 1, 2, -0.5])) for name in ("alpha", "beta", "scale_out")}
    in_memory = {name: np.full(1, numbers[name], "f8" if accumulator == "f64" else "f4") for name in numbers}
    scalars = {name: Scalar(v) if pick([1, 0]) else Scalar(0, 0, in_memory[name].ctypes.data)
               for name, v in numbers.items()}  # fmt: skip
    to = x.places["d"].array
    given = {name: a for name, a in x.arrays.items() if name != "d"} | scalars
    number = list(ACTIVATIONS).index(name)
    compose(
        device, array(held, accumulator), to, d, parts, stride, **given,
        activation=number, parameters=(ctypes.c_double * 2)(*parameters),
    )  # fmt: skip

    read = {name: v for name, v in x.values.items() if name != "aux" or row.derivative}
    wanted = reference_epilogue(products.sum(0), activation=name, parameters=parameters, **numbers, **read)
    assert_near(x.found("d"), wanted.d, d, 1e-5)
    if "aux" in x.places and not row.derivative:
        assert_exact(x.found("aux"), wanted.z, "f32")
    if summed:
        y = np.broadcast_to(wanted.y, shape)
        assert_near(x.found("bias_grad"), y.sum(summed, keepdims=True), "f32", 1e-5, np.abs(y).sum())


def summed_columns(device: Elementwise, values: np.ndarray, dtype: str, layout: str) -> np.ndarray:
    """The column sums of a product that is finished."""
    source = placed("numpy", values, dtype, layout).array
    product = array(source, dtype)
    d = Array(None, product.dtype, product.row, product.col, product.batch)  # not written, but says how it lies
    wide = "f64" if dtype == "f64" else "f32"
    to = placed("numpy", None, wide, "row", (1, 1, values.shape[-1]))
    sums = array(to.array, wide, values.shape)
    epilogue = Epilogue(Scalar(1), Scalar(1), Scalar(1), bias_grad=sums)
    held = workspace(device.compose_workspace(epilogue, *values.shape))
    status = device.compose(product, 1, 0, epilogue, d, *values.shape, held.ctypes.data, simulator.stream())
    assert status == 0
    simulator.run()
    to.assert_rest_untouched()
    return to.array


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_columns_of_a_product_are_summed(device, rng, dtype, layout):
    for shape in [(1, 1, 4), (2, 17, 24), (3, 70, 132), (1, 9, 5), (3, 5, 1), (1, 0, 8), (0, 3, 8)]:
        values = integers(rng, shape, dtype)
        found = summed_columns(device, values, dtype, layout)
        np.testing.assert_array_equal(found, values.sum((0, 1), keepdims=True))


@pytest.mark.parametrize("shape", [(1, 2570, 2048), (3, 600, 2048)], ids=["6 passes", "batches in turn"])
def test_columns_of_a_large_product_are_summed(device, rng, shape):
    """By more rows for a thread than are read at once; by fewer blocks than the batch has matrices."""
    values = integers(rng, shape, "bf16")
    found = summed_columns(device, values, "bf16", "aligned")
    np.testing.assert_array_equal(found, values.sum((0, 1), keepdims=True))


@pytest.mark.parametrize(("computed", "dtype"), [("f64", "f32"), ("c128", "c64")])
def test_a_product_that_is_not_read_still_says_what_is_computed_in(device, rng, computed, dtype):
    c = rng.standard_normal((1, 40, 64)).astype(NUMPY[dtype])
    found = np.empty_like(c)
    compose(device, Array(dtype=NUMBERS.index(computed)), found, dtype, beta=Scalar(0.1), c=array(c, dtype))
    np.testing.assert_array_equal(found, (0.1 * c.astype(NUMPY[computed])).astype(NUMPY[dtype]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", COMPLEX)
def test_complex_epilogues(device, rng, dtype, layout):
    for shape in [(1, 1, 1), (2, 9, 33), (1, 40, 7)]:
        acc, c, bias = (integers(rng, s, dtype) for s in (shape, shape, (1, 1, shape[-1])))
        operands = {name: placed("numpy", v, dtype, layout).array for name, v in (("c", c), ("bias", bias))}
        given = {name: array(v, dtype, shape) for name, v in operands.items()}
        to = placed("numpy", None, dtype, layout, shape)
        held = placed("numpy", acc, dtype, layout).array
        compose(device, array(held, dtype), to.array, dtype, alpha=Scalar(2, -1), beta=Scalar(0, 1), **given)
        np.testing.assert_array_equal(to.array, (2 - 1j) * acc + 1j * c + bias)
        to.assert_rest_untouched()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_gelu_for_results_of_16_bits(dtype):
    """Its error is below half of what rounding may cost, wherever its result is a normal number."""
    for x in exact(every_number(dtype)).ravel().tolist():
        found, wanted = simulator.gelu(x), x * math.erfc(-x / math.sqrt(2)) / 2
        if math.isnan(wanted):
            assert math.isnan(found)
        elif abs(wanted) >= 2**-126 * max(abs(x), 1):
            assert found == wanted or abs(found / wanted - 1) < 2**-14.8
        else:
            assert abs(found) <= 2**-125 * max(abs(x), 1)


# ---------------------------------------------------------------------------------------------------- rows by number


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["u8", "f16", "f32", "f64", "c128"])
def test_rows_by_their_numbers(device, rng, dtype, layout):
    """As often as they are named; zeros where there is no such row."""
    for (rows, cols), count, kind in itertools.product([(1, 1), (9, 33), (40, 64), (5, 272)], (0, 1, 37), ("i4", "i8")):
        source = placed("numpy", rng.integers(1, 100, (rows, cols)).astype(np.float64), dtype, layout)
        beyond = [rows, -1, np.iinfo(kind).max, np.iinfo(kind).min]
        numbers = rng.choice([*range(rows), *beyond], count).astype(kind)
        to = placed("numpy", None, dtype, "aligned" if cols > 1 else "padded", (count, cols))
        arrays = array(source.array, dtype), array(to.array, dtype)
        given = arrays[0], rows, numbers.ctypes.data, kind == "i8", arrays[1]
        assert device.gather(*given, to.array.itemsize, count, cols, simulator.stream()) == 0
        simulator.run()
        there = (numbers >= 0) & (numbers < rows)
        wanted = np.where(there[:, None], source.array[np.where(there, numbers, 0)], np.zeros(1, to.array.dtype))
        np.testing.assert_array_equal(to.array, wanted)
        to.assert_rest_untouched()


# ---------------------------------------------------------------------------------------------------- reductions


REDUCED = [(1, 1, 1), (2, 5, 3), (1, 300, 70), (1, 2, 100_000), (2, 3, 20_000), (1, 9000, 2), (1, 1, 0)]


@pytest.mark.parametrize("layout", ["row", "column", "padded", "strided", "negative"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
def test_reductions(device, rng, reduction, dtype, layout):
    for shape in REDUCED:
        values = integers(rng, shape, "f64", -9, 9)
        if values.size > 10:
            values[0, 0, 1] = np.nan
        source = placed("numpy", values, dtype, layout).array
        to = placed("numpy", None, dtype, "padded", shape[:2])
        lines, batch = (stride // to.array.itemsize for stride in to.array.strides[::-1])
        line = Array(to.array.ctypes.data, NUMBERS.index(dtype), lines, 0, batch)
        number = ["sum", "max", "min"].index(reduction)
        held = workspace(device.reduce_workspace(array(source, dtype), *shape))
        status = device.reduce(array(source, dtype), line, number, *shape, held.ctypes.data, simulator.stream())
        assert status == 0
        simulator.run()
        nothing = {"sum": 0, "max": -np.inf, "min": np.inf}[reduction]
        np.testing.assert_array_equal(to.array, getattr(values, reduction)(-1, initial=nothing))
        to.assert_rest_untouched()


def test_lists_of_addresses(device):
    wanted = np.arange(1, 1001, dtype=np.uint64) << 40
    found = np.zeros(1002, np.uint64)
    pointers = (ctypes.c_void_p * 1000)(*map(int, wanted))
    assert device.write_pointers(pointers, 1000, found[1:].ctypes.data, simulator.stream()) == 0
    simulator.run()
    np.testing.assert_array_equal(found, [0, *wanted, 0])
