"""What the benchmarks share: timing on the GPU and on the host, the machine and versions as data, JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import median
from timeit import Timer
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

# ---------------------------------------------------------------------------------------------------- GPU timing


@dataclass(frozen=True)
class Arm:
    """One of the things compared. `launch(i)` queues one call, on the i-th of the rotated operand sets."""

    name: str
    launch: Callable[[int], object]


Rounds = dict[str, list[float]]  # microseconds per call by arm, one entry per round

_SPIN_CYCLES = 2000  # of torch.cuda._sleep per microsecond: above the clock of any GPU so far, so a spin is never short
_MOST_NODES = 512  # calls in one graph
_MOST_BURST = 150  # calls behind one spin: the launch queue holds about 1000 entries, a call may take several


def rough_us(arm: Arm) -> float:
    """A first estimate of one call, to size the real measurement; also the warm-up of everything lazy."""
    import torch

    arm.launch(0)
    arm.launch(1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(200 * _SPIN_CYCLES)
    start.record()
    for i in range(4):
        arm.launch(i)
    end.record()
    end.synchronize()
    return max(start.elapsed_time(end) * 1e3 / 4, 1.0)


def warm_up(seconds: float = 2.0) -> None:
    """Keeps the GPU multiplying until its clock has settled: cold, the first case would run at another one."""
    import torch

    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(20):
            torch.mm(a, a)
        torch.cuda.synchronize()


def sustained_us(arms: Sequence[Arm], sets: int, rough: Mapping[str, float], budget_ms: float, rounds: int) -> Rounds:
    """Calls back to back without a pause, replayed from one CUDA graph per arm.

    Everything is queued before the host looks at a result, so the GPU never idles and its clock settles. Each window of
    an arm follows a replay of that same arm; the order of the arms turns around in every round.

    Args:
        arms: what to compare.
        sets: number of operand sets; a graph holds at least one call on each.
        rough: microseconds of a call by arm, as rough_us tells.
        budget_ms: GPU time per arm, over all rounds.
        rounds: windows per arm.
    """
    import torch

    graphs = {}
    window_us = budget_ms * 1e3 / rounds
    for arm in arms:
        nodes = min(max(int(window_us / rough[arm.name] / 4), sets, 1), _MOST_NODES)
        replays = max(round(window_us / rough[arm.name] / nodes), 1)
        graphs[arm.name] = (_capture(arm, nodes), nodes, replays)
    windows: dict[str, list[tuple[Any, Any]]] = {arm.name: [] for arm in arms}
    for index in range(rounds):
        for arm in _turned(arms, index):
            graph, _, replays = graphs[arm.name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            start.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            windows[arm.name].append((start, end))
    torch.cuda.synchronize()
    calls = {name: nodes * replays for name, (_, nodes, replays) in graphs.items()}
    return {
        name: [start.elapsed_time(end) * 1e3 / calls[name] for start, end in pairs] for name, pairs in windows.items()
    }


def _capture(arm: Arm, nodes: int) -> Any:
    import torch

    graph, stream = torch.cuda.CUDAGraph(), _capture_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        arm.launch(0)  # workspaces of this stream come into being outside of the graph
        torch.cuda.synchronize()
        # Not torch.cuda.graph(): that collects garbage and empties the allocator's cache around every capture.
        graph.capture_begin()
        try:
            for i in range(nodes):
                arm.launch(i)
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


_streams: list[Any] = []


def _capture_stream() -> Any:
    import torch

    if not _streams:
        _streams.append(torch.cuda.Stream())
    return _streams[0]


def _turned(arms: Sequence[Arm], index: int) -> Sequence[Arm]:
    return arms if index % 2 == 0 else arms[::-1]


NEIGHBOUR = "neighbour"  # the name under which mixed_us reports its foreign kernel alone


def mixed_us(arms: Sequence[Arm], rough: Mapping[str, float], budget_ms: float, rounds: int) -> tuple[Rounds, bool]:
    """Calls on a plain stream, each followed by a small elementwise kernel of torch's, as inside of a model.

    A burst is queued while the GPU spins, so that host time does not show. Times include the elementwise kernel; the
    arm called NEIGHBOUR is that kernel alone, to be subtracted.

    Returns:
        The rounds, and whether the whole of each burst was queued before the spin ended.
    """
    import torch

    small = torch.zeros(1 << 16, device="cuda")
    arms = [*arms, Arm(NEIGHBOUR, lambda i: None)]
    window_us = budget_ms * 1e3 / rounds
    plans = {}
    for arm in arms:
        calls = min(max(int(window_us / (rough.get(arm.name, 0.0) + 2)), 2), _MOST_BURST)
        plans[arm.name] = _Burst(arm, small, calls)
    times: Rounds = {arm.name: [] for arm in arms}
    for index in range(rounds):
        for arm in _turned(arms, index):
            times[arm.name].append(plans[arm.name].run())
    return times, all(burst.filled for burst in plans.values())


class _Burst:
    """Calls and elementwise kernels in turn, behind a spin that outlasts their queueing."""

    def __init__(self, arm: Arm, small: Any, calls: int) -> None:
        self.arm, self.small, self.calls, self.filled = arm, small, calls, True
        self.spin_us = 0.0
        self._queue()  # warm
        began = time.perf_counter()
        self._queue()
        self.spin_us = 1.5 * (time.perf_counter() - began) * 1e6 + 100

    def run(self) -> float:
        for _ in range(4):
            us, self.filled = self._queue()
            if self.filled:
                break
            self.spin_us *= 2
            self.calls = max(self.calls // 2, 2)
        return us

    def _queue(self) -> tuple[float, bool]:
        import torch

        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if self.spin_us:
            torch.cuda._sleep(int(self.spin_us * _SPIN_CYCLES))
        start.record()
        for i in range(self.calls):
            self.arm.launch(i)
            self.small.add_(1)
        end.record()
        filled = not start.query()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3 / self.calls, filled


REGIMES = ("sustained", "mixed")


def regime_us(
    regime: str, arms: Sequence[Arm], sets: int, rough: Mapping[str, float], budget_ms: float, rounds: int
) -> dict[str, Any]:
    """One regime of a case, as it goes into the JSON: medians by arm without the neighbour, and the rounds with it."""
    if regime == "sustained":
        times = sustained_us(arms, sets, rough, budget_ms, rounds)
        return {"us": {name: max(median(us), 0.1) for name, us in times.items()}, "rounds_us": times}
    times, filled = mixed_us(arms, rough, budget_ms, rounds)
    neighbour = median(times[NEIGHBOUR])
    alone = {name: max(median(us) - neighbour, 0.1) for name, us in times.items() if name != NEIGHBOUR}
    return {"queue_filled": filled, "neighbour_us": neighbour, "us": alone, "rounds_us": times}


# ---------------------------------------------------------------------------------------------------- host timing


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


# ---------------------------------------------------------------------------------------------------- numbers


def geomean(values: Iterable[float]) -> float:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


# ---------------------------------------------------------------------------------------------------- surroundings


def surroundings(commit: str | None) -> dict[str, Any]:
    """Where and with what a result was measured: the first part of every JSON."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "command": _command(),
        "machine": _machine(),
        "versions": _versions(),
    }


def _command() -> str:
    """The script and its arguments, without where this machine writes."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return " ".join(word for before, word in zip(["", *words], words, strict=False) if "--json" not in (before, word))


def _commit() -> str | None:
    """The commit of the working tree, "+changes" where files differ from it; None outside of a repository."""
    head = _output(["git", "-C", str(ROOT), "rev-parse", "HEAD"])
    if head is None or not (ROOT / ".git").exists():
        return None
    changed = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return head + ("+changes" if changed else "")


def _machine() -> dict[str, Any]:
    from cutlass_py import _core

    found: dict[str, Any] = {"cpu": _cpu(), "cpus": os.cpu_count(), "system": platform.system().lower()}
    if _core.device_count():
        info = _core.device_info(0)
        found |= {"gpu": info["name"], "compute_capability": info["cc"], "sm_count": info["sm_count"]}
        found["driver_cuda"] = info["driver"]
        found |= gpu_state(("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit"))
    else:
        found |= {"gpu": None, "why_no_gpu": _core.why_no_device()}
    return found


def gpu_state(fields: Sequence[str] = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")) -> dict[str, Any]:
    """Values that the driver reports now (MHz, degrees, watts); empty where it cannot be asked."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
    line = _output(["nvidia-smi", "-i", first, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    if line is None:
        return {}
    return dict(zip(fields, (_number(value.strip()) for value in line.split(",")), strict=False))


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> dict[str, Any]:
    from cutlass_py import _core

    found: dict[str, Any] = {"python": platform.python_version(), "cutlass_py": _version("cutlass_py")}
    found["build"] = _core.build_info()
    for package in ("torch", "numpy", "jax", "ml_dtypes"):
        found[package] = _version(package)
    found["cupy"] = next(filter(None, map(_version, ("cupy-cuda13x", "cupy-cuda12x", "cupy"))), None)
    if "torch" in sys.modules:
        found["torch_cuda"] = sys.modules["torch"].version.cuda
    return found


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# ---------------------------------------------------------------------------------------------------- JSON


def default_path(script: str, machine: Mapping[str, Any], *parts: str) -> Path:
    """benchmarks/results/<script>-<gpu or cpu>[-parts].json"""
    gpu = str(machine["gpu"] or "cpu").lower().removeprefix("nvidia ").replace(" ", "-")
    return RESULTS / ("-".join([script, gpu, *parts]) + ".json")


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a result whole or not at all; entries of long lists take a line each, so that files compare well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [f"{json.dumps(key)}: {_value(value)}" for key, value in result.items()]
    partial = path.with_suffix(".partial")
    partial.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    partial.replace(path)


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(json.dumps(_rounded(entry), default=str) for entry in value) + "\n]"
    return json.dumps(_rounded(value), default=str)


def _rounded(value: Any) -> Any:
    """Six significant digits are more than any clock here has."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return value
