"""Kernels compiled on demand, their cache and the `cache` command: a script stands in for nvcc."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nvcc import why_not

import cutlass_py
from cutlass_py import (
    CompileError,
    GemmArguments,
    TensorSpec,
    _core,
    cache,
    codegen,
    compiler,
    explain,
    families,
    toolkit,
)
from cutlass_py.dtypes import DTYPES
from cutlass_py.epilogues import EPILOGUES
from cutlass_py.families import FAMILIES
from cutlass_py.kernels import CutlassKernel, all_kernels
from cutlass_py.problems import read
from cutlass_py.select import plan, rank

ROOT = Path(__file__).resolve().parent.parent
CONFIG = FAMILIES["simt_gemm"].full[0]
WHY_NOT = why_not()  # nothing can really be compiled here
DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run

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
static const CutlassPyKernel kernel = {"NAME", {"a", "b", "acc", "c", "d"}, nullptr, nullptr};
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


def build(config=CONFIG) -> Path:
    return compiler.build(compiler.recipe(config))


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter: what is loaded stays loaded, and other tests ask what is."""
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cutlass_py", "cache", *map(str, arguments)], capture_output=True, text=True
    )


def problem(m=512, n=512, k=512, **keywords) -> GemmArguments:
    a, b = TensorSpec((m, k), "bf16", device=DEVICE), TensorSpec((k, n), "bf16", device=DEVICE)
    return GemmArguments(a, b, **keywords)


# ---------------------------------------------------------------------------------------- what is compiled


def test_the_source_is_that_of_the_built_set_and_its_table(nvcc):
    source = compiler.recipe(CONFIG).source
    assert source.startswith(codegen.source([CONFIG]))
    assert f"&cutlass_py_{CONFIG.name}," in source and "nullptr,\n      &cutlass_py::error_string" in source


def test_the_table_of_a_library_with_elementwise_kernels():
    configs = list(FAMILIES["simt_gemm"].core)
    text = codegen.library(configs, elementwise=True)
    assert text.count("    &cutlass_py_simt_gemm") == len(configs) and f"      {len(configs)},\n" in text
    assert "&cutlass_py_elementwise,\n" in text


def test_flags_of_a_family():
    family = FAMILIES["sm90_gemm"]
    flags = codegen.flags(family, family.gencode)
    assert {"-DNDEBUG", "-DCUTLASS_ENABLE_GDC_FOR_SM90=1", "-gencode=arch=compute_90a,code=sm_90a"} <= set(flags)


def test_machine_code_for_the_devices_that_are_here():
    sm80, sm90 = FAMILIES["sm80_gemm"], FAMILIES["sm90_gemm"]
    assert sm80.gencode_for([90, 80, 90]) == ("arch=compute_80,code=[sm_80,sm_90]",)
    assert sm80.gencode_for([86, 75]) == ("arch=compute_80,code=[sm_86]",)
    assert sm80.gencode_for([75]) == sm80.gencode
    assert sm90.gencode_for([80, 90]) == sm90.gencode == ("arch=compute_90a,code=sm_90a",)


def test_without_a_device_it_is_compiled_for_the_one_that_questions_assume(nvcc, monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 0)
    assert any("code=[sm_90]" in flag for flag in compiler.recipe(CONFIG).flags)


def test_headers_of_kernels_include_nothing_that_is_not_installed():
    """kernels.cmake installs kernel.h, gemm/ and CUTLASS; compiler.py hashes the first two."""
    ours = [ROOT / "src" / "cpp" / "kernel.h", *(ROOT / "src" / "cpp" / "gemm").iterdir()]
    names = {path.name for path in ours}
    for path in ours:
        for quoted in re.findall(r'#include "(.+?)"', path.read_text()):
            assert quoted.split("/")[0] in ("cute", "cutlass") or quoted.removeprefix("gemm/") in names, quoted


def test_missing_headers_are_named(nvcc, tmp_path, monkeypatch):
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    monkeypatch.setenv("CUTLASS_PY_INCLUDE", str(ROOT / "src" / "cpp"))
    with pytest.raises(CompileError, match=rf"compile {CONFIG.name}: cutlass/version.h is not in .*CUTLASS_PY_INCLUDE"):
        compiler.recipe(CONFIG)
    monkeypatch.delenv("CUTLASS_PY_INCLUDE")
    with pytest.raises(CompileError, match=rf"kernel.h is not in {tmp_path}/include\. "):
        compiler.recipe(CONFIG)


# ---------------------------------------------------------------------------------------- the key


def tree(root: Path, **changed: str) -> tuple[Path, ...]:
    """A small tree of headers, some of them with other content."""
    for name, path in {"kernel": "kernel.h", "common": "gemm/common.cuh", "version": "cutlass/version.h"}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(changed.get(name, f"// {name}\n"))
    return (root,)


def recipe(include: tuple[Path, ...], **changed) -> compiler.Recipe:
    return compiler.Recipe(**{"kernel": "k", "source": "s", "flags": ("-x", "-y"), "include": include} | changed)


def test_the_entry_does_not_depend_on_paths(tmp_path):
    assert recipe(tree(tmp_path / "one")).entry == recipe(tree(tmp_path / "two")).entry


@pytest.mark.parametrize("changed", ["kernel", "common", "version"])
def test_the_entry_depends_on_each_header(tmp_path, changed):
    assert recipe(tree(tmp_path / "one")).entry != recipe(tree(tmp_path / "two", **{changed: "// other\n"})).entry


@pytest.mark.parametrize("changed", [{"kernel": "l"}, {"source": "t"}, {"flags": ("-x",)}, {"flags": ("-y", "-x")}])
def test_the_entry_depends_on_what_is_compiled(tmp_path, changed):
    include = tree(tmp_path)
    assert recipe(include).entry != recipe(include, **changed).entry


def test_the_entry_depends_on_the_package_the_machine_and_nvccs_environment(tmp_path, monkeypatch):
    made = recipe(tree(tmp_path))
    entries = {made.entry}
    monkeypatch.setattr(cutlass_py, "__version__", "0.0")
    entries.add(made.entry)
    monkeypatch.setattr(compiler.platform, "machine", lambda: "riscv64")
    entries.add(made.entry)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    assert len(entries | {made.entry}) == 4


def test_another_compiler_is_another_entry(nvcc, tmp_path, monkeypatch):
    first = build()
    newer = tmp_path / "nvcc-newer"
    newer.write_text(NVCC.replace("PYTHON", sys.executable).replace("V13.0.1", "V13.0.2"))
    newer.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(newer))
    second = build()
    assert compiled(nvcc) == 2 and first != second
    assert first.name.endswith("nvcc13.0.1.so") and second.name.endswith("nvcc13.0.2.so")


# ---------------------------------------------------------------------------------------- the cache


def test_compiled_once_and_found_again(nvcc):
    path = build()
    assert build() == path == compiler.find(compiler.recipe(CONFIG)) and compiled(nvcc) == 1
    assert path.name.startswith(f"{CONFIG.name}-") and path.parent == cache.directory()
    assert path.read_bytes()[:-32] == b"library of " + compiler.recipe(CONFIG).source.encode()
    assert [p.suffix for p in path.parent.iterdir() if p.suffix not in (".so", ".lock")] == []
    assert os.listdir(tempfile.tempdir) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: content[:20] + b"?" + content[21:],
        lambda content: b"",
        lambda content: hashlib.sha256(b"").digest(),
    ],
    ids=["short", "half", "flipped", "empty", "digest alone"],
)
def test_damage_is_a_miss(nvcc, damage):
    path = build()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert compiler.find(compiler.recipe(CONFIG)) is None
    assert build() == path and path.read_bytes() == whole and compiled(nvcc) == 2


def test_threads_compile_once(nvcc, monkeypatch):
    monkeypatch.setenv("NVCC_SECONDS", "0.5")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(build, [CONFIG] * 4))) == 1
    assert compiled(nvcc) == 1


def test_processes_compile_once(nvcc):
    code = (
        "from cutlass_py import compiler, families;"
        "print(compiler.build(compiler.recipe(families.FAMILIES['simt_gemm'].full[0])))"
    )
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: python(code, NVCC_SECONDS="1.5"), range(3)))
    assert {one.returncode for one in done} == {0}, done[0].stderr
    assert len({one.stdout for one in done}) == 1 and compiled(nvcc) == 1


def test_different_kernels_compile_at_once(nvcc, tmp_path):
    """One lock per entry: another kernel's does not hold this one up."""
    other = FAMILIES["simt_gemm"].full[1]
    with cache.locked(f"{compiler.recipe(other).entry}-nvcc13.0.1"):
        assert build().is_file()


def test_a_directory_that_cannot_be_written(nvcc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"file/cache cannot be used \(.+\): .* Set CUTLASS_PY_CACHE_DIR") as seen:
        path = build()
        assert build() == path and build(FAMILIES["simt_gemm"].full[1]) != path
    assert len(seen) == 1 and compiled(nvcc) == 2
    assert path.parent.stat().st_mode & 0o077 == 0 and path.parent.parent == Path(tempfile.tempdir)


def test_the_private_directory_goes_with_the_process(nvcc, tmp_path):
    (tmp_path / "file").touch()
    code = (
        "from cutlass_py import compiler, families;"
        "print(compiler.build(compiler.recipe(families.FAMILIES['simt_gemm'].full[0])))"
    )
    done = python(code, CUTLASS_PY_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.stderr.count("RuntimeWarning") == 1
    assert done.stdout.startswith(tempfile.tempdir) and os.listdir(tempfile.tempdir) == []


def test_a_directory_that_is_only_read(nvcc, monkeypatch):
    path = build()

    def refuse(*_arguments, **_keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert build() == path  # no warning either


def test_a_full_disk_leaves_nothing_behind_and_loses_nothing(nvcc, monkeypatch):
    replace = os.replace

    def refuse(source, target):
        if Path(target).parent == cache.directory():
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(RuntimeWarning, match=r"cannot be used \(No space left on device\)") as seen:
        path = build()
        assert build() == path and path.parent.parent == Path(tempfile.tempdir)
    assert len(seen) == 1 and compiled(nvcc) == 1
    assert [p.suffix for p in cache.directory().iterdir()] in ([".lock"], [])


def test_no_room_anywhere(nvcc, monkeypatch):
    def refuse(source, _target):
        os.unlink(source)  # as `cache clear` of another process does
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.warns(RuntimeWarning), pytest.raises(OSError, match="No space left"):
        build()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), NotImplementedError("no flock")], ids=repr)
def test_a_lock_that_is_refused(nvcc, monkeypatch, error):
    acquired = cache._acquired

    def refuse(path):
        if path.parent == cache.directory():
            raise error
        return acquired(path)

    monkeypatch.setattr(cache, "_acquired", refuse)
    with pytest.warns(RuntimeWarning, match=r"cannot be used \((Permission denied|no flock)\)") as seen:
        path = build()
        assert build() == path
    assert len(seen) == 1 and compiled(nvcc) == 1 and path.parent.parent == Path(tempfile.tempdir)


def test_locks_are_for_every_user_of_a_shared_directory(nvcc):
    with cache.locked("any"):
        assert (cache.directory() / "any.lock").stat().st_mode & 0o777 == 0o666


def test_clear_leaves_what_is_not_the_caches(nvcc):
    path = build()
    ours = [path, path.with_suffix(".so.lock"), path.with_name(f"{path.stem}.a_1.part")]
    others = [path.with_name(name) for name in ("libfoo.so", "a.lock", "b.part", f"x{path.name}.bak")]
    for file in (*ours[2:], *others):
        file.touch()
    assert cache.entries() == [path]
    assert cache.clear()[0] == 1 and sorted(cache.directory().glob("*.*")) == sorted(others)


def test_clear_beside_another_clear(nvcc, monkeypatch):
    path = build()
    monkeypatch.setattr(cache, "_files", lambda: [path, path.with_name("gone.lock")])
    assert cache.clear()[0] == 1 and cache.size(path) == 0


@pytest.fixture
def by_default(nvcc, tmp_path, monkeypatch):
    """The user's cache directory, which CUTLASS_PY_CACHE_DIR does not name."""
    monkeypatch.delenv("CUTLASS_PY_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg" / "cutlass_py"


@pytest.mark.parametrize("place", ["directory", "file"])
def test_what_everyone_may_write_is_not_loaded(nvcc, by_default, place, monkeypatch):
    path = build()
    assert path.parent == by_default and build() == path
    (path if place == "file" else by_default).chmod(0o777)
    assert compiler.find(compiler.recipe(CONFIG)) is None
    if place == "directory":
        with pytest.warns(RuntimeWarning, match="everyone may write it"):
            assert build().parent.parent == Path(tempfile.tempdir)
        by_default.chmod(0o1777)
        monkeypatch.setattr(cache, "_fallback", {})
    else:
        assert build() == path and path.stat().st_mode & 0o777 == 0o644  # replaced
    assert compiler.find(compiler.recipe(CONFIG)) == path


def test_what_belongs_to_another_user_is_not_loaded(nvcc, by_default, monkeypatch):
    path = build()
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert compiler.find(compiler.recipe(CONFIG)) is None
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(by_default))
    assert compiler.find(compiler.recipe(CONFIG)) == path  # asked for


def test_the_home_of_nobody(nvcc, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", "~nobody-of-that-name/x")
    with pytest.raises(CompileError, match="CUTLASS_PY_CACHE_DIR is '~nobody-of-that-name/x': "):
        build()


def test_without_a_home(nvcc, monkeypatch):
    monkeypatch.setattr(cache, "directory", lambda: Path("~/.cache/cutlass_py"))  # what platformdirs says then
    monkeypatch.delenv("CUTLASS_PY_CACHE_DIR")
    with pytest.warns(RuntimeWarning, match="there is no home directory"):
        path = build()
    assert build() == path and path.parent.parent == Path(tempfile.tempdir) and not Path("~").exists()


def test_the_users_cache_directory_by_default(monkeypatch):
    monkeypatch.delenv("CUTLASS_PY_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.directory() == Path("/somewhere/cutlass_py")


def test_importing_loads_neither_locks_nor_directories():
    code = "import sys, cutlass_py; cutlass_py.jit; print({'filelock', 'platformdirs'} & set(sys.modules))"
    assert python(code).stdout == "set()\n"


# ---------------------------------------------------------------------------------------- failures


def test_a_failing_compiler(nvcc, monkeypatch):
    monkeypatch.setenv("NVCC_FAILS", "1")
    with pytest.raises(CompileError) as error:
        build()
    text = str(error.value)
    assert text.startswith(f"gemm: cannot compile {CONFIG.name}: nvcc failed with status 1. ")
    kept = Path(re.search(r"The source is kept: (.+?\.cu); ", text).group(1))
    assert kept.read_text() == compiler.recipe(CONFIG).source
    assert kept.with_suffix(".log").read_text().count("error: number") == 20
    assert [line.strip() for line in text.splitlines()[1:]] == [f"kernel.cu({i}): error: number {i}" for i in range(5)]
    assert cache.entries() == []
    monkeypatch.delenv("NVCC_FAILS")
    assert build().is_file() and compiled(nvcc) == 2  # what is asked for is tried again


def test_selection_does_not_try_again_what_failed(nvcc, monkeypatch):
    monkeypatch.setattr(compiler, "failed", {})
    monkeypatch.setenv("NVCC_FAILS", "1")
    kernel = CutlassKernel(CONFIG, None)
    errors = []
    for attempt in (kernel.ready, kernel.ready, kernel.compile):
        with pytest.raises(CompileError) as error:
            attempt()
        errors.append(str(error.value))
    assert compiled(nvcc) == 2 and errors[0] == errors[1] != errors[2]


def test_what_the_compiler_started_ends_with_it(nvcc, tmp_path, monkeypatch):
    child = tmp_path / "child"

    def interrupt(*_arguments, **_keywords):
        if child.exists() and child.read_text().endswith("\n"):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(compiler, "_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compiler._run(["/bin/sh", "-c", f"sleep 60 & echo $! > {child}; wait"], "shown")
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    for _ in range(50):
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] in "ZX":
            break
        time.sleep(0.1)
    else:
        pytest.fail("the child is still there")
    assert not compiler._running


def test_a_stop_ends_every_compilation(nvcc, monkeypatch):
    monkeypatch.setenv("NVCC_SECONDS", "60")
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(build)
        while not compiled(nvcc):
            time.sleep(0.05)
        compiler.stop()
        with pytest.raises(CompileError, match="nvcc failed with status -9"):
            pending.result()


def test_without_a_compiler(nvcc, monkeypatch):
    path = build()
    monkeypatch.delenv("CUDACXX")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr(toolkit, "nvcc_wheels", lambda: None)
    assert compiler.find(compiler.recipe(CONFIG)) == path  # what is there serves nevertheless
    path.unlink()
    with pytest.raises(CompileError, match=r"no nvcc 12\.4 or later in CUDACXX, .*pip install 'cutlass_py\[jit\]'"):
        build()


def test_a_compiler_that_is_not_there(nvcc, monkeypatch):
    monkeypatch.setenv("CUDACXX", "/nowhere/nvcc")
    with pytest.raises(CompileError, match="CUDACXX is '/nowhere/nvcc', which cannot be run"):
        build()


def test_a_compiler_that_is_too_old(nvcc, tmp_path, monkeypatch):
    old = tmp_path / "nvcc-old"
    old.write_text(NVCC.replace("PYTHON", sys.executable).replace("V13.0.1", "V12.3.107"))
    old.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(old))
    with pytest.raises(CompileError, match=r"CUDACXX is '.*/nvcc-old', nvcc 12\.3\.107; expected 12\.4 or later"):
        build()


def test_a_compiler_that_is_none(nvcc, monkeypatch):
    monkeypatch.setenv("CUDACXX", "/bin/true")
    with pytest.raises(CompileError, match="true does not say its version"):
        build()


def test_the_compiler_of_the_wheels(nvcc, tmp_path, monkeypatch):
    """nvcc looks for the runtime in lib64; the wheels have lib."""
    root = tmp_path / "site" / "nvidia" / "cu13"
    for part in ("bin", "nvvm", "include/crt", "include/cccl", "lib"):
        (root / part).mkdir(parents=True)
    shutil.copy(os.environ["CUDACXX"], root / "bin" / "nvcc")
    (root / "lib" / "libcudart_static.a").touch()
    monkeypatch.delenv("CUDACXX")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    monkeypatch.setattr(toolkit, "find_package", lambda name, member: root.parent)
    with pytest.raises(CompileError, match=r"has no lib/libcudadevrt\.a: pip install nvidia-cuda-nvcc==13\.0\.\* "):
        build()
    (root / "lib" / "libcudadevrt.a").touch()
    commands = []
    monkeypatch.setattr(compiler, "_run", lambda command, shown: commands.append(command) or (1, ""))
    with pytest.raises(CompileError, match="nvcc failed with status 1"):
        build()
    assert commands[0][0] == str(root / "bin" / "nvcc") and f"-L{root / 'lib'}" in commands[0]


def test_the_extra_names_the_wheels_that_are_looked_for():
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [name for name in extras["jit"] if name.startswith("nvidia")] == toolkit.NVCC_WHEELS


# ---------------------------------------------------------------------------------------- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_of_progress_on_a_terminal(nvcc, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NVCC_SECONDS", "1.2")
    monkeypatch.setattr(sys, "stderr", Terminal())
    build()
    lines = sys.stderr.getvalue()
    assert lines.startswith(f"\rcutlass_py: compiling {CONFIG.name} ... 0 s\r") and lines.endswith(" s\n")
    assert lines.count("\r") >= 3 and lines.count("\n") == 1


def test_the_line_fits_the_terminal(nvcc, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys, "stderr", Terminal())
    build()
    assert all(len(line) < 60 for line in sys.stderr.getvalue().split("\r"))


def test_nothing_is_printed_where_nobody_watches(nvcc, capfd):
    build()
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------------------------- loading


LOAD = """
import json
from cutlass_py import _core, get_kernels, kernels
k = next(k for k in kernels.all_kernels() if not k.compiled)
k.compile(); k.compile()
print(json.dumps([k.name, k.compiled, k in get_kernels(), k.facts["a"], k.name in _core.kernel_facts()]))
"""


@needs_gxx
def test_a_compiled_kernel_joins_the_others(nvcc):
    done = python(LOAD, NVCC_LOADS=stub(nvcc))
    assert done.returncode == 0, done.stderr
    name, *facts = json.loads(done.stdout)
    assert facts == [True, True, "a", True] and nvcc.read_text() == f"{name}\n"


@needs_gxx
def test_a_library_that_is_whole_but_does_not_load_is_compiled_again(nvcc):
    assert "cannot load the kernel library" in python(LOAD).stderr and compiled(nvcc) == 2
    done = python(LOAD, NVCC_LOADS=stub(nvcc))
    assert done.returncode == 0 and compiled(nvcc) == 3, done.stderr


@needs_gxx
def test_jit_0_takes_what_is_in_the_cache_and_refuses_the_rest(nvcc):
    refused = python(LOAD, NVCC_LOADS=stub(nvcc), CUTLASS_PY_JIT="0")
    assert refused.returncode and compiled(nvcc) == 0
    found = re.search(
        r"kernel (\w+) is not in the built set, and CUTLASS_PY_JIT=0 forbids .*: python -m (.+)", refused.stderr
    )
    assert found and found.group(2) == f"cutlass_py cache build --kernel {found.group(1)}"
    prebuilt = subprocess.run(
        [sys.executable, "-m", *found.group(2).split()],
        env={**os.environ, "NVCC_LOADS": stub(nvcc), "CUTLASS_PY_JIT": "0"}, capture_output=True, text=True,
    )  # fmt: skip
    assert prebuilt.returncode == 0, prebuilt.stderr
    assert python(LOAD, CUTLASS_PY_JIT="0").returncode == 0 and compiled(nvcc) == 1
    assert python(LOAD, CUTLASS_PY_JIT="0", CUDACXX="/nowhere/nvcc").returncode == 0  # nor is one looked for


def test_jit_0_and_a_library_that_does_not_load(nvcc, monkeypatch):
    path = build()
    monkeypatch.setenv("CUTLASS_PY_JIT", "0")
    prebuild = f"Remove {path} and prebuild it: python -m cutlass_py cache build --kernel {CONFIG.name}"
    with pytest.raises(CompileError, match=re.escape(prebuild)):
        compiler.load(CONFIG)
    assert path.exists() and compiled(nvcc) == 1


def test_plans_go_once_the_kernel_is_among_the_others(monkeypatch):
    kernel, seen = CutlassKernel(CONFIG, None), []
    monkeypatch.setattr(compiler, "load", lambda config: {"a": "a"})
    monkeypatch.setattr(_core, "clear_plans", lambda: seen.append(kernel.compiled))
    kernel.load()
    assert seen == [True]


@pytest.mark.parametrize("value", ["yes", "2", "off"])
def test_a_wrong_setting_names_the_choices(nvcc, monkeypatch, value):
    monkeypatch.setenv("CUTLASS_PY_JIT", value)
    with pytest.raises(ValueError, match=f"CUTLASS_PY_JIT is '{value}'; it must be 0 or 1"):
        compiler.load(CONFIG)


REAL = """
import json
from cutlass_py import kernels
k = next(k for k in kernels.all_kernels() if not k.compiled and k.family.api == 2)
k.compile()
print(json.dumps([k.name, k.facts]))
"""


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_real_compiler(tmp_path):
    if all(k.compiled for k in all_kernels() if isinstance(k, CutlassKernel) and k.family.api == 2):
        pytest.skip("every declared 2.x kernel is in the built set")
    done = python(REAL, CUTLASS_PY_CACHE_DIR=str(tmp_path), CUTLASS_PY_JIT="1")
    assert done.returncode == 0, done.stderr
    name, facts = json.loads(done.stdout)
    c = families.named("declared")[name]
    declared = {
        "a": DTYPES[c.a].storage or c.a, "d": c.d, "c": c.d if EPILOGUES[c.epilogue].source else "void",
        "accumulator": c.accumulator, "layout": c.layout, "api": 2, "tile": list(c.tile), "stages": c.stages,
        "align_a": c.align, "align_d": c.align_d,
    }  # fmt: skip
    assert {key: facts[key] for key in declared} == declared


# ---------------------------------------------------------------------------------------- what compiles, and when


@pytest.fixture
def asked(built, monkeypatch):
    """No kernel is compiled, and to compile one is to be on this list."""
    names: list[str] = []
    built([])
    monkeypatch.setattr(CutlassKernel, "load", lambda self: names.append(self.name))
    return names


def test_a_kernel_asked_for_by_name_is_compiled(asked):
    args = problem()
    best = rank(args.problem, compiled=False)[0].route.kernel
    assert plan(_core.problem(args.a, args.b, kernel=best)).kernel == best.name
    assert asked == [best.name]


def test_a_kernel_that_does_not_fit_is_not_compiled(asked):
    args = problem()
    with pytest.raises(ValueError, match="does not fit"):
        plan(_core.problem(args.a, args.b, kernel=CONFIG.name))
    assert asked == []


def test_selection_compiles_within_the_context_alone(asked):
    with pytest.raises(
        cutlass_py.NoKernelError, match=r"not in the built set; `with cutlass_py\.jit\(\):` compiles it"
    ):
        plan(problem().problem)
    assert asked == []
    with cutlass_py.jit():
        args = problem()
        chosen = plan(args.problem)
        text = str(explain(args))
    assert asked == [chosen.kernel] == [rank(args.problem, compiled=False)[0].route.kernel.name]
    assert f"chosen: {chosen.kernel}\n  is compiled first: it is not in the built set" in text


def test_explain_follows_the_context_it_is_asked_in(asked):
    outside = problem()
    with cutlass_py.jit():
        inside = problem()
        assert explain(outside).ranking == explain(inside).ranking != ()
        assert explain(outside).chosen == explain(inside).chosen
    assert explain(inside).ranking == explain(outside).ranking == ()


def test_plans_do_not_leak_out_of_the_context():
    plain = problem().problem
    with cutlass_py.jit():
        inside = problem().problem
    assert inside.jit and not plain.jit and inside != plain and problem().problem == plain


def test_the_context_is_of_its_thread_and_ends():
    seen = []
    with pytest.raises(KeyError), cutlass_py.jit():
        with cutlass_py.jit():
            pass
        seen.append(problem().problem.jit)
        thread = threading.Thread(target=lambda: seen.append(problem().problem.jit))
        thread.start()
        thread.join()
        raise KeyError
    assert [*seen, problem().problem.jit] == [True, False, False]


def test_on_the_cpu_the_context_changes_nothing():
    np = pytest.importorskip("numpy")
    a = np.ones((3, 3))
    with warnings.catch_warnings(), cutlass_py.jit():
        assert (cutlass_py.gemm(a, a) == 3).all()


def test_kernels_of_the_cpu_need_no_compiler():
    kernel = next(k for k in all_kernels() if not isinstance(k, CutlassKernel))
    assert kernel.compile() == cutlass_py.Artifact(kernel.name, "cpu", None, True) and kernel.compiled


# ---------------------------------------------------------------------------------------- the command


GOOD = {"m": 8, "n": 8, "k": 8, "a": "f32"}


@pytest.fixture
def problems(tmp_path):
    """Two problems of one kernel, one of another, and one without a product."""
    path = tmp_path / "problems.json"
    large = {"m": 8192, "n": 8192, "k": 8192, "a": "bf16", "layout": "tn"}
    path.write_text(json.dumps([large, large | {"m": 8320}, GOOD, GOOD | {"k": 0}]))
    return path


def best(path: Path) -> list[str]:
    ranked = (rank(args.problem, compiled=False)[0].route.kernel for args in read(path)[:3])
    return list(dict.fromkeys(kernel.name for kernel in ranked))


def test_build_info_clear(nvcc, problems):
    rows = json.loads(command("build", problems, "--jobs", 2, "--json").stdout)
    assert [row["kernel"] for row in rows] == best(problems)
    built_in = {k.name for k in all_kernels() if k.compiled}
    assert all(row["state"] == ("built in" if row["kernel"] in built_in else "compiled") for row in rows)
    missing = [name for name in best(problems) if name not in built_in]
    assert sorted(nvcc.read_text().split()) == sorted(missing)

    again = command("build", problems)
    assert again.returncode == 0 and again.stdout.count("  cached\n") == len(missing) == compiled(nvcc)

    info = json.loads(command("info", "--json").stdout)
    assert info["directory"] == os.environ["CUTLASS_PY_CACHE_DIR"] and len(info["entries"]) == len(missing)
    assert all(any(entry.startswith(name) for entry in info["entries"]) for name in missing)
    assert f"{len(missing)} kernels, " in command("info").stdout.splitlines()[0]

    assert json.loads(command("clear", "--json").stdout)["removed"] == len(missing)
    assert list(cache.directory().iterdir()) == []
    assert "removed 0 kernels" in command("clear").stdout


def test_build_goes_on_after_a_failure(nvcc, problems, monkeypatch):
    names = [k.name for k in all_kernels() if not k.compiled][:2]
    if len(names) < 2:
        pytest.skip("every declared kernel is in the built set")
    monkeypatch.setenv("NVCC_FAILS", "1")
    done = command("build", *(f"--kernel={name}" for name in names), "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 1 and [(row["kernel"], row["state"]) for row in rows] == [(n, "failed") for n in names]
    assert all(row["error"].startswith(f"gemm: cannot compile {row['kernel']}: ") for row in rows)


def test_info_of_a_cache_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "nowhere"))
    assert command("info").stdout == f"{tmp_path}/nowhere: 0 kernels, 0.0 MB\n"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("build",), "expected a file of problems, or --kernel"),
        (("build", "nowhere.json"), "nowhere.json"),
        (("build", "--kernel", "typo"), "no kernel is called 'typo'"),
        (("build", "--kernel", "cpu_gemm_numpy"), "kernel cpu_gemm_numpy is not one to compile"),
        (("build", "--jobs", "0", "--kernel", CONFIG.name), "--jobs is 0; expected 1 or more"),
        (("empty",), "invalid choice"),
        ((), "required"),
    ],
    ids=str,
)
def test_wrong_usage(arguments, message):
    done = command(*arguments)
    assert done.returncode == 2 and "error: " in done.stderr and message in done.stderr and not done.stdout
    assert "Traceback" not in done.stderr


def test_a_problem_that_no_declared_kernel_takes(nvcc, tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([GOOD | {"a": "f64", "splits": "stream"}]))
    done = command("build", path)
    assert done.returncode == 2 and "no declared kernel fits (8, 8, 8) tt: f64" in done.stderr and compiled(nvcc) == 0


@pytest.mark.skipif(not importlib.util.find_spec("rich"), reason="rich is not installed")
def test_a_bar_with_rich_on_a_terminal(nvcc, monkeypatch):
    from cutlass_py.prebuild import build as prebuild

    monkeypatch.setattr(sys, "stderr", Terminal())
    lines: list[str] = []
    outcomes = prebuild([CutlassKernel(CONFIG, None)], 1, lines.append)
    assert "1/1" in sys.stderr.getvalue() and outcomes[0].state == "compiled" and lines[0].startswith(CONFIG.name)
