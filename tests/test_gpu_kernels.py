"""Every compiled kernel by name, with the whole of its epilogue, over the edges of its tile, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import kept_cache, why_not  # noqa: E402, F401 (a fixture)

import cutlass_py  # noqa: E402
from cutlass_py.declaration.config import SCHEDULES, GemmConfig  # noqa: E402
from cutlass_py.declaration.dtypes import DTYPES, compute_of  # noqa: E402
from cutlass_py.declaration.epilogues import ACTIVATIONS, TOLD  # noqa: E402
from cutlass_py.kernels.kernel import CutlassKernel  # noqa: E402
from cutlass_py.kernels.registry import kernel_named  # noqa: E402

pytestmark = pytest.mark.gpu

# Those for scales in blocks: test_gpu_block.py.
KERNELS = [k for k in cutlass_py.get_kernels() if isinstance(k, CutlassKernel) and not k.interface.block]
WHY_NOT = why_not()


def kinds(c: GemmConfig) -> list[tuple[Any, ...]]:
    """What is tested of a family: each epilogue; of our own kernels each kind of numbers, clusters and parts too."""
    schedule, family = SCHEDULES[c.schedule], c.family
    if not schedule.lean:
        return [(family, c.epilogue)]
    width = next(width for width in (64, 32, 16) if c.tile[1] % width == 0)
    return [
        (family, c.epilogue),
        (family, c.a, c.accumulator, c.d, schedule.swap),
        (family, c.schedule, c.cluster[:2], c.cluster[2] > 1),
        (family, DTYPES[c.d].itemsize, width, schedule.swap, schedule.tma_store),
    ]


def on_demand() -> list[CutlassKernel]:
    """A kernel for each kind that no compiled one is of: of the smallest tile, the soonest compiled.

    Not of kernels for scales in blocks or lists, which have tests of their own.
    """
    built = {kind for k in KERNELS for kind in kinds(k.config)}
    found: dict[tuple[Any, ...], CutlassKernel] = {}
    for kernel in cutlass_py.get_kernels(compiled=False):
        if isinstance(kernel, CutlassKernel) and not (kernel.interface.block or kernel.interface.pointers):
            c = kernel.config
            for kind in kinds(c):
                least = found.setdefault(kind, kernel).config.tile
                if c.tile[0] * c.tile[1] < least[0] * least[1]:
                    found[kind] = kernel
    return list({kernel.name: kernel for kind, kernel in found.items() if kind not in built}.values())


def runs_here(kernel: CutlassKernel) -> bool:
    cc = torch.cuda.get_device_capability()
    lowest, highest = kernel.family.cc
    return lowest <= cc[0] * 10 + cc[1] <= highest


def every_kernel(kernels: list[CutlassKernel]):
    return pytest.mark.parametrize("kernel", kernels, ids=lambda k: k.name)


@pytest.fixture(autouse=True)
def on_this_architecture(request):
    if "kernel" in request.fixturenames and not runs_here(request.getfixturevalue("kernel")):
        pytest.skip("another architecture")


def storage(dtype: str) -> str:
    return DTYPES[dtype].storage or dtype


def compute(kernel: CutlassKernel) -> str:
    return compute_of(kernel.config.a, kernel.config.accumulator)


def activation_of(kernel: CutlassKernel) -> str:
    """What it applies; of a kernel that is told, one that its name leads to: each has some of the kernels."""
    known = kernel.interface.epilogue.functions
    return known[crc32(kernel.name.encode()) % len(known)]


def bias_axis(kernel: CutlassKernel) -> str:
    """Along which it adds a bias; of a kernel that adds either, one that its name leads to; "" for none."""
    axes = kernel.interface.epilogue.bias
    return axes and axes[crc32(kernel.name.encode()) // 64 % len(axes)]


def adds(kernel: CutlassKernel) -> bool:
    """Whether it reads a C. Sums in s32 are stored as they are: anything else would wrap around."""
    return kernel.interface.epilogue.source and kernel.config.d != "s32"


def edge_shapes(kernel: CutlassKernel) -> list[tuple[int, int, int, int]]:
    """(batch, m, n, k): tile - 2 .. tile + 2, one, several tiles; rounded to what the kernel's vectors need."""
    c, schedule = kernel.config, SCHEDULES[kernel.config.schedule]
    tm, tn, tk = c.tile
    if schedule.swap:
        tm, tn = tn, tm
    unit_m = unit_n = unit_k = 1
    if c.api == 2:
        unit_k = c.align if "t" == c.layout[0] or "n" == c.layout[1] else 1
        unit_m = c.align if c.layout[0] == "n" else 1
        unit_n = max(c.align if c.layout[1] == "t" else 1, c.align_d)
    elif schedule.tma_store:
        unit_n = c.align_d
    # k >= 2: a single element has no layout to speak of.
    shapes = [(1, 1, 1, 2), (1, tm - 1, tn + 1, tk + 1), (1, tm + 2, tn - 2, 2 * tk - 1), (1, tm, tn, 3 * tk)]
    shapes += [(1, 2 * tm + 1, 3 * tn + 2, 5 * tk + 2), (3, tm + 1, tn - 1, tk - 2), (1, 1, tn, tk), (1, tm, 1, tk)]
    if kernel.interface.stream_k:
        shapes.append((1, tm, tn, 67 * tk + 2))
        shapes = [(batch if c.api == 3 else 1, *extents) for batch, *extents in shapes]

    def up(x: int, unit: int) -> int:
        return -(-max(x, 1) // unit) * unit

    return [(batch, up(m, unit_m), up(n, unit_n), up(k, unit_k)) for batch, m, n, k in shapes]


def values(shape: tuple[int, ...], dtype: str, exact: bool, small: bool = False) -> torch.Tensor:
    """Integers, within 1 where `small`, or random numbers."""
    if exact:
        return gpu.integers(shape, dtype, -1, 2) if small else gpu.integers(shape, dtype)
    return gpu.normals(shape, dtype)


def operands(kernel: CutlassKernel, batch: int, m: int, n: int, k: int, exact: bool = True):
    """A and B in the kernel's layout, rows padded so that base and rows have just the alignment it needs."""
    c, unit = kernel.config, kernel.interface.align_a
    lead = (batch,) if batch > 1 else ()
    small = c.accumulator in ("f16", "fast")

    def operand(shape: tuple[int, int], dtype: str, layout: str) -> torch.Tensor:
        line = shape[1] if layout == "t" else shape[0]
        x = values((*lead, *shape), storage(dtype), exact, small)
        return gpu.laid_out(x, layout, pad=-line % unit + unit, offset=unit)

    return operand((m, k), c.a, c.layout[0]), operand((k, n), c.b, c.layout[1])


@dataclass
class Epilogue:
    """gemm's keywords for the whole epilogue of a kernel, and what they mean in float64."""

    keywords: dict[str, Any]
    aux: gpu.Guarded | None = None  # where it is written
    sums: gpu.Guarded | None = None  # the bias gradient

    def of(self, product: torch.Tensor) -> gpu.Result:
        read = self.aux is None
        return gpu.epilogue(product, **{k: v for k, v in self.keywords.items() if read or k != "aux"})


def epilogue_of(kernel: CutlassKernel, shape: tuple[int, ...], exact: bool = True) -> Epilogue:
    """Every operand that the kernel's epilogue has."""
    c, e = kernel.config, kernel.interface.epilogue
    m, n = shape[-2:]
    keywords: dict[str, Any] = {
        "kernel": kernel,
        "compute": compute(kernel),
        "alpha": 1 if c.d == "s32" else 2,
    }
    if adds(kernel):
        keywords |= {"c": gpu.filled(values(shape, c.d, exact)), "beta": -3}
    if axis := bias_axis(kernel):
        keywords["bias"] = values((n,) if axis == "n" else (m, 1), c.bias, exact)
    if (f := activation_of(kernel)) != "identity":
        keywords["activation"] = gpu.activation(f)
    if e.gated:
        name = "aux" if ACTIVATIONS[f].derivative else "gate"
        keywords[name] = gpu.filled(values(shape, c.d, exact))
    if e.scaled:
        powers = [2.0 ** torch.randint(-1, 2, (extent,), device=gpu.DEVICE) for extent in (m, n)]
        scales = powers if exact else [gpu.normals((m,), "f32"), gpu.normals((n,), "f32")]
        keywords |= {"scale_a": scales[0], "scale_b": scales[1], "scale_out": 0.5}
    aux = gpu.guarded(shape, c.d) if e.aux else None
    if aux:
        keywords["aux"] = aux.view
    sums = gpu.guarded((1, n), "f32") if e.bias_grad else None
    if sums:
        keywords["bias_grad"] = sums.view
    return Epilogue(keywords, aux, sums)


def check(kernel: CutlassKernel, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue, exact: bool) -> torch.Tensor:
    """Runs the kernel into a poisoned output and compares everything that it wrote; returns the output."""
    c = kernel.config
    product = gpu.expected(a, b)
    out = gpu.guarded(tuple(product.shape), c.d)
    assert cutlass_py.gemm(a, b, out=out.view, **epilogue.keywords) is out.view
    out.check()
    result = epilogue.of(product)
    error = 0.0 if exact else error_of_z(kernel, a, b, epilogue, result)
    if epilogue.aux:
        epilogue.aux.check()
        gpu.assert_near(epilogue.aux.view, result.z, error)
    f = epilogue.keywords.get("activation", "identity")
    name = f if isinstance(f, str) else f.name
    if exact and name in gpu.EXACT:
        gpu.assert_exact(out.view, result.d)
        check_sums(epilogue, result, 0.0)
        return out.view
    argument = epilogue.keywords.get("gate", None if epilogue.aux else epilogue.keywords.get("aux"))
    at = result.z if argument is None else gpu.wide(argument)
    narrow = DTYPES[c.d].bits <= 16
    error = gpu.epilogue_error(name, result, at, error, fast=narrow)
    gpu.assert_near(out.view, result.d, epilogue.keywords.get("scale_out", 1) * error)
    check_sums(epilogue, result, error)
    return out.view


def check_sums(epilogue: Epilogue, result: gpu.Result, error: torch.Tensor | float) -> None:
    """The bias gradient: sums of f(z) before it is rounded, over the products of a batch too."""
    if epilogue.sums:
        epilogue.sums.check()
        columns = result.y.reshape(-1, result.y.shape[-1])
        bound = (error + torch.zeros_like(result.y)).reshape(columns.shape).sum(0) + 2**-21 * columns.abs().sum(0)
        gpu.assert_near(epilogue.sums.view[0], columns.sum(0), bound)


def error_of_z(kernel: CutlassKernel, a: torch.Tensor, b: torch.Tensor, epilogue: Epilogue, result: gpu.Result):
    """Bound on the error of z: of the sum, times its factors, and of what is added."""
    c, k = kernel.config, a.shape[-1]
    # Units of the accumulator; tf32 rounds each operand to 11 bits first.
    unit = {"f64": 2**-51, "c128": 2**-50, "f16": 2**-10, "fast": 2**-13, "s32": 2**-24}.get(c.accumulator, 2**-22)
    unit = 2**-9 / k if c.a == "tf32" else unit
    factors = {key: epilogue.keywords.get(key, 1) for key in ("alpha", "scale_a", "scale_b")}
    size = gpu.epilogue(gpu.product_error(a, b, unit), **factors).z.abs()
    added = result.z.abs() + gpu.epilogue(gpu.wide(a).abs() @ gpu.wide(b).abs(), **factors).z.abs()
    return size + (2**-50 if unit < 2**-40 else 2**-9 if c.accumulator == "f16" else 2**-21) * added


def check_edges(kernel: CutlassKernel) -> None:
    for batch, m, n, k in edge_shapes(kernel):
        a, b = operands(kernel, batch, m, n, k)
        lean = {"kernel": kernel, "compute": compute(kernel)}
        if adds(kernel):
            check(kernel, a, b, Epilogue({**lean, **unavoidable(kernel)}), exact=True)  # C is not read
            if kernel.config.api == 2:  # a bias along n is a C of equal rows
                keywords = {**lean, **unavoidable(kernel), "bias": gpu.integers((n,), kernel.config.bias)}
                check(kernel, a, b, Epilogue(keywords), exact=True)
        check(kernel, a, b, epilogue_of(kernel, (*a.shape[:-1], n)), exact=True)


@every_kernel([k for k in KERNELS if not k.interface.pointers])
def test_edges(kernel):
    check_edges(kernel)


def unavoidable(kernel: CutlassKernel) -> dict[str, Any]:
    """The part of the epilogue that cannot be left out: an activation that is compiled in."""
    name = kernel.interface.epilogue.activation
    return {} if name in ("identity", TOLD) else {"activation": gpu.activation(name)}


def check_random(kernel: CutlassKernel) -> None:
    c = kernel.config
    m, n, k = 3 * c.tile[0], 2 * c.tile[1], 8 * c.tile[2] + 16
    a, b = operands(kernel, 1, m, n, k, exact=False)
    epilogue = epilogue_of(kernel, (m, n), exact=False)
    first = check(kernel, a, b, epilogue, exact=False)
    again = torch.empty_like(first)
    cutlass_py.gemm(a, b, out=again, **epilogue.keywords)
    assert torch.equal(first.contiguous().view(torch.uint8), again.contiguous().view(torch.uint8))


@every_kernel([k for k in KERNELS if not k.interface.pointers])
def test_random(kernel):
    check_random(kernel)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.usefixtures("kept_cache")
@every_kernel(on_demand())
def test_epilogues_that_are_compiled_on_demand(kernel):
    check_edges(kernel)
    check_random(kernel)


@every_kernel([k for k in KERNELS if k.interface.epilogue.scaled])
def test_scales_in_single_values(kernel):
    m, n, k = kernel.config.tile
    a, b = operands(kernel, 1, m, n, k)
    epilogue = epilogue_of(kernel, (m, n))
    one = torch.full((1,), 0.25, device=gpu.DEVICE)
    for scales in ({"scale_a": one, "scale_b": one}, {"scale_a": one, "scale_b": 2.0}, {"scale_out": one}):
        keywords = {key: x for key, x in epilogue.keywords.items() if not key.startswith("scale_")}
        result = gpu.epilogue(gpu.expected(a, b), **keywords, **scales)
        out = gpu.guarded((m, n), kernel.config.d)
        cutlass_py.gemm(a, b, out=out.view, **keywords, **scales)
        error = gpu.epilogue_error(activation_of(kernel), result, result.z, 0.0, fast=True)
        gpu.assert_near(out.view, result.d, error)


@every_kernel([k for k in KERNELS if k.interface.pointers or (k.config.api == 2 and not k.interface.stream_k)])
def test_lists(kernel):
    """Matrices that do not lie evenly, so that they travel as addresses."""
    c = kernel.config
    for _, m, n, k in edge_shapes(kernel)[1:4]:
        pairs = [operands(kernel, 1, m, n, k) for _ in range(3)]
        unit = 16 // DTYPES[c.d].itemsize
        outs = [gpu.guarded((m, n), c.d, pad=-n % unit + unit) for _ in pairs]
        addends = [gpu.filled(gpu.integers((m, n), c.d), pad=-n % unit + unit) for _ in pairs]
        order = (0, 2, 1)
        a, b = [pairs[i][0] for i in order], [pairs[i][1] for i in order]
        keywords = {"kernel": kernel, "compute": compute(kernel)} | unavoidable(kernel)
        factors = {"alpha": 2, "beta": -1} if adds(kernel) else {}
        added = {"c": [addends[i] for i in order]} if adds(kernel) else {}
        cutlass_py.gemm(a, b, out=[outs[i].view for i in order], **added, **factors, **keywords)
        for i, j in enumerate(order):
            one = {"c": addends[j]} if adds(kernel) else {}
            result = gpu.epilogue(gpu.expected(a[i], b[i]), **one, **factors, **keywords)
            name = kernel.interface.epilogue.activation
            error = gpu.epilogue_error(name, result, result.z, 0.0, fast=DTYPES[c.d].bits <= 16)
            gpu.assert_near(outs[j].view, result.d, error)
            outs[j].check()


@every_kernel([k for k in KERNELS if not k.interface.pointers])
def test_the_same_bits_on_every_run(kernel):
    """Several tiles for each multiprocessor: what one still reads or stores, the next one may not touch."""
    tm, tn, tk = kernel.config.tile
    m, n = (20 * tn, 15 * tm) if SCHEDULES[kernel.config.schedule].swap else (20 * tm, 15 * tn)
    for k in (tk, 9 * tk):
        a, b = operands(kernel, 1, m, n, k, exact=False)
        epilogues = [epilogue_of(kernel, (m, n), exact=False).keywords]
        if adds(kernel):  # where C is read, tiles are stored at leisure
            epilogues.append({"kernel": kernel, "compute": compute(kernel)} | unavoidable(kernel))
        for keywords in epilogues:
            gpu.assert_same_bits([cutlass_py.gemm(a, b, out_dtype=kernel.config.d, **keywords) for _ in range(12)])


@every_kernel([k for k in KERNELS if k.interface.pointers])
def test_lists_give_the_same_bits_on_every_run(kernel):
    """Descriptors change from tile to tile."""
    m, n, k = kernel.config.tile
    a, b = zip(*(operands(kernel, 1, 2 * m, n, 2 * k, exact=False) for _ in range(300)), strict=True)
    keywords = {"kernel": kernel, "compute": compute(kernel)} | unavoidable(kernel)
    order = [*range(0, 300, 2), *range(1, 300, 2)]
    a, b = [a[i] for i in order], [b[i] for i in order]
    found = [torch.stack(cutlass_py.gemm(a, b, **keywords)) for _ in range(12)]
    gpu.assert_same_bits(found)
    for i in (0, 149, 150, 299):
        gpu.assert_near(found[0][i], gpu.expected(a[i], b[i]), gpu.product_error(a[i], b[i], 2**-22))


PROMOTED = [k for k in KERNELS if k.config.a in ("e4m3", "e5m2") and k.config.accumulator == "f32"]


@every_kernel([k for k in PROMOTED if k.interface.epilogue.activation in ("identity", TOLD)])
def test_fp8_sums_are_promoted(kernel):
    """Sums of one sign: those of the tensor cores alone, of about 14 bits, would fall behind."""
    m, n, k = 64, 64, 1 << 14
    a, b = (torch.rand(shape, device=gpu.DEVICE) + 0.5 for shape in ((m, k), (n, k)))
    a, b = a.to(gpu.DTYPES[kernel.config.a]), b.to(gpu.DTYPES[kernel.config.b]).mT
    d = cutlass_py.gemm(a, b, kernel=kernel, out_dtype=kernel.config.d, alpha=2.0**-8)
    wanted = gpu.expected(a, b) / 2**8
    # Promoted once a tile. One twice as deep has twice the terms, and cuts each where twice the sum puts its last bit:
    # 64x32x256 with an f32 D was off by more than 2**-10 and less than 2**-9.
    kept = (max(kernel.config.tile[2], 128) / 128) ** 2 * 2**-11
    error = ((gpu.wide(d) - wanted).abs() / wanted).max().item()
    assert error <= torch.finfo(d.dtype).eps / 2 + kept


def writes(dtype: str) -> CutlassKernel:
    """A kernel whose result has this dtype, and behind which the next may begin early: few blocks here, or pairs."""
    for kernel in KERNELS:
        c = kernel.config
        plain = (c.layout, c.epilogue, c.schedule, c.accumulator) == ("tn", "fused", "leanpingpong", "f32")
        if plain and c.d == dtype and c.a in ("bf16", "f16"):
            return kernel
    pytest.skip(f"no kernel of the built set writes {dtype}")


# What waits for the kernel in front is the same in all of ours: of each kind some.
READS = [
    k for k in KERNELS
    if k.config.api == 3 and not k.interface.pointers and k.interface.epilogue.activation in ("identity", TOLD)
    and not (k.interface.epilogue.gated or k.interface.epilogue.aux)
]  # fmt: skip


def alternating(extent: int, front: CutlassKernel) -> tuple[torch.Tensor, Callable[[int], object]]:
    """A vector, and what fills it by that kernel with 1 + i % 2 of a number i."""
    dtype = front.config.a
    left = gpu.integers((1, 8192), dtype, 1, 2)
    right = [torch.full((extent, 8192), 2.0**-power, device=gpu.DEVICE, dtype=gpu.DTYPES[dtype]) for power in (13, 12)]
    vector = torch.zeros(1, extent, device=gpu.DEVICE, dtype=gpu.DTYPES[front.config.d])
    return vector, lambda i: cutlass_py.gemm(left, right[i % 2].mT, out=vector, kernel=front)


def check_in_turn(kernel, a, b, fill, keywords, expected: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """Fills and calls by turns without a wait; `expected` makes of a product what a call had to see in the vector."""
    always = {"kernel": kernel, "compute": compute(kernel), "out_dtype": kernel.config.d}
    keywords = {"alpha": 2.0**-8, **keywords, **always}
    found = []
    for i in range(20):
        fill(i)
        found.append(cutlass_py.gemm(a, b, **keywords))
    torch.cuda.synchronize()
    for i, d in enumerate(found):
        gpu.assert_exact(d, expected(gpu.expected(a, b) / 2**8, 1 + i % 2))


@every_kernel([k for k in READS if k.interface.epilogue.bias][::9])
def test_a_bias_that_the_kernel_in_front_writes(kernel):
    """Launches overlap: few blocks sum over a long k, while the others could read what they have not written yet."""
    m, n, k = 512, 1008, 4096
    a, b = operands(kernel, 1, m, n, k)
    along_n = bias_axis(kernel) == "n"
    bias, fill = alternating(n if along_n else m, writes(kernel.config.bias))
    check_in_turn(kernel, a, b, fill, {"bias": bias[0] if along_n else bias.mT}, lambda product, x: product + x)


@every_kernel([k for k in READS if k.interface.epilogue.scaled][::9])
@pytest.mark.parametrize("axis", ["m", "n", "one"])
def test_scales_that_the_kernel_in_front_writes(kernel, axis):
    m, n, k = 512, 1008, 4096
    a, b = operands(kernel, 1, m, n, k)
    scale, fill = alternating({"m": m, "n": n, "one": 8}[axis], writes("f32"))
    scales = {"m": {"scale_a": scale.mT}, "n": {"scale_b": scale[0]}, "one": {"scale_a": scale[0, :1]}}
    check_in_turn(kernel, a, b, fill, scales[axis], lambda product, x: product * x)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.usefixtures("kept_cache")
@pytest.mark.parametrize("schedule", ["leanpingpong", "leanpingpongdirect", "leancoopdirect"])
@pytest.mark.parametrize("what", ["c", "alpha", "beta"])
def test_what_our_own_kernels_read_of_the_kernel_in_front(schedule, what):
    """Every thread of them waits first, so that launches overlap even where C is read element by element."""
    tile = "128x256x64_2x1x1" if "coop" in schedule else "128x128x64_1x1x1"
    kernel = kernel_named(f"sm90_lean_bf16_bf16_f32_bf16_tn_{tile}_{schedule}_fusedc")
    a, b = operands(kernel, 1, 1, 1008, 4096)
    x, fill = alternating(1008, writes("bf16" if what == "c" else "f32"))
    c = x if what == "c" else gpu.integers((1, 1008), "bf16")
    given = {"c": {"c": x}, "alpha": {"c": c, "alpha": x[0, :1]}, "beta": {"c": c, "beta": x[0, :1]}}[what]

    def expected(product: torch.Tensor, x: int) -> torch.Tensor:
        alpha, beta = (x * 2**8 if what == "alpha" else 1), (x if what == "beta" else 1)
        return alpha * product + (x if what == "c" else beta * gpu.wide(c))

    check_in_turn(kernel, a, b, fill, given, expected)


LINEAR = [k for k in KERNELS if k.interface.epilogue.plain and k.config.d != "s32"]


@every_kernel([k for k in LINEAR if not k.interface.block and not k.interface.pointers][::5])
def test_without_a_product_a_and_b_are_not_read(kernel):
    m, n = kernel.config.tile[:2]
    a, b = operands(kernel, 1, m, n, 64)
    c = gpu.integers((m, n), kernel.config.d)
    for x in (a, b):
        gpu.poison(x._base)
    keywords = {
        "kernel": kernel,
        "compute": compute(kernel),
        "out_dtype": kernel.config.d,
    }
    keywords |= {"c": c, "beta": 2} if adds(kernel) else {}
    gpu.assert_exact(cutlass_py.gemm(a, b, alpha=0, **keywords), 2 * gpu.wide(c) * adds(kernel))


def test_a_forced_kernel_and_k_0():
    a, b = gpu.integers((64, 0), "bf16"), gpu.integers((0, 64), "bf16")
    assert (cutlass_py.gemm(a, b, kernel=cutlass_py.get_kernels(cutlass_py.GemmArguments(a, b))[0]) == 0).all()


def check_one_of_each_family_and_epilogue() -> None:
    found = {(k.config.family, k.config.epilogue): k for k in KERNELS if runs_here(k) and not k.interface.pointers}
    for kernel in found.values():
        m, n, k = kernel.config.tile
        a, b = operands(kernel, 1, m + 16, n + 16, k + 16)
        check(kernel, a, b, epilogue_of(kernel, (m + 16, n + 16)), exact=True)


@pytest.mark.sanitized
def test_one_kernel_of_each_family_and_epilogue():
    check_one_of_each_family_and_epilogue()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_one_kernel_of_each_family_and_epilogue_on_another_device():
    """What a kernel is given once, such as its shared memory, each device has to give it."""
    for device in (1, 0, 1):
        with torch.cuda.device(device):
            check_one_of_each_family_and_epilogue()


def test_tf32_needs_compute():
    tf32 = next(k for k in KERNELS if k.config.a == "tf32")
    a = torch.ones(8, 8, device=gpu.DEVICE)
    with pytest.raises(ValueError, match="multiplies tf32; the operands are f32"):
        cutlass_py.gemm(a, a, kernel=tf32)
