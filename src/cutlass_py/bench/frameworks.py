"""What measuring needs of an array library on a GPU: events, graphs, random operands, its matmul. torch, or CuPy."""
# ruff: noqa: D102  (what the methods do is said once, in Framework)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import ceil
from typing import Any

from .. import _core
from ..arrays.frameworks import carrier_of
from ..declaration.dtypes import BLOCK, DTYPES, STORAGE
from .suites import Case

Launch = Callable[[int], object]  # queues one call, on the i-th of the operand sets
_COPY_US, _COPIED = 128, 2_000_000  # longest copy, and bytes of it per microsecond, by an H200
_SPIN_CYCLES = 2000  # per microsecond: above the clock of any GPU so far, so a spin is never short


class Framework(ABC):
    """One array library. Times are of device 0 and its current stream."""

    name: str  # of the reference's arm
    dtypes: tuple[str, ...]  # of ARITHMETICS: those that it has, with a reference
    captures = True  # whether a graph may be made of its references

    @abstractmethod
    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """An array of random elements, row-major: normal, or every 8-bit integer.

        Raises:
            ValueError: the library cannot name the dtype.
        """

    def scales(self, case: Case) -> tuple[Any, Any]:
        """Factors of A and B, where the reference takes some: f32 arrays, as it wants them to lie."""
        return None, None

    @abstractmethod
    def reference(self, case: Case) -> Callable[..., object]:
        """The library's own function for a case: (a, b, d, scale_a, scale_b), which writes d or returns a result."""

    @contextmanager
    def arithmetic(self, case: Case) -> Iterator[None]:
        """Lets the library use the arithmetic that a case is about, and no other."""
        yield

    @abstractmethod
    def poison(self, array: Any) -> None:
        """Fills an array with what is no result: NaN, or the least integer."""

    @abstractmethod
    def product(self, case: Case, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        """The case by the library, in a wider dtype."""

    @abstractmethod
    def difference(self, d: Any, product: Any) -> float:
        """The largest of |d - product|, relative to the largest element of the product."""

    @abstractmethod
    def host(self, array: Any) -> Any:
        """A copy as a NumPy array."""

    @abstractmethod
    def l2_bytes(self) -> int:
        """Size of the L2 cache."""

    @abstractmethod
    def event(self) -> Any:
        """An event, recorded now."""

    @abstractmethod
    def passed(self, event: Any) -> bool:
        """Whether the GPU has passed an event."""

    @abstractmethod
    def microseconds(self, start: Any, end: Any) -> float:
        """Between two events that the GPU has passed."""

    @abstractmethod
    def spin(self, microseconds: float) -> None:
        """Queues what keeps the GPU busy for at least so long."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits for the GPU."""

    @abstractmethod
    def capture(self, launch: Launch, calls: int) -> Callable[[], object]:
        """A graph of so many calls; returns what replays it."""

    @abstractmethod
    def small_kernel(self) -> Callable[[], object]:
        """Queues a small elementwise kernel of the library's."""

    def copies(self, microseconds: float) -> Callable[[], object]:
        """Queues copies in device memory that take about so long."""
        count = ceil(microseconds / _COPY_US)
        source, target = (self.random((ceil(microseconds / count * _COPIED),), "s8") for _ in range(2))

        def copy() -> None:
            for _ in range(count):
                target[...] = source

        return copy

    @abstractmethod
    def free(self) -> None:
        """Gives unused memory back, after a case that had not enough of it."""


def framework() -> Framework:
    """torch, or CuPy where there is no torch.

    Raises:
        ValueError: there is no GPU, or neither of them finds one.
    """
    if not _core.device_count():
        raise ValueError(f"bench: needs a GPU: {_core.why_no_device()}")
    if find_spec("torch"):
        import torch

        if torch.cuda.is_available():
            return Torch()
    if find_spec("cupy"):
        return CuPy()
    raise ValueError("bench: neither torch with CUDA nor CuPy is installed: kernels are measured against theirs")


def _padded(blocks: int) -> int:
    """Blocks of k in a column of torch's factors of B."""
    return ceil(blocks / 4) * 4


def _wide(dtype: str) -> str:
    """The dtype of a product to compare with."""
    return "float32" if DTYPES[dtype].bits <= 16 and DTYPES[dtype].mantissa else "float64"


def _integers(limits: Any) -> tuple[int, int]:
    """From where to below what random integers are drawn: all that 8 bits hold."""
    return max(int(limits.min), -128), min(int(limits.max), 255) + 1


class Torch(Framework):
    """torch: cuBLAS and cuBLASLt."""

    name = "torch"
    dtypes = ("bf16", "f16", "f32", "tf32", "f64", "e4m3", "e4m3_fast", "e4m3_vector", "e4m3_block", "s8")

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self._stream: Any = None
        torch.manual_seed(0)

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        torch, kind = self.torch, getattr(self.torch, DTYPES[dtype].numpy)
        if not DTYPES[dtype].mantissa:
            low, high = _integers(torch.iinfo(kind))
            return torch.randint(low, high, tuple(shape), device="cuda", dtype=kind)
        made = torch.bfloat16 if DTYPES[dtype].bits < 16 else kind  # torch draws no fp8
        return torch.randn(tuple(shape), device="cuda", dtype=made).to(kind)

    def scales(self, case: Case) -> tuple[Any, Any]:
        torch, (_, m, n, k) = self.torch, case.shape
        kind = case.arithmetic.factors
        if kind is None:
            return None, None
        if kind == "one":
            return torch.ones(1, device="cuda"), torch.ones(1, device="cuda")

        def factors(*shape: int) -> Any:
            return (torch.rand(shape, device="cuda") + 0.5) / k**0.5

        if kind == "vector":
            return factors(m, 1), factors(1, n)
        depth, columns = ceil(k / BLOCK), ceil(n / BLOCK)
        # Those of B one column after the other, each padded to four blocks of k.
        return factors(depth, m).t(), factors(columns, _padded(depth)).t()[:depth]

    def reference(self, case: Case) -> Callable[..., object]:
        from ..arrays.torch_private import int_mm, scaled_mm

        torch = self.torch
        if case.arithmetic.reference == "block_scaled_mm":
            return self._block_scaled()
        if case.arithmetic.reference == "scaled_mm":
            kind, fast = torch.bfloat16, case.arithmetic.compute == "fast"
            return lambda a, b, d, x, y: scaled_mm(a, b, x, y, out_dtype=kind, use_fast_accum=fast, out=d)
        if case.arithmetic.reference == "int_mm":
            return lambda a, b, d, x, y: int_mm(a, b, out=d)
        matmul = torch.bmm if case.shape[0] > 1 else torch.mm
        return lambda a, b, d, x, y: matmul(a, b, out=d)

    def _block_scaled(self) -> Callable[..., object]:
        """torch.nn.functional.scaled_mm, or the operator below it, where that has what the function has not: `out`."""
        from torch.nn.functional import ScalingType, scaled_mm

        rows, squares, kind = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128, self.torch.bfloat16

        def whole(y: Any) -> Any:
            """With the padding, which torch wants to see."""
            return y.as_strided((_padded(y.shape[0]), y.shape[1]), y.stride())

        operator = getattr(self.torch.ops.aten, "_scaled_mm_v2", None)
        if operator is None or "out" not in operator.overloads():
            return lambda a, b, d, x, y: scaled_mm(a, b, x, rows, whole(y), squares, output_dtype=kind)
        of_a, of_b = [rows.value], [squares.value]
        return lambda a, b, d, x, y: operator.out(
            a, b, [x], of_a, [], [whole(y)], of_b, [], None, kind, [], False, out=d
        )

    @contextmanager
    def arithmetic(self, case: Case) -> Iterator[None]:
        before = self.torch.get_float32_matmul_precision()
        self.torch.set_float32_matmul_precision("high" if case.arithmetic.compute == "tf32" else "highest")
        try:
            yield
        finally:
            self.torch.set_float32_matmul_precision(before)

    def poison(self, array: Any) -> None:
        has_nan = array.is_floating_point() or array.is_complex()
        array.fill_(float("nan") if has_nan else self.torch.iinfo(array.dtype).min)

    def product(self, case: Case, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        kind = getattr(self.torch, _wide(case.arithmetic.dtype))
        x, y = a.to(kind), b.to(kind)
        if case.arithmetic.factors == "vector":
            x, y = x * scale_a, y * scale_b
        if case.arithmetic.factors == "block":
            x = x * scale_a.repeat_interleave(BLOCK, 1)[:, : x.shape[1]]
            y = y * scale_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: y.shape[0], : y.shape[1]]
        return self.torch.matmul(x, y)  # other factors are ones

    def difference(self, d: Any, product: Any) -> float:
        return float((d.to(product.dtype) - product).abs().max() / product.abs().max())

    def host(self, array: Any) -> Any:
        import ml_dtypes  # noqa: F401  (bfloat16 and fp8)
        import numpy as np

        copied, name = array.cpu(), str(array.dtype).removeprefix("torch.")
        if name not in {DTYPES[dtype].numpy for dtype in STORAGE if carrier_of(dtype)}:
            return copied.numpy()
        integers = {1: self.torch.uint8, 2: self.torch.int16}[copied.dtype.itemsize]
        return copied.view(integers).numpy().view(np.dtype(name))

    def l2_bytes(self) -> int:
        return int(self.torch.cuda.get_device_properties(0).L2_cache_size)

    def event(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def passed(self, event: Any) -> bool:
        return bool(event.query())

    def microseconds(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1e3

    def spin(self, microseconds: float) -> None:
        self.torch.cuda._sleep(int(microseconds * _SPIN_CYCLES))

    def synchronize(self) -> None:
        self.torch.cuda.synchronize()

    def capture(self, launch: Launch, calls: int) -> Callable[[], object]:
        cuda = self.torch.cuda
        self._stream = self._stream or cuda.Stream()
        graph = cuda.CUDAGraph()
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            launch(0)  # workspaces of this stream come into being outside of the graph
            cuda.synchronize()
            # Not torch.cuda.graph(): that collects garbage and empties the allocator's cache around every capture.
            graph.capture_begin()
            try:
                for i in range(calls):
                    launch(i)
            finally:
                graph.capture_end()
        cuda.current_stream().wait_stream(self._stream)
        replay: Callable[[], object] = graph.replay
        return replay

    def small_kernel(self) -> Callable[[], object]:
        small = self.torch.zeros(1 << 16, device="cuda")
        return lambda: small.add_(1)

    def free(self) -> None:
        self.torch.cuda.empty_cache()


class CuPy(Framework):
    """CuPy: cuBLAS, in the dtypes that its matmul has."""

    name = "cupy"
    dtypes = ("f16", "f32", "f64")
    captures = False  # it refuses to call cuBLAS on a stream that is captured

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self._stream: Any = None
        cupy.random.seed(0)
        source = 'extern "C" __global__ void spin(long long n) { for (long long t = clock64(); clock64() - t < n;); }'
        self._spin = cupy.RawKernel(source, "spin")

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        cupy, kind = self.cupy, DTYPES[dtype].numpy
        if carrier_of(dtype):
            raise ValueError(f"bench: CuPy has no {dtype}; install torch, which has")
        if not DTYPES[dtype].mantissa:
            return cupy.random.randint(*_integers(cupy.iinfo(kind)), tuple(shape)).astype(kind)
        made = "float64" if dtype in ("f64", "c128") else "float32"
        drawn = cupy.random.standard_normal(tuple(shape), made).astype(kind)
        if drawn.dtype.kind == "c":
            drawn.imag = cupy.random.standard_normal(tuple(shape), made)
        return drawn

    def reference(self, case: Case) -> Callable[..., object]:
        matmul = self.cupy.matmul
        return lambda a, b, d, x, y: matmul(a, b, out=d)

    def poison(self, array: Any) -> None:
        array.fill(self.cupy.iinfo(array.dtype).min if array.dtype.kind in "iu" else float("nan"))

    def product(self, case: Case, a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        kind = _wide(case.arithmetic.dtype)
        return self.cupy.matmul(a.astype(kind), b.astype(kind))

    def difference(self, d: Any, product: Any) -> float:
        return float(abs(d.astype(product.dtype) - product).max() / abs(product).max())

    def host(self, array: Any) -> Any:
        return array.get()

    def l2_bytes(self) -> int:
        return int(self.cupy.cuda.Device().attributes["L2CacheSize"])

    def event(self) -> Any:
        event = self.cupy.cuda.Event()
        event.record()
        return event

    def passed(self, event: Any) -> bool:
        return bool(event.done)

    def microseconds(self, start: Any, end: Any) -> float:
        return float(self.cupy.cuda.get_elapsed_time(start, end)) * 1e3

    def spin(self, microseconds: float) -> None:
        self._spin((1,), (1,), (int(microseconds * _SPIN_CYCLES),))

    def synchronize(self) -> None:
        self.cupy.cuda.Device().synchronize()

    def capture(self, launch: Launch, calls: int) -> Callable[[], object]:
        cuda = self.cupy.cuda
        self._stream = self._stream or cuda.Stream(non_blocking=True)
        self.synchronize()
        with self._stream:
            launch(0)
            self._stream.synchronize()
            self._stream.begin_capture()
            try:
                for i in range(calls):
                    launch(i)
            finally:
                graph = self._stream.end_capture()
        # Launched without naming a stream, a graph runs on the one that is current then.
        replay: Callable[[], object] = graph.launch
        return replay

    def small_kernel(self) -> Callable[[], object]:
        small = self.cupy.zeros(1 << 16, "float32")
        return lambda: self.cupy.add(small, 1, out=small)

    def free(self) -> None:
        self.cupy.get_default_memory_pool().free_all_blocks()
