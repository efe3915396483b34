"""Where and with what a result was measured, as data: machine, versions, commit, what the GPU says of itself."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from .. import _core
from ..support.versions import FRAMEWORKS, installed

CHANGES = "+changes"  # behind a commit that files differ from


def environment(commit: str | None = None) -> dict[str, Any]:
    """The first part of every JSON.

    Args:
        commit: what is measured; by default what git says of the source tree.
    """
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": commit or _commit(),
        "command": _command(),
        "machine": _machine(),
        "versions": _versions(),
    }


def _command() -> str:
    """The script and its arguments, without where this machine writes."""
    script = Path(sys.argv[0])
    words = ["cutlass_py" if script.name == "__main__.py" else script.name, *sys.argv[1:]]
    hidden = ("--json", "--plot")
    return " ".join(
        word
        for before, word in zip(["", *words], words, strict=False)
        if word.partition("=")[0] not in hidden and (before not in hidden or word.startswith("--"))
    )


def _commit() -> str | None:
    """The commit of the source tree, CHANGES where files differ from it; None where there is no repository.

    The tree is the one that this package lies in, or, where it is installed, the directory the command runs in.
    """
    trees = (Path(__file__).resolve().parents[3], Path.cwd())
    root = next((t for t in trees if (t / ".git").exists() and (t / "src" / "cutlass_py").is_dir()), None)
    head = _output(["git", "-C", str(root), "rev-parse", "HEAD"]) if root else None
    if head is None:
        return None
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return head + (CHANGES if changed else "")


def _machine() -> dict[str, Any]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        cpu = next(models, platform.machine())
    except OSError:
        cpu = platform.processor()
    found: dict[str, Any] = {"cpu": cpu, "cpus": os.cpu_count(), "system": platform.system().lower()}
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
    found: dict[str, Any] = {}
    for field, value in zip(fields, line.split(","), strict=False):
        try:
            found[field] = float(value)
        except ValueError:
            found[field] = value.strip()
    return found


def _versions() -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "cutlass_py": _version("cutlass_py")}
    found["build"] = _core.build_info()
    found |= {"ml_dtypes": _version("ml_dtypes"), **dict.fromkeys(FRAMEWORKS), **installed()}
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
