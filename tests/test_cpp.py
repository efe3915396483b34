"""Kernels from C++ without Python: the CMake package, and the example built against it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import cmake_at_hand
import pytest
from stand_in import ROOT, STUB

from cutlass_py import _core
from cutlass_py.commands import main

EXAMPLE = ROOT / "examples" / "cpp"
PACKAGE = Path(_core.__file__).parent
HAS_KERNELS = (PACKAGE / "libcutlass_py_kernels.so").is_file()
WHY_NOT = cmake_at_hand.why_not() or ("" if shutil.which("g++") else "no g++")
needs_cmake = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, arguments)), env=os.environ | environment, capture_output=True, text=True)


def configure(package: Path, build: Path) -> subprocess.CompletedProcess[str]:
    """The example; skips where there is no CUDA toolkit for it to link with."""
    done = run("cmake", "-S", EXAMPLE, "-B", build, f"-Dcutlass_py_DIR={package}")
    if "Could NOT find CUDAToolkit" in done.stderr:
        pytest.skip("CMake finds no CUDA toolkit")
    return done


@pytest.fixture
def tree(tmp_path):
    """What an installation leaves, with a stand-in for the kernel library; the directory of its CMake package."""
    (tmp_path / "cmake").mkdir()
    (tmp_path / "include").mkdir()
    shutil.copy(ROOT / "cmake" / "cutlass_pyConfig.cmake", tmp_path / "cmake")
    shutil.copytree(ROOT / "src" / "cpp" / "include", tmp_path / "include", dirs_exist_ok=True)
    shutil.copytree(ROOT / "src" / "cpp" / "abi", tmp_path / "include" / "abi")
    (tmp_path / "cmake" / "cutlass_pyConfigVersion.cmake").write_text("set(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
    (tmp_path / "stub.cpp").write_text(STUB.replace("NAME", "stand_in"))
    library = tmp_path / "libcutlass_py_kernels.so"
    done = run("g++", "-shared", "-fPIC", f"-I{tmp_path}/include", tmp_path / "stub.cpp", "-o", library)
    assert done.returncode == 0, done.stderr
    return tmp_path / "cmake"


@needs_cmake
def test_the_example_builds_and_finds_the_kernels(tree, tmp_path):
    done = configure(tree, tmp_path / "build")
    assert done.returncode == 0, done.stderr
    built = run("cmake", "--build", tmp_path / "build")
    assert built.returncode == 0, built.stdout + built.stderr
    said = run(tmp_path / "build" / "gemm")
    if _core.device_count():
        assert said.returncode == 1 and "no kernel multiplies row-major matrices in exact f32" in said.stderr
    else:
        assert said.returncode == 0 and said.stdout.startswith("stand_in: a x b -> d, tile ")
        assert said.stdout.endswith("1 kernels; there is no GPU to run one on\n")


@needs_cmake
def test_a_package_without_kernels_says_so(tree, tmp_path):
    (tree.parent / "libcutlass_py_kernels.so").unlink()
    said = " ".join(run("cmake", "-S", EXAMPLE, "-B", tmp_path / "build", f"-Dcutlass_py_DIR={tree}").stderr.split())
    assert f"cutlass_py in {tree.parent} was built without CUDA (CUTLASS_PY_CUDA): it has no kernel library" in said


@needs_cmake
@pytest.mark.skipif(not HAS_KERNELS, reason="the package here has no kernel library")
@pytest.mark.parametrize("device", ["", pytest.param("gpu", marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def test_the_example_runs_on_the_installed_package(device, tmp_path, capsys):
    assert main(["info", "--cmake-dir"]) == 0
    done = configure(Path(capsys.readouterr().out.strip()), tmp_path / "build")
    assert done.returncode == 0, done.stderr
    assert run("cmake", "--build", tmp_path / "build").returncode == 0
    said = run(tmp_path / "build" / "gemm", **({} if device else {"CUDA_VISIBLE_DEVICES": ""}))
    assert said.returncode == 0, said.stderr
    assert said.stdout.endswith(": 0 wrong values\n" if device else "there is no GPU to run one on\n")


@needs_cmake
@pytest.mark.parametrize(("wanted", "fits"), [("", True), ("0.1", True), ("0.2", False), ("1.0", False)])
def test_the_version_that_is_found(tmp_path, wanted, fits):
    """The project's own file writes it; installing is left out."""
    (tmp_path / "writes").mkdir()
    (tmp_path / "writes" / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.26)\nproject(x LANGUAGES NONE)\ninclude({ROOT}/cmake/package.cmake)\n"
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "writes")
    shutil.copytree(ROOT / "cmake", tmp_path / "writes" / "cmake")
    done = run("cmake", "-S", tmp_path / "writes", "-B", tmp_path / "build")
    assert done.returncode == 0, done.stderr
    installed = run("cmake", "--install", tmp_path / "build", "--prefix", tmp_path / "site")
    assert installed.returncode == 0, installed.stderr
    (tmp_path / "site" / "cutlass_py" / "libcutlass_py_kernels.so").touch()
    (tmp_path / "reads").mkdir()
    (tmp_path / "reads" / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.26)\nproject(x LANGUAGES NONE)\n"
        f'find_package(cutlass_py {wanted})\nmessage(STATUS "found ${{cutlass_py_FOUND}}")\n'
    )
    package = tmp_path / "site" / "cutlass_py" / "cmake"
    said = run("cmake", "-S", tmp_path / "reads", "-B", tmp_path / "build2", f"-Dcutlass_py_DIR={package}").stdout
    assert f"found {int(fits)}" in said


def test_where_the_package_is(capsys):
    status = main(["info", "--cmake-dir"])
    said = capsys.readouterr()
    if (PACKAGE / "cmake" / "cutlass_pyConfig.cmake").is_file():
        assert status == 0 and said.out == f"{PACKAGE}/cmake\n"
        assert (PACKAGE / "cmake" / "cutlass_pyConfigVersion.cmake").is_file()
        assert (PACKAGE / "include" / "kernel.h").is_file()
    else:
        assert status == 2 and f"there is no cutlass_pyConfig.cmake in {PACKAGE}/cmake" in said.err


@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc")
def test_the_interface_is_c(tmp_path):
    (tmp_path / "x.c").write_text('#include "kernel.h"\nint main(void) { return cutlass_py_library() == 0; }\n')
    include = [f"-I{ROOT}/src/cpp", f"-I{ROOT}/src/cpp/include"]
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *include]
    done = run("gcc", *flags, tmp_path / "x.c")
    assert done.returncode == 0, done.stderr


def test_the_command_is_that_of_the_documents():
    done = run(sys.executable, "-m", "cutlass_py", "info", "--help")
    assert "--cmake-dir" in done.stdout and "cutlass_py info --cmake-dir" in (EXAMPLE / "CMakeLists.txt").read_text()
