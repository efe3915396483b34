"""The cache of compiled kernels: its key, its files, who may write there. A script stands in for nvcc."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from nvcc import why_not
from stand_in import CONFIG, NVCC, build, compiled, python

import cutlass_py
from cutlass_py import CompileError
from cutlass_py.compiling import cache, compiler
from cutlass_py.declaration.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
WHY_NOT = why_not()  # nothing can really be compiled here
DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run


# ---------------------------------------------------------------------------------------- the key


def tree(root: Path, **changed: str) -> tuple[Path, ...]:
    """A small tree of headers, some of them with other content."""
    files = {"kernel": "abi/kernel.h", "common": "kernels/common/descriptor.cuh", "version": "cutlass/version.h"}
    for name, path in files.items():
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
        "from cutlass_py.compiling import compiler; from cutlass_py.declaration import families;"
        "print(compiler.build(compiler.recipe(families.FAMILIES['simt_gemm'].declared[0])))"
    )
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: python(code, NVCC_SECONDS="1.5"), range(3)))
    assert {one.returncode for one in done} == {0}, done[0].stderr
    assert len({one.stdout for one in done}) == 1 and compiled(nvcc) == 1


def test_different_kernels_compile_at_once(nvcc, tmp_path):
    """One lock per entry: another kernel's does not hold this one up."""
    other = FAMILIES["simt_gemm"].declared[1]
    with cache.locked(f"{compiler.recipe(other).entry}-nvcc13.0.1"):
        assert build().is_file()


def test_a_directory_that_cannot_be_written(nvcc, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(RuntimeWarning, match=r"file/cache cannot be used \(.+\): .* Set CUTLASS_PY_CACHE_DIR") as seen:
        path = build()
        assert build() == path and build(FAMILIES["simt_gemm"].declared[1]) != path
    assert len(seen) == 1 and compiled(nvcc) == 2
    assert path.parent.stat().st_mode & 0o077 == 0 and path.parent.parent == Path(tempfile.tempdir)


def test_the_private_directory_goes_with_the_process(nvcc, tmp_path):
    (tmp_path / "file").touch()
    code = (
        "from cutlass_py.compiling import compiler; from cutlass_py.declaration import families;"
        "print(compiler.build(compiler.recipe(families.FAMILIES['simt_gemm'].declared[0])))"
    )
    done = python(code, CUTLASS_PY_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert done.stderr.count("RuntimeWarning") == 1
    assert done.stdout.startswith(tempfile.tempdir) and os.listdir(tempfile.tempdir) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_private_directory_outlives_children(nvcc, tmp_path):
    (tmp_path / "file").touch()
    code = (
        "import os, sys; from cutlass_py.compiling import compiler; from cutlass_py.declaration import families;"
        "path = compiler.build(compiler.recipe(families.FAMILIES['simt_gemm'].declared[0]));"
        "child = os.fork();"
        "sys.exit() if not child else os.waitpid(child, 0);"
        "print(path.exists())"
    )
    assert python(code, CUTLASS_PY_CACHE_DIR=str(tmp_path / "file" / "cache")).stdout == "True\n"


def test_a_directory_that_is_cleared_while_it_is_written_to(nvcc, monkeypatch):
    replace, cleared = os.replace, []

    def clears(source, target):
        if not cleared:
            cleared.append(cache.clear())
            os.unlink(source) if os.path.exists(source) else None
        replace(source, target)

    monkeypatch.setattr(os, "replace", clears)
    path = build()  # no warning
    assert cleared and path.parent == cache.directory()


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
    with pytest.raises(CompileError, match="^CUTLASS_PY_CACHE_DIR is '~nobody-of-that-name/x': "):
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
