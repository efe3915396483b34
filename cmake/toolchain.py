"""Finds what a build needs: CUTLASS, DLPack, nanobind and nvcc, and copies to build/deps what came from wheels.

One policy for both who ask: backend.py (what pip must fetch, CUDA or not) and CMake (where everything is). An isolated
build has its packages under a random path; ninja and ccache would miss on every rebuild if compilers saw that path.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import sys
from dataclasses import dataclass, fields
from pathlib import Path

from generate import load_module

ROOT = Path(__file__).resolve().parent.parent
DEPS = ROOT / "build" / "deps"

CUTLASS = ">= 4.2, < 5"
CUTLASS_WHEEL = "nvidia-cutlass==4.2.*"
DLPACK_WHEEL = "apache-tvm-ffi>=0.1.15,<0.2"  # ships the upstream DLPack 1.3 header
toolkit = load_module("compiling.toolkit")  # nvcc: the same search as the package's own at run time


class BuildError(Exception):
    """A message for the person who builds."""


@dataclass
class Options:
    """The build options, under the names they have as environment variables and as CMake cache entries."""

    CUTLASS_PY_CUDA: str = "AUTO"
    CUTLASS_PY_ARCHS: str = "80;90a"
    CUTLASS_PY_KERNELS: str = "core"
    CUTLASS_PY_NVCC_JOBS: str = ""
    CUTLASS_DIR: str = ""
    DLPACK_DIR: str = ""

    def __post_init__(self) -> None:
        self.CUTLASS_PY_CUDA = self.CUTLASS_PY_CUDA.upper()
        if self.CUTLASS_PY_CUDA not in ("AUTO", "ON", "OFF"):
            raise BuildError(f"CUTLASS_PY_CUDA is {self.CUTLASS_PY_CUDA!r}; it must be AUTO, ON or OFF")
        self.CUTLASS_PY_ARCHS = ";".join(filter(None, re.split(r"[;,\s]+", self.CUTLASS_PY_ARCHS)))
        if self.CUTLASS_PY_KERNELS != "core":
            path = Path(self.CUTLASS_PY_KERNELS).resolve()
            if not path.is_file():
                raise BuildError(f"CUTLASS_PY_KERNELS is {self.CUTLASS_PY_KERNELS!r}; it must be core or a file")
            self.CUTLASS_PY_KERNELS = str(path)
        if not re.fullmatch(r"([1-9]\d*)?", self.CUTLASS_PY_NVCC_JOBS):
            raise BuildError(f"CUTLASS_PY_NVCC_JOBS is {self.CUTLASS_PY_NVCC_JOBS!r}; it must be a number from 1")
        for name in ("CUTLASS_DIR", "DLPACK_DIR"):
            if getattr(self, name):
                setattr(self, name, str(Path(getattr(self, name)).resolve()))

    @classmethod
    def read(cls, config_settings: dict[str, str | list[str]] | None) -> Options:
        """From pip's -C cmake.define.NAME=..., else -DNAME=... in cmake.args or CMAKE_ARGS, else the environment."""
        settings = config_settings or {}
        args = settings.get("cmake.args", [])
        args = [*(args.split(";") if isinstance(args, str) else args), *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        given = dict(os.environ)
        given.update(re.findall(r"^-D\s*(\w+)(?::\w+)?=(.*)$", "\n".join(args), re.MULTILINE))
        given.update({k.removeprefix("cmake.define."): v for k, v in settings.items() if isinstance(v, str)})
        return cls(**{f.name: given[f.name] for f in fields(cls) if given.get(f.name)})


# ------------------------------------------------------------------------------------------------------ wheels


def _licence(distribution: str) -> dict[str, Path]:
    files = importlib.metadata.files(distribution) or []
    found = next((f for f in files if f.name.startswith("LICENSE") and ".dist-info" in str(f)), None)
    return {"LICENSE.txt": Path(str(found.locate()))} if found else {}


def _copy(name: str, origin: str, files: dict[str, Path]) -> Path:
    """Copies files and trees to build/deps/`name`, once per `origin`. The stamp comes last: half a copy is none."""
    target, stamp = DEPS / name, DEPS / name / ".origin"
    if stamp.is_file() and stamp.read_text() == origin:
        return target
    print(f"-- Copying {origin} to {target}")
    shutil.rmtree(target, ignore_errors=True)
    for place, source in files.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target / place)
    stamp.write_text(origin)
    return target


def _copied(name: str) -> Path | None:
    return DEPS / name if (DEPS / name / ".origin").is_file() else None


# ------------------------------------------------------------------------------------------------------ the parts


def _header_dir(option: str, given: str, header: str) -> Path:
    for include in (Path(given) / "include", Path(given)):
        if (include / header).is_file():
            return include
    raise BuildError(f"{option} is {given!r}, but there is no include/{header} in it")


def find_cutlass(options: Options, copy: bool = False) -> Path | None:
    """The include directory: CUTLASS_DIR, the submodule, the wheel, or the copy of a wheel."""
    if options.CUTLASS_DIR:
        return _header_dir("CUTLASS_DIR", options.CUTLASS_DIR, "cutlass/version.h")
    submodule = ROOT / "external" / "cutlass" / "include"
    if (submodule / "cutlass" / "version.h").is_file():
        return submodule
    package = toolkit.find_package("cutlass_library", "source/include/cutlass/version.h")
    if package:
        include = package / "source" / "include"
        if not copy:
            return include
        origin = f"nvidia-cutlass {importlib.metadata.version('nvidia-cutlass')}"
        return _copy("cutlass", origin, {"include": include, **_licence("nvidia-cutlass")}) / "include"
    copied = _copied("cutlass")
    return copied / "include" if copied else None


def find_dlpack(options: Options, copy: bool = False) -> Path | None:
    """The include directory: DLPACK_DIR, the wheel, or the copy of a wheel."""
    if options.DLPACK_DIR:
        return _header_dir("DLPACK_DIR", options.DLPACK_DIR, "dlpack/dlpack.h")
    package = toolkit.find_package("tvm_ffi", "include/dlpack/dlpack.h")
    if package:
        if not copy:
            return package / "include"
        origin = f"apache-tvm-ffi {importlib.metadata.version('apache-tvm-ffi')}"
        return _copy("dlpack", origin, {"include/dlpack": package / "include" / "dlpack"}) / "include"
    copied = _copied("dlpack")
    return copied / "include" if copied else None


def copy_nanobind() -> Path:
    """nanobind, which is compiled in: one directory per version."""
    package = toolkit.find_package("nanobind", "cmake")
    if not package:
        raise BuildError(f"nanobind is not installed for {sys.executable}: pip install 'nanobind>=2.9,<4'")
    version = importlib.metadata.version("nanobind")
    files = {entry.name: entry for entry in package.iterdir() if entry.name != "__pycache__"}
    return _copy(f"nanobind-{version}", f"nanobind {version}", {**files, **_licence("nanobind")})


def find_nvcc(copy: bool = False) -> str | None:
    """nvcc: that of a toolkit, the wheels, or the copy of wheels."""
    try:
        nvcc: str | None = toolkit.installed_nvcc()
        root = None if nvcc else toolkit.nvcc_wheels()
    except ValueError as error:
        raise BuildError(str(error)) from None
    if nvcc:
        return nvcc
    if not root:
        root = _copied("cuda")
    elif copy:
        # lib64 is where nvcc looks and the wheels say lib, which may also hold gigabytes of other libraries.
        files = {name: root / name for name in ("bin", "nvvm", "include")}
        files |= {f"lib64/{name}": root / "lib" / name for name in ("libcudart_static.a", "libcudadevrt.a")}
        distributions = (wheel.partition("=")[0] for wheel in toolkit.NVCC_WHEELS)
        origin = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in distributions)
        root = _copy("cuda", origin, files)
    return str(root / "bin" / "nvcc") if root else None


def requirements(options: Options) -> list[str]:
    """What pip must bring into an isolated build; nothing that is there or was copied by an earlier one."""
    wanted = []
    if not find_dlpack(options):
        wanted.append(DLPACK_WHEEL)
    if options.CUTLASS_PY_CUDA == "OFF":
        return wanted
    nvcc = find_nvcc()
    glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if nvcc or (glibc and platform.machine() in ("x86_64", "aarch64")):  # for which nvcc comes as wheels
        if not find_cutlass(options):
            wanted.append(CUTLASS_WHEEL)
        if not nvcc:
            wanted += toolkit.NVCC_WHEELS
    return wanted


def without_cuda(options: Options) -> str:
    """Why this build is CPU-only; empty if it is not."""
    if options.CUTLASS_PY_CUDA == "OFF":
        return "CUTLASS_PY_CUDA=OFF"
    if find_nvcc():
        return ""
    if options.CUTLASS_PY_CUDA == "ON":
        wheels = " ".join(toolkit.NVCC_WHEELS)
        raise BuildError(f"CUTLASS_PY_CUDA=ON, but there is {toolkit.NVCC_MISSING}: pip install {wheels}")
    return str(toolkit.NVCC_MISSING)


# ------------------------------------------------------------------------------------------------------ for CMake


def _macros(header: Path, *names: str) -> tuple[int, ...]:
    text = header.read_text(encoding="utf-8")
    return tuple(int(re.search(rf"#define {name} +(\d+)", text).group(1)) for name in names)  # type: ignore[union-attr]


def _settings(options: Options) -> dict[str, object]:
    reason = without_cuda(options)
    nanobind = copy_nanobind()
    dlpack = find_dlpack(options, copy=True)
    if not dlpack:
        raise BuildError(f"dlpack.h not found: pip install '{DLPACK_WHEEL}', or set DLPACK_DIR")
    dlpack_version = _macros(dlpack / "dlpack" / "dlpack.h", "DLPACK_MAJOR_VERSION", "DLPACK_MINOR_VERSION")
    if not (1, 3) <= dlpack_version < (2,):
        raise BuildError(f"{dlpack}: DLPack {dlpack_version} found, 1.3 or newer needed")
    found: dict[str, object] = {
        "cuda_reason": reason,
        "dlpack_include": dlpack,
        "dlpack_version": ".".join(map(str, dlpack_version)),
        "nanobind": nanobind,
        "kernels": options.CUTLASS_PY_KERNELS,
        "archs": options.CUTLASS_PY_ARCHS,
    }
    if reason:
        return found
    cutlass = find_cutlass(options, copy=True)
    if not cutlass:
        raise BuildError(
            f"CUTLASS headers not found: set CUTLASS_DIR, fill external/cutlass, pip install '{CUTLASS_WHEEL}', "
            "or build with CUTLASS_PY_CUDA=OFF"
        )
    version = _macros(cutlass / "cutlass" / "version.h", "CUTLASS_MAJOR", "CUTLASS_MINOR", "CUTLASS_PATCH")
    if not (4, 2) <= version < (5,):
        raise BuildError(f"{cutlass}: CUTLASS {'.'.join(map(str, version))} found, {CUTLASS} needed")
    licence = cutlass.parent / "LICENSE.txt"
    found |= {
        "nvcc": find_nvcc(copy=True),
        "nvcc_jobs": options.CUTLASS_PY_NVCC_JOBS or toolkit.nvcc_jobs(),
        "cutlass_include": cutlass,
        "cutlass_version": ".".join(map(str, version)),
        "cutlass_digest": toolkit.digest(cutlass, *toolkit.CUTLASS_HEADERS),
        # Every header begins with the whole licence.
        "cutlass_licence": licence if licence.is_file() else cutlass / "cutlass" / "version.h",
    }
    return found


def main() -> None:
    """Writes the findings as CMake variables CUTLASS_PY_<name>."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", default=field.default)
    given = vars(parser.parse_args())
    out = given.pop("out")
    try:
        found = _settings(Options(**given))
    except BuildError as error:
        raise SystemExit(str(error)) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(f"set(CUTLASS_PY_{name.upper()} [==[{value}]==])\n" for name, value in found.items()))


if __name__ == "__main__":
    main()
