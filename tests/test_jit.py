"""Kernels compiled on demand: what is compiled, when, and what goes wrong. A script stands in for nvcc."""

from __future__ import annotations

import json
import logging
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
from stand_in import CONFIG, NVCC, Terminal, build, compiled, needs_gxx, python, stub

import cutlass_py
from cutlass_py import CompileError, GemmArguments, TensorSpec, _core, explain
from cutlass_py.compiling import cache, compiler, toolkit
from cutlass_py.declaration import codegen, families
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.dispatch.candidates import rank
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import all_kernels

ROOT = Path(__file__).resolve().parent.parent
WHY_NOT = why_not()  # nothing can really be compiled here
DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run


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
    text = codegen.entry_point(configs, package=True)
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
    codes = FAMILIES["quantize"].gencode_for([120, 86, 90])  # by the source that has instructions for fp8, where it may
    assert codes == ("arch=compute_80,code=[sm_86]", "arch=compute_90,code=[sm_90,sm_120]")
    assert sm90.gencode_for([80, 90]) == sm90.gencode == ("arch=compute_90a,code=sm_90a",)


def test_without_a_device_it_is_compiled_for_the_one_that_questions_assume(nvcc, monkeypatch):
    monkeypatch.setattr(_core, "device_count", lambda: 0)
    assert any("code=[sm_90]" in flag for flag in compiler.recipe(CONFIG).flags)


def test_headers_of_kernels_include_nothing_that_is_not_installed():
    """CMake installs what kernels need of abi/, kernels/ without elementwise/, include/; compiler.py hashes that."""
    cpp = ROOT / "src" / "cpp"
    kernels = [x for x in (cpp / "kernels").rglob("*") if x.is_file() and x.parent.name != "elementwise"]
    abi = [cpp / "abi" / name for name in ("kernel.h", "dtype_number.h")]
    ours = {str(path.relative_to(cpp)): path for path in [*abi, *kernels]}
    second_names = [path for path in (cpp / "include").rglob("*.*")]
    assert len(ours) > 10 and len(second_names) == 5
    for path in (*ours.values(), *second_names):
        for quoted in re.findall(r'#include "(.+?)"', path.read_text()):
            assert quoted.split("/")[0] in ("cute", "cutlass") or quoted in ours, quoted
    hashed = [path for directory in compiler._OWN_DIRECTORIES for path in (cpp / directory).iterdir()]
    assert {*hashed, *abi, cpp / "kernels" / "wrap_device_gemm.cuh"} == set(ours.values())


def test_missing_headers_are_named(nvcc, tmp_path, monkeypatch):
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    monkeypatch.setenv("CUTLASS_PY_INCLUDE", str(ROOT / "src" / "cpp"))
    with pytest.raises(CompileError, match=rf"compile {CONFIG.name}: cutlass/version.h is not in .*CUTLASS_PY_INCLUDE"):
        compiler.recipe(CONFIG)
    monkeypatch.delenv("CUTLASS_PY_INCLUDE")
    with pytest.raises(CompileError, match=rf"kernel.h is not in {tmp_path}/include\. "):
        compiler.recipe(CONFIG)


@pytest.fixture
def not_installed(nvcc, monkeypatch):
    """The headers are those of CUTLASS_PY_INCLUDE, and not the package's own."""
    monkeypatch.setattr(_core, "__file__", str(nvcc.with_name("_core.so")))


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("change", ["content", "name", "none"])
def test_another_cutlass_is_another_kernel(nvcc, change):
    """Of the same version, that is: patched, say."""
    cutlass = nvcc.parent / "headers" / "cutlass"
    (cutlass / "gemm").mkdir()
    (cutlass / "gemm" / "kernel.hpp").write_text("// as published\n")
    before, path = compiler.recipe(CONFIG).entry, build()
    assert build() == path and compiled(nvcc) == 1
    if change == "content":
        (cutlass / "gemm" / "kernel.hpp").write_text("// as patched!!\n")
    if change == "name":
        (cutlass / "gemm" / "kernel.hpp").rename(cutlass / "gemm" / "other.hpp")
    compiler._headers.cache_clear()  # another process
    assert (compiler.recipe(CONFIG).entry == before) == (change == "none")
    assert build().is_file() and compiled(nvcc) == (1 if change == "none" else 2)


@pytest.mark.usefixtures("not_installed")
def test_the_build_says_the_digest_of_the_copy_that_it_installs(nvcc):
    headers = nvcc.parent / "headers"
    before = compiler.recipe(CONFIG).entry
    (headers / "cutlass.sha256").write_text(toolkit.digest(headers, *toolkit.CUTLASS_HEADERS))
    compiler._headers.cache_clear()
    assert compiler.recipe(CONFIG).entry == before
    assert "cutlass.sha256 DESTINATION cutlass_py/include" in (ROOT / "cmake" / "kernels.cmake").read_text()


def test_a_digest_is_of_names_and_contents_wherever_they_lie(tmp_path):
    def tree(name, files):
        for file, text in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_text(text)
        return toolkit.digest(tmp_path / name, "x.h", "dir")

    files = {"x.h": "x", "dir/a": "1", "dir/b/c": "2"}
    assert tree("one", files) == tree("two", dict(reversed(files.items()))) == tree("three", files | {"beside": "3"})
    others = [{**files, "dir/a": "12", "dir/b/c": ""}, {**files, "dir/d": ""}, {"x.h": "x", "dir/a": "1"}]
    assert len({tree("one", files), *(tree(f"other{i}", other) for i, other in enumerate(others))}) == 4


# ---------------------------------------------------------------------------------------- failures


def test_a_failing_compiler(nvcc, monkeypatch):
    monkeypatch.setenv("NVCC_FAILS", "1")
    with pytest.raises(CompileError) as error:
        build()
    text = str(error.value)
    assert text.startswith(f"cannot compile {CONFIG.name}: nvcc failed with status 1. ")
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
        with pytest.raises(CompileError, match="the compilation was stopped"):
            pending.result()
    assert not os.listdir(tempfile.tempdir) and not compiler._stopped


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
    assert [name for name in extras["jit"] if name.startswith("nvidia")] == [
        "nvidia-cuda-nvrtc==13.0.*",
        *toolkit.NVCC_WHEELS,
    ]


# ---------------------------------------------------------------------------------------- progress


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


def test_the_log_tells_when_a_compilation_begins_and_ends(nvcc, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "cutlass_py")
    build()
    build()  # in the cache
    monkeypatch.setenv("NVCC_FAILS", "1")
    with pytest.raises(CompileError):
        build(FAMILIES["simt_gemm"].declared[1])
    began, ended, *failed = [record.getMessage() for record in caplog.records]
    assert began == f"compiling {CONFIG.name}" and re.fullmatch(rf"compiled {CONFIG.name} in \d+\.\d s", ended)
    name = FAMILIES["simt_gemm"].declared[1].name
    assert len(failed) == 2 and re.fullmatch(rf"failed to compile {name} in \d+\.\d s", failed[1])
    assert {(record.name, record.levelno) for record in caplog.records} == {("cutlass_py", logging.INFO)}


# ---------------------------------------------------------------------------------------- the build


def test_how_many_nvcc_the_build_starts(monkeypatch):
    """An option like the others; what it is by default depends on the machine."""
    monkeypatch.syspath_prepend(ROOT / "cmake")
    import toolchain

    given = toolchain.Options.read
    assert given({"cmake.define.CUTLASS_PY_NVCC_JOBS": "3"}).CUTLASS_PY_NVCC_JOBS == "3"
    assert given({}).CUTLASS_PY_NVCC_JOBS == ""
    monkeypatch.setenv("CUTLASS_PY_NVCC_JOBS", "12")
    assert given({}).CUTLASS_PY_NVCC_JOBS == "12"
    for wrong in ("0", "-1", "many", "2.5"):
        with pytest.raises(toolchain.BuildError, match=f"CUTLASS_PY_NVCC_JOBS is '{wrong}'; it must be a number from"):
            toolchain.Options(CUTLASS_PY_NVCC_JOBS=wrong)


@pytest.mark.parametrize("args", ["-DCUTLASS_PY_KERNELS=names.txt", "-D CUTLASS_PY_KERNELS:STRING=names.txt -Wno-dev"])
def test_options_of_the_build_as_cmake_takes_them(monkeypatch, tmp_path, args):
    monkeypatch.syspath_prepend(ROOT / "cmake")
    import toolchain

    monkeypatch.chdir(tmp_path)
    (tmp_path / "names.txt").touch()
    given = str(Path("names.txt").resolve())
    assert toolchain.Options.read({"cmake.args": args.replace(" ", ";")}).CUTLASS_PY_KERNELS == given
    monkeypatch.setenv("CMAKE_ARGS", args)
    assert toolchain.Options.read({}).CUTLASS_PY_KERNELS == given


def test_a_set_that_the_build_does_not_know(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "cmake")
    import toolchain

    with pytest.raises(toolchain.BuildError, match="CUTLASS_PY_KERNELS is 'declared'; it must be core or a file"):
        toolchain.Options(CUTLASS_PY_KERNELS="declared")


# ---------------------------------------------------------------------------------------- loading


LOAD = """
import json
from cutlass_py import _core, get_kernels
from cutlass_py.kernels import registry
k = next(k for k in registry.all_kernels() if not k.compiled)
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


def test_what_does_not_load_stays_where_it_cannot_be_compiled_again(nvcc, monkeypatch):
    """A directory may be shared with machines on which it does load."""
    path = build()
    before = path.read_bytes()
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    with pytest.raises(CompileError, match=rf"cannot load the kernel .* compiled again: .*nvcc.* Remove {path}"):
        compiler.load(CONFIG)
    assert path.read_bytes() == before


@needs_gxx
def test_a_library_of_another_kernel_leaves_nothing_behind(nvcc, tmp_path):
    """A source copied from another's, say, whose kernel still has that name."""
    other = tmp_path / "other.cpp"
    other.write_text(Path(stub(nvcc)).read_text().replace("NAME", "first"))
    code = (
        "from cutlass_py import _core, CompileError; from cutlass_py.compiling import compiler;"
        "from cutlass_py.declaration.families import FAMILIES\n"
        "try: compiler.load(FAMILIES['simt_gemm'].declared[0])\n"
        "except CompileError as error: print(error)\n"
        "print(list(_core.kernel_facts()))"
    )
    done = python(code, NVCC_LOADS=str(other))
    first, facts = done.stdout.splitlines()
    assert "names its kernel otherwise" in first and "'first'" not in facts


def test_a_compiler_that_writes_nothing(nvcc, tmp_path, monkeypatch):
    script = Path(os.environ["CUDACXX"])
    script.write_text(script.read_text().split("out = Path")[0])
    with pytest.raises(CompileError, match="nvcc wrote no library. The source is kept: "):
        build()


def test_no_room_for_the_source(nvcc, monkeypatch):
    def refuse(*_arguments, **_keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(CompileError, match=f"cannot compile {CONFIG.name}: .*No space left"):
        build()
    assert not os.listdir(tempfile.tempdir)


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
from cutlass_py.kernels import registry
k = next(k for k in registry.all_kernels() if not k.compiled and k.family.api == 2)
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
    assert f"chosen: {chosen.kernel}\n  is not in the built set: taken from the cache, or compiled first" in text


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
    assert kernel.compile() == cutlass_py.Artifact(kernel.name, "cpu", None, False) and kernel.compiled
