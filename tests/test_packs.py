"""Kernel packs: the wheel that `pack` writes, what is found of it, what is left out, its tuned tables."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from specs import problem
from stand_in import compiled, in_python, needs_gxx, python, stub
from test_archive import CONFIG, OTHER, RUN, SAVE, WHY_NOT, WITHOUT, beside_the_tests, manifest

from cutlass_py import _core
from cutlass_py.arrays.gpu import ABSENT, Gpu
from cutlass_py.commands import main
from cutlass_py.dispatch import tuned
from cutlass_py.dispatch.candidates import rank
from cutlass_py.export import packing
from cutlass_py.kernels import archive, packs
from cutlass_py.kernels.operation import class_of

pytest.importorskip("wheel")
ARTIFACT = (manifest(), b"library")


def installed(wheel: Path, place: Path) -> str:
    """A wheel's files where a process can be told to look; it has no scripts and nothing for other places."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(place)
    return str(place)


def pack(tmp_path: Path, *artifacts, tables=(), name="pack_one") -> Path:
    return packing.write(name, "1.2", artifacts or (ARTIFACT,), tables, tmp_path / "dist")


def table(path: Path, entries: tuned.Table, gpu: Gpu = ABSENT) -> Path:
    path.write_text(tuned.dumps(gpu, entries))
    return path


# ---------------------------------------------------------------------------------------- the wheel


def test_the_wheel_is_for_this_platform_and_any_python(tmp_path):
    wheel = pack(tmp_path)
    tag = re.fullmatch(r"pack_one-1\.2-(py3-none-\w+)\.whl", wheel.name).group(1)
    packaging = pytest.importorskip("packaging.tags")
    assert tag in {str(known) for known in packaging.sys_tags()}
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        assert {"pack_one/pack.json", f"pack_one/{CONFIG.name}.so", "pack_one/__init__.py"} <= names
        assert f"Tag: {tag}\n" in file.read("pack_one-1.2.dist-info/WHEEL").decode()
        assert "\nName: pack_one\nVersion: 1.2\n" in file.read("pack_one-1.2.dist-info/METADATA").decode()
        record = file.read("pack_one-1.2.dist-info/RECORD").decode()
        assert {line.split(",")[0] for line in record.splitlines()} == names


def test_pip_installs_it(tmp_path):
    options = ["--no-deps", "--no-index", "--disable-pip-version-check", "--target", tmp_path / "site"]
    command = [sys.executable, "-m", "pip", "install", "-q", *options, pack(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "No module named pip" in done.stderr:  # looking for it in here would make setuptools step aside for torch too
        pytest.skip("no pip")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "pack_one" / "pack.json").is_file()


@pytest.mark.parametrize(
    ("name", "version", "artifacts", "message"),
    [
        ("Pack-1", "1", [ARTIFACT], "name is 'Pack-1'; expected"),
        ("../x", "1", [ARTIFACT], "name is '../x'; expected"),
        ("a_", "1", [ARTIFACT], "name is 'a_'; expected"),
        ("cutlass_py", "1", [ARTIFACT], "expected one of its own: the wheel would replace the package"),
        ("x", "one", [ARTIFACT], "version is 'one'; expected"),
        ("x", "1.0foo1", [ARTIFACT], "version is '1.0foo1'; expected"),
        ("x", "1", [ARTIFACT, ARTIFACT], f"there are two of {CONFIG.name}.so"),
        ("x", "1", [], "there is nothing to pack"),
        ("x", "1", [(manifest(abi=1), b"")], "has kernel ABI 1"),
    ],
    ids=lambda x: str(x)[:12],
)
def test_what_cannot_be_packed(tmp_path, name, version, artifacts, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        packing.write(name, version, artifacts, [], tmp_path / "dist")
    assert not (tmp_path / "dist").exists()


def test_without_the_package_that_writes_wheels(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wheel.wheelfile", None)
    with pytest.raises(ValueError, match=r"needs the package wheel: pip install 'cutlass_py\[pack\]'"):
        pack(tmp_path)


# ---------------------------------------------------------------------------------------- the command


SEEN = """
import json
from cutlass_py import get_kernels
from cutlass_py.kernels import registry
from cutlass_py.kernels import packs
named = registry.kernel_named  # by name alone, before anything is listed
from test_archive import CONFIG, OTHER
rows = [[k.name, k.compiled, k in get_kernels(), k.facts is not None] for k in map(named, (CONFIG.name, OTHER.name))]
print(json.dumps(rows))
"""


CLASH = """
from cutlass_py import register_kernel
from own_kernels import metadata, multiply
from test_archive import OTHER
try:
    register_kernel(metadata(name=OTHER.name), multiply)
except ValueError as error:
    print(error)
"""


@needs_gxx
def test_names_of_packs_are_taken_before_they_are_asked_for(nvcc, tmp_path):
    in_python(SAVE, tmp_path, NVCC_LOADS=stub(nvcc))
    site = installed(pack(tmp_path, archive.read(tmp_path / "other")), tmp_path / "site")
    said = in_python(CLASH, path=site, CUTLASS_PY_INCLUDE="", CUDACXX="/nowhere/nvcc")
    assert said.strip() == f"register_kernel: a kernel is called '{OTHER.name}' already"


@needs_gxx
def test_a_pack_is_made_installed_and_seen(nvcc, tmp_path):
    in_python(SAVE, tmp_path, NVCC_LOADS=stub(nvcc))
    (tmp_path / "problems.json").write_text(json.dumps([{"m": 8, "n": 8, "k": 8, "a": "f64"}]))
    measured = table(tmp_path / "measured.json", {})
    command = [
        "pack", "pack_one", str(tmp_path / "declared"), str(tmp_path / "other"), "--problems",
        str(tmp_path / "problems.json"), "--tuned", str(measured), "--version", "2.0", "-o", str(tmp_path), "--json",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_py", *command],
        capture_output=True,
        text=True,
        env={**os.environ, "NVCC_LOADS": stub(nvcc)},
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["kernels"][:2] == [CONFIG.name, OTHER.name] and "_f64_" in said["kernels"][2]
    assert compiled(nvcc) == 3

    site = installed(Path(said["wheel"]), tmp_path / "site")
    environment = {"CUTLASS_PY_INCLUDE": "", "CUDACXX": "/nowhere/nvcc", "CUTLASS_PY_CACHE_DIR": str(tmp_path / "no")}
    rows = json.loads(in_python(SEEN, path=site, **environment))
    assert rows == [[CONFIG.name, True, True, True], [OTHER.name, True, True, True]]
    assert not (tmp_path / "no").exists()  # nothing is unpacked
    info = in_python("from cutlass_py.commands import main; main(['info', '--json'])", path=site, **environment)
    assert json.loads(info)["packs"] == [
        {
            "name": "pack_one", "version": "2.0", "directory": f"{site}/pack_one", "error": None,
            "kernels": said["kernels"], "tables": [tuned.file_name(ABSENT.name, ABSENT.sm_count)],
        }
    ]  # fmt: skip
    text = in_python("from cutlass_py.commands import main; main(['info'])", path=site, **environment)
    assert re.search(r"^pack pack_one +2\.0: 3 kernels, 1 tuned tables$", text, re.MULTILINE)


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_pack_computes_in_another_process(tmp_path):
    pytest.importorskip("torch")
    command = ["pack", "pack_one", "--kernel", CONFIG.name, "-o", str(tmp_path), "--json"]
    code = "import sys; from cutlass_py.commands import main; sys.exit(main(sys.argv[1:]))"
    here = {"CUTLASS_PY_CACHE_DIR": str(tmp_path / "here"), "CUTLASS_PY_JIT": "1"}
    said = json.loads(beside_the_tests(code, *command, **here))
    assert said["kernels"] == [CONFIG.name]
    site = installed(Path(said["wheel"]), tmp_path / "site")
    there = {"CUTLASS_PY_CACHE_DIR": str(tmp_path / "there"), **WITHOUT}
    assert beside_the_tests(RUN, CONFIG.name, path=site, **there) == f"{CONFIG.name}\n"
    assert not (tmp_path / "there").exists()


@needs_gxx
@pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU, for which it is compiled too")
def test_a_pack_for_other_machines_holds_the_best_for_each(nvcc, tmp_path):
    path = tmp_path / "problems.json"
    path.write_text(
        json.dumps([{"m": 512, "n": 512, "k": 512, "a": "bf16", "bias": "bf16", "activation": "gelu_tanh"}])
    )
    command = ["pack", "x", "--problems", path, "--cc", 80, "--cc", 90, "-o", tmp_path, "--json"]
    code = "import sys; from cutlass_py.commands import main; sys.exit(main(sys.argv[1:]))"
    said = json.loads(in_python(code, *command, NVCC_LOADS=stub(nvcc)))
    assert [name.partition("_")[0] for name in said["kernels"]] == ["sm80", "sm90"]
    with zipfile.ZipFile(said["wheel"]) as file:
        content = json.loads(file.read("x/pack.json"))
    assert [kernel["codes"] for kernel in content["kernels"]] == [["sm_80", "sm_90"], ["sm_90a"]]


def test_what_cannot_be_packed_is_said_before_anything_is_compiled(nvcc, tmp_path, capsys):
    table_ = tmp_path / "table.json"
    table_.write_text("{}")
    kernel = ["--kernel", CONFIG.name]
    for arguments in ([*kernel, "--tuned", str(table_)], [*kernel, "-o", str(table_ / "dist")]):
        assert main(["pack", "pack_one", *arguments]) == 2
        assert capsys.readouterr().err
    assert not compiled(nvcc)


def test_what_tables_are_called(tmp_path):
    for gpu in ("NVIDIA H200", "A*B"):
        (tmp_path / tuned.file_name(gpu, 132)).touch()
    assert packs.Pack("x", "1", tmp_path).tables == sorted(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x",), "nothing to pack"),
        (("x", "nowhere"), "nowhere"),
        (("x", __file__), "test_packs.py is no artifact"),
        (("x", "--tuned", __file__), "test_packs.py: not JSON"),
        (("x", "--kernel", "typo"), "no kernel is called 'typo'"),
        (("X", "--kernel", CONFIG.name), "name is 'X'"),
        (("x", "--version", "one", "--kernel", CONFIG.name), "version is 'one'"),
        ((), "required: name"),
    ],
    ids=lambda x: str(x)[:24],
)
def test_wrong_usage(capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(archive, "of_kernel", lambda *_: pytest.fail("compiles before it looks"))
    try:
        status = main(["pack", *arguments])
    except SystemExit as usage:
        status = usage.code
    said = capsys.readouterr()
    assert status == 2 and message in said.err and not said.out


# ---------------------------------------------------------------------------------------- what is left out


NAMES = f"from cutlass_py import get_kernels; print({CONFIG.name!r} in [k.name for k in get_kernels()])"


def edit(site: str, **changes) -> None:
    index = Path(site, "pack_one", "pack.json")
    content = json.loads(index.read_text())
    content["kernels"][0] |= changes
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"abi": 1}, f"{CONFIG.name}: has kernel ABI 1 (cutlass_py 0.1.0); expected {_core.kernel_abi()}"),
        ({"format": 9}, "the manifest has format 9; expected 1"),
        ({"machine": "vax"}, f"{CONFIG.name}: compiled for vax; expected "),
        ({}, "cannot load the kernel library: "),
    ],
    ids=str,
)
def test_a_pack_that_does_not_fit_is_left_out_with_one_warning(tmp_path, changes, message):
    site = installed(pack(tmp_path), tmp_path / "site")
    edit(site, **changes)
    path = os.pathsep.join([site, *sys.path])
    done = python(f"{NAMES}; {NAMES}", PYTHONPATH=path)
    assert done.returncode == 0 and done.stderr.count("RuntimeWarning") == 1
    assert f"kernel pack pack_one 1.2 is left out: {message}" in done.stderr
    if changes:
        info = python(
            "from cutlass_py.commands import main; main(['info'])", PYTHONPATH=os.pathsep.join([site, *sys.path])
        )
        assert re.search(rf"^pack pack_one +left out: {re.escape(message)}", info.stdout, re.MULTILINE)


def test_a_pack_without_its_index(tmp_path):
    site = installed(pack(tmp_path), tmp_path / "site")
    Path(site, "pack_one", "pack.json").unlink()
    done = python(NAMES, PYTHONPATH=os.pathsep.join([site, *sys.path]))
    assert "kernel pack pack_one 1.2 is left out: there is no pack.json in pack_one" in done.stderr


@pytest.fixture
def one_pack(monkeypatch, tmp_path):
    """As if this pack, and no other, were installed, and none had been loaded."""
    found = packs.Pack("pack_one", "1", tmp_path, (manifest(),))
    monkeypatch.setattr(packs, "installed", lambda: (found,))
    monkeypatch.setattr(packs, "_loaded", [])
    return found


@pytest.mark.parametrize(("cc", "joined"), [(80, []), (90, [CONFIG.name])])
def test_kernels_that_no_gpu_here_runs_are_left_out_silently(one_pack, monkeypatch, cc, joined):
    seen = []
    monkeypatch.setattr(archive, "join", lambda found, library: seen.append((found.kernel, library)))
    (one_pack.directory / f"{CONFIG.name}.so").write_bytes(b"library")
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr(archive, "device", lambda ordinal: Gpu("GPU", cc, 100, 1.0))
    packs.load()
    packs.load()
    assert seen == [(name, one_pack.directory / f"{name}.so") for name in joined]


@pytest.mark.parametrize("wrong", ["torn", "missing", "refused"])
def test_a_pack_of_which_one_library_is_no_good_is_left_out_whole(monkeypatch, tmp_path, wrong):
    """A torn library would end the process as it is loaded."""
    first, second = manifest(), manifest(kernel=OTHER.name, config=dataclasses.asdict(OTHER))
    found = packs.Pack("pack_one", "1", tmp_path, (first, second))
    monkeypatch.setattr(packs, "installed", lambda: (found,))
    monkeypatch.setattr(packs, "_loaded", [])
    monkeypatch.setattr(packs, "_refused", {})
    for each in found.kernels:
        (tmp_path / f"{each.kernel}.so").write_bytes(b"library")
    torn = tmp_path / f"{OTHER.name}.so"
    torn.write_bytes(b"lib") if wrong == "torn" else torn.unlink() if wrong == "missing" else None
    joined, forgotten = [], []

    def join(each, library):
        if wrong == "refused" and joined:
            raise RuntimeError("of another libc")
        joined.append(each.kernel)

    monkeypatch.setattr(archive, "join", join)
    monkeypatch.setattr(archive, "forget", forgotten.append)
    with pytest.warns(RuntimeWarning, match="kernel pack pack_one 1 is left out: "):
        packs.load()
    assert joined == forgotten == [CONFIG.name]
    assert packs.why_left_out(found) and not packs.directories()


@pytest.mark.parametrize("content", ["[" * 100_000, '{"kernels": 3}', "[]"], ids=["deep", "a number", "a list"])
def test_an_index_that_is_none(tmp_path, content):
    site = installed(pack(tmp_path), tmp_path / "site")
    Path(site, "pack_one", "pack.json").write_text(content)
    done = python(NAMES, PYTHONPATH=os.pathsep.join([site, *sys.path]))
    assert done.returncode == 0 and "kernel pack pack_one 1.2 is left out: " in done.stderr


def test_no_code_of_a_pack_runs(tmp_path):
    """Looking for a package within another would import that one."""
    site = Path(installed(pack(tmp_path), tmp_path / "site"))
    (site / "evil").mkdir()
    (site / "evil" / "__init__.py").write_text("raise SystemExit('it runs')")
    (site / "pack_one-1.2.dist-info" / "entry_points.txt").write_text(f"[{packs.GROUP}]\npack_one = evil.sub\n")
    done = python(NAMES, PYTHONPATH=os.pathsep.join([str(site), *sys.path]))
    assert done.returncode == 0 and "there is no pack.json in evil.sub" in done.stderr


def test_nobody_looks_for_packs_before_a_kernel_is_wanted():
    code = (
        "import numpy as np, cutlass_py; from cutlass_py.kernels import packs; asked = packs.installed.cache_info;"
        "a = np.ones((2, 2)); cutlass_py.gemm(a, a); print(asked().currsize);"
        "cutlass_py.get_kernels(); print(asked().currsize)"
    )
    assert python(code).stdout == "0\n1\n"


# ---------------------------------------------------------------------------------------- tuned tables


@pytest.fixture
def tables(built, monkeypatch, tmp_path):
    """Empty tables of the user and of one pack; the directory of the pack."""
    from specs import CORE

    built([k.name for k in CORE])
    place = tmp_path / "pack"
    place.mkdir()
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(packs, "directories", lambda: [place])
    tuned.forget()
    yield place
    tuned.forget()


def entry(choice, **changes) -> tuned.Entry:
    values = {"kernel": choice.route.kernel.name, "splits": choice.route.splits, "raster": 0, "swizzle": 1}
    return tuned.Entry(**values | {"microseconds": 1.5, "driver": 13000, "version": "0.1.0"} | changes)


def test_a_packs_table_lies_between_the_users_and_the_model(tables):
    p = problem(512, 512, 512).problem
    modelled = rank(p)
    theirs, ours = entry(modelled[1]), entry(modelled[2])
    table(tables / tuned.file_name(ABSENT.name, ABSENT.sm_count), {class_of(p): theirs})
    tuned.forget()
    assert rank(p)[0].route == modelled[1].route and rank(p)[0].measured
    assert tuned.table(ABSENT) == {}
    tuned.record(ABSENT, {class_of(p): ours})
    assert rank(p)[0].route == modelled[2].route
    tuned.record(ABSENT, {class_of(p): dataclasses.replace(ours, kernel="gone")})
    assert rank(p)[0].route == modelled[1].route  # passed over


def test_a_table_of_another_gpu_is_not_looked_at(tables):
    p = problem(512, 512, 512).problem
    other = Gpu("Other", 90, 100, 1.0)
    table(tables / tuned.file_name(other.name, other.sm_count), {class_of(p): entry(rank(p)[1])}, other)
    tuned.forget()
    assert not rank(p)[0].measured


def test_a_damaged_table_is_left_out_with_a_warning(tables):
    (tables / tuned.file_name(ABSENT.name, ABSENT.sm_count)).write_text("{")
    tuned.forget()
    with pytest.warns(RuntimeWarning, match="tuned choices are left out: .*not JSON"):
        assert not rank(problem(512, 512, 512).problem)[0].measured
