"""Kernels as C++ for others: one source, projects around it, the `emit` command; compiled where that is possible."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import cmake_at_hand
import pytest
from nvcc import why_not
from specs import DEVICE, problem
from stand_in import ROOT

from cutlass_py import CompileError, TensorSpec, _core, epilogue, get_kernels
from cutlass_py.commands import main
from cutlass_py.compiling import compiler, single_source, toolkit
from cutlass_py.declaration import codegen, families, gemm_cpp
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.dtypes import STORAGE
from cutlass_py.declaration.epilogues import ACTIVATIONS, EPILOGUES
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.export import emit

WHY_NOT = why_not()
SIMT = "simt_gemm_f32_f32_f32_f32_tn_64x64x8_32x32x8_s4_a1_linearc"
# One kernel of each family and epilogue, and of each kind of scales in blocks.
KINDS = list(
    {
        (c.family, c.epilogue, SCHEDULES[c.schedule].block): c
        for c in families.named("declared").values()
        if not EPILOGUES[c.epilogue].pairs
    }.values()
)


@pytest.fixture(autouse=True)
def headers(monkeypatch):
    """Those of this tree, where the package has none."""
    if not (Path(_core.__file__).parent / "include" / "abi" / "kernel.h").is_file():
        known = [str(ROOT / "src" / "cpp"), *filter(None, [os.environ.get("CUTLASS_PY_INCLUDE")])]
        monkeypatch.setenv("CUTLASS_PY_INCLUDE", os.pathsep.join(known))


def config(family, **wanted):
    return next(c for c in FAMILIES[family].declared if all(getattr(c, k) == v for k, v in wanted.items()))


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "cutlass_py", *arguments], capture_output=True, text=True)


# ---------------------------------------------------------------------------------------- one source


@pytest.mark.parametrize("family", FAMILIES)
def test_a_source_includes_cutlass_and_nothing_of_ours(family):
    kernel = FAMILIES[family].declared[0]
    text = single_source.source(kernel)
    included = re.findall(r'#include "(.+)"', text)
    of_cutlass = "cutlass" in families.FAMILIES[family].header
    assert bool(included) == bool(of_cutlass)
    assert all(name.startswith(("cutlass/", "cute/")) for name in included)
    assert ("// Needs CUTLASS" in text) == ("-ICUTLASS/include" in text) == bool(included)
    assert "#pragma once" not in text and f"CUTLASS_PY_KERNEL({kernel.name}, " in text


@pytest.mark.parametrize("family", FAMILIES)
def test_each_part_is_there_once_behind_what_it_needs(family):
    parts = re.findall(r"^// -+\n// (.+)\n// -+$", single_source.source(FAMILIES[family].declared[0]), re.MULTILINE)
    assert parts[-1] == FAMILIES[family].declared[0].name and len(set(parts)) == len(parts)
    assert FAMILIES[family].header in parts and "abi/kernel.h" in parts
    for i, name in enumerate(parts[:-1]):
        wanted = re.findall(r'#include "((?:abi|kernels)/.+)"', (ROOT / "src" / "cpp" / name).read_text())
        assert set(wanted) <= set(parts[:i]), name


def test_a_torch_extension_looks_for_cutlass_where_it_is_included():
    for kernel, wanted in ((config("sm90_gemm"), True), (config("sm90_lean", epilogue="fused_bias_grad"), False)):
        setup = emit.project(kernel, "torch")["setup.py"]
        assert ("CUTLASS_DIR" in setup) == ("cutlass.h" in setup) == ("include_dirs=[str(cutlass)]" in setup) == wanted


def test_a_source_ends_in_the_definition_that_the_build_compiles():
    kernel = families.find(SIMT)
    assert single_source.source(kernel).endswith(gemm_cpp.definition(FAMILIES[kernel.family], kernel))


def test_what_stands_before_the_headers_stays_there():
    kernel = next(c for c in FAMILIES["sm90_gemm"].declared if c.dear_header)
    text, macro = single_source.source(kernel), codegen.source([kernel]).splitlines()[0]
    assert macro.startswith("#define ") and text.count(macro) == 1 and text.index(macro) < text.index("#include")


def test_the_head_says_how_it_is_compiled():
    head = single_source.source(FAMILIES["sm90_gemm"].declared[0])[:1500]
    assert "-DNDEBUG" in head and "-gencode=arch=compute_90a,code=sm_90a" in head and "D = alpha * acc" in head


def test_kernels_give_their_source():
    kernel = get_kernels(compiled=False)[0]
    assert kernel.source() == single_source.source(kernel.config)


def test_without_headers(tmp_path, monkeypatch):
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    monkeypatch.delenv("CUTLASS_PY_INCLUDE", raising=False)
    with pytest.raises(CompileError, match=rf"{SIMT}: abi/kernel.h is not in {tmp_path}/include"):
        single_source.source(families.find(SIMT))


# ---------------------------------------------------------------------------------------- projects


def test_no_project_has_gates_and_values():
    kernel = next(c for c in families.named("declared").values() if EPILOGUES[c.epilogue].pairs)
    with pytest.raises(ValueError, match="takes operands of its own"):
        emit.project(kernel, "torch")


@pytest.mark.parametrize("kind", emit.PROJECTS)
@pytest.mark.parametrize("kernel", KINDS, ids=lambda c: f"{c.schedule}-{c.epilogue}")
def test_projects_of_every_family_and_epilogue(kernel, kind):
    files = emit.project(kernel, kind)
    assert {f"{kernel.name}.cu", "kernel.h", *emit.PROJECTS[kind]} <= set(files)
    text = "".join(files[name] for name in emit.PROJECTS[kind])
    assert not re.findall(r"\$[a-z]", text) and f"cutlass_py_{kernel.name}" in text


def parameters(kernel) -> list[str]:
    """What the function of a torch extension takes, without a, b and out."""
    text = emit.project(kernel, "torch")["binding.cpp"]
    names = re.findall(r'py::arg\("(\w+)"\)', text)
    declared = re.search(r"Tensor gemm\((.+)\) \{", text).group(1)
    assert [part.split()[-1].lstrip("&") for part in declared.split(", ")] == names
    assert names[:2] == ["a", "b"] and names[-1] == "out"
    for name in names[2:-1]:
        assert re.search(rf"epilogue\.(parameters\[\d\] = {name}(;|\.first)|{name} = )", text), name
    return names[2:-1]


@pytest.mark.parametrize(
    ("epilogue", "expected"),
    [
        ("linear", ["alpha"]),
        ("linearc", ["c", "alpha", "beta"]),
        ("biasc_leaky_relu", ["c", "bias", "alpha", "beta", "slope"]),
        ("bias_gelu_tanh_aux", ["aux", "bias", "alpha"]),
        ("gate_silu", ["gate", "alpha"]),
        ("d_gelu", ["aux", "alpha"]),
        ("scaled_clamp", ["bias", "scale_a", "scale_b", "alpha", "scale_out", "low", "high"]),
        ("fused", ["bias", "alpha", "activation", "parameters"]),
        ("fused_gate", ["gate", "bias", "alpha", "activation", "parameters"]),
        ("fused_scaled", ["bias", "scale_a", "scale_b", "alpha", "scale_out", "activation", "parameters"]),
    ],
)
def test_a_torch_extension_takes_what_its_kernel_takes(epilogue, expected):
    assert parameters(next(c for c in KINDS if c.epilogue == epilogue)) == expected


def test_a_torch_extension_takes_scales_in_blocks():
    for c in (c for c in KINDS if SCHEDULES[c.schedule].block):
        own = SCHEDULES[c.schedule].lean
        source, beta = (["c"], ["beta"]) if c.epilogue in ("linearc", "fusedc") else ([], [])
        bias, told = (["bias"], ["activation", "parameters"]) if own else ([], [])
        assert parameters(c) == [*source, *bias, "scale_a", "scale_b", "alpha", *beta, *told]
        text = emit.project(c, "torch")["binding.cpp"]
        schedule = SCHEDULES[c.schedule]
        tma = str(schedule.block > 1 and not schedule.swap and not schedule.lean).lower()
        assert f"p.m, (p.k + 127) / 128, {tma})" in text and f"kBlock = {SCHEDULES[c.schedule].block};" in text


def test_parameters_of_an_activation_keep_their_defaults():
    text = emit.project(next(c for c in KINDS if c.epilogue == "linearc_leaky_relu"), "torch")["binding.cpp"]
    assert f'py::arg("slope") = {ACTIVATIONS["leaky_relu"].parameters[0][1]}' in text


def test_the_python_side_of_a_torch_extension_is_python():
    kernel = config("sm90_gemm", epilogue="linear")
    files = emit.project(kernel, "torch")
    nodes = list(ast.walk(ast.parse(files["setup.py"])))
    extension = next(n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "CUDAExtension")
    assert ast.literal_eval(extension.args[0]) == kernel.name
    assert set(ast.literal_eval(extension.args[1])) <= set(files)
    flags = next(n.value for n in nodes if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "FLAGS")
    family = FAMILIES[kernel.family]
    assert set(codegen.flags(family, family.gencode)) <= set(ast.literal_eval(flags))
    tomllib = pytest.importorskip("tomllib")
    assert tomllib.loads(files["pyproject.toml"])["project"]["name"] == kernel.name


@pytest.mark.parametrize("kind", emit.PROJECTS)
def test_projects_of_kernels_with_operands_of_their_own_are_refused(kind):
    squared = epilogue(lambda accum, left: accum * accum + left)
    left = TensorSpec((512, 512), "bf16", device=DEVICE)
    kernel = get_kernels(problem(epilogue=squared(left=left)))[0]
    wanted = f"emit: {kernel.name} takes operands of its own; emit its source, without a project"
    with pytest.raises(ValueError, match=wanted):
        emit.project(kernel.config, kind)


def test_every_dtype_in_memory_has_a_name_in_aten():
    assert set(emit._ATEN) == set(STORAGE)


def test_files_are_not_written_over(tmp_path):
    emit.write({"a": "1"}, tmp_path / "new" / "deep")
    assert (tmp_path / "new" / "deep" / "a").read_text() == "1"
    for place in (tmp_path / "new", tmp_path / "new" / "deep" / "a"):
        with pytest.raises(ValueError, match=rf"emit: {place} is there already"):
            emit.write({"a": "2"}, place)
    emit.write({}, tmp_path / "new2")
    emit.write({"a": "2"}, tmp_path / "new2")


# ---------------------------------------------------------------------------------------- the command


def test_the_command_prints_and_writes(tmp_path, capsys):
    text = single_source.source(families.find(SIMT))
    assert main(["emit", SIMT]) == 0 and capsys.readouterr().out == text
    assert main(["emit", SIMT, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kernel": SIMT, "source": text}
    assert main(["emit", SIMT, "-o", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/one/{SIMT}.cu\n"
    assert (tmp_path / "one" / f"{SIMT}.cu").read_text() == text
    for option, kind in (("--cmake", "cmake"), ("--torch-extension", "torch")):
        assert main(["emit", SIMT, option, "-o", str(tmp_path / kind), "--json"]) == 0
        written = json.loads(capsys.readouterr().out)["files"]
        assert {Path(path).name for path in written} == set(emit.project(families.find(SIMT), kind))
        assert sorted(map(str, (tmp_path / kind).iterdir())) == sorted(written)


@pytest.mark.parametrize("option", ["--cmake", "--torch-extension"])
def test_a_project_goes_to_a_directory_called_after_its_kernel(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["emit", SIMT, option]) == 0 and f"{SIMT}/{SIMT}.cu" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == [SIMT]
    assert main(["emit", SIMT, option]) == 2 and f"emit: {SIMT} is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("typo",), "no kernel is called 'typo'"),
        (("cpu_gemm_numpy",), "kernel cpu_gemm_numpy computes on the CPU; expected a CUTLASS kernel"),
        ((SIMT, "--cmake", "--torch-extension", "-o", "x"), "not allowed with argument --cmake"),
    ],
    ids=str,
)
def test_wrong_usage(arguments, message):
    done = command("emit", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr and not done.stdout


# ---------------------------------------------------------------------------------------- compiled


def run(*arguments: object, **environment: str) -> str:
    done = subprocess.run(list(map(str, arguments)), env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def cutlass(tmp_path):
    """A directory with CUTLASS's headers and nothing of ours."""
    include = compiler.recipe(families.find(SIMT)).include
    found = next(place for place in include if (place / "cutlass" / "version.h").is_file())
    (tmp_path / "headers").mkdir()
    for name in ("cutlass", "cute"):
        (tmp_path / "headers" / name).symlink_to(found / name)
    return tmp_path / "headers"


SM90 = config("sm90_gemm", a="bf16", d="bf16", layout="tn", epilogue="bias_relu")


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
@pytest.mark.skipif(bool(cmake_at_hand.why_not()), reason=cmake_at_hand.why_not())
@pytest.mark.skipif(not toolkit.installed_nvcc(), reason="no CUDA toolkit")
@pytest.mark.parametrize(
    ("kernel", "device"),
    [
        pytest.param(SIMT, "", id="cpu"),
        pytest.param(SM90.name, "", id="cpu-sm90"),
        pytest.param(SIMT, "gpu", marks=pytest.mark.gpu, id="gpu"),
        pytest.param(SM90.name, "gpu", marks=[pytest.mark.gpu, pytest.mark.sm90], id="gpu-sm90"),
    ],
)
def test_a_cmake_project_builds_and_checks_itself(kernel, device, cutlass, tmp_path):
    """It compiles the emitted source, with CUTLASS alone to include from."""
    emit.write(emit.project(families.find(kernel), "cmake"), tmp_path / "project")
    build, nvcc = tmp_path / "project" / "build", toolkit.installed_nvcc()
    run("cmake", "-S", build.parent, "-B", build, f"-DCUTLASS_DIR={cutlass}", f"-DCMAKE_CUDA_COMPILER={nvcc}")
    run("cmake", "--build", build)
    said = run(build / "check", **({} if device else {"CUDA_VISIBLE_DEVICES": ""}))
    assert said == (
        f"{kernel}: 0 of {2 * 272 * 144} elements are wrong\n"
        if device
        else f"{kernel} is built; there is no GPU to run it on\n"
    )


# Of the extension; small integers, so that every sum is exact. B is column-major.
EXTENSION = """
import sys
from importlib import import_module
import torch
kernel = import_module(sys.argv[1])
torch.manual_seed(2026)
for lead in ((), (3,)):
    a, b, bias = (
        torch.randint(-2, 3, shape, device="cuda").bfloat16()
        for shape in ((*lead, 264, 160), (*lead, 208, 160), (208,))
    )
    out = torch.full((*lead, 264, 208), float("nan"), device="cuda", dtype=torch.bfloat16)
    returned = kernel.gemm(a, b.mT, bias=bias, out=out)
    product = a.double() @ b.double().mT
    assert torch.equal(out.double(), torch.relu(product + bias.double()).bfloat16().double())
    assert torch.equal(returned, out)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = kernel.gemm(a, b.mT, alpha=2.0)
    stream.synchronize()
    assert torch.equal(found.double(), torch.relu(2 * product).bfloat16().double())
try:
    kernel.gemm(a, b.float().mT)
except TypeError as error:
    assert str(error).startswith("b is "), error
else:
    raise AssertionError("b of another dtype was taken")
print("all right")
"""


def not_for_torch() -> str:
    """Why no extension of torch can be compiled here."""
    torch, nvcc = pytest.importorskip("torch"), toolkit.installed_nvcc()
    if not nvcc:
        return "no CUDA toolkit"
    theirs, ours = str(torch.version.cuda), ".".join(map(str, toolkit.nvcc_version(nvcc)))
    return "" if theirs.split(".")[0] == ours.split(".")[0] else f"torch is of CUDA {theirs}, nvcc of {ours}"


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_torch_extension_computes(cutlass, tmp_path):
    """Built and installed as its setup.py says, imported by another process."""
    if why := not_for_torch():
        pytest.skip(why)
    emit.write(emit.project(SM90, "torch"), tmp_path / "project")
    home = Path(toolkit.installed_nvcc()).resolve().parent.parent
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", tmp_path / "site"]
    environment = {"CUTLASS_DIR": str(cutlass), "CUDA_HOME": str(home)}
    run(sys.executable, "-m", "pip", "install", *options, tmp_path / "project", **environment)
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    assert run(sys.executable, "-c", EXTENSION, SM90.name, PYTHONPATH=path) == "all right\n"


def toolkit_headers() -> Path | None:
    found = compiler.find_nvcc() if not WHY_NOT else None
    if not found:
        return None
    listed = subprocess.run([found[0], "-E", "-x", "cu", "-M", "/dev/null"], capture_output=True, text=True).stdout
    header = re.search(r"(\S+)/cuda_runtime\.h", listed)
    return Path(header.group(1)) if header else None


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@pytest.mark.parametrize(
    "kernel",
    [config("sm90_gemm", epilogue="scaled_clamp"), config("sm90_block", epilogue="linearc")],
    ids=lambda c: c.epilogue,
)
def test_the_binding_of_a_torch_extension_compiles(kernel, tmp_path):
    """Its syntax and types, against torch's own headers; a torch without CUDA lacks one that is generated."""
    torch = pytest.importorskip("torch")
    cuda = toolkit_headers()
    if not cuda:
        pytest.skip("no headers of the CUDA runtime")
    emit.write(emit.project(kernel, "torch"), tmp_path / "project")
    macros = tmp_path / "stub" / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    macros.parent.mkdir(parents=True)
    macros.touch()
    places = [Path(torch.__file__).parent / "include", macros.parents[3], cuda, sysconfig.get_paths()["include"]]
    system = [word for place in places for word in ("-isystem", place)]
    flags = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-DTORCH_EXTENSION_NAME=kernel"]
    run("g++", *flags, *system, tmp_path / "project" / "binding.cpp")
