"""A script that stands in for nvcc, and fresh interpreters to try it in: what is loaded into one stays loaded."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cutlass_py.compiling import compiler
from cutlass_py.declaration.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
CONFIG = FAMILIES["simt_gemm"].declared[0]  # quickly compiled
# Answers --version; counts its calls in a file; "compiles" after a while, into bytes or, where it is to be loaded, into
# a kernel library with one kernel of the source's name.
NVCC = """\
#!PYTHON
import os, subprocess, sys, time
from pathlib import Path
if "--version" in sys.argv:
    print("Cuda compilation tools, release 13.0, V13.0.1")
    sys.exit()
source = next(Path(x) for x in sys.argv if x.endswith(".cu"))
with open(os.environ["NVCC_CALLS"], "a") as file:
    file.write(source.stem + "\\n")
time.sleep(float(os.environ.get("NVCC_SECONDS", "0")))
if "NVCC_FAILS" in os.environ:
    sys.exit("note: <error-type> is not it\\n" + "".join(f"kernel.cu({i}): error: number {i}\\n" for i in range(20)))
out = Path(sys.argv[sys.argv.index("-o") + 1])
out.write_bytes(b"library of " + source.read_bytes())
if "NVCC_LOADS" in os.environ:
    stub = source.with_suffix(".cpp")
    stub.write_text(Path(os.environ["NVCC_LOADS"]).read_text().replace("NAME", source.stem))
    include = [x for x in sys.argv if x.startswith("-I")]
    subprocess.run(["g++", "-shared", "-fPIC", *include, stub, "-o", out], check=True)
"""
STUB = """\
#include "kernel.h"
static const CutlassPyGemmFacts facts = {"a", "b", "acc", "c", "d"};
static const CutlassPyKernel kernel = {"NAME", &facts, nullptr, nullptr};
static const CutlassPyKernel* const kernels[] = {&kernel};
static const CutlassPyLibrary library = {CUTLASS_PY_ABI, 1, kernels, nullptr, nullptr};
extern "C" const CutlassPyLibrary* cutlass_py_library() { return &library; }
"""
needs_gxx = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ for the libraries of a stand-in nvcc")


@pytest.fixture
def nvcc(tmp_path, monkeypatch):
    """A stand-in nvcc, an empty cache and an empty directory for temporary files; returns the file of its calls."""
    script, calls, headers = tmp_path / "nvcc", tmp_path / "calls", tmp_path / "headers" / "cutlass"
    script.write_text(NVCC.replace("PYTHON", sys.executable))
    script.chmod(0o755)
    calls.touch()
    headers.mkdir(parents=True)
    (headers / "version.h").write_text("// none of it is compiled\n")
    (tmp_path / "stub.cpp").write_text(STUB)
    (tmp_path / "tmp").mkdir()
    for name, value in {
        "CUDACXX": script,
        "NVCC_CALLS": calls,
        "CUTLASS_PY_CACHE_DIR": tmp_path / "cache",
        "CUTLASS_PY_INCLUDE": os.pathsep.join([str(ROOT / "src" / "cpp"), str(headers.parent)]),
        "TMPDIR": tmp_path / "tmp",
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("CUTLASS_PY_JIT", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return calls


def stub(calls: Path) -> str:
    """What the stand-in makes loadable libraries from."""
    return str(calls.with_name("stub.cpp"))


def compiled(calls: Path) -> int:
    return len(calls.read_text().splitlines())


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter: what is loaded stays loaded, and other tests ask what is."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)


def in_python(code: str, *arguments: object, path: str = "", **environment: str) -> str:
    """What a fresh interpreter prints, which sees the tests' modules, and `path` first."""
    places = os.pathsep.join([*filter(None, [path]), str(Path(__file__).parent), *sys.path])
    done = python(code, *map(str, arguments), PYTHONPATH=places, **environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def build(config=CONFIG) -> Path:
    """The library of a kernel, in the cache."""
    return compiler.build(compiler.recipe(config))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True
