"""Kernels that NVRTC compiles into cubins: what they say of themselves, and what goes wrong. Without a GPU."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from stand_in import CONFIG, in_python

import cutlass_py
from cutlass_py import CompileError, GemmArguments, TensorSpec, _core
from cutlass_py.compiling import cache, compiler, nvrtc, toolkit
from cutlass_py.declaration.families import find
from cutlass_py.epilogues.specialization import specialization
from cutlass_py.functions import relu
from cutlass_py.kernels.registry import kernel_named

OPERANDS = (((64, 128), "bf16"), ((128, 32), "bf16"), ((64, 1), "f32"))
NAME = "sm90_lean_bf16_bf16_f32_bf16_tn_64x32x128_1x1x1_leanpingpongswap_fused"
CUDA = _core.build_info()["cuda"] == "ON"


def why_not() -> str:
    """Why nothing can be compiled here: no NVRTC, or in a source tree no headers."""
    if not nvrtc.find():
        return nvrtc.MISSING
    try:
        compiler.recipe(find(NAME))
    except CompileError as error:
        return str(error)
    return ""


compiles = pytest.mark.skipif(bool(why_not()), reason=why_not())
loads = pytest.mark.skipif(not CUDA, reason="the package was built without CUDA")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTLASS_PY_JIT", raising=False)
    monkeypatch.setattr(compiler, "failed", {})


def built(name: str = NAME) -> Path:
    return compiler.build(compiler.recipe(find(name)))


# ---------------------------------------------------------------------------------------- what is compiled


@compiles
@pytest.mark.parametrize(
    "kind",
    [
        "bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_leanpingpong_fused",
        "f16_f16_f16_f16_nt_128x256x64_2x1x1_leancoopswap_fused",
        "f16_f16_f32_f32_nn_128x256x64_2x1x1_leancoopdirectswap_fusedc",
        "bf16_bf16_f32_bf16_tt_64x16x128_1x1x8_leanpingpongunalignedswap_fusedc",
        "bf16_bf16_f32_bf16_tn_128x256x64_2x1x1_leancoop_fusedc",
        "e4m3_e4m3_f32_bf16_tn_128x96x128_2x1x1_leanpingpong_fused_scaled",
        "e4m3_e4m3_f32_f32_tn_128x64x128_1x1x1_leancoopgroup_fusedc",
        "f16_f16_f32_f16_tn_128x256x64_1x1x4_leancoop_fused",
        "tf32_tf32_f32_f32_tn_128x256x32_1x2x1_leancoopswap_fusedc",
        "u8_s8_s32_s32_tn_128x128x128_1x1x1_leanpingpongdirect_linearc",
        "s8_s8_s32_s8_tn_64x16x256_1x1x1_leanpingpongswap_fused_scaled",
        "e4m3_e5m2_fast_e5m2_tn_128x256x128_2x1x1_leancoop_fused_scaled",
    ],
)
def test_a_cubin_of_every_kind(kind):
    path = built(f"sm90_lean_{kind}")
    assert re.fullmatch(rf"sm90_lean_{kind}-[0-9a-f]{{32}}-nvrtc1[23]\.\d+\.so", path.name)
    assert cache.entries() == [path]
    ident, machine = struct.unpack_from("<4s14xH", path.read_bytes())
    assert (ident, machine) == (b"\x7fELF", 190)


def test_other_kernels_are_nvccs(nvcc, monkeypatch):
    monkeypatch.setattr(nvrtc, "find", lambda: pytest.fail("NVRTC is looked for"))
    assert "-nvcc13.0.1.so" in compiler.build(compiler.recipe(CONFIG)).name


def test_nvcc_where_nvrtc_is_missing(nvcc, monkeypatch):
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    assert "-nvcc13.0.1.so" in built().name


def test_neither_is_there(nvcc, monkeypatch):
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    expected = f"cannot compile {NAME}: {nvrtc.MISSING}; {toolkit.NVCC_MISSING}: pip install 'cutlass_py[jit]'"
    with pytest.raises(CompileError, match=re.escape(expected)):
        built()


@compiles
def test_nvrtc_alone_is_a_compiler(monkeypatch):
    monkeypatch.setattr(compiler, "find_nvcc", lambda: None)
    assert built().is_file()
    assert not compiler.can_compile()  # whatever is chosen: kernels that need nvcc are among that


@compiles
def test_a_failing_source_is_kept_with_what_the_compiler_said():
    made = compiler.recipe(find(NAME))
    made = replace(made, source=made.source.replace("sm90::Design<", "sm90::Nothing<"))
    with pytest.raises(CompileError) as error:
        compiler.build(made)
    text = str(error.value)
    assert re.match(rf"cannot compile {NAME}: nvrtc1[23]\.\d+ failed\. The source is kept: ", text)
    assert 'has no member "Nothing"' in text.splitlines()[1]
    kept = Path(re.search(r"The source is kept: (.+?\.cu); ", text)[1])
    log = kept.with_suffix(".log").read_text()
    assert (
        kept.read_text() == made.source
        and re.match(r"nvrtc[\d.]+ -std=c\+\+17 -arch=sm_90a ", log)
        and "Nothing" in log
    )
    assert cache.entries() == []


@compiles
def test_a_users_epilogue():
    scaled = cutlass_py.epilogue(lambda accum, row: relu(accum) * row)
    a, b, row = (TensorSpec(shape, dtype, device="cuda:63") for shape, dtype in OPERANDS)
    args = GemmArguments(a, b, epilogue=scaled(row=row))
    config = replace(find(NAME), epilogue=specialization(args.problem.user).epilogue.name)
    assert compiler.build(compiler.recipe(config)).is_file()


@compiles
def test_one_that_is_too_old_is_none(monkeypatch):
    nvrtc.find.cache_clear()
    monkeypatch.setattr(nvrtc, "OLDEST", (99, 0))
    try:
        assert nvrtc.find() is None
    finally:
        nvrtc.find.cache_clear()


def test_what_the_library_refuses_is_an_error():
    class Library:
        def __getattr__(self, name):
            return lambda *arguments: 3

    with pytest.raises(OSError, match="nvrtcCreateProgram failed with 3"):
        nvrtc.Nvrtc(Library(), (13, 0)).compile("", [])


# ---------------------------------------------------------------------------------------- what is loaded


LOADED = """\
import json, sys
from cutlass_py import _core
from cutlass_py.compiling import compiler
from cutlass_py.declaration.families import find
from cutlass_py.kernels import archive
config = find(sys.argv[1])
facts = compiler.load(config)
assert facts == _core.kernel_facts()[config.name]
manifest, library = archive.of_kernel(config)
unpacked = archive.load(manifest, library).name
registers = _core.kernel_registers(config.name)
print(json.dumps([facts, registers, manifest.nvcc, manifest.codes, unpacked]))
"""


@compiles
@loads
def test_a_cubin_says_what_its_declaration_says():
    facts, registers, made_by, codes, unpacked = json.loads(in_python(LOADED, NAME))
    config = find(NAME)
    for name in ("a", "b", "accumulator", "d", "layout"):
        assert facts[name] == getattr(config, name)
    assert facts["stages"] > 1 and registers == 0  # a cubin's kernel does not tell those
    expected = kernel_named(NAME).interface
    assert (facts["align_a"], facts["align_b"], facts["align_d"]) == (expected.align_a, expected.align_b, 8)
    assert made_by.startswith("nvrtc1") and codes == ["sm_90a"] and unpacked.endswith(f"-{made_by}.so")


@compiles
def test_a_damaged_cubin_is_none(tmp_path):
    whole = built().read_bytes()
    path = tmp_path / "damaged.so"
    says = whole.index(NAME.encode() + b"\0", whole.index(b".nv.constant3")) - 8
    for content in (whole[:64], whole[: len(whole) // 2], whole[:says] + b"\xff" + whole[says + 1 :]):
        path.write_bytes(content)
        reason = "holds no kernel of this version of the kernel ABI" if CUDA else "was built without CUDA"
        with pytest.raises(RuntimeError, match=reason):
            _core.load_library(str(path), NAME)


@compiles
@loads
def test_another_kernels_name(tmp_path):
    path = tmp_path / "other.so"
    path.write_bytes(built().read_bytes())
    assert not _core.load_library(str(path), "another")
