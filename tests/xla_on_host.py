"""The custom call of cutlass_py.jax on JAX's CPU, in a process of its own: `register` is for good."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
from exporters import capsule_pointer

import cutlass_py.jax as cj
from cutlass_py import _core

HERE = Path(__file__).parent
_CALL = ctypes.CFUNCTYPE(None)
_called: list[Any] = []  # what the libraries call has to live as long


def build(folder: Path) -> Path:
    """Compiles tests/cpp/xla_on_host.cpp with the header of the installed jaxlib, which compares the structs."""
    library = folder / "xla_on_host.so"
    includes = ["-isystem", jax.ffi.include_dir(), "-I", str(HERE.parent / "src" / "cpp")]
    source = str(HERE / "cpp" / "xla_on_host.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", *includes, source, "-o", str(library)], check=True)
    return library


def load(library: Path, capsule: Any = None, stream: int = 0, after: Any = None) -> ctypes.CDLL:
    """The library with a handler of the extension in it (gemm's if none is given), what its stream is to be, and what
    is called behind every call.
    """
    found = ctypes.CDLL(str(library))
    _called.append(_CALL(after) if after else _CALL())
    found.set_handler.argtypes = [ctypes.c_void_p] * 3
    found.set_handler(
        capsule_pointer(capsule or _core.xla_gemm_handler()), stream, ctypes.cast(_called[-1], ctypes.c_void_p)
    )
    return found


def register(library: Path, after: Any = None) -> None:
    """From now on, all operations on JAX's CPU are the custom calls, on the null stream."""
    capsules = {name: getattr(_core, f"xla_{name}_handler")() for name in ("gemm", "grouped_gemm", "quantize")}
    handlers = {}
    for operation, capsule in capsules.items():
        own = shutil.copy(library, library.with_name(f"{operation}.so"))  # each library has one handler
        handlers[operation] = jax.ffi.pycapsule(load(own, capsule, after=after).on_host)
    cj.register("cpu", **handlers)
