"""Host time of one small call against the framework's own matmul, of questions against the call, of a first call.

64 x 64 x 64, both arms in one process in alternated batches.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any

from .. import _core
from .._core import gemm
from ..dispatch.discover import get_kernels
from ..operations.gemm.arguments import GemmArguments
from .frameworks import framework
from .results import Record, reason

EXTENT = 64
BATCH = 200  # calls between two synchronisations: the launch queue holds about a thousand


@dataclass(frozen=True)
class Row:
    """Two statements that do the same. `drain` waits for the device."""

    title: str
    ours: str
    theirs: str
    names: dict[str, Any]
    drain: Callable[[], object] = lambda: None


class Absent(Exception):
    """A framework or device that this machine does not have."""


def _torch(device: str) -> Any:
    """The module, and what waits for the device."""
    try:
        import torch
    except ImportError as error:
        raise Absent("torch is not installed") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise Absent("torch finds no GPU")
    return torch, torch.cuda.synchronize if device == "cuda" else lambda: None


def torch_rows(device: str, dtype: str) -> Iterator[Row]:
    """torch.mm on "cuda" or "cpu"; then gemm beside its arguments as a value, and a query over all declared kernels."""
    torch, drain = _torch(device)
    a, b, c = (torch.randn(EXTENT, EXTENT, device=device).to(getattr(torch, dtype)) for _ in range(3))
    names = {"gemm": gemm, "mm": torch.mm, "a": a, "b": b, "c": c}
    title = f"torch {dtype} {device}"
    yield Row(f"{title}, out=", "gemm(a, b, out=c)", "mm(a, b, out=c)", names, drain)
    yield Row(f"{title}, new result", "gemm(a, b)", "mm(a, b)", names, drain)
    yield Row(f"{title}, b.t(), out=", "gemm(a, b.t(), out=c)", "mm(a, b.t(), out=c)", names, drain)
    args = GemmArguments(a, b, out=c)
    names |= {"plan": get_kernels(args)[0].plan(args), "args": args}
    names |= {"GemmArguments": GemmArguments, "get_kernels": get_kernels}
    yield Row(f"{title}, prepared plan", "plan(a, b, c)", "mm(a, b, out=c)", names, drain)
    yield Row(f"{title}, arguments over gemm", "GemmArguments(a, b, out=c)", "gemm(a, b, out=c)", names, drain)
    yield Row(f"{title}, query over gemm", "get_kernels(args, compiled=False)", "gemm(a, b, out=c)", names, drain)


def operator_rows(device: str) -> Iterator[Row]:
    """cutlass_py.torch beside cutlass_py.gemm, and a layer of its beside torch's, on "cuda" or "cpu"."""
    torch, drain = _torch(device)
    from .. import torch as ct

    a, b, c = (torch.randn(EXTENT, EXTENT, device=device, dtype=torch.bfloat16) for _ in range(3))
    x = a.clone().requires_grad_()
    stock = torch.nn.Linear(EXTENT, EXTENT, device=device, dtype=torch.bfloat16)
    ours = ct.Linear(EXTENT, EXTENT, device=device, dtype=torch.bfloat16)
    names = {"gemm": gemm, "mm": ct.mm, "ours": ours, "stock": stock, "a": a, "b": b, "c": c, "x": x}
    title = f"cutlass_py.torch {device}"
    yield Row(f"{title}, mm over gemm", "mm(a, b, out=c)", "gemm(a, b, out=c)", names, drain)
    yield Row(f"{title}, Linear", "ours(x)", "stock(x)", names, drain)
    yield Row(f"{title}, Linear, trained", "ours(x).backward(a)", "stock(x).backward(a)", names, drain)


def cupy_rows() -> Iterator[Row]:
    """cupy.matmul."""
    try:
        import cupy
    except ImportError as error:
        raise Absent("CuPy is not installed") from error
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise Absent("CuPy finds no GPU") from error
    a, b, c = (cupy.random.standard_normal((EXTENT, EXTENT)).astype("float16") for _ in range(3))
    names = {"gemm": gemm, "matmul": cupy.matmul, "a": a, "b": b, "c": c}
    drain = cupy.cuda.Device().synchronize
    yield Row("CuPy float16 cuda, out=", "gemm(a, b, out=c)", "matmul(a, b, out=c)", names, drain)
    yield Row("CuPy float16 cuda, new result", "gemm(a, b)", "matmul(a, b)", names, drain)


# What is measured on a GPU.
GROUPS: dict[str, Callable[[], Iterator[Row]]] = {
    "torch cuda": lambda: torch_rows("cuda", "bfloat16"),
    "cutlass_py.torch cuda": lambda: operator_rows("cuda"),
    "cupy": cupy_rows,
}


def measure(row: Row, seconds: float) -> Record:
    """One row, as it goes into the JSON."""
    statements = {"cutlass_py": row.ours, "framework": row.theirs}
    times = host_us(statements, row.names, row.drain, seconds=seconds, batch=BATCH)
    ours, theirs = times["cutlass_py"], times["framework"]
    return {
        "row": row.title,
        "statements": statements,
        "us": {arm: asdict(found) for arm, found in times.items()},
        "ratio": {"minimum": ours.minimum / theirs.minimum, "median": ours.median / theirs.median},
    }


def measure_all(
    groups: Mapping[str, Callable[[], Iterator[Row]]], seconds: float, done: Callable[[Record], object]
) -> tuple[list[Record], dict[str, str], dict[str, str]]:
    """Every row of every group; the groups that are absent, and those that failed in some row, with the reasons."""
    records, skipped, failed = [], {}, {}
    for name, rows in groups.items():
        try:
            for row in rows():
                records.append(measure(row, seconds))
                done(records[-1])
        except Absent as error:
            skipped[name] = str(error)
        except Exception as error:  # the other groups go on
            failed[name] = reason(error)
    return records, skipped, failed


# ---------------------------------------------------------------------------------------------------- the clock


@dataclass(frozen=True)
class HostTime:
    """Microseconds per call: the fastest batch and the median one."""

    minimum: float
    median: float


def host_us(
    statements: Mapping[str, str], names: dict[str, Any], drain: Callable[[], object], *, seconds: float, batch: int
) -> dict[str, HostTime]:
    """Host time per call of several statements, in alternated batches.

    Args:
        statements: Python source by arm; each is compiled into the timing loop itself.
        names: what the statements refer to.
        drain: waits for the device. Called between batches and not timed, so that the launch queue never fills.
        seconds: time to spend, over all arms.
        batch: calls between two drains.
    """
    timers = {arm: Timer(statement, globals=names) for arm, statement in statements.items()}
    batches: dict[str, list[float]] = {arm: [] for arm in timers}
    for timer in timers.values():
        timer.timeit(batch)
        drain()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(batches.values()))) < 5:
        for arm, timer in timers.items():
            batches[arm].append(timer.timeit(batch) / batch * 1e6)
            drain()
    return {arm: HostTime(min(times), median(times)) for arm, times in batches.items()}


# ---------------------------------------------------------------------------------------------------- first call

_FIRST = {
    "torch": """
import time, torch
a, b, c = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(3))
torch.mm(a, b, out=c)
wait = torch.cuda.synchronize
""",
    "cupy": """
import time, cupy
a, b, c = (cupy.random.standard_normal((512, 512)).astype("float16") for _ in range(3))
cupy.matmul(a, b, out=c)
wait = cupy.cuda.Device().synchronize
""",
    "numpy": """
import time, numpy
a, b, c = (numpy.ones((64, 64), "float32") for _ in range(3))
wait = lambda: None
""",
}
_CALL = """
import cutlass_py
wait()
start = time.perf_counter()
cutlass_py.gemm(a, b, out=c)
wait()
print((time.perf_counter() - start) * 1e3)
"""


def first_call_ms(times: int = 3) -> float:
    """Milliseconds of the first call in a process whose framework has used the GPU before; the median of several.

    The framework is that of the measurements; without a GPU it is NumPy.

    Raises:
        RuntimeError: such a process failed.
        TimeoutExpired: it took two minutes.
        ValueError: no framework finds the GPU.
    """
    name = framework().name if _core.device_count() else "numpy"
    # As pip leaves a package: a copy without bytecode would compile it again in each process, for longer than the rest.
    compileall.compile_dir(Path(__file__).parent.parent, quiet=2)
    found = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", _FIRST[name] + _CALL], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"bench: the first call failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        found.append(float(done.stdout))
    return median(found)
