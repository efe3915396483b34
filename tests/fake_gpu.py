"""The benchmarks without a GPU: NumPy's arrays, a clock that launches turn forward, records as they keep them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import ml_dtypes  # noqa: F401
import numpy as np

import cutlass_py
from cutlass_py.bench import cases, environment, frameworks, runs
from cutlass_py.bench.frameworks import Framework, _integers
from cutlass_py.bench.suites import Case
from cutlass_py.declaration.dtypes import DTYPES

SMALL = Case("shape", "f32", "tn", (1, 24, 16, 8))


class FakeGpu(Framework):
    """Calls of its own matmul take `reference_us`, its small kernel 2; gemm's take what the test says (`tick`)."""

    name = "numpy"
    dtypes = ("f16", "bf16", "f32", "s8")

    def __init__(self, reference_us: float = 30.0, off: float = 0.0, full: bool = True) -> None:
        self.reference_us, self.off, self.full = reference_us, off, full
        self.now, self.freed, self.launches = 0.0, 0, 0
        self.rng = np.random.default_rng(0)

    def tick(self, microseconds: float) -> None:
        self.now += microseconds
        self.launches += 1

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        kind = np.dtype(DTYPES[dtype].numpy)
        if kind.kind in "iu":
            return self.rng.integers(*_integers(np.iinfo(kind)), shape).astype(kind)
        return self.rng.standard_normal(shape).astype(kind)

    def scales(self, case: Any) -> tuple[Any, Any]:
        scaled = case.arithmetic.reference == "scaled_mm"
        return (np.ones(1, np.float32), np.ones(1, np.float32)) if scaled else (None, None)

    def reference(self, case: Any) -> Callable[..., object]:
        def launch(a: Any, b: Any, d: Any, x: Any, y: Any) -> None:
            self.tick(self.reference_us)
            if max(case.shape) < 1000:  # the warm-up is large
                d[...] = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(d.dtype)

        return launch

    @contextmanager
    def arithmetic(self, case: Any) -> Any:
        yield

    def poison(self, array: Any) -> None:
        array.fill(np.nan if array.dtype.kind not in "iu" else np.iinfo(array.dtype).min)

    def product(self, case: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        return np.matmul(a.astype(np.float64), b.astype(np.float64))

    def difference(self, d: Any, product: Any) -> float:
        return float(np.abs(d.astype(product.dtype) - product).max() / np.abs(product).max())

    def host(self, array: Any) -> Any:
        return array.copy()

    def l2_bytes(self) -> int:
        return 1 << 16

    def event(self) -> Any:
        return self.now

    def passed(self, event: Any) -> bool:
        return not self.full

    def microseconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def spin(self, microseconds: float) -> None:
        self.now += microseconds

    def synchronize(self) -> None:
        pass

    def capture(self, launch: Any, calls: int) -> Callable[[], object]:
        return lambda: [launch(i) for i in range(calls)]

    def small_kernel(self) -> Callable[[], object]:
        return lambda: setattr(self, "now", self.now + 2.0)

    def free(self) -> None:
        self.freed += 1


class OnCpu(FakeGpu):
    """torch on the CPU."""

    name = "torch"

    def __init__(self, torch):
        super().__init__()
        self.torch = torch

    def random(self, shape, dtype):
        return self.torch.from_numpy(super().random(shape, "f32")).to(getattr(self.torch, DTYPES[dtype].numpy))

    def reference(self, case):
        return lambda a, b, d, x, y: self.torch.mm(a, b, out=d)

    def poison(self, array):
        array.fill_(float("nan"))


def install(monkeypatch):
    """A library whose calls take 30 us where ours take 20; it is what the command finds."""
    fake = FakeGpu()
    calls = []

    def gemm(a, b, **keywords):
        calls.append(keywords)
        fake.tick(20.0)
        if max(*a.shape, *b.shape) < 1000:
            cutlass_py.gemm(a, b, **keywords)
            if fake.off:
                keywords["out"][...] += fake.off

    fake.calls = calls
    monkeypatch.setattr(cases, "gemm", gemm)
    monkeypatch.setattr(frameworks, "framework", lambda: fake)
    monkeypatch.setattr(runs, "warm_up", lambda *_: None)
    monkeypatch.setattr(runs, "Operands", lambda case, gpu: cases.Operands(SMALL, gpu))
    monkeypatch.setattr(environment, "_versions", lambda: {"numpy": "0"})
    return fake


def record_of(case, sustained, mixed=None, mode="default", **us):
    record = case.facts() | {"mode": mode}
    for regime, ratio in (("sustained", sustained), ("mixed", mixed)):
        if ratio:
            times = {"torch": ratio, "cutlass_py": 1.0, **us}
            record[regime] = {"ratio": ratio, "us": times, "rounds_us": {name: [x] for name, x in times.items()}}
    return record
