"""CUTLASS 2.x kernels of groups on the device: every kernel, dtype, layout and alignment; graphs; odd numbers."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GemmArguments, GroupedArguments, explain, gemm, grouped_gemm  # noqa: E402
from cutlass_py.declaration.dtypes import DTYPES  # noqa: E402
from cutlass_py.kernels.kernel import CutlassKernel  # noqa: E402

pytestmark = pytest.mark.gpu

KERNELS = [
    k
    for k in cutlass_py.get_kernels(operation="grouped_gemm")
    if isinstance(k, CutlassKernel) and k.config.schedule == "persistent"
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
AXES = ("m", "n", "k", "batch")
COMPUTE = {"tf32": "tf32", "tf32x3": "3xtf32"}


def sizes_of(seed: int, groups: int, most: int) -> list[int]:
    """Of any size, a third of them empty."""
    draw = random.Random(seed)
    return [0 if draw.random() < 0.3 else draw.randint(1, most) for _ in range(groups)]


def numbers(sizes: list[int], how: str, dtype: torch.dtype = torch.int32) -> dict[str, Any]:
    """Keywords that tell groups apart, on the device."""
    found = torch.tensor(sizes, dtype=torch.int64)
    if how == "sizes":
        return {"sizes": found.to(gpu.DEVICE, dtype)}
    ends = found.cumsum(0)
    ends = ends if how == "ends" else torch.cat([ends.new_zeros(1), ends])
    return {"offsets": ends.to(gpu.DEVICE, dtype)}


def ways(axis: str) -> tuple[str, ...]:
    return ("sizes",) if axis == "batch" else ("ends", "starts", "sizes")


class Case:
    """Operands of groups in some layout, by whole accesses or as odd as can be, and the definition.

    Small integers, whose products are exact. What surrounds operands is NaN, what surrounds results is watched.
    """

    def __init__(
        self,
        axis: str,
        layout: str,
        sizes: list[int],
        dtype: str,
        d: str,
        b: str | None = None,
        odd: bool = True,
        k: int | None = None,
    ) -> None:
        self.axis, self.sizes, self.odd = axis, sizes, odd
        groups, rest = len(sizes), 5
        total = (max(sizes) if axis == "batch" else sum(sizes)) + rest
        extents = {"m": 77, "n": 141, "k": 101 if k is None else k} | {"m" if axis == "batch" else axis: total}
        m, n, depth = (x if odd or not x else -(-x // 16) * 16 for x in extents.values())
        shape_a = (groups, m, depth) if axis in ("n", "batch") else (m, depth)
        shape_b = (groups, depth, n) if axis in ("m", "batch") else (depth, n)
        self.a = self.laid(gpu.integers(shape_a, dtype), layout[0])
        self.b = self.laid(gpu.integers(shape_b, b or dtype), layout[1])
        self.shape = (groups, m, n) if axis in ("k", "batch") else (m, n)
        self.out = gpu.guarded(self.shape, d, pad=3 if odd else None)
        self.out.view.fill_(7)

    def laid(self, x: torch.Tensor, layout: str = "t") -> torch.Tensor:
        return gpu.laid_out(x, layout, pad=3 if self.odd else 16, offset=1 if self.odd else 0)

    def lines(self) -> list[slice]:
        at, found = 0, []
        for size in self.sizes:
            found.append(slice(0, size) if self.axis == "batch" else slice(at, at + size))
            at += size
        return found

    def nobodys(self) -> None:
        """What belongs to no group is NaN from now on, where there is one."""
        if not self.a.dtype.is_floating_point and not self.a.dtype.is_complex:
            return
        end = sum(self.sizes)
        if self.axis == "m":
            self.a[end:] = torch.nan
        elif self.axis == "n":
            self.b[:, end:] = torch.nan
        elif self.axis == "k":
            self.a[:, end:], self.b[end:] = torch.nan, torch.nan
        else:
            for i, size in enumerate(self.sizes):
                self.a[i, size:] = torch.nan

    def of_group(self, i: int, x: torch.Tensor) -> torch.Tensor:
        """What a group has of a matrix that lies as the result does."""
        at = self.lines()[i]
        return {"m": lambda: x[at], "n": lambda: x[:, at], "k": lambda: x[i], "batch": lambda: x[i, at]}[self.axis]()

    def product(self, i: int) -> torch.Tensor:
        at, a, b = self.lines()[i], gpu.wide(self.a), gpu.wide(self.b)
        pair = {
            "m": lambda: (a[at], b[i]), "n": lambda: (a[i], b[:, at]), "k": lambda: (a[:, at], b[at]),
            "batch": lambda: (a[i, at], b[i]),
        }[self.axis]()  # fmt: skip
        return pair[0] @ pair[1]

    def check(self, finish: Any = lambda i, z: z, found: torch.Tensor | None = None) -> None:
        """Every group is right, and nothing else was written."""
        result = self.out.view if found is None else found
        wanted = torch.full(self.shape, 7, device=gpu.DEVICE, dtype=gpu.wide(result).dtype)
        for i in range(len(self.sizes)):
            self.of_group(i, wanted).copy_(finish(i, self.product(i)))
        if found is None:
            gpu.assert_exact(result, wanted)
            self.out.check()
            return
        for i in range(len(self.sizes)):
            gpu.assert_exact(self.of_group(i, result), self.of_group(i, wanted))


def axes_of(kernel: CutlassKernel) -> list[str]:
    """What a kernel's groups may divide; by whole accesses, of extents that are multiples of them."""
    c = kernel.config
    a_along_k, b_along_k = c.layout[0] == "t", c.layout[1] == "n"
    found = ["batch"]
    found += ["m"] if a_along_k or c.align == 1 else []
    found += ["n"] if (b_along_k or c.align == 1) and c.align_d == 1 else []
    found += ["k"] if (not a_along_k and not b_along_k) or c.align == 1 else []
    return found


def case_of(kernel: CutlassKernel, axis: str, sizes: list[int], **keywords: Any) -> Case:
    c = kernel.config
    return Case(axis, c.layout, sizes, DTYPES[c.a].stored, c.d, DTYPES[c.b].stored, c.align == 1, **keywords)


@every_kernel
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kernel(kernel, seed):
    compute = COMPUTE.get(kernel.config.a)
    for axis in axes_of(kernel):
        case = case_of(kernel, axis, sizes_of(seed, (3, 40, 70)[seed - 1], (700, 150, 20)[seed - 1]))
        case.nobodys()
        for how in ways(axis):
            case.out.view.fill_(7)
            given = numbers(case.sizes, how, torch.int64 if how == "starts" else torch.int32)
            grouped_gemm(case.a, case.b, out=case.out.view, compute=compute, kernel=kernel, **given)
            case.check()


@every_kernel
def test_epilogues(kernel):
    """c and factors; a bias of each group, or of all, in its stead; functions of both."""
    config, d = kernel.config, kernel.config.d
    compute = COMPUTE.get(config.a)
    for axis in axes_of(kernel):
        case = case_of(kernel, axis, [40, 0, 100, 61])
        given = numbers(case.sizes, "sizes" if axis == "batch" else "ends")
        keywords = {"out": case.out.view, "compute": compute, "kernel": kernel}
        if d != "s32":
            c = case.laid(gpu.integers(case.shape, d))
            grouped_gemm(case.a, case.b, c=c, alpha=2, beta=3, **keywords, **given)
            case.check(lambda i, z, case=case, c=c: 2 * z + 3 * gpu.wide(case.of_group(i, c)))
            case.out.view.fill_(7)
            alpha = torch.full((1,), 0.5, device=gpu.DEVICE).to(gpu.DTYPES[d if d in ("f64", "c64", "c128") else "f32"])
            grouped_gemm(case.a, case.b, c=case.out.view, out=case.out.view, alpha=alpha, compute=compute,
                         kernel=kernel, **given)  # fmt: skip
            case.check(lambda i, z: z / 2 + 7)
        if d == "s32":
            continue
        n = case.shape[-1]
        for shape in ((n,),) if axis == "n" else ((n,), (len(case.sizes), n)):
            bias = torch.zeros((*shape[:-1], -(-n // 16) * 16), device=gpu.DEVICE).to(gpu.DTYPES[d])[..., :n]
            bias.copy_(gpu.integers(shape, d))
            for activation in (None, "relu") if kernel.interface.epilogue.told else (None,):
                case.out.view.fill_(7)
                grouped_gemm(case.a, case.b, bias=bias, activation=activation, **keywords, **given)
                case.check(partial(_biased, case, bias, activation))


def _biased(case: Case, bias: torch.Tensor, activation: str | None, i: int, z: torch.Tensor) -> torch.Tensor:
    z = z + gpu.wide(bias[case.lines()[i]] if case.axis == "n" else bias[i] if bias.ndim == 2 else bias)
    return z.clamp_min(0) if activation else z


@pytest.mark.parametrize("function", gpu.PLAIN)
@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
def test_every_activation(dtype, function):
    sizes = [40, 0, 100, 60]
    a, b = gpu.normals((200, 64), dtype), gpu.normals((4, 64, 96), dtype, 0.2)
    out = grouped_gemm(a, b, activation=gpu.activation(function), kernel=_first(a, b, sizes), **numbers(sizes, "ends"))
    at = 0
    for size, right in zip(sizes, b, strict=True):
        left = a[at : at + size]
        result = gpu.epilogue(gpu.wide(left) @ gpu.wide(right), activation=gpu.activation(function))
        error = gpu.product_error(left, right)
        error = gpu.epilogue_error(function, result, result.z, error, fast=dtype == "f16")
        gpu.assert_near(out[at : at + size], result.d, error)
        at += size


def _first(a: torch.Tensor, b: torch.Tensor, sizes: list[int], **keywords: Any) -> str:
    """The first of these kernels that takes a call."""
    args = GroupedArguments(a, b, **numbers(sizes, "ends"), **keywords)
    return next(k.name for k in KERNELS if k.supports(args))


@pytest.mark.parametrize("odd", [False, True], ids=["whole", "odd"])
@pytest.mark.parametrize("layout", ["tn", "tt", "nn", "nt"])
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("dtype", "compute"),
    [("bf16", None), ("f16", None), ("f32", None), ("f32", "tf32"), ("f32", "3xtf32"), ("f64", None), ("c64", None),
     ("c128", None), ("s8", None), ("u8", None)],
)  # fmt: skip
def test_the_choice(dtype, compute, axis, layout, odd):
    """Numbers on the device: something takes every dtype, however it lies."""
    d = {"s8": "s32", "u8": "s32"}.get(dtype, dtype)
    for sizes in (sizes_of(4, 9, 90), [0, 0], [0, 200, 0], [1, 2, 3, 0]):
        case = Case(axis, layout, sizes, dtype, d, odd=odd)
        case.nobodys()
        grouped_gemm(case.a, case.b, out=case.out.view, compute=compute, **numbers(sizes, ways(axis)[0]))
        case.check()
        new = grouped_gemm(case.a, case.b, compute=compute, **numbers(sizes, ways(axis)[0]))
        case.check(found=new)


@pytest.mark.parametrize("dtype", ["f32", "f64", "c128", "s8"])
def test_a_large_product(dtype):
    """Many tiles for every block."""
    d = {"s8": "s32"}.get(dtype, dtype)
    sizes = sizes_of(6, 24, 500)
    a, b = gpu.integers((sum(sizes), 128), dtype), gpu.integers((24, 1024, 128), dtype).mT
    out = grouped_gemm(a, b, **numbers(sizes, "ends"))
    assert gpu.name_of(out.dtype) == d
    at = 0
    for size, right in zip(sizes, b, strict=True):
        gpu.assert_exact(out[at : at + size], gpu.wide(a[at : at + size]) @ gpu.wide(right))
        at += size


@pytest.mark.parametrize("axis", AXES)
def test_no_k_and_no_lines(axis):
    """Groups without a k are zeros, or beta * c."""
    case = Case(axis, "tn", [3, 0, 40], "f32", "f32", k=0)
    given = numbers(case.sizes, ways(axis)[0])
    grouped_gemm(case.a, case.b, out=case.out.view, **given)
    case.check()
    c = gpu.integers(case.shape, "f32")
    grouped_gemm(case.a, case.b, c=c, beta=2, out=case.out.view, **given)
    case.check(lambda i, z: z + 2 * gpu.wide(case.of_group(i, c)))
    empty = Case(axis, "tn", [0, 0, 0], "f32", "f32")
    empty.nobodys()
    grouped_gemm(empty.a, empty.b, out=empty.out.view, **numbers(empty.sizes, ways(axis)[0]))
    empty.check()
    case = Case(axis, "tn", [3, 0, 40], "f32", "f32")
    case.a.fill_(torch.nan)
    if axis != "k":
        grouped_gemm(case.a, case.b, out=case.out.view, alpha=0.0, **given)
        case.check(lambda i, z: torch.zeros_like(z))


@pytest.mark.parametrize("how", ["ends", "starts", "sizes"])
@pytest.mark.parametrize("axis", ["m", "n", "k"])
def test_numbers_on_the_device_are_cut_off_not_trusted(axis, how):
    """Whatever they are, memory outside of out stays, and the next call works."""
    draw = random.Random(7)
    case = Case(axis, "tn", [40, 0, 100, 60], "f32", "f32")
    count = 5 if how == "starts" else 4
    for dtype, limit in ((torch.int32, 2**31 - 1), (torch.int64, 2**63 - 1)):
        for _ in range(12):
            values = [draw.choice((draw.randint(-limit, limit), draw.randint(-300, 300))) for _ in range(count)]
            name = "sizes" if how == "sizes" else "offsets"
            told = {name: torch.tensor(values, device=gpu.DEVICE, dtype=dtype)}
            grouped_gemm(case.a, case.b, out=case.out.view, **told)
            torch.cuda.synchronize()
            case.out.check()
    case.out.view.fill_(7)
    grouped_gemm(case.a, case.b, out=case.out.view, **numbers(case.sizes, how))
    case.check()


@pytest.mark.parametrize("dtype", ["f32", "f64", "s8"])
@pytest.mark.parametrize("axis", AXES)
def test_a_graph_follows_new_numbers(axis, dtype):
    d = {"s8": "s32"}.get(dtype, dtype)
    case = Case(axis, "tn", [40, 0, 100, 60], dtype, d)
    given = numbers(case.sizes, ways(axis)[0])
    grouped_gemm(case.a, case.b, out=case.out.view, **given)  # chosen before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_gemm(case.a, case.b, out=case.out.view, **given)
    for sizes in ([40, 0, 100, 60], [0, 100, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]):
        case.sizes = sizes
        for name, x in numbers(sizes, ways(axis)[0]).items():
            given[name].copy_(x)
        case.out.view.fill_(7)
        graph.replay()
        case.check()


@pytest.mark.parametrize("groups", [1, 33, 1500])
@pytest.mark.parametrize("axis", ["m", "k"])
def test_any_number_of_groups(axis, groups):
    sizes = [1 if i % 3 else 0 for i in range(groups)]
    sizes[groups // 2] += 50
    case = Case(axis, "tn", sizes, "f64", "f64", k=16)
    grouped_gemm(case.a, case.b, out=case.out.view, **numbers(sizes, "ends"))
    case.check()


def test_numbers_of_the_host_travel_with_the_launch():
    case = Case("m", "tn", [40, 0, 100, 60], "f64", "f64")
    ends = torch.tensor(case.sizes).cumsum(0)
    args = GroupedArguments(case.a, case.b, out=case.out.view, offsets=ends)
    assert explain(args).chosen.route.kernel.config.schedule == "persistent"
    args.run()
    case.check()


def test_one_launch_that_nobody_waits_for():
    """Behind what makes the numbers, on a stream of its own."""
    case, stream = Case("k", "tn", [40, 0, 100, 60], "f32", "f32"), torch.cuda.Stream()
    late, ends = torch.zeros(4, device=gpu.DEVICE, dtype=torch.int32), numbers(case.sizes, "ends")["offsets"]
    grouped_gemm(case.a, case.b, out=case.out.view, offsets=ends)  # its kernel is chosen and loaded
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        late.copy_(ends)
        grouped_gemm(case.a, case.b, out=case.out.view, offsets=late)
        assert not stream.query()
    stream.synchronize()
    case.check()


def test_tuning_measures_groups(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    case = Case("m", "tn", [400] * 4, "f32", "f32")
    args = GroupedArguments(case.a, case.b, out=case.out.view, **numbers(case.sizes, "ends"))
    cutlass_py.tune(args)
    assert "measured" in str(explain(args))
    args.run()
    case.check()


# ------------------------------------------------------------------------------------------------ lists that differ

SHAPES = [(70, 40, 130), (3, 0, 6), (1, 30, 65), (0, 4, 7), (64, 64, 64), (129, 2, 1), (300, 257, 511)]
ALIGNED = [(64, 48, 128), (16, 0, 16), (128, 256, 64), (0, 16, 32), (304, 128, 512)]
ARITHMETIC = [
    ("bf16", None), ("f16", None), ("f32", None), ("f32", "tf32"), ("f32", "3xtf32"), ("f64", None), ("c64", None),
    ("c128", None), ("s8", None), ("u8", None), ("e4m3", None),
]  # fmt: skip


class Lists:
    """Pairs of matrices of any sizes in a layout, results among poison, and addends."""

    def __init__(self, shapes: list[tuple[int, int, int]], dtype: str, layout: str = "tn", odd: bool = True) -> None:
        pad, offset = (3, 1) if odd else (16, 0)
        self.d = {"s8": "s32", "u8": "s32", "e4m3": "bf16"}.get(dtype, dtype)

        def laid(rows: int, cols: int, order: str, of: str = dtype) -> torch.Tensor:
            return gpu.laid_out(gpu.integers((rows, cols), of), order, pad=pad, offset=offset)

        self.a = [laid(m, k, layout[0]) for m, k, _ in shapes]
        self.b = [laid(k, n, layout[1]) for _, k, n in shapes]
        self.c = [laid(m, n, "t", self.d) for m, _, n in shapes]
        self.out = [gpu.guarded((m, n), self.d, pad=3 if odd else None) for m, _, n in shapes]

    def check(self, finish: Any = lambda i, z: z, found: list[torch.Tensor] | None = None) -> None:
        for i, (a, b, out) in enumerate(zip(self.a, self.b, self.out, strict=True)):
            gpu.assert_exact(out.view if found is None else found[i], finish(i, gpu.wide(a) @ gpu.wide(b)))
            if found is None:
                out.check()


@pytest.mark.parametrize("odd", [False, True], ids=["whole", "odd"])
@pytest.mark.parametrize("layout", ["tn", "tt", "nn", "nt"])
@pytest.mark.parametrize(("dtype", "compute"), ARITHMETIC)
def test_lists_of_matrices_that_differ(dtype, compute, layout, odd):
    if dtype == "e4m3" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("kernels of 8-bit floats run on 9.0 alone")
    lists = Lists(SHAPES if odd else ALIGNED, dtype, layout, odd)
    args = GemmArguments(lists.a, lists.b, out=[x.view for x in lists.out], compute=compute)
    chosen = explain(args).chosen
    packed = dtype in ("s8", "u8") and layout != "tn"
    assert (chosen is None) == (dtype == "e4m3" or packed)
    args.run()
    lists.check()
    lists.check(found=gemm(lists.a, lists.b, compute=compute))
    if lists.d != "s32":
        gemm(lists.a, lists.b, c=lists.c, alpha=2, beta=3, out=[x.view for x in lists.out], compute=compute)
        lists.check(lambda i, z: 2 * z + 3 * gpu.wide(lists.c[i]))
    if dtype != "e4m3":
        assert all(not d.numel() or d.data_ptr() % 16 == 0 for d in gemm(lists.a, lists.b, compute=compute))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_every_kernel_takes_lists(kernel):
    c, odd = kernel.config, kernel.config.align == 1
    lists = Lists(SHAPES if odd else ALIGNED, DTYPES[c.a].stored, c.layout, odd)
    if c.b != c.a:
        lists.b = [
            gpu.laid_out(gpu.integers(tuple(x.shape), DTYPES[c.b].stored), "n", pad=3, offset=1) for x in lists.b
        ]
    compute = COMPUTE.get(c.a)
    gemm(lists.a, lists.b, out=[x.view for x in lists.out], compute=compute, kernel=kernel)
    lists.check()
    if kernel.interface.epilogue.told:
        gemm(lists.a, lists.b, out=[x.view for x in lists.out], activation="relu", compute=compute, kernel=kernel)
        lists.check(lambda i, z: z.clamp_min(0))


def test_lists_that_share_and_lie_by_columns():
    """One b for all, results by columns, a bias of all, no product, matrices in several layouts."""
    shapes = [(m, 40, 96) for m in (70, 3, 129)]
    lists, bias = Lists(shapes, "f32"), gpu.integers((96,), "f32")
    one = lists.b[0]
    for d, a in zip(gemm(lists.a, one, bias=bias, activation="relu"), lists.a, strict=True):
        gpu.assert_exact(d, (gpu.wide(a) @ gpu.wide(one) + gpu.wide(bias)).clamp_min(0))
    columns = [gpu.guarded((m, 96), "f32", "n") for m, _, _ in shapes]
    gemm(lists.a, lists.b, out=[x.view for x in columns])
    lists.check(found=[x.view for x in columns])
    for x in columns:
        x.check()
    nothing = [torch.full_like(a, torch.nan) for a in lists.a]
    lists.check(lambda i, z: gpu.wide(lists.c[i]), gemm(nothing, lists.b, c=lists.c, alpha=0.0))
    mixed = [lists.b[0], lists.b[1].contiguous(), lists.b[2]]
    lists.check(found=gemm(lists.a, mixed))
    scales = torch.full((96,), 2.0, device=gpu.DEVICE)
    lists.check(lambda i, z: 2 * z, gemm(lists.a, lists.b, scale_b=scales))


def test_a_graph_keeps_lists():
    """What the host knew travels with the launch: the lists may go."""
    lists = Lists(SHAPES, "f64")
    outs = [x.view for x in lists.out]
    gemm(lists.a, lists.b, out=outs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm(list(lists.a), list(lists.b), out=list(outs))
    for a in lists.a:
        a.copy_(gpu.integers(tuple(a.shape), "f64"))
    graph.replay()
    lists.check()


def test_many_matrices_and_tuning(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    draw = random.Random(3)
    lists = Lists([tuple(draw.randint(0, 40) for _ in range(3)) for _ in range(1500)], "f32")
    args = GemmArguments(lists.a, lists.b, out=[x.view for x in lists.out])
    args.run()
    lists.check()
    cutlass_py.tune(args)
    assert "measured" in str(explain(args))
    args.run()
    lists.check()
