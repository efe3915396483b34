"""Artifact files: what they hold, where they load, what is refused. A script stands in for nvcc."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from nvcc import why_not
from stand_in import compiled, in_python, needs_gxx, python, stub

from cutlass_py import Artifact, CompileError, KernelDescription, _core
from cutlass_py.arrays.gpu import Gpu
from cutlass_py.compiling import cache, compiler
from cutlass_py.declaration import families
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.kernels import archive
from cutlass_py.kernels.registry import all_kernels

# Declared, and in no built set; and one that no version declares.
CONFIG = families.find("sm90_gemm_bf16_bf16_f32_bf16_tn_256x128x64_2x1x1_coop_linearc")
OTHER = dataclasses.replace(CONFIG, tile=(256, 112, 64))


def manifest(**changes) -> archive.Manifest:
    values = {
        "kernel": CONFIG.name, "config": dataclasses.asdict(CONFIG), "codes": ("sm_90a",),
        "machine": archive.platform.machine(), "abi": _core.kernel_abi(), "version": "0.1.0", "cutlass": "4.2.0",
        "nvcc": "13.0.1", "facts": {}, "sha256": archive._digest(b"library"),
    }  # fmt: skip
    return archive.Manifest(**values | changes)


@pytest.fixture
def artifact(tmp_path):
    """The path of an artifact whose library nothing can load."""
    path = tmp_path / "artifact"
    archive.write(path, manifest(), b"library")
    return path


def edited(path: Path, **changes) -> Path:
    """The artifact with another manifest."""
    found, library = archive.read(path)
    values = json.loads(json.dumps(dataclasses.asdict(found))) | changes
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("manifest.json", json.dumps(values))
        file.writestr("library.so", library)
    return path


# ---------------------------------------------------------------------------------------- files


def test_what_is_written_is_read(artifact):
    found, library = archive.read(artifact)
    assert library == b"library" and archive.config_of(found) == CONFIG
    assert dataclasses.replace(found, config={}) == dataclasses.replace(manifest(), config={})
    with zipfile.ZipFile(artifact) as file:
        assert file.testzip() is None and {"manifest.json", "library.so"} <= set(file.namelist())


def test_writing_replaces_the_whole_file_or_nothing(artifact, monkeypatch):
    before = artifact.read_bytes()
    archive.write(artifact, manifest(sha256=archive._digest(b"newer")), b"newer")
    assert archive.read(artifact)[1] == b"newer"

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        archive.write(artifact, manifest(), b"library")
    assert archive.read(artifact)[1] == b"newer" != before and list(artifact.parent.iterdir()) == [artifact]


def test_every_damaged_byte_is_noticed(artifact):
    """Of the library and the manifest: what the zip says beside them does not matter."""
    whole = artifact.read_bytes()
    for position in range(0, len(whole), 7):
        artifact.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            assert archive.read(artifact) == (manifest_read(), b"library")
        except ValueError as error:
            assert str(error).startswith(f"{artifact} is ")


def manifest_read() -> archive.Manifest:
    return archive.Manifest.read(json.loads(json.dumps(dataclasses.asdict(manifest()))))


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_torn_file(artifact, length):
    artifact.write_bytes(artifact.read_bytes()[:length])
    with pytest.raises(ValueError, match=rf"{artifact} is no artifact, or a damaged one: "):
        archive.read(artifact)


def test_other_files(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("readme", "")
    (tmp_path / "x.txt").write_text("text")
    for name in ("x.zip", "x.txt"):
        with pytest.raises(ValueError, match=rf"{name} is no artifact"):
            archive.read(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        archive.read(tmp_path / "nowhere")


def test_a_library_that_is_not_the_manifests(artifact):
    with pytest.raises(ValueError, match="is damaged: the library's digest is not the manifest's"):
        archive.read(edited(artifact, sha256="0" * 64))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "the manifest has format 2; expected 1"),
        ({"kernel": "../../etc/x"}, r"the manifest's kernel is '\.\./\.\./etc/x'"),
        ({"nvcc": "13/../.."}, "the manifest's nvcc is "),
        ({"sha256": "*"}, r"the manifest's sha256 is '\*'"),
        ({"codes": "sm_90"}, "the manifest's codes is 'sm_90'"),
        ({"abi": None}, "the manifest's abi is None"),
        ({"config": []}, r"the manifest's config is \[\]"),
    ],
    ids=lambda x: str(x)[:20],
)
def test_wrong_manifests(artifact, changes, message):
    with pytest.raises(ValueError, match=message):
        archive.read(edited(artifact, **changes))


# ---------------------------------------------------------------------------------------- what fits here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"abi": 1}, rf"{CONFIG.name}: has kernel ABI 1 \(cutlass_py 0\.1\.0\); expected {_core.kernel_abi()}"),
        ({"machine": "riscv64"}, rf"{CONFIG.name}: compiled for riscv64; expected "),
        ({"config": {}}, "not a kernel of this one: .*missing"),
        ({"config": dataclasses.asdict(CONFIG) | {"color": "red"}}, "not a kernel of this one: .*color"),
        ({"config": dataclasses.asdict(CONFIG) | {"family": "sm75_gemm"}}, "does not know sm75_gemm"),
        ({"config": dataclasses.asdict(CONFIG) | {"epilogue": "swirl", "a": "f12"}}, "does not know swirl, f12"),
        ({"config": dataclasses.asdict(CONFIG) | {"tile": [1, 2, 3]}}, "there it is called sm90_gemm_.*_1x2x3_"),
        ({"config": dataclasses.asdict(CONFIG) | {"tile": 5}}, "not a kernel of this one: "),
    ],
    ids=lambda x: str(x)[:20],
)
def test_what_this_package_cannot_call_is_refused(artifact, changes, message):
    found, library = archive.read(edited(artifact, **changes))
    with pytest.raises(ValueError, match=message):
        archive.load(found, library)


@pytest.mark.parametrize(
    ("codes", "runs", "fails"),
    [
        (["sm_90a"], [90], [80, 100, 120]),
        (["sm_80"], [80, 86, 89], [75, 90]),
        (["sm_86"], [86, 89], [80, 90]),
        (["sm_80", "compute_80"], [80, 86, 90, 100], [75]),
        (["compute_90a"], [90], [80, 100]),
        (["lto_90", ""], [], [90]),
    ],
    ids=str,
)
def test_machine_code_and_devices(codes, runs, fails):
    assert [cc for cc in (*runs, *fails) if archive.runs_on(codes, cc)] == runs


@pytest.mark.parametrize(
    ("family", "codes", "here", "fits"),
    [
        ("simt_gemm", ["sm_90"], [90], True),
        ("simt_gemm", ["sm_90"], [80], False),
        ("simt_gemm", ["sm_90"], [80, 90], False),  # it would be chosen for both
        ("simt_gemm", ["sm_80", "sm_90"], [80, 90], True),
        ("sm90_gemm", ["sm_90a"], [80, 90], True),  # for the second alone
        ("sm90_gemm", ["sm_90a"], [80], False),
        ("sm90_gemm", ["sm_90a"], [], True),
    ],
)
def test_the_gpus_that_are_here(monkeypatch, family, codes, here, fits):
    monkeypatch.setattr(_core, "device_count", lambda: len(here))
    monkeypatch.setattr(archive, "device", lambda ordinal: Gpu("GPU", here[ordinal], 100, 1.0))
    config = FAMILIES[family].declared[0]
    found = manifest(kernel=config.name, config=dataclasses.asdict(config), codes=tuple(codes))
    error = archive.device_error(found)
    assert (error is None) == fits
    if error:
        assert error.startswith(
            f"{config.name}: holds machine code for {codes[0]}; the GPU here has compute capability "
        )
        with pytest.raises(ValueError, match=re.escape(error)):
            archive.load(found, b"library")


def test_codes_of_flags():
    family = FAMILIES["sm80_gemm"]
    assert archive.codes_of([f"-gencode={entry}" for entry in family.gencode]) == ["sm_80", "sm_90", "compute_80"]
    assert archive.codes_of(["-O3", "-gencode=arch=compute_90a,code=sm_90a"]) == ["sm_90a"]


# ---------------------------------------------------------------------------------------- saved here, loaded there

SAVE = """
import sys
from cutlass_py.kernels import registry
from cutlass_py.kernels import archive
from test_archive import CONFIG, OTHER
registry.kernel_named(CONFIG.name).compile().save(f"{sys.argv[1]}/declared")
archive.write(f"{sys.argv[1]}/other", *archive.of_kernel(OTHER))
"""
LOAD = """
import json, sys
from cutlass_py import Artifact, GemmArguments, TensorSpec, _core, get_kernels
from cutlass_py.kernels import registry
from cutlass_py.dispatch import candidates, planning
declared, rows = len(get_kernels(compiled=False)), []
a, b = TensorSpec((512, 512), "bf16", device="cuda:63"), TensorSpec((512, 512), "bf16", (1, 512), device="cuda:63")
args = GemmArguments(a, b)
for path in sys.argv[1:]:
    artifact = Artifact.load(path)
    kernel = registry.kernel_named(artifact.kernel)
    artifact.save(f"{path}.again")
    rows.append({
        "name": kernel.name, "where": str(artifact.library), "compiled": kernel.compiled, "facts": kernel.facts["a"],
        "listed": kernel in get_kernels() and kernel in get_kernels(compiled=False),
        "same": registry.kernel_named(kernel.name) is kernel, "chosen_from": kernel in get_kernels(args),
        "more": len(get_kernels(compiled=False)) - declared,
        "forced": planning.plan(_core.problem(a, b, kernel=kernel.name)).kernel,
    })
print(json.dumps(rows))
"""
CLASH = """
import sys
from cutlass_py import Artifact, get_kernels, register_kernel
from own_kernels import metadata, multiply
from test_archive import OTHER
own = register_kernel(metadata(name=OTHER.name), multiply).kernels[0]
try:
    Artifact.load(sys.argv[1])
except ValueError as error:
    print(error)
assert [kernel for kernel in get_kernels(compiled=False) if kernel.name == OTHER.name] == [own]
"""
WITHOUT = {"CUDACXX": "/nowhere/nvcc", "CUTLASS_PY_INCLUDE": "", "CUTLASS_PY_JIT": "0"}


@pytest.fixture
def saved(nvcc, tmp_path):
    """A directory with artifacts of CONFIG and OTHER."""
    (tmp_path / "saved").mkdir()
    in_python(SAVE, tmp_path / "saved", NVCC_LOADS=stub(nvcc))
    assert compiled(nvcc) == 2
    return tmp_path / "saved"


@needs_gxx
def test_another_process_loads_and_chooses_what_was_saved_without_a_compiler(saved, tmp_path):
    place = tmp_path / "elsewhere"
    paths = [saved / "declared", saved / "other", saved / "other"]  # twice does no harm
    rows = json.loads(in_python(LOAD, *paths, CUTLASS_PY_CACHE_DIR=str(place), **WITHOUT))
    assert [row["name"] for row in rows] == [CONFIG.name, OTHER.name, OTHER.name]
    for row in rows:
        assert row["compiled"] and row["facts"] == "a" and row["listed"] and row["same"] and row["chosen_from"]
        assert row["forced"] == row["name"]
    assert [row["more"] for row in rows] == [0, 1, 1]
    for path in paths:
        assert archive.read(f"{path}.again") == archive.read(path)
    assert sorted({row["where"] for row in rows}) == sorted(str(path) for path in place.glob("*.so"))
    assert not families.find(OTHER.name)  # of this process


# Declared by no version; of either generation.
DESCRIBED = [
    KernelDescription(a="bf16", tile=(64, 128, 32), instruction="tensorop", warps=(1, 4, 1), stages=2, layout="tt"),
    KernelDescription(a="bf16", tile=(64, 48, 64)),
]
SAVE_DESCRIBED = """
import sys
from test_archive import DESCRIBED
for kernel in (description.kernel() for description in DESCRIBED):
    kernel.compile().save(f"{sys.argv[1]}/{kernel.name}")
    print(kernel.name)
"""
# What was loaded from files, or is there by name, on small integers: every sum is exact.
RUN = """
import os, sys
import gpu, torch
from cutlass_py import Artifact, gemm
from cutlass_py.kernels import registry
torch.manual_seed(2026)
for wanted in sys.argv[1:]:
    name = Artifact.load(wanted).kernel if os.path.exists(wanted) else wanted
    kernel = registry.kernel_named(name)
    assert kernel.compiled and not kernel.compile().built
    c = kernel.config
    a, b = gpu.integers((264, 160), c.a, -1, 2), gpu.integers((160, 208), c.a, -1, 2)
    a, b = gpu.laid_out(a, c.layout[0]), gpu.laid_out(b, c.layout[1])
    out = gpu.guarded((264, 208), c.d)
    assert gemm(a, b, out=out.view, kernel=name) is out.view
    gpu.assert_exact(out.view, gpu.expected(a, b))
    out.check()
    print(name)
"""


def beside_the_tests(code: str, *arguments: object, path: str = "", **environment: str) -> str:
    """As in_python, where a framework may say something on stderr."""
    places = os.pathsep.join([*filter(None, [path]), str(Path(__file__).parent), *sys.path])
    done = python(code, *map(str, arguments), PYTHONPATH=places, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


WHY_NOT = why_not()


@pytest.mark.gpu
@pytest.mark.sm90
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_another_process_computes_by_what_was_saved_without_a_compiler(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "saved").mkdir()
    here = {"CUTLASS_PY_CACHE_DIR": str(tmp_path / "here"), "CUTLASS_PY_JIT": "1"}
    names = beside_the_tests(SAVE_DESCRIBED, tmp_path / "saved", **here).splitlines()
    assert [name.partition("_")[0] for name in names] == ["sm80", "sm90"]
    paths = [tmp_path / "saved" / name for name in names]
    said = beside_the_tests(RUN, *paths, CUTLASS_PY_CACHE_DIR=str(tmp_path / "there"), **WITHOUT)
    assert said.splitlines() == names
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "there").glob("*.so")) == sorted(names)


@needs_gxx
def test_a_name_that_was_registered_is_taken(saved):
    said = in_python(CLASH, saved / "other", **WITHOUT)
    assert said.strip() == f"load: a kernel that was registered is called '{OTHER.name}' already"


BACK = """
import sys
from cutlass_py import Artifact, _core, get_kernels, unregister
from test_archive import CONFIG, OTHER
def listed():
    return [(kernel.name, kernel.compiled) for kernel in get_kernels(compiled=False)]
before = listed()
for config, path in zip((CONFIG, OTHER), sys.argv[1:]):
    for what in (config.name, Artifact.load(path).kernel):
        Artifact.load(path)
        assert config.name in _core.kernel_facts()
        unregister(what)
        assert config.name not in _core.kernel_facts()
        assert listed() == before
    try:
        unregister(config.name)
    except ValueError as error:
        print(str(error).rpartition("; ")[2])
artifact = Artifact.load(sys.argv[1])
try:
    unregister("nobody")
except ValueError as error:
    print(error)
"""


@needs_gxx
def test_what_was_loaded_is_taken_back_whether_or_not_it_is_declared(saved):
    said = in_python(BACK, saved / "declared", saved / "other", **WITHOUT).splitlines()
    assert said[:2] == ["there is nothing"] * 2
    assert said[2] == f"unregister: nothing is registered as 'nobody'; there is {CONFIG.name}"


@needs_gxx
def test_a_kernel_that_was_there_before_the_artifact_stays(saved):
    code = """
import sys
from cutlass_py import Artifact, _core, unregister
from cutlass_py.kernels import registry
from test_archive import CONFIG
kernel = registry.kernel_named(CONFIG.name)
library = kernel.compile().library
Artifact.load(sys.argv[1])
unregister(kernel)
assert kernel.compiled and _core.kernel_library(CONFIG.name) == str(library)
try:
    unregister(kernel)
except ValueError as error:
    print(error)
"""
    assert "there is nothing" in in_python(code, saved / "declared", CUTLASS_PY_JIT="0")


@needs_gxx
def test_it_is_an_entry_of_the_cache(saved, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "elsewhere"))
    for _ in range(2):
        in_python(LOAD, saved / "declared", **WITHOUT)
        (entry,) = cache.entries()
        assert entry.read_bytes()[: -cache.DIGEST] == archive.read(saved / "declared")[1]
    entry.write_bytes(b"damaged")
    in_python(LOAD, saved / "declared", **WITHOUT)  # unpacked again
    assert cache.clear()[0] == 1


@needs_gxx
def test_a_cache_that_cannot_be_written(saved, tmp_path):
    (tmp_path / "file").touch()
    done = python(LOAD, str(saved / "declared"), CUTLASS_PY_CACHE_DIR=str(tmp_path / "file" / "cache"), **WITHOUT)
    assert done.returncode == 0 and done.stderr.count("RuntimeWarning") == 1 and "cannot be used" in done.stderr
    assert json.loads(done.stdout)[0]["where"].startswith(tempfile.tempdir) and os.listdir(tempfile.tempdir) == []


@needs_gxx
def test_a_library_of_another_kernel(saved):
    code = """
import dataclasses, sys
from cutlass_py import _core
from cutlass_py.declaration import families
from cutlass_py.kernels import archive
from test_archive import CONFIG
found, library = archive.read(sys.argv[1])
found = dataclasses.replace(found, kernel=CONFIG.name, config=dataclasses.asdict(CONFIG))
try:
    archive.load(found, library)
except ValueError as error:
    print(error)
"""
    assert re.fullmatch(rf".*\.so holds no kernel {CONFIG.name}\n", in_python(code, saved / "other"))


def test_a_library_that_does_not_load_changes_nothing(artifact, tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "cache"))
    before = _core.kernel_facts().keys()
    with pytest.raises(RuntimeError, match="cannot load the kernel library"):
        archive.load(*archive.read(artifact))
    assert _core.kernel_facts().keys() == before


def test_what_a_manifest_says_of_a_kernel(nvcc, monkeypatch):
    monkeypatch.setattr(_core, "load_library", lambda path, kernel: True)
    monkeypatch.setattr("cutlass_py.kernels.registry.add", lambda config: None)
    monkeypatch.setattr(_core, "kernel_facts", lambda: {CONFIG.name: {"threads": 128}})
    monkeypatch.setattr(_core, "device_count", lambda: 0)
    monkeypatch.setattr(compiler, "cutlass_version", lambda include: "4.2.0")
    found, library = archive.of_kernel(CONFIG)
    assert library == b"library of " + compiler.recipe(CONFIG).source.encode()
    assert (found.kernel, found.codes, found.nvcc, found.cutlass) == (CONFIG.name, ("sm_90a",), "13.0.1", "4.2.0")
    assert found.facts == {"threads": 128} and archive.config_of(found) == CONFIG


LADDER = FAMILIES["sm80_gemm"].core[0]


@pytest.mark.parametrize(
    ("cc", "here", "codes"),
    [((), (), ["sm_90"]), ((80,), (), ["sm_80"]), ((90, 80, 86), (), ["sm_80", "sm_86", "sm_90"]),
     ((80,), (90,), ["sm_80", "sm_90"]), ((), (86,), ["sm_86"])],
)  # fmt: skip
def test_what_a_library_is_compiled_for(nvcc, built, monkeypatch, tmp_path, cc, here, codes):
    built([LADDER.name])  # which keeps the kernel out of other tests
    monkeypatch.setattr(_core, "load_library", lambda path, kernel: True)
    monkeypatch.setattr("cutlass_py.kernels.registry.add", lambda config: None)
    monkeypatch.setattr(_core, "kernel_facts", lambda: {LADDER.name: {"threads": 128}})
    monkeypatch.setattr(_core, "device_count", lambda: len(here))
    monkeypatch.setattr("cutlass_py.arrays.gpu.device", lambda ordinal: Gpu("a GPU", here[ordinal], 100, 1000.0))
    monkeypatch.setattr(compiler, "cutlass_version", lambda include: "4.2.0")
    Artifact(LADDER.name, "80", None, False).save(tmp_path / "saved", cc=cc)
    assert archive.read(tmp_path / "saved")[0].codes == tuple(codes)


def test_a_gpu_here_makes_up_for_no_other(nvcc, monkeypatch, tmp_path):
    monkeypatch.setattr(_core, "device_count", lambda: 1)
    monkeypatch.setattr("cutlass_py.arrays.gpu.device", lambda ordinal: Gpu("a GPU", 90, 100, 1000.0))
    with pytest.raises(ValueError, match=rf"{CONFIG.name} runs on compute capability 9.0 only; asked for is 8.0"):
        Artifact(CONFIG.name, "90a", None, False).save(tmp_path / "saved", cc=(80,))
    assert compiled(nvcc) == 0 and not (tmp_path / "saved").exists()


@needs_gxx
def test_a_library_for_what_the_kernel_does_not_run_on(nvcc, saved):
    with pytest.raises(ValueError, match=rf"{CONFIG.name} runs on compute capability 9.0 only; asked for is 8.0"):
        archive.of_kernel(CONFIG, (80,))
    code = (
        "import sys; from cutlass_py import Artifact\n"
        "artifact = Artifact.load(sys.argv[1])\n"
        "artifact.save(sys.argv[1], cc=(90,))\n"
        "try: artifact.save(sys.argv[1], cc=(90, 100))\n"
        "except ValueError as error: print(error)"
    )
    said = in_python(code, saved / "declared", NVCC_LOADS=stub(nvcc))
    assert "was loaded as machine code for sm_90a; asked for is 10.0" in said


def test_saving_without_a_compiler(nvcc, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_JIT", "0")
    with pytest.raises(CompileError, match=rf"Prebuild it: .* --kernel {CONFIG.name}"):
        archive.of_kernel(CONFIG)


def test_what_only_this_process_knows_is_not_saved():
    with pytest.raises(ValueError, match="not to be saved: swirl is known to this process alone"):
        archive.of_kernel(dataclasses.replace(CONFIG, epilogue="swirl"))


def test_what_has_no_machine_code_is_not_saved(tmp_path):
    kernel = next(k for k in all_kernels() if k.metadata.family == "cpu_gemm")
    with pytest.raises(ValueError, match=f"kernel {kernel.name} computes on the CPU; expected a CUTLASS kernel"):
        kernel.compile().save(tmp_path / "x")
    assert not (tmp_path / "x").exists()


@needs_gxx
def test_a_file_that_changed_is_not_saved_again(saved, tmp_path):
    code = """
import sys
from cutlass_py import Artifact
artifact = Artifact.load(sys.argv[1])
artifact.library.unlink()
artifact.library.write_bytes(b"other")
try:
    artifact.save(sys.argv[1])
except ValueError as error:
    print(error)
"""
    assert "has changed since it was loaded" in in_python(
        code, saved / "other", CUTLASS_PY_CACHE_DIR=str(tmp_path / "x")
    )
