"""The package as it is installed: what importing does and does not, names, stubs, docstrings, the commands."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
import tarfile
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py import _core
from cutlass_py.commands import coverage
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.declaration.families import named
from cutlass_py.declaration.operands import OPERANDS

HOME = Path(cutlass_py.__file__).parent
try:
    VERSION = version("cutlass_py")
except PackageNotFoundError:  # a source tree on the path
    VERSION = None
installed = pytest.mark.skipif(VERSION is None, reason="cutlass_py is on the path but not installed: it has no version")
NAMES = [name for name in cutlass_py.__all__ if name != "__version__"]


def python(code: str, *options: str) -> str:
    """Standard output of a fresh interpreter; what it prints to stderr is a failure."""
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cutlass_py", *arguments], capture_output=True, text=True)


# ---------------------------------------------------------------------------------------- importing


def test_gemm_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(cutlass_py.gemm)) is cutlass_py.gemm
    assert copy.deepcopy(partial(cutlass_py.gemm, alpha=2)).func is cutlass_py.gemm


def test_importing_loads_no_array_library_and_no_driver():
    code = (
        "import sys, cutlass_py; print({'numpy', 'ml_dtypes', 'torch', 'jax', 'cupy'} & set(sys.modules));"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    assert python(code).split("\n")[:2] == ["set()", "False"]


def test_questions_need_no_array_library():
    code = (
        "import sys; from cutlass_py import *; s = TensorSpec((8, 8), 'bf16');"
        "explain(s, s); get_kernels(); GemmArguments(s, s); print('torch' in sys.modules, 'jax' in sys.modules)"
    )
    if VERSION is None:
        code = code.replace("import *", "import TensorSpec, explain, get_kernels, GemmArguments")
    assert python(code) == "False False\n"


def test_a_numpy_call_loads_numpy_and_its_operation_alone():
    code = (
        "import sys, numpy as np; from cutlass_py import gemm; a = np.ones((2, 2), np.float32);"
        "assert (gemm(a, a) == 2).all();"
        "later = {'torch', 'jax', 'subprocess', 'cutlass_py.compiling.compiler', 'cutlass_py.operations.quantize'};"
        "print(later & set(sys.modules))"
    )
    assert python(code, "-W", "error") == "set()\n"


def test_the_module_that_errors_of_epilogues_send_to_is_there():
    assert python("import cutlass_py; print(cutlass_py.functions.__name__)") == "cutlass_py.functions\n"


def test_it_survives_fork_after_import():
    code = (
        "import os, numpy as np; from cutlass_py import gemm; a = np.ones((2, 2)); gemm(a, a); pid = os.fork();"
        "ok = (gemm(a, a) == 2).all(); pid or os._exit(0 if ok else 1); print(os.waitpid(pid, 0)[1])"
    )
    assert python(code, "-W", "ignore") == "0\n"  # Python warns of BLAS's threads


def test_a_fork_while_another_thread_chooses_leaves_a_child_that_works():
    """No lock is kept by a thread that is not there, and garbage is collected."""
    code = (
        "import gc, os, threading, numpy as np; from cutlass_py import GemmArguments, explain, gemm\n"
        "from cutlass_py.kernels import registry\n"
        "a, done = np.ones((2, 2)), threading.Event()\n"
        "def choose():\n"
        "    while not done.is_set(): registry.forget(); registry.all_kernels(); explain(a, a)\n"
        "thread = threading.Thread(target=choose); thread.start(); bad = 0\n"
        "for i in range(12):\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(0 if gc.isenabled() and explain(a, a) and (gemm(a, a) == 2).all() else 1)\n"
        "    bad += os.waitpid(pid, 0)[1] != 0\n"
        "done.set(); thread.join(); print(bad)"
    )
    assert python(code, "-W", "ignore") == "0\n"


def test_nothing_is_printed_at_exit():
    """nanobind reports what its types leak."""
    python("import numpy as np, cutlass_py as c; a = np.ones((2, 2)); v = c.view(a, 'f64'); c.gemm(v, a, c=v)")
    python("import cutlass_py as c; s = c.TensorSpec((8, 8), 'f32'); g = c.GemmArguments(s, s); c.explain(g)")


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", NAMES)
def test_public_names_resolve(name):
    value = getattr(cutlass_py, name)
    assert getattr(cutlass_py, name) is value  # looked up once


@pytest.mark.parametrize("name", NAMES)
def test_public_names_are_documented(name):
    value = getattr(cutlass_py, name)
    assert inspect.getdoc(value), f"{name} has no docstring"
    if inspect.isclass(value) and value.__module__.startswith("cutlass_py"):
        for attribute, member in vars(value).items():
            if not attribute.startswith("_") and (callable(member) or isinstance(member, property)):
                assert inspect.getdoc(member) or not isinstance(member, property), f"{name}.{attribute}"


def test_dir_is_all():
    assert sorted(cutlass_py.__all__) == cutlass_py.__all__ and dir(cutlass_py) == cutlass_py.__all__


def test_an_unknown_name():
    with pytest.raises(AttributeError, match="module 'cutlass_py' has no attribute 'gem'"):
        cutlass_py.gem  # noqa: B018
    assert not hasattr(cutlass_py, "__wrapped__")


@installed
def test_version():
    assert cutlass_py.__version__ == VERSION
    assert ("+cpu" in VERSION) == _core.build_info()["cuda"].startswith("OFF")


# ---------------------------------------------------------------------------------------- types


def test_the_package_says_that_it_is_typed():
    assert (HOME / "py.typed").is_file()


@pytest.mark.skipif(not importlib.util.find_spec("nanobind"), reason="nanobind is not installed")
def test_the_stub_is_what_nanobind_generates(tmp_path):
    generated = tmp_path / "_core.pyi"
    stubgen = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "cutlass_py._core", "-o", str(generated)]
    subprocess.run(stubgen, check=True, capture_output=True)
    assert generated.read_text() == (HOME / "_core.pyi").read_text(), f"refresh it: {' '.join(stubgen[1:-1])} ..."


def test_the_stub_names_everything_public_in_the_extension():
    text = (HOME / "_core.pyi").read_text()
    public = [name for name in dir(_core) if not name.startswith("_")]
    assert public and [name for name in public if f"def {name}(" not in text and f"class {name}" not in text] == []


def test_the_signature_of_gemm_is_that_of_arguments():
    keywords = inspect.signature(cutlass_py.GemmArguments).parameters
    signature = _core.gemm.__nb_signature__[0][0]
    for name, parameter in keywords.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            assert f"{name}: " in signature, f"gemm does not know {name}"


# ---------------------------------------------------------------------------------------- the build


def test_build_info_names_its_parts():
    info = _core.build_info()
    assert set(info) == {"cuda", "nvcc", "cutlass", "dlpack", "archs", "kernels"}
    assert info["dlpack"] and info["cuda"]
    assert all(isinstance(value, str) for value in info.values())


def test_devices_or_a_reason():
    count = _core.device_count()
    if count:
        info = _core.device_info(0)
        assert info["name"] and info["cc"] >= 30 and info["sm_count"] > 0 and info["driver"] >= 12000
    else:
        assert _core.why_no_device()


@pytest.mark.parametrize("ask", [_core.device_info, _core.clusters_at_once])
@pytest.mark.parametrize("ordinal", [-1, 4096])
def test_a_device_that_is_not_there(ask, ordinal):
    with pytest.raises(cutlass_py.CudaError, match="gemm: "):
        ask(ordinal)


# ---------------------------------------------------------------------------------------- documents


ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def test_the_readme_says_what_exists():
    block = re.search(r"<!-- coverage: (.+?) -->\n\n(.+?)\n\n<!-- end of coverage -->", README, re.DOTALL)
    assert block.group(2) == coverage.markdown(), f"refresh the block by: {block.group(1)}"


def test_what_the_readme_says_is_fused_is_fused():
    """Each function of a row, for each of its operands in each of its layouts."""
    rows, all = coverage.data()["epilogues"], EPILOGUES.values()
    for part in ("core", "declared"):
        kinds = {(c.epilogue, c.a, c.layout) for c in named(part).values()}
        told = {
            e.name: {e.as_told(f, axis).formula for f in e.functions for axis in ("", *e.bias, e.bias)} for e in all
        }
        fused = {(formula, *where) for name, *where in kinds for formula in told[name]}
        for row in rows:
            for f, operand, layout in product(row[f"f in {part}"], row["operands"], row["layouts"]):
                formula, plain = row["fused"].replace("f(", f"{f}("), re.sub(r"f\((.*)\)", r"\1", row["fused"])
                wanted = plain if f == "identity" and "gate" not in plain else formula
                wanted = wanted.replace(f"{f}(gate)", f"{f}(aux)") if f.startswith("d_") else wanted
                assert (wanted, operand, layout) in fused, (part, row)
    bias = [row for row in rows if row["fused"] == "f(alpha * acc + bias[n])" and row["f in core"]]
    assert [(row["operands"], row["layouts"]) for row in bias] == [
        (["bf16", "f16"], ["tn", "tt", "nt", "nn"]),
        (["e4m3", "e5m2", "tf32"], ["tn"]),
    ]


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_take_the_keywords_of_gemm(framework):
    pytest.importorskip(framework)
    theirs = inspect.signature(import_module(f"cutlass_py.{framework}").gemm).parameters
    ours = inspect.signature(cutlass_py.GemmArguments).parameters
    lacking = {"epilogue"} | {"jax": {"out"}}.get(framework, set())  # arrays do not change
    own = {"jax": {"layout", "kernel"}}.get(framework, {"kernel"})
    assert set(theirs) ^ set(ours) == lacking | own
    for name in set(theirs) & set(ours):
        assert theirs[name].default == ours[name].default, name


def test_the_readme_has_the_signature_of_gemm():
    shown = re.search(r"```python\ncutlass_py\.gemm\((.+?)\)\n```", README, re.DOTALL).group(1)
    signature = _core.gemm.__nb_signature__[0][0]
    assert re.findall(r"(\w+)=", shown) == re.findall(r"(\w+): [^,]+? = ", signature)


@pytest.mark.parametrize("link", sorted(set(re.findall(r"`((?:docs|src|benchmarks|examples)/[\w/.]+)`", README))))
def test_the_readme_names_files_that_are_there(link):
    assert (ROOT / link).exists()


def test_every_source_of_the_extension_is_built():
    listed = set(re.findall(r"src/cpp/([\w/]+\.cpp)", (ROOT / "CMakeLists.txt").read_text()))
    assert listed == {str(path.relative_to(ROOT / "src" / "cpp")) for path in (ROOT / "src" / "cpp").rglob("*.cpp")}


# ---------------------------------------------------------------------------------------- commands


@installed
def test_a_source_distribution_has_what_a_build_needs(tmp_path):
    """And nothing else: measurements, documents and tests stay in the repository."""
    pytest.importorskip("scikit_build_core")
    call = f"import backend; print(backend.build_sdist({str(tmp_path)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", call], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "cmake")}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    (path,) = tmp_path.iterdir()
    assert path.name == done.stdout.splitlines()[-1] and path.stat().st_size < 2_000_000
    with tarfile.open(path) as archive:
        names = [Path(name).relative_to(path.name.removesuffix(".tar.gz")) for name in archive.getnames()]
    assert {name.parts[0] for name in names} == {
        "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "cmake", "pyproject.toml", "src",
    }  # fmt: skip
    wanted = {path.relative_to(ROOT) for path in (ROOT / "src").rglob("*.*") if path.suffix not in {".pyc", ".so"}}
    assert wanted <= set(names) and not [name for name in names if name.suffix == ".pyc"]


def test_info():
    text = command("info").stdout
    assert VERSION in text and "declared kernels" in text
    facts = json.loads(command("info", "--json").stdout)
    assert facts["version"] == VERSION and facts["kernels"]["declared"] >= facts["kernels"]["compiled"]
    assert facts["build"] == _core.build_info() and "numpy" in facts["frameworks"]


@installed
def test_kernels_command():
    listed = command("kernels", "--all").stdout.splitlines()
    kernels = [k for name in OPERANDS for k in cutlass_py.get_kernels(compiled=False, operation=name)]
    assert [line.split()[0] for line in listed] == [k.name for k in kernels]
    found = json.loads(command("kernels", "simt", "--all", "--json").stdout)
    assert {row["family"] for row in found} == {"simt_gemm", "simt_gemv", "simt_grouped"}
    assert {row["name"] for row in found} == {k.name for k in kernels if k.name.startswith("simt_")}


@installed
def test_explain_command():
    text = command("explain", "64", "32", "16", "--dtype", "f32", "--layout", "tn", "--device", "cpu").stdout
    assert text.startswith("(64, 32, 16) tn: f32 @ f32 -> f32 on cpu\nchosen: cpu_gemm_numpy")
    text = command("explain", "64", "32", "16", "--batch", "3", "--compute", "tf32", "--dtype", "f32").stdout
    assert text.startswith("3 x (64, 32, 16) tt: f32 @ f32 -> f32 computed in tf32 on cuda:0\n")


@installed
@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "64", "32", "16", "--dtype", "f33"),
        ("explain", "64", "32", "16", "--compute", "f16"),
        ("explain", "64", "32", "16", "--device", "tpu"),
        ("typo",),
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments):
    done = command(*arguments)
    assert done.returncode == 2 and "error: " in done.stderr and "Traceback" not in done.stderr and not done.stdout


@installed
def test_demo_checks_every_framework():
    done = command("demo", "--size", "48", "--json")
    rows = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert {row["framework"] for row in rows} >= {"numpy"}
    assert all(row["error"] <= row["bound"] and row["kernel"] for row in rows)
