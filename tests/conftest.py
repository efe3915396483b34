"""What pytest says and skips here: the header names what runs, device tests are skipped where there is no device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from stand_in import nvcc  # noqa: F401 (a fixture)
from tuned_tables import shipped, table  # noqa: F401 (fixtures)

from cutlass_py import _core
from cutlass_py.declaration.families import named
from cutlass_py.dispatch import tuned
from cutlass_py.kernels import registry
from cutlass_py.kernels.registry import all_kernels
from cutlass_py.support.versions import installed


@pytest.fixture
def script(monkeypatch):
    """A script of benchmarks/, imported."""
    benchmarks = Path(__file__).resolve().parent.parent / "benchmarks"
    monkeypatch.syspath_prepend(str(benchmarks))
    yield __import__
    for path in benchmarks.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def fake_gpu(monkeypatch):
    from fake_gpu import install  # the benchmarks, which most tests need nothing of

    return install(monkeypatch)


def _device() -> tuple[int, str]:
    """Compute capability times ten and a description of the first device; 0 and the reason where there is none."""
    if _core.device_count() == 0:
        return 0, _core.why_no_device()
    info = _core.device_info(0)
    return info["cc"], f"{info['name']}, compute capability {info['cc'] / 10:.1f}"


def pytest_report_header() -> list[str]:
    cc, device = _device()
    build = _core.build_info()
    frameworks = ", ".join(f"{name} {found}" for name, found in installed().items())
    verdict = f"GPU: {device}" if cc else f"no GPU ({device}): tests marked `gpu` are skipped"
    return [
        f"cutlass_py: {len(_core.kernel_facts())} compiled kernels, CUDA {build['cuda']}; {frameworks}",
        f"cutlass_py: {verdict}",
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cc, device = _device()
    for item in items:
        if item.get_closest_marker("gpu") and not cc:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {device}"))
        elif item.get_closest_marker("sm90") and cc != 90:
            item.add_marker(pytest.mark.skip(reason=f"needs compute capability 9.0: {device}"))


# Several processes share a GPU under xdist, and torch and this package need memory beside JAX.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test draws the same operands alone and among others; one without the mark is about the CPU, as JAX is told."""
    if item.get_closest_marker("gpu"):
        if torch := sys.modules.get("torch"):
            torch.manual_seed(2026)
        yield
        return
    if not _device()[0] or not find_spec("jax"):
        yield
        return
    import jax

    with jax.default_device(jax.devices("cpu")[0]):
        yield


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """With CUTLASS_PY_TEST_LOG=FILE each test that ended, and what a failure says: a limit may end the run."""
    path = os.environ.get("CUTLASS_PY_TEST_LOG")
    if not path or "PYTEST_XDIST_WORKER" in os.environ or (report.passed and report.when != "call"):
        return
    with open(path, "a", encoding="utf-8") as log:
        log.write(f"{report.outcome} {report.duration:.1f} s {report.nodeid}\n")
        log.write(f"{report.longreprtext}\n" if report.failed else "")


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Ends a process whose GPU has failed for good, as after an illegal address: all later tests would fail in it.

    Under xdist another worker takes them over.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        if "PYTEST_XDIST_WORKER" in os.environ:
            os._exit(1)
        pytest.exit(f"{nodeid}: the GPU works no more: {error}", returncode=1)


@pytest.fixture(autouse=True)
def by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are the model's: no test depends on what the package's tables of tuned choices say of some GPU."""
    monkeypatch.setattr(tuned, "PLACES", [])


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2026)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Iterable[str]], None]]:
    """As if the kernels of these names, and no others, were compiled: selection can be asked about any set."""

    def pretend(names: Iterable[str]) -> None:
        facts: dict[str, dict[str, object]] = {name: {} for name in names}
        monkeypatch.setattr(_core, "kernel_facts", lambda: facts)
        for cached in ("_cutlass", "_ids"):
            monkeypatch.setattr(registry, cached, {})
        monkeypatch.setattr(registry, "_by_id", [])
        registry.forget()

    yield pretend
    monkeypatch.undo()
    registry.forget()


@pytest.fixture
def core(built: Callable[[Iterable[str]], None]) -> None:
    """As if the core set were compiled, and nothing else."""
    built(named("core"))


if find_spec("hypothesis"):
    from hypothesis import settings

    # Cold plans and array libraries on first use take any time; no database of examples in the tree.
    settings.register_profile("cutlass_py", deadline=None, database=None, derandomize=True)
    settings.load_profile("cutlass_py")


@pytest.fixture
def nothing_is_left():
    """Registering and unregistering leaves what there is as it was."""
    before = [all_kernels(compiled) for compiled in (True, False)]
    yield
    assert [all_kernels(compiled) for compiled in (True, False)] == before
    assert set(_core.kernel_facts()) <= {kernel.name for kernel in before[1]}
