"""Our own kernels for sm90, thread by thread: layouts, clusters, edges, batches, orders of tiles, epilogues."""

from __future__ import annotations

import ctypes
from importlib import import_module
from struct import pack
from typing import Any

import numpy as np
import pytest
import simulator
from helpers import placed
from reference import NUMPY, assert_near, integers, reference_epilogue, rounded
from simulator import streamed
from sm90_kernels import KERNELS, OPERANDS, USERS, users

from cutlass_py import _core, clamp, epilogue, gemm, leaky_relu, view
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.dtypes import DTYPES, compute_of
from cutlass_py.declaration.epilogues import ACTIVATIONS, epilogue_named
from cutlass_py.declaration.families import find
from cutlass_py.declaration.shared_memory import SM90, lean_bytes, stages, stages_3x
from cutlass_py.functions import max as max_over
from cutlass_py.functions import min as min_over
from cutlass_py.functions import relu
from cutlass_py.functions import sum as sum_over

NATIVE = {"f32": "f4", "f16": "f2"}  # what DLPack's oldest frameworks name


@epilogue
def mixed(accum, scale, bias, row, left):
    z = scale * accum + bias
    return relu(z) * left + row, {"aux": z}


@epilogue
def joined(accum, row):
    z = accum + row
    outputs = {"rows": sum_over(z, axis=-1), "columns": max_over(z, axis=-2), "kept": z}
    return relu(z), {**outputs, "least": min_over(accum, axis=-1), "total": sum_over(z)}


WITH_USERS = users(lambda name: import_module(f"cutlass_py.{name}"))


@pytest.fixture
def on() -> Any:
    """A framework with a current stream."""
    return streamed(simulator.stream())


def typed(on: Any, x: np.ndarray, dtype: str) -> Any:
    return on(x) if dtype in NATIVE else view(on(x.view(f"u{x.itemsize}")), dtype)


ALIGNED = {"t": "aligned", "n": "aligned_column"}


def run(
    on: Any,
    name: str,
    a: np.ndarray,
    b: np.ndarray,
    result: str = "aligned",
    kinds: dict[str, str] = ALIGNED,
    **keywords: Any,
) -> np.ndarray:
    """The product by a kernel, of float64 values, as float64; what is beside the result stays as it was."""
    c = find(name)
    given = [
        typed(on, placed("numpy", x, dtype, kinds[layout]).array, dtype)
        for x, dtype, layout in zip((a, b), (DTYPES[c.a].stored, DTYPES[c.b].stored), c.layout, strict=True)
    ]
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    out = placed("numpy", None, c.d, result, shape)
    compute = compute_of(c.a, c.accumulator)
    gemm(*given, out=typed(on, out.array, c.d), kernel=name, compute=compute, **keywords)
    simulator.run()
    out.assert_rest_untouched()
    return out.array.astype("f8")


def extents(name: str, clusters_m: float, clusters_n: float) -> tuple[int, int]:
    """m and n of about so many tiles of clusters, as D lies: whole granules of 16 bytes along n."""
    c = find(name)
    rows, cols = (int(t * x * many) for t, x, many in zip(c.tile, c.cluster, (clusters_m, clusters_n), strict=False))
    m, n = (cols, rows) if SCHEDULES[c.schedule].swap else (rows, cols)
    step = 16 // NUMPY[c.d].itemsize
    return max(m, 1), max(n // step * step, step)


def operands(rng: np.random.Generator, name: str, m: int, n: int, k: int, *batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Small integers; where sums stay in s32 such that f32 does not hold what they add up to."""
    c = find(name)
    whole = {"s8": (-128, 127), "u8": (128, 255)} if c.d == "s32" else {}
    of_a, of_b = DTYPES[c.a].stored, DTYPES[c.b].stored
    a = integers(rng, (*batch, m, k), of_a, *whole.get(of_a, ()))
    return a, integers(rng, (*batch, k, n), of_b, *whole.get(of_b, ()))


@pytest.mark.parametrize("name", KERNELS)
def test_facts(name):
    """What the declaration foresees; and that shared memory holds it."""
    c, facts = find(name), _core.kernel_facts()[name]
    assert (facts["a"], facts["b"]) == (DTYPES[c.a].stored, DTYPES[c.b].stored)
    assert (facts["accumulator"], facts["d"], facts["layout"]) == (DTYPES[c.accumulator].stored, c.d, c.layout)
    assert (facts["tile"], facts["cluster"], facts["align_d"]) == (c.tile, c.cluster, c.align_d)
    assert facts["stages"] == stages_3x(c.a, c.d, c.tile, SCHEDULES[c.schedule], epilogue_named(c.epilogue)) >= 3
    assert facts["smem_bytes"] <= SM90


IN_BLOCKS = [name for name in KERNELS if SCHEDULES[find(name).schedule].block]
WHOLE = [name for name in KERNELS if find(name).d == "s32"]
SCALED = [name for name in KERNELS if name.endswith("scaled")]
FUSED = [name for name in KERNELS if name not in (*IN_BLOCKS, *WHOLE, *SCALED)]
PLAIN = [name for name in KERNELS if name.endswith(("fused", "linear")) and name not in IN_BLOCKS]
BYTES = [name for name in KERNELS if NUMPY[find(name).d].itemsize == 1]


@pytest.mark.parametrize("name", [*PLAIN, *SCALED])
def test_edges(on, rng, name):
    """A part of a tile, whole ones, and more than one with parts at the ends; few and many steps of k."""
    c = find(name)
    for clusters, k in (((0.05, 0.3), 8), ((1, 1), 64), ((1.3, 1.6), 136), ((2.2, 0.4), 520)):
        m, n = extents(name, *clusters)
        step = 16 // DTYPES[c.a].itemsize
        m, k = -(-m // step) * step, -(-k // step) * step  # operands too lie in granules
        direct = not SCHEDULES[c.schedule].tma_store
        a, b = operands(rng, name, m, n + 3 * direct, k)
        np.testing.assert_array_equal(run(on, name, a, b, "offset" if direct else "aligned"), rounded(a @ b, c.d))


@pytest.mark.parametrize("more", [4, 1])
@pytest.mark.parametrize("name", [name for name in KERNELS if not SCHEDULES[find(name).schedule].tma_store])
def test_lines_of_words(on, rng, name, more):
    """Threads read and write words where lines begin at whole ones; the end of a line in elements."""
    c = find(name)
    m, n = extents(name, 1.3, 1.6)
    m, n = -(-m // 16) * 16, n + more
    a, b = operands(rng, name, m, n, 144)
    z, keywords = a @ b, {}
    if epilogue_named(c.epilogue).source and name not in WHOLE:
        z -= (source := integers(rng, (m, n)))
        keywords = {"c": typed(on, placed("numpy", source, c.d, "words").array, c.d), "beta": -1}
    np.testing.assert_array_equal(run(on, name, a, b, "words", **keywords), rounded(z, c.d))


@pytest.mark.parametrize("kinds", [("offset", "column"), ("padded", "padded_column"), ("words", "aligned_column")])
@pytest.mark.parametrize("k", [3, 6, 131, 513])
@pytest.mark.parametrize("name", [name for name in KERNELS if SCHEDULES[find(name).schedule].unaligned])
def test_operands_that_lie_anywhere(on, rng, name, k, kinds):
    """Lines that begin and end at any element, or at words; what lies beside them is NaN."""
    m, n = extents(name, 1.3, 1.6)
    a, b = operands(rng, name, m + 1, n + 3, k, 2)
    np.testing.assert_array_equal(
        run(on, name, a, b, "offset", dict(zip("tn", kinds, strict=True))), rounded(a @ b, find(name).d)
    )


def test_launches_that_are_refused():
    """Which kernel it is of has to be said, for kernels share a function."""

    class Kernel(ctypes.Structure):
        _fields_ = [
            ("name", ctypes.c_char_p),
            ("facts", ctypes.c_void_p),
            ("workspace_size", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)),
            ("run", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ]

    class Library(ctypes.Structure):
        _fields_ = [
            ("abi", ctypes.c_int32),
            ("count", ctypes.c_int32),
            ("kernels", ctypes.POINTER(ctypes.POINTER(Kernel))),
        ]

    entry = ctypes.CDLL(simulator.LIBRARY).cutlass_py_library
    entry.restype = ctypes.POINTER(Library)
    library = entry().contents
    kernels = [library.kernels[i].contents for i in range(library.count)]
    kernel = next(k for k in kernels if k.name.endswith(b"_fused_bias_grad"))
    arguments, launch = ctypes.create_string_buffer(2048), ctypes.create_string_buffer(256)
    assert kernel.workspace_size(arguments, launch) == 0
    assert kernel.run(arguments, launch) == 1  # cudaErrorInvalidValue
    # Nor do they launch for no tile, or in an order that is none: m, n, k and batch come first; swizzle is the fourth.
    for extents, swizzle in (((0, 8, 8, 1), 1), ((8, 0, 8, 1), 1), ((8, 8, 8, 0), 1), ((8, 8, 8, 1), 0)):
        arguments[:16] = pack("4i", *extents)
        launch[:48] = pack("5i4x3P", 0, 132, 0, swizzle, 0, 0, 0, ctypes.addressof(kernel))
        assert kernel.run(arguments, launch) == 1


def test_s32_is_more_than_f32_holds(rng):
    a, b = operands(rng, next(name for name in WHOLE if "u8_u8" in name), 64, 64, 528)
    assert (np.float32(a @ b) != a @ b).any()


@pytest.mark.parametrize("name", BYTES)
def test_results_of_a_byte_saturate(on, rng, name):
    """Above and below; NaN stays NaN."""
    c = find(name)
    m, n = extents(name, 0.6, 0.7)
    a, b = operands(rng, name, m, n, 96)
    factor = {"e4m3": 32, "e5m2": 4096, "s8": 16}[c.d]
    wanted = rounded(factor * (a @ b), c.d)
    assert ((wanted == wanted.max()).sum() > 1) and ((wanted == wanted.min()).sum() > 1)
    if c.d != "s8":
        a[0, 5] = wanted[0] = np.nan
    np.testing.assert_array_equal(run(on, name, a, b, alpha=factor), wanted)


@pytest.mark.parametrize("name", [name for name in KERNELS if "tf32" in name and name.endswith("fused")])
def test_tf32_is_rounded_to_nearest(on, rng, name):
    """As CUTLASS's kernels have it: the tensor cores alone would cut off what lies beyond 10 bits."""
    m, n = extents(name, 0.6, 0.4)
    a, b = operands(rng, name, m, n, 40)
    near = [x * (1 + rng.integers(-1, 3, x.shape, endpoint=True) * 2.0**-13) for x in (a, b)]  # 2^-11 is half way
    np.testing.assert_array_equal(run(on, name, *near), a @ b)


@pytest.mark.parametrize("name", [PLAIN[0], PLAIN[1], "sm90_lean_f16_f16_f32_f16_tn_256x128x64_1x2x1_leancoop_fused"])
def test_batches(on, rng, name):
    m, n = extents(name, 1.2, 0.6)
    m = -(-m // 8) * 8
    for of_a, of_b in (((3,), (3,)), ((), (2,)), ((2,), (1,))):
        a, b = integers(rng, (*of_a, m, 72)), integers(rng, (*of_b, 72, n))
        np.testing.assert_array_equal(run(on, name, a, b, alpha=0.5), rounded(0.5 * (a @ b), find(name).d))


@pytest.mark.parametrize("name", PLAIN[1:2])
def test_more_tiles_than_blocks(on, rng, name):
    """Blocks take several, in every order: the same as in any other."""
    a, b = integers(rng, (48, 72)), integers(rng, (72, 5000))
    wanted = rounded(a @ b, "bf16")
    np.testing.assert_array_equal(run(on, name, a, b), wanted)


# What goes beside D is as wide as it, and every row of a tile asks for its own. Each kernel is told some of the
# activations, so that together they are told all.
@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("axis, batch", [("n", ()), ("m", (2,)), ("", ())], ids=["n", "m of two", "no bias"])
def test_epilogues(on, rng, name, axis, batch):
    c = find(name)
    e, schedule = epilogue_named(c.epilogue), SCHEDULES[c.schedule]
    f = e.functions[(3 * FUSED.index(name) + "nm".find(axis or " ") + 1) % len(e.functions)]
    m, n = extents(name, 1.1, 1.2)
    if schedule.tma_store:
        m = -(-m // 8) * 8
    else:
        m, n = (m // 8 * 8 + 8, n + 3) if c.layout[1] == "n" else (m + 3, n)  # odd rows, or odd columns
    a, b = integers(rng, (*batch, -(-m // 8) * 8, 40))[..., :m, :], integers(rng, (*batch, 40, -(-n // 8) * 8))[..., :n]
    like_d = "aligned" if schedule.tma_store else "offset"
    given, how = {}, {"alpha": 0.25, "activation": f}
    if axis:
        bias = rounded(rng.standard_normal(n if axis == "n" else m), c.d)
        given["bias"] = bias if axis == "n" else bias[:, None]
    if e.source:
        given["c"], how["beta"] = rounded(rng.standard_normal((*batch, m, n)), c.d), -0.5
    if e.gated:
        given["aux" if ACTIVATIONS[f].derivative else "gate"] = rounded(rng.standard_normal((*batch, m, n)), c.d)
    parameters = {"clamp": (-2.0, 3.0), "leaky_relu": (0.125,)}.get(f, ())
    wanted = reference_epilogue(
        how["alpha"] * (a @ b), beta=how.get("beta", 1), activation=f, parameters=parameters, **given
    )
    keywords = {
        key: typed(on, placed("numpy", x, c.d, like_d if key != "bias" else "row").array, c.d)
        for key, x in given.items()
    }
    keywords |= how | ({"activation": {"clamp": clamp, "leaky_relu": leaky_relu}[f](*parameters)} if parameters else {})
    aux = placed("numpy", None, c.d, like_d, (*batch, m, n)) if e.aux else None
    if aux:
        keywords["aux"] = typed(on, aux.array, c.d)
    sums = placed("numpy", None, "f32", "row", (n,)) if e.bias_grad else None
    if sums:
        keywords["bias_grad"] = on(sums.array)
    found = run(on, name, a, b, like_d, **keywords)
    assert_near(found, wanted.d, c.d, 2.0**-10)
    if aux:
        aux.assert_rest_untouched()
        assert_near(aux.array.astype("f8"), wanted.z, c.d, 2.0**-20)
    if sums:
        sums.assert_rest_untouched()
        each = wanted.d.reshape(-1, n)
        assert_near(sums.array.astype("f8"), each.sum(0), "f32", 2.0**-10, size=float(np.abs(each).sum(0).max()))


@pytest.mark.parametrize("name", [*FUSED, *SCALED, *IN_BLOCKS])
def test_what_the_kernel_in_front_writes_last(on, rng, name):
    """Launches overlap: nothing is read before it has ended. Products and their stores, the simulated GPU watches."""
    c = find(name)
    e = epilogue_named(c.epilogue)
    m, n = (-(-x // 8) * 8 for x in extents(name, 0.9, 0.8))
    k, block = 256, SCHEDULES[c.schedule].block
    shapes = {"alpha": ((), "f4"), "bias": ((n,), NUMPY[c.bias])}
    if e.source:
        shapes |= {"beta": ((), "f4"), "c": ((m, n), NUMPY[c.d])}
    if e.gated:
        shapes["gate"] = (m, n), NUMPY[c.d]
    if e.scaled:
        shapes |= {"scale_a": ((m, 1), "f4"), "scale_b": ((1, n), "f4"), "scale_out": ((), "f4")}
    if block:
        of_b = (k // 128, n if block == 1 else -(-n // 128))
        shapes = {"bias": shapes["bias"], "scale_a": ((m, k // 128), "f4"), "scale_b": (of_b, "f4")}
    dtypes = {"c": c.d, "gate": c.d, "bias": c.bias}
    values = {key: integers(rng, shape, dtypes.get(key, "f32"), 1, 3).astype(of) for key, (shape, of) in shapes.items()}
    given = {key: typed(on, x, dtypes.get(key, "f32")) for key, x in values.items()}
    outputs = {"aux": typed(on, np.zeros((m, n), NUMPY[c.d]), c.d)} if e.aux else {}
    if e.bias_grad:
        outputs["bias_grad"] = on(np.zeros(n, "f4"))
    a, b = operands(rng, name, m, n, k)
    wanted = run(on, name, a, b, **given, **outputs)
    kept = {key: x.copy() for key, x in values.items()}
    for x in values.values():
        x.fill(np.nan)

    def write() -> None:
        for key, x in values.items():
            x[...] = kept[key]

    simulator.late(write)
    np.testing.assert_array_equal(run(on, name, a, b, **given, **outputs), wanted)


@pytest.mark.parametrize("name", [name for name in FUSED if name.endswith("fusedc")])
def test_c_that_is_not_read(on, rng, name):
    """Absent, or with a beta of 0; or with one in device memory, of which nobody knows."""
    c = find(name)
    m, n = (-(-x // 8) * 8 for x in extents(name, 0.7, 0.6))
    a, b = integers(rng, (m, 24)), integers(rng, (24, n))
    wanted = rounded(a @ b, c.d)
    np.testing.assert_array_equal(run(on, name, a, b), wanted)
    nothing = typed(on, placed("numpy", np.full((m, n), np.nan), c.d, "aligned").array, c.d)
    np.testing.assert_array_equal(run(on, name, a, b, c=nothing, beta=0), wanted)
    added = placed("numpy", integers(rng, (m, n)), c.d, "aligned").array
    beta = on(np.full((), 2, "f4"))
    found = run(on, name, a, b, c=typed(on, added, c.d), beta=beta)
    np.testing.assert_array_equal(found, rounded(a @ b + 2 * added.astype("f8"), c.d))


@pytest.mark.parametrize("name", [name for name in FUSED if name.endswith("fusedc")])
@pytest.mark.parametrize("axis", ["n", "m"])
def test_a_bias_is_added_behind_c(on, rng, name, axis):
    """Whichever operand it lies along: where C takes the product away, the bias is left, however small."""
    c = find(name)
    m, n = (-(-x // 8) * 8 for x in extents(name, 0.7, 0.6))
    bias = integers(rng, (n,) if axis == "n" else (m, 1)) * 2**-12
    given = {"c": placed("numpy", np.full((m, n), 2.0**14), c.d, "aligned"), "bias": placed("numpy", bias, c.d)}
    keywords = {key: typed(on, x.array, c.d) for key, x in given.items()} | {"beta": -1}
    found = run(on, name, np.full((m, 16), 32.0), np.full((16, n), 32.0), **keywords)
    np.testing.assert_array_equal(found, np.broadcast_to(bias, (m, n)))


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("by", ["rows", "one", "numbers"])
def test_scales(on, rng, name, by):
    m, n = extents(name, 1.1, 0.7)
    a, b = operands(rng, name, m, n, 96)
    sizes = {"rows": ((m, 1), (1, n)), "one": ((), ()), "numbers": ((), ())}[by]
    scales = [rng.uniform(0.5, 2, size).astype("f4") for size in sizes]
    given = [float(x) if by == "numbers" else on(x) for x in scales]
    found = run(on, name, a, b, scale_a=given[0], scale_b=given[1])
    assert_near(found, (a @ b) * scales[0].astype("f8") * scales[1].astype("f8"), find(name).d, 2.0**-10)


@pytest.mark.parametrize("name", SCALED)
def test_scales_of_any_size_and_a_bias(on, rng, name):
    """Along rows and columns, of one element; a bias of each product, of all, and none; activations."""
    c = find(name)
    m, n = extents(name, 0.6, 0.7)
    a, b = operands(rng, name, m, n, 64, 2)
    cases = (((m, 1), (), (2, 1, n), "identity"), ((), (1, n), (n,), "gelu_tanh"), ((), (), None, "relu"))
    for of_a, of_b, of_bias, f in cases:
        given = {"scale_a": rng.uniform(0.5, 2, of_a).astype("f4"), "scale_b": rng.uniform(0.5, 2, of_b).astype("f4")}
        keywords = {key: on(x) for key, x in given.items()}
        if of_bias:
            given["bias"] = rounded(rng.standard_normal(of_bias), c.bias)
            keywords["bias"] = typed(on, given["bias"].astype(NUMPY[c.bias]), c.bias)
        found = run(on, name, a, b, alpha=2**-7, activation=f, scale_out=0.25, **keywords)
        wanted = reference_epilogue(a @ b, alpha=2**-7, activation=f, scale_out=0.25, **given)
        assert_near(found, wanted.d, c.d, 2.0**-10)


def in_blocks(on, rng, name, m, n, k, lead=()):
    """Operands, and scales in blocks that lie in any order; and the product, each line of k by its own factors."""
    a, b = integers(rng, (*lead, m, k)), integers(rng, (*lead, k, n))
    lines, groups = -(-k // 128), n if SCHEDULES[find(name).schedule].block == 1 else -(-n // 128)
    scale_a = rng.uniform(0.5, 2, (*lead, lines, m)).astype("f4").swapaxes(-1, -2)
    scale_b = rng.uniform(0.5, 2, (*lead, lines, groups)).astype("f4")
    product = np.zeros((*lead, m, n))
    for i in range(lines):
        part = a[..., i * 128 : i * 128 + 128] @ b[..., i * 128 : i * 128 + 128, :]
        by_column = scale_b[..., i, np.arange(n) // (1 if groups == n else 128)]
        product += part * scale_a[..., i, None].astype("f8") * by_column[..., None, :].astype("f8")
    return a, b, {"scale_a": on(scale_a), "scale_b": on(scale_b)}, product


@pytest.mark.parametrize("name", IN_BLOCKS)
@pytest.mark.parametrize("k", [48, 128, 1040])
def test_factors_in_blocks(on, rng, name, k):
    """Few and many lines, and a part of one; few of a batch. A bias beside them."""
    c = find(name)
    m, n = extents(name, 1.2, 1.3)
    if k <= 128 and SCHEDULES[c.schedule].block == 1:
        pytest.skip("scales by row and column")
    a, b, scales, wanted = in_blocks(on, rng, name, m, n, k, (2,) if k <= 128 else ())
    bias = rounded(rng.standard_normal(n), c.d)
    given = {"bias": typed(on, bias.astype(NUMPY[c.d]), c.d), "activation": "relu"}
    found = run(on, name, a, b, **scales, **given)
    assert_near(found, np.maximum(wanted + bias, 0), c.d, 2.0**-20, size=np.abs(wanted).max())


@pytest.mark.parametrize("name", [name for name in IN_BLOCKS if "x32x128_1x1x1_" in name])
@pytest.mark.parametrize("lines", [1, 4])
def test_factors_of_tile_after_tile(on, rng, name, lines):
    """Warpgroups take several: factors of one tile's last line lie where the next one's first go."""
    c = find(name)
    schedule = SCHEDULES[c.schedule]
    rows, columns = 17 * c.tile[0], (16 if schedule.pingpong else 8) * c.tile[1]  # two warpgroups take tiles, or one
    m, n = (columns, rows) if schedule.swap else (rows, columns)
    a, b, scales, wanted = in_blocks(on, rng, name, m, n, lines * 128)
    assert_near(run(on, name, a, b, **scales), wanted, c.d, 2.0**-20, size=np.abs(wanted).max())


@pytest.mark.parametrize("program", OPERANDS)
@pytest.mark.parametrize("name", USERS)
def test_stages_beside_epilogues_of_users(name, program):
    """As many as are foreseen where it is said which designs can carry an epilogue."""
    config = WITH_USERS[program, name]
    user = epilogue_named(config.epilogue).user
    schedule, size = SCHEDULES[config.schedule], NUMPY[config.d].itemsize
    taken = lean_bytes(config.tile, schedule, size, sum(user.matrix_bytes), user.reductions, user.vectors)
    foreseen = min(stages(config.tile, DTYPES[config.a].itemsize, taken), 12)
    assert _core.kernel_facts()[config.name]["stages"] == foreseen >= 3


def given(on: Any, program: str, values: dict[str, np.ndarray]) -> dict[str, Any]:
    """What an epilogue reads, each in its dtype; matrices lie as TMA reads them."""
    made = {}
    for name, x in values.items():
        kind, dtype = OPERANDS[program][name]
        made[name] = typed(on, placed("numpy", x, dtype, "aligned" if kind == "t" else "row").array, dtype)
    return made


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("products", [2, 1], ids=["each", "all"])
def test_epilogues_of_users(on, rng, name, products):
    """Vectors and matrices of each product of a batch, and the same for all; a number, also in device memory."""
    c = find(name)
    m, n = extents(name, 1.2, 1.4)
    m = -(-m // 8) * 8
    a, b = operands(rng, name, m, n, 208, 2)
    shapes = {"bias": (products, 1, n), "row": (products, m, 1), "left": (products, m, n)}
    values = {key: rounded(rng.standard_normal(x), OPERANDS["mixed"][key][1]) for key, x in shapes.items()}
    aux = placed("numpy", None, "f32", "aligned", (2, m, n))
    scale = 0.25 if products == 2 else on(np.full((), 0.25, "f4"))
    call = mixed(scale=scale, aux=typed(on, aux.array, "f32"), **given(on, "mixed", values))
    found = run(on, name, a, b, epilogue=call)
    z = 0.25 * (a @ b) + values["bias"]
    assert_near(found, np.maximum(z, 0) * values["left"] + values["row"], c.d, 2.0**-20)
    aux.assert_rest_untouched()
    assert_near(aux.array.astype("f8"), z, "f32", 2.0**-20)


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("tiles", [(1.2, 1.4), (0.3, 2.6)])
def test_reductions_of_users(on, rng, name, tiles):
    """Integers: every order gives the same sums. Rows and columns that lie outside of D take no part."""
    c = find(name)
    m, n = extents(name, *tiles)
    m, n = max(m, 3), -(-n // 8) * 8
    (a, b), row = operands(rng, name, m, n, 130, 2), integers(rng, (2, m, 1))
    shapes = {"rows": (2, m, 1), "columns": (2, 1, n), "kept": (2, m, n), "least": (2, m, 1), "total": (2, 1, 1)}
    outs = {
        key: placed("numpy", None, OPERANDS["joined"][key][1], "aligned" if key == "kept" else "row", shape)
        for key, shape in shapes.items()
    }
    written = {key: typed(on, x.array, OPERANDS["joined"][key][1]) for key, x in outs.items()}
    found = run(on, name, a, b, epilogue=joined(**written, **given(on, "joined", {"row": row})))
    product = a @ b
    z = product + row
    wanted = {
        "rows": z.sum(-1, keepdims=True),
        "columns": z.max(-2, keepdims=True),
        "kept": z,
        "least": product.min(-1, keepdims=True),
        "total": z.sum((-1, -2), keepdims=True),
    }
    np.testing.assert_array_equal(found, rounded(np.maximum(z, 0), c.d))
    for key, out in outs.items():
        out.assert_rest_untouched()
        np.testing.assert_array_equal(out.array.astype("f8"), rounded(wanted[key], OPERANDS["joined"][key][1]), key)
