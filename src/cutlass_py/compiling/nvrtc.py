"""NVRTC, the compiler that is a library: found where frameworks and wheels have it, and called.

It needs no compiler of the host's, and makes a cubin of a source whose headers lie in kernels/freestanding.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .toolkit import find_package

OLDEST = (12, 4)
_MAJORS = (13, 12)  # whose libraries are looked for, the newest first
MISSING = f"no NVRTC {OLDEST[0]}.{OLDEST[1]} or later, as torch and nvidia-cuda-nvrtc bring it"


@dataclass(frozen=True)
class Nvrtc:
    """The library. `version` is such as (13, 0)."""

    library: ctypes.CDLL
    version: tuple[int, int]

    @property
    def name(self) -> str:
        """With its version, such as "nvrtc13.0"."""
        return f"nvrtc{'.'.join(map(str, self.version))}"

    def compile(self, source: str, flags: Sequence[str]) -> tuple[bytes, str]:
        """The cubin of a translation unit, empty where that failed, and what the compiler said."""
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
        try:
            given = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
            failed = self.library.nvrtcCompileProgram(program, len(flags), given)
            log = (
                self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")
                .rstrip(b"\0")
                .decode(errors="replace")
            )
            cubin = b"" if failed else self._text(program, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))
        return cubin, log

    def _text(self, program: ctypes.c_void_p, size_of: str, get: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(size_of, program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self._call(get, program, text)
        return text.raw

    def _call(self, function: str, *arguments: object) -> None:
        if error := getattr(self.library, function)(*arguments):
            raise OSError(f"{function} failed with {error}")


@cache
def find() -> Nvrtc | None:
    """The newest that is here: in NVIDIA's wheels, CUDA_HOME (/usr/local/cuda), or where the dynamic linker looks."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for major in _MAJORS:
        name = f"libnvrtc.so.{major}"
        wheel = f"cu{major}/lib" if major > 12 else "cuda_nvrtc/lib"
        package = find_package("nvidia", f"{wheel}/{name}")
        for directory in (*([package / wheel] if package else []), home / "lib64", None):
            if (found := _load(directory, name)) and found.version >= OLDEST:
                return found
    return None


def _load(directory: Path | None, name: str) -> Nvrtc | None:
    try:
        if directory:  # what it opens itself, by name alone
            for part in directory.glob(name.replace("libnvrtc", "libnvrtc-builtins") + "*"):
                ctypes.CDLL(str(part))
        library = ctypes.CDLL(str(directory / name) if directory else name)
    except OSError:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    if library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
        return None
    return Nvrtc(library, (major.value, minor.value))
