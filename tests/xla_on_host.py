"""The custom call of cutlass_py.jax on JAX's CPU, in a process of its own: `register` is for good."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import jax

import cutlass_py.jax as cj
from cutlass_py import _core

HERE = Path(__file__).parent


def build(folder: Path) -> Path:
    """Compiles tests/cpp/xla_on_host.cpp with the header of the installed jaxlib, which compares the structs."""
    library = folder / "xla_on_host.so"
    includes = ["-isystem", jax.ffi.include_dir(), "-I", str(HERE.parent / "src" / "cpp")]
    source = str(HERE / "cpp" / "xla_on_host.cpp")
    subprocess.run(["g++", "-std=c++17", "-shared", "-fPIC", *includes, source, "-o", str(library)], check=True)
    return library


def load(library: Path, capsule: Any = None, stream: int = 0) -> ctypes.CDLL:
    """The library with a handler of the extension in it (gemm's if none is given) and what its stream is to be."""
    found = ctypes.CDLL(str(library))
    python = ctypes.pythonapi
    python.PyCapsule_GetName.restype = ctypes.c_char_p
    python.PyCapsule_GetName.argtypes = [ctypes.py_object]
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    capsule = capsule or _core.xla_handler()
    pointer = python.PyCapsule_GetPointer(capsule, python.PyCapsule_GetName(capsule))
    found.set_handler.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    found.set_handler(pointer, stream)
    return found


def register(library: Path) -> None:
    """From now on, gemm on JAX's CPU is the custom call, on the null stream."""
    cj.register("cpu", jax.ffi.pycapsule(load(library).on_host))
