"""grouped_gemm on the device: every kernel over groups of any size, what lies between and behind them, graphs."""

from __future__ import annotations

import random
from math import ceil
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import GroupedArguments, NoKernelError, grouped_gemm  # noqa: E402
from cutlass_py.declaration.config import SCHEDULES  # noqa: E402
from cutlass_py.declaration.dtypes import DTYPES, compute_of  # noqa: E402
from cutlass_py.kernels.kernel import CutlassKernel  # noqa: E402
from cutlass_py.kernels.registry import kernel_named  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.sm90]

KERNELS = [
    k
    for k in cutlass_py.get_kernels(operation="grouped_gemm")
    if isinstance(k, CutlassKernel)
    and k.config.family == "sm90_grouped"
    and not k.interface.epilogue.pairs  # those test_gpu_gated.py has
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
UNWRITTEN = 7.0


def sizes_of(seed: int, groups: int, most: int) -> list[int]:
    """Of any size, a third of them empty."""
    draw = random.Random(seed)
    return [0 if draw.random() < 0.3 else draw.randint(1, most) for _ in range(groups)]


def numbers(sizes: list[int], how: str, dtype: torch.dtype = torch.int32, device: str = gpu.DEVICE) -> dict[str, Any]:
    """Keywords that tell groups apart."""
    found = torch.tensor(sizes, dtype=torch.int64)
    if how == "sizes":
        return {"sizes": found.to(device, dtype)}
    ends = found.cumsum(0)
    ends = ends if how == "ends" else torch.cat([ends.new_zeros(1), ends])
    return {"offsets": ends.to(device, dtype)}


class Case:
    """Operands of groups in a kernel's layout, and the definition: small integers, whose products are exact.

    `scales`, where they are given, are powers of two: of rows and columns, or of blocks, 128 of k by `block` columns.
    """

    def __init__(
        self,
        axis: str,
        layout: str,
        sizes: list[int],
        dtype: str,
        d: str,
        rest: int = 9,
        k: int = 400,
        *,
        b: str = "",
        scaled: bool = False,
        block: int = 0,
    ) -> None:
        self.axis, self.sizes = axis, sizes
        groups, total = len(sizes), (max(sizes) if axis == "batch" else sum(sizes)) + rest
        m, n = (total if axis in ("m", "batch") else 136), (total if axis == "n" else 264)
        m, n = (-(-x // 8) * 8 for x in (m, n))
        k = -(-total // 16) * 16 if axis == "k" else k
        self.a = self._operand((groups, m, k) if axis in ("n", "batch") else (m, k), layout[0] == "n", dtype)
        self.b = self._operand((groups, k, n) if axis in ("m", "batch") else (k, n), layout[1] == "n", b or dtype)
        of_a, of_b, lines = self.a.shape[:-1], (*self.b.shape[:-2], n), ceil(k / 128)
        self.block, self.scales = block, {}
        if block:  # in any strides
            of_b = (*self.b.shape[:-2], ceil(n / block))
            self.scales = {"scale_a": self._powers(*of_a, lines), "scale_b": self._powers(*of_b, lines).mT}
        elif scaled:
            self.scales = {"scale_a": self._powers(*of_a), "scale_b": self._powers(*of_b)}
        shape = (groups, m, n) if axis in ("k", "batch") else (m, n)
        self.out = torch.full(shape, UNWRITTEN, device=gpu.DEVICE).to(gpu.DTYPES[d])

    @staticmethod
    def _operand(shape: tuple[int, ...], turned: bool, dtype: str) -> torch.Tensor:
        if turned:
            return gpu.integers((*shape[:-2], shape[-1], shape[-2]), dtype).mT
        return gpu.integers(shape, dtype)

    @staticmethod
    def _powers(*shape: int) -> torch.Tensor:
        return 2.0 ** torch.randint(-2, 3, shape, device=gpu.DEVICE)

    def lines(self) -> list[tuple[int, int]]:
        at, found = 0, []
        for size in self.sizes:
            found.append((0, size) if self.axis == "batch" else (at, at + size))
            at += size
        return found

    def nobodys(self, value: float) -> None:
        """What belongs to no group is this from now on, where its dtype holds it."""
        if not self.a.is_floating_point():
            return
        end = sum(self.sizes)
        if self.scales and self.axis in ("m", "n"):
            scale = self.scales[f"scale_{'a' if self.axis == 'm' else 'b'}"]
            scale[(slice(end, None),) if self.axis == "m" else (..., slice(end, None))] = value
        if self.axis == "m":
            self.a[end:] = value
        elif self.axis == "n":
            self.b[:, end:] = value
        elif self.axis == "k":
            self.a[:, end:], self.b[end:] = value, value
        else:
            for i, size in enumerate(self.sizes):
                self.a[i, size:] = value

    def expected(self, finish: Any = lambda i, z: z) -> torch.Tensor:
        """In f64, over what is there."""
        (a, b), d = self.scaled(), self.out.double()
        for i, (begin, end) in enumerate(self.lines()):
            lines = slice(begin, end)
            if self.axis == "m":
                d[lines] = finish(i, a[lines] @ b[i])
            elif self.axis == "n":
                d[:, lines] = finish(i, a[i] @ b[:, lines])
            elif self.axis == "k":
                d[i] = finish(i, a[:, lines] @ b[lines])
            else:
                d[i, lines] = finish(i, a[i, lines] @ b[i])
        return d.to(self.out.dtype)

    def scaled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Operands by their scales, in f64."""
        a, b = self.a.double(), self.b.double()
        if not self.scales:
            return a, b
        of_a, of_b = self.scales["scale_a"].double(), self.scales["scale_b"].double()
        if not self.block:
            return a * of_a[..., None], b * of_b[..., None, :]
        of_b = of_b.repeat_interleave(128, -2).repeat_interleave(self.block, -1)
        return a * of_a.repeat_interleave(128, -1)[..., : a.shape[-1]], b * of_b[..., : b.shape[-2], : b.shape[-1]]


def case_of(kernel: CutlassKernel, axis: str, sizes: list[int], **keywords: Any) -> Case:
    """One for a kernel."""
    c = kernel.config
    scales = {"scaled": kernel.interface.epilogue.scaled, "block": kernel.interface.block}
    return Case(axis, c.layout, sizes, DTYPES[c.a].stored, c.d, b=DTYPES[c.b].stored, **scales, **keywords)


def axes_of(kernel: CutlassKernel) -> tuple[str, ...]:
    """What a kernel's groups may divide."""
    if SCHEDULES[kernel.config.schedule].grouping == "depth":
        return ("k",)
    a, b = kernel.config.layout
    if kernel.interface.epilogue.source or kernel.interface.block > 1:  # whole granules, or blocks, of columns
        b = "t"
    return (*(("m",) if a == "t" else ()), *(("n",) if b == "n" else ()), "batch")


def keywords_of(kernel: CutlassKernel, case: Case) -> dict[str, Any]:
    """What its arithmetic and its epilogue ask for."""
    e, c = kernel.interface.epilogue, kernel.config
    beside: dict[str, Any] = {"compute": compute_of(c.a, c.accumulator)} | case.scales
    beside |= {"c": gpu.integers(tuple(case.out.shape), gpu.name_of(case.out.dtype))} if e.source else {}
    return beside | ({"aux": torch.empty_like(case.out)} if e.aux else {})


@every_kernel
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_kernel(kernel, seed):
    c = kernel.config
    for axis in axes_of(kernel):
        sizes = sizes_of(seed, (3, 40, 70)[seed - 1], (700, 150, 20)[seed - 1])
        case = case_of(kernel, axis, sizes)
        case.nobodys(float("nan"))
        beside = keywords_of(kernel, case)
        bias = gpu.integers((case.out.shape[-1],) if axis == "n" else (len(sizes), case.out.shape[-1]), c.bias)
        if c.d == "s32":  # stored as they are
            bias.zero_()
        else:
            beside["bias"] = bias
        lines = case.lines()

        def finish(i, z, case=case, axis=axis, bias=bias, lines=lines, beside=beside):
            at = slice(*lines[i])
            z = z + (bias[at] if axis == "n" else bias[i]).double()
            if "c" in beside:
                rows = {"m": beside["c"][at] if axis == "m" else None, "n": beside["c"][:, at] if axis == "n" else None}
                z = z + (rows[axis] if axis in rows else beside["c"][i] if axis == "k" else beside["c"][i, at]).double()
            return z

        for how in ("sizes",) if axis == "batch" else ("ends", "starts", "sizes"):
            case.out.fill_(UNWRITTEN)
            wanted = case.expected(finish)
            dtype = torch.int64 if how == "starts" else torch.int32
            given = numbers(sizes, how, dtype)
            grouped_gemm(case.a, case.b, out=case.out, kernel=kernel, **beside, **given)
            assert torch.equal(case.out, wanted), (axis, how)
            if "aux" in beside and axis == "m":
                end = sum(sizes)
                assert torch.equal(beside["aux"][:end], wanted[:end])


@pytest.mark.parametrize(
    "name",
    [
        "bf16_bf16_f32_bf16_tn_128x256x64_1x1x1_leancoopgrouped_fused",
        "bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingponggrouped_fused",
        "e4m3_e4m3_f32_bf16_tn_128x128x128_1x1x1_leancoopblockgrouped_fused",
    ],
)
@pytest.mark.parametrize("sizes", [[236] * 256, [0] * 40 + [40_000, 3, 20_000]], ids=["even", "uneven"])
def test_blocks_that_take_many_tiles(name, sizes):
    """More than a block is told ahead, wherever it stands in each wave."""
    kernel = kernel_named(f"sm90_grouped_{name}")
    case = case_of(kernel, "m", sizes)
    case.nobodys(float("nan"))
    wanted = case.expected()
    grouped_gemm(case.a, case.b, out=case.out, kernel=kernel, **keywords_of(kernel, case), **numbers(sizes, "ends"))
    assert torch.equal(case.out, wanted)


def test_the_choice_on_random_data():
    for dtype in ("bf16", "f16"):
        a, b = gpu.normals((4096, 512), dtype), gpu.normals((16, 512, 1024), dtype)
        sizes = sizes_of(5, 16, 400)
        out = grouped_gemm(a, b, activation="silu", **numbers(sizes, "ends"))
        at = 0
        for i, size in enumerate(sizes):
            wanted = torch.nn.functional.silu(a[at : at + size].double() @ b[i].double())
            torch.testing.assert_close(out[at : at + size].double(), wanted, rtol=2e-2, atol=2e-2)
            at += size


@pytest.mark.parametrize("axis", ["m", "batch"])
@pytest.mark.parametrize("block", [0, 1, 128])
@pytest.mark.parametrize("compute", ["f32", "fast"])
def test_quantised_operands(axis, block, compute):
    """The choice on random data: scales of rows and columns, and blocks as quantize makes them."""
    if block and compute == "fast":
        pytest.skip("blocks are of promoted sums")
    sizes, k, n = sizes_of(5, 16, 200), 1024, 512
    total = max(sizes) if axis == "batch" else sum(sizes)
    x = torch.randn((16, total, k) if axis == "batch" else (total, k), device=gpu.DEVICE)
    w = torch.randn(16, n, k, device=gpu.DEVICE)
    a, s = cutlass_py.quantize(x, scaling="1x128" if block else "row")
    b, t = cutlass_py.quantize(w, scaling={0: "row", 1: "1x128", 128: "128x128"}[block])
    scales = {"scale_a": s, "scale_b": t.mT} if block else {"scale_a": s[..., 0], "scale_b": t[..., 0]}
    given = numbers(sizes, "sizes" if axis == "batch" else "ends")
    out = grouped_gemm(a, b.mT, compute=compute, **scales, **given)
    at = 0
    for i, size in enumerate(sizes):
        rows = (i, slice(0, size)) if axis == "batch" else slice(at, at + size)
        one = {"scale_a": s[rows], "scale_b": t[i].mT}
        wanted = cutlass_py.gemm(a[rows], b[i].mT, compute=compute, **one)
        torch.testing.assert_close(
            out[rows].float(), wanted.float(), rtol=2e-2, atol=0.2 if compute == "fast" else 0.05
        )
        at += size


def test_products_without_k_of_fp8():
    """A kernel writes the lines that groups have, and no other."""
    case = Case("m", "tn", [40, 0, 100, 60], "e4m3", "bf16", scaled=True)
    for compute in ("f32", "fast"):
        case.out.fill_(UNWRITTEN)
        given = numbers(case.sizes, "ends")
        grouped_gemm(case.a, case.b, out=case.out, alpha=0.0, compute=compute, **case.scales, **given)
        assert (case.out[:200] == 0).all() and (case.out[200:] == UNWRITTEN).all()


@pytest.mark.parametrize("dtype", ["bf16", "e4m3"])
@pytest.mark.parametrize("how", ["ends", "starts", "sizes"])
def test_numbers_on_the_device_are_cut_off_not_trusted(how, dtype):
    """Whatever they are, memory outside of out stays, and the next call works."""
    draw = random.Random(7)
    case = Case("m", "tn", [40, 0, 100, 60], dtype, "bf16", block=128 if dtype == "e4m3" else 0)
    guard = torch.full((3, *case.out.shape), UNWRITTEN, device=gpu.DEVICE, dtype=case.out.dtype)
    count = 5 if how == "starts" else 4
    for kind, limit in ((torch.int32, 2**31 - 1), (torch.int64, 2**63 - 1)):
        for _ in range(12):
            values = [draw.choice((draw.randint(-limit, limit), draw.randint(-300, 300))) for _ in range(count)]
            name = "sizes" if how == "sizes" else "offsets"
            told = {name: torch.tensor(values, device=gpu.DEVICE, dtype=kind)}
            grouped_gemm(case.a, case.b, out=guard[1], **case.scales, **told)
            torch.cuda.synchronize()
            assert (guard[0] == UNWRITTEN).all() and (guard[2] == UNWRITTEN).all()
    wanted = case.expected()
    given = numbers(case.sizes, "ends")
    assert torch.equal(grouped_gemm(case.a, case.b, out=case.out, **case.scales, **given), wanted)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["t", "n"])
def test_rows_by_their_numbers(dtype, layout):
    """Zeros where a has no such row, whatever the number; numbers of the host are checked."""
    case = Case("m", "tn", [40, 0, 100, 60], "bf16", "bf16")
    a, rows = gpu.integers((70, case.a.shape[1]), "bf16"), torch.randint(0, 70, (case.out.shape[0],))
    given = numbers(case.sizes, "ends")
    case.a = a[rows.to(a.device)]
    source = a if layout == "t" else a.t().contiguous().t()
    wanted = case.expected()
    for where in (gpu.DEVICE, "cpu"):
        case.out.fill_(UNWRITTEN)
        grouped_gemm(source, case.b, gather=rows.to(where, dtype), out=case.out, **given)
        assert torch.equal(case.out, wanted), where
    info = torch.iinfo(dtype)
    rows[[3, 50, 150, 199]] = torch.tensor([70, -1, info.max, info.min])
    case.a[[3, 50, 150, 199]] = 0
    case.out.fill_(UNWRITTEN)
    wanted = case.expected()
    grouped_gemm(source, case.b, gather=rows.to(gpu.DEVICE, dtype), out=case.out, **given)
    assert torch.equal(case.out, wanted)
    with pytest.raises(ValueError, match=r"gather\[3\] is 70; expected a row of a: 0 to 69"):
        grouped_gemm(source, case.b, gather=rows.to(dtype), out=case.out, **given)


@pytest.mark.parametrize("cols", [1, 7, 12, 200, 4096])
@pytest.mark.parametrize("name", ["bf16", "f32", "f64", "s8", "c128"])
def test_rows_of_every_dtype_by_their_numbers(name, cols):
    """Group by group where no kernel takes them; of any length, so of units of any size."""
    a, b = gpu.integers((33, cols + 1), name)[:, 1:], gpu.integers((3, cols, 16), name)
    rows, sizes = torch.randint(0, 33, (50,), device=gpu.DEVICE), [20, 0, 30]
    found = grouped_gemm(a, b, gather=rows.cpu(), **numbers(sizes, "sizes", device="cpu"))
    picked = a[rows]
    wanted = torch.cat([gpu.wide(x) @ gpu.wide(y) for x, y in zip(picked.split(sizes), b, strict=True)])
    assert torch.equal(gpu.wide(found), gpu.wide(wanted.to(found.dtype)))


def test_a_graph_follows_new_rows():
    case = Case("m", "tn", [40, 0, 100, 60], "bf16", "bf16")
    a, given = case.a, numbers(case.sizes, "ends")
    rows = torch.randint(0, len(a), (len(a),), device=gpu.DEVICE)
    grouped_gemm(a, case.b, gather=rows, out=case.out, **given)  # chosen before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_gemm(a, case.b, gather=rows, out=case.out, **given)
    for _ in range(3):
        rows.copy_(torch.randint(0, len(a), (len(a),)))
        case.a = a[rows]
        case.out.fill_(UNWRITTEN)
        wanted = case.expected()
        graph.replay()
        assert torch.equal(case.out, wanted)


@pytest.mark.parametrize(("dtype", "block"), [("bf16", 0), ("e4m3", 0), ("e4m3", 128)])
def test_a_graph_follows_new_numbers(dtype, block):
    case = Case("m", "tn", [40, 0, 100, 60], dtype, "bf16", scaled=dtype == "e4m3", block=block)
    given = numbers(case.sizes, "ends") | case.scales
    grouped_gemm(case.a, case.b, out=case.out, **given)  # chosen before it is captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_gemm(case.a, case.b, out=case.out, **given)
    for sizes in ([40, 0, 100, 60], [0, 209, 0, 0], [1, 2, 3, 4], [0, 0, 0, 0]):
        case.sizes = sizes
        given["offsets"].copy_(torch.tensor(sizes).cumsum(0))
        case.out.fill_(UNWRITTEN)
        wanted = case.expected()
        graph.replay()
        assert torch.equal(case.out, wanted), sizes


@pytest.mark.parametrize("groups", [1, 33, 1500, 5000])
def test_any_number_of_groups(groups):
    sizes = [1 if i % 3 else 0 for i in range(groups)]
    sizes[groups // 2] += 50
    case = Case("m", "tn", sizes, "bf16", "bf16", k=64)
    wanted = case.expected()
    assert torch.equal(grouped_gemm(case.a, case.b, out=case.out, **numbers(sizes, "ends")), wanted)
    deep = Case("k", "nt", sizes, "bf16", "f32")
    wanted = deep.expected()
    assert torch.equal(grouped_gemm(deep.a, deep.b, out=deep.out, **numbers(sizes, "ends")), wanted)


def test_new_results_whose_operands_lie_like_one_taller_product():
    """Columns of matrices that lie on top of one another; one column; a matrix that all share."""
    sizes = [5, 0, 30, 1]
    ends = numbers(sizes, "ends")
    columns = Case("n", "tn", sizes, "bf16", "bf16")
    found = grouped_gemm(columns.a, columns.b, **ends)
    assert torch.equal(found[:, :36], columns.expected()[:, :36])
    rows = Case("m", "tn", sizes, "bf16", "bf16")
    one = rows.b[:, :, :1].contiguous()
    wanted = torch.cat([rows.a[i:j].double() @ x.double() for (i, j), x in zip(rows.lines(), one, strict=True)])
    assert torch.equal(grouped_gemm(rows.a, one, **ends)[:36].double(), wanted.to(torch.bfloat16).double())
    first = Case("batch", "tn", sizes, "bf16", "bf16")
    first.b = first.b[:1].expand(4, -1, -1)
    grouped_gemm(first.a, first.b, out=first.out, **numbers(sizes, "sizes"))
    again = Case.expected(first)
    assert torch.equal(first.out, again)


def test_no_k_and_no_lines():
    a, b = torch.empty((64, 0), device=gpu.DEVICE).bfloat16(), torch.empty((2, 0, 32), device=gpu.DEVICE).bfloat16()
    out = torch.full((64, 32), UNWRITTEN, device=gpu.DEVICE).bfloat16()
    grouped_gemm(a, b, out=out, **numbers([10, 20], "ends"))
    assert (out[:30] == 0).all() and (out[30:] == UNWRITTEN).all()
    a, b = gpu.normals((64, 32), "bf16"), gpu.normals((2, 32, 32), "bf16")
    a[3] = float("nan")
    grouped_gemm(a, b, out=out, alpha=0.0, **numbers([10, 20], "ends"))
    assert (out[:30] == 0).all()
    assert grouped_gemm(a[:0], b, **numbers([0, 0], "ends")).shape == (0, 32)


@pytest.mark.parametrize("axis", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64", "s8", "c64", "e4m3"])
def test_numbers_of_the_host(axis, dtype):
    """One launch where there is a kernel, else group by group."""
    d = {"s8": "s32", "e4m3": "bf16"}.get(dtype, dtype)
    case = Case(axis, "tn", [40, 0, 100, 61], dtype, d, k=64)
    given = numbers(case.sizes, "sizes" if axis == "batch" else "ends", device="cpu")
    args = GroupedArguments(case.a, case.b, out=case.out, **given)
    assert args.problem.told
    if dtype == "c64":
        case.out.fill_(UNWRITTEN)
    a, b = ((x.float() if x.element_size() == 1 else x).to(torch.complex128) for x in (case.a, case.b))
    out = case.out.to(torch.complex128)
    for i, (begin, end) in enumerate(case.lines()):
        at = slice(begin, end)
        if axis == "m":
            out[at] = a[at] @ b[i]
        elif axis == "n":
            out[:, at] = a[i] @ b[:, at]
        elif axis == "k":
            out[i] = a[:, at] @ b[at]
        else:
            out[i, at] = a[i, at] @ b[i]
    assert torch.equal(args.run().to(torch.complex128), out)
    if dtype == "f64":
        on_device = numbers(case.sizes, "sizes" if axis == "batch" else "ends")
        with pytest.raises(NoKernelError):
            grouped_gemm(case.a, case.b, out=case.out, scale_out=2.0, **on_device)


def test_on_a_stream_behind_what_makes_the_numbers():
    case = Case("m", "tn", [40, 0, 100, 60], "bf16", "bf16")
    wanted, stream = case.expected(), torch.cuda.Stream()
    late = torch.zeros(4, device=gpu.DEVICE, dtype=torch.int32)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(numbers(case.sizes, "ends")["offsets"])
        grouped_gemm(case.a, case.b, out=case.out, offsets=late)
    stream.synchronize()
    assert torch.equal(case.out, wanted)


def test_as_torch_has_it():
    """The same products as torch's own function, whose rows behind the last group are anybody's."""
    a, b = gpu.integers((512, 128), "bf16"), gpu.integers((4, 128, 256), "bf16")
    given = numbers([100, 56, 0, 200], "ends")
    torch_mm = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    wanted = torch_mm(a, b, offs=given["offsets"])
    assert torch.equal(grouped_gemm(a, b, **given)[:356], wanted[:356])


@pytest.mark.parametrize(("dtype", "block"), [("bf16", 0), ("e4m3", 0), ("e4m3", 128)])
def test_tuning_measures_groups(tmp_path, monkeypatch, dtype, block):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    case = Case("m", "tn", [400] * 8, dtype, "bf16", scaled=dtype == "e4m3", block=block)
    wanted = case.expected()
    args = GroupedArguments(case.a, case.b, out=case.out, **numbers(case.sizes, "ends"), **case.scales)
    cutlass_py.tune(args)
    assert "measured" in str(cutlass_py.explain(args)) and torch.equal(args.run(), wanted)
