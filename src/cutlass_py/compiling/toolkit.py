"""Where nvcc is and how many may run at once: what the build and the JIT agree on.

Standard library only, no imports from the package: cmake/toolchain.py loads it by path before the package exists.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


# All parts from one release: their own dependencies are unpinned. Newer compilers write PTX that driver 580 refuses.
NVCC_WHEELS = [f"nvidia-{part}==13.0.*" for part in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-runtime", "cuda-cccl")]
NVCC_OLDEST = (12, 4)
_SOUGHT = "CUDACXX, PATH, CUDA_HOME (/usr/local/cuda), nvidia-cuda-nvcc"
NVCC_MISSING = f"no nvcc {_dotted(NVCC_OLDEST)} or later in {_SOUGHT}"
NVCC_MEMORY = 6 << 30  # bytes that one nvcc may take for a file of 3.x kernels
CUTLASS_HEADERS = ("cute", "cutlass")  # the directories in its include/ that kernels are compiled from


def find_package(name: str, member: str) -> Path | None:
    """The directory of an installed top-level package that holds `member`, without importing it."""
    spec = importlib.util.find_spec(name)
    places = [Path(p) for p in (spec and spec.submodule_search_locations) or []]
    return next((p for p in places if (p / member).exists()), None)


@cache
def nvcc_version(nvcc: str) -> tuple[int, ...]:
    """What `nvcc --version` says, such as (13, 0, 88); empty where it says nothing."""
    try:
        out = subprocess.run([nvcc, "--version"], capture_output=True, text=True, errors="replace", check=False).stdout
    except OSError:
        return ()
    found = re.search(r"V(\d+)\.(\d+)\.(\d+)", out)
    return tuple(map(int, found.groups())) if found else ()


def installed_nvcc() -> str | None:
    """The nvcc of a toolkit: CUDACXX, PATH, CUDA_HOME (default /usr/local/cuda).

    Raises:
        ValueError: CUDACXX names something that cannot be run, or that is too old.
    """
    asked = os.environ.get("CUDACXX")
    if asked:
        nvcc = shutil.which(asked)
        if not nvcc:
            raise ValueError(f"CUDACXX is {asked!r}, which cannot be run")
        if (found := nvcc_version(nvcc)) and found < NVCC_OLDEST:
            raise ValueError(f"CUDACXX is {asked!r}, nvcc {_dotted(found)}; expected {_dotted(NVCC_OLDEST)} or later")
        return nvcc
    for candidate in ("nvcc", os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")):
        nvcc = shutil.which(candidate)
        if nvcc and nvcc_version(nvcc) >= NVCC_OLDEST:
            return nvcc
    return None


def nvcc_wheels() -> Path | None:
    """The directory that NVIDIA's compiler wheels share, if they are installed: bin/, nvvm/, include/, lib/.

    Raises:
        ValueError: one of them is missing.
    """
    package = find_package("nvidia", "cu13/bin/nvcc")
    if not package:
        return None
    root = package / "cu13"
    needed = ("bin", "nvvm", "include/crt", "include/cccl", "lib/libcudart_static.a", "lib/libcudadevrt.a")
    missing = [name for name in needed if not (root / name).exists()]
    if missing:
        raise ValueError(f"{root} has no {', '.join(missing)}: pip install {' '.join(NVCC_WHEELS)}")
    return root


def digest(root: Path, *members: str) -> str:
    """SHA-256 of names and contents: of files below `root`, and of all files in directories below it."""
    found = sha256()
    for member in members:
        paths = [str(root / member)]
        if not (root / member).is_file():
            below = os.walk(root / member)
            paths = sorted(os.path.join(place, name) for place, _, names in below for name in names)
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                content = file.read()
            found.update(f"{path[len(str(root)) :]} {len(content)} ".encode() + content)
    return found.hexdigest()


def nvcc_jobs() -> int:
    """How many nvcc may run at once: one per core and per 6 GB of memory that is free."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = [float("inf")]
    meminfo, limit = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.is_file():
        memory += [int(kb) * 1024 for kb in re.findall(r"MemAvailable: +(\d+)", meminfo.read_text())]
    if limit.is_file() and limit.read_text().strip().isdigit():
        memory.append(int(limit.read_text()))
    return max(1, int(min(cores, min(memory) // NVCC_MEMORY)))
