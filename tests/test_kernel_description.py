"""Kernels by description: the declaration is sound, every rule has its fault, a described kernel is like any other."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from nvcc import why_not
from specs import problem

import cutlass_py
from cutlass_py import KernelDescription, _core, explain, get_kernels, jit, unregister
from cutlass_py.arrays.gpu import gpu_of
from cutlass_py.declaration import codegen
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.families import added, families, find, named
from cutlass_py.declaration.shared_memory import stages_3x
from cutlass_py.declaration.validation import Fault, Resolved
from cutlass_py.dispatch import candidates, tuned
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import forget, kernel_named
from cutlass_py.operations.gemm import cost

WGMMA = KernelDescription(a="bf16", tile=(128, 128, 64))
TENSOROP = KernelDescription(
    a="bf16", tile=(128, 128, 32), instruction="tensorop", warps=(2, 2, 1), stages=4, alignment=8
)
SIMT = KernelDescription(a="f32", tile=(128, 128, 8), instruction="simt", warps=(4, 2, 1), stages=4)
TF32 = replace(WGMMA, a="tf32", tile=(128, 128, 32))
F64 = replace(WGMMA, a="f64", tile=(128, 128, 16), schedule="coopdmma", epilogue="linearc")
LEAN = replace(WGMMA, schedule="leanpingpong")
UNALIGNED = replace(WGMMA, schedule="leanpingpongunaligned", tile=(64, 32, 128), epilogue="fusedc")
STREAM_K = replace(WGMMA, schedule="coopstreamk")
BLOCK = KernelDescription(a="e4m3", tile=(128, 128, 128), schedule="coopblock")
E4M3 = KernelDescription(a="e4m3", tile=(64, 128, 128))


# ---------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize("family", [f for f in families().values() if f.api], ids=lambda f: f.name)
def test_every_declared_kernel_is_sound_and_described_as_itself(family):
    for config in family.declared:
        description = KernelDescription.of(CutlassKernel(config, None))
        assert description.faults() == (), config.name
        assert Resolved(description).config == config


# As compiled by nvcc 13.0 from CUTLASS 4.2: what is left beside the epilogue.
STAGES = {
    "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear": 6,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_128x256x64_1x2x1_coop_linearc": 4,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_64x128x64_1x1x1_pingpong_bias": 9,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_64x128x64_1x1x1_pingpong_linearc": 8,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpongdirect_linearc": 7,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_64x16x128_1x1x1_pingpongswap_linearc": 11,
    "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_bias_gelu_aux": 6,
    "sm90_gemm_bf16_bf16_f32_f32_tn_64x128x64_1x1x1_pingpong_linear": 8,
    "sm90_gemm_e4m3_e4m3_f32_bf16_tn_64x128x128_1x1x1_pingpong_scaled": 9,
    "sm90_gemm_e4m3_e4m3_f32_bf16_tn_256x128x128_1x2x1_coopsteady_scaled": 4,
    "sm90_gemm_e4m3_e4m3_f32_bf16_tn_256x96x128_1x2x1_coopsteady_scaled": 4,
    "sm90_gemm_tf32_tf32_f32_f32_tn_64x16x64_1x1x1_pingpongswap_linear": 11,
    "sm90_dmma_f64_f64_f64_f64_tn_128x128x16_1x1x1_coopdmma_linearc": 7,
    "sm90_block_e4m3_e4m3_f32_bf16_tn_64x128x128_1x1x1_pingpongblock_linear": 8,
    "sm90_array_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_cooparray_linearc": 6,
    "sm90_streamk_f16_f16_f32_f32_tn_128x128x64_2x1x1_coopstreamk_linear": 6,
}


def stages_of(k: Resolved) -> int:
    return stages_3x(k.a, k.d, k.tile, k.schedule, k.epilogue)


def test_stages_of_wgmma_kernels_are_foreseen():
    compiled = {k.name: k.facts["stages"] for k in get_kernels() if isinstance(k, CutlassKernel) and k.config.api == 3}
    for name, stages in (STAGES | compiled).items():
        assert stages_of(Resolved(KernelDescription.of(kernel_named(name)))) == stages, name


@pytest.mark.parametrize("order", [{"swizzle": 4}, {"raster": "m"}], ids=str)
def test_the_order_of_tiles_is_asked_for_elsewhere(order):
    with pytest.raises(
        TypeError, match=r"takes it at each launch, kernel\.plan\(args, swizzle=\.\.\., raster=\.\.\.\)"
    ):
        replace(WGMMA, **order)


FAULTS = [
    # Names.
    (WGMMA, {"a": "bf61"}, "a is 'bf61'; expected one of f16, bf16, f32, tf32, tf32x3"),
    (WGMMA, {"instruction": "mma"}, "instruction is 'mma'; expected one of wgmma, tensorop, simt"),
    (WGMMA, {"layout": "rc"}, "layout is 'rc'; expected one of tn, tt, nt, nn"),
    (WGMMA, {"schedule": "tiled"}, "schedule is 'tiled'; expected one of coop, pingpong, "),
    (TENSOROP, {"schedule": "coop"}, "schedule is 'coop'; expected one of tiled, streamk"),
    (WGMMA, {"epilogue": "swish"}, "epilogue is 'swish'; expected one of linear, linearc"),
    (WGMMA, {"arch": "100"}, "arch is '100'; expected one of 80, 90a"),
    (WGMMA, {"tile": (128, 128)}, "tile is (128, 128); expected a tuple of three whole numbers above 0"),
    (WGMMA, {"cluster": (2, 0, 1)}, "cluster is (2, 0, 1); expected a tuple of three whole numbers above 0"),
    (TENSOROP, {"stages": 0}, "stages is 0; expected a whole number above 0"),
    # Dtypes.
    (WGMMA, {"a": "f64"}, "a is 'f64'; expected what wgmma kernels (sm90_gemm) multiply: bf16, e4m3"),
    (SIMT, {"a": "bf16"}, "a is 'bf16'; expected what simt kernels (simt_gemm) multiply: c64, f32"),
    (WGMMA, {"b": "f16"}, "b is 'f16'; expected what goes with bf16: bf16"),
    (WGMMA, {"accumulator": "f16"}, "accumulator is 'f16'; expected what wgmma kernels (sm90_gemm) sum bf16 in: f32"),
    (WGMMA, {"d": "s32"}, "d is 's32'; expected a result of sums in f32: bf16, f32"),
    (E4M3, {"layout": "tt"}, "layout is 'tt'; expected 'tn': wgmma reads e4m3 along k alone"),
    (TF32, {"layout": "tt"}, "layout is 'tt'; expected 'tn' or 'nn': wgmma reads B of tf32 along k alone"),
    (TF32, {"layout": "nn", "schedule": "coopswap"},
     "layout is 'nn'; expected 'tn' or 'tt': wgmma reads A of tf32 along k alone"),
    (F64, {"cluster": (2, 1, 1)}, "cluster is (2, 1, 1); expected (1, 1, 1), which schedule coopdmma has alone"),
    (F64, {"tile": (128, 64, 16)}, "tile is (128, 64, 16); expected (128, 128, 16), which schedule coopdmma has alone"),
    (STREAM_K, {"a": "e4m3"}, "a is 'e4m3'; expected what wgmma kernels (sm90_streamk) multiply: bf16, f16"),
    # wgmma.
    (WGMMA, {"warps": (2, 2, 1)}, "warps is (2, 2, 1); expected none: the schedule of a wgmma kernel"),
    (WGMMA, {"stages": 4}, "stages is 4; expected none: a wgmma kernel has as many as fit"),
    (WGMMA, {"arch": "80"}, "arch is '80'; expected 90a, or none: wgmma is Hopper's"),
    (WGMMA, {"alignment": 4}, "alignment is 4; expected 8, or none: TMA moves granules of 16 bytes"),
    (WGMMA, {"tile": (96, 128, 64)}, "tile is (96, 128, 64); expected m a multiple of 64: a warpgroup"),
    (WGMMA, {"tile": (64, 128, 64), "schedule": "coop"}, "tile is (64, 128, 64); expected m a multiple of 128"),
    (WGMMA, {"tile": (64, 12, 64)}, "tile is (64, 12, 64); expected n a multiple of 16, up to 256"),
    (WGMMA, {"tile": (64, 512, 64)}, "tile is (64, 512, 64); expected n a multiple of 16, up to 256"),
    (WGMMA, {"tile": (64, 24, 64)}, "tile is (64, 24, 64); expected n a multiple of 16, up to 256"),
    (WGMMA, {"tile": (64, 48, 16)}, "tile is (64, 48, 16); expected n * k a multiple of 1024: what B has of a stage"),
    (WGMMA, {"tile": (64, 128, 24)}, "tile is (64, 128, 24); expected k a multiple of 16"),
    (E4M3, {"tile": (64, 128, 96)}, "tile is (64, 128, 96); expected k of 32, 64, or 128 and more: promotion"),
    (E4M3, {"tile": (128, 128, 128)}, "tile is (128, 128, 128); expected m * n up to 12288: 96 accumulators"),
    (WGMMA, {"schedule": "coopsteady", "tile": (128, 128, 64)}, "schedule is 'coopsteady'; expected one for promoted"),
    (E4M3, {"schedule": "pingpongsteady"}, "tile is (64, 128, 128); expected m of 128: by turns or in parts"),
    (E4M3, {"schedule": "coopsteady", "tile": (384, 32, 128)}, "tile is (384, 32, 128); expected m of 128 or 256"),
    (E4M3, {"schedule": "coopsteady", "tile": (128, 208, 128)}, "tile is (128, 208, 128); expected m * n up to 24576"),
    (E4M3, {"schedule": "coopsteady", "tile": (256, 144, 128)}, "tile is (256, 144, 128); expected m * n up to 32768"),
    (WGMMA, {"tile": (128, 256, 64)}, "tile is (128, 256, 64); expected m * n up to 24576: 192 accumulators"),
    (WGMMA, {"cluster": (3, 1, 1)}, "cluster is (3, 1, 1); expected m and n of 1, 2, 4 or 8, and k of 1"),
    (WGMMA, {"cluster": (1, 1, 2)}, "cluster is (1, 1, 2); expected m and n of 1, 2, 4 or 8, and k of 1"),
    (WGMMA, {"cluster": (4, 4, 1)}, "cluster is (4, 4, 1); expected 8 thread blocks at most"),
    (LEAN, {"tile": (128, 128, 32)}, "tile is (128, 128, 32); expected k a multiple of 64: lines of 128 bytes"),
    (UNALIGNED, {"tile": (64, 96, 64)}, "tile is (64, 96, 64); expected n of 16 or 32 or 64 or 128: four warps"),
    (UNALIGNED, {"tile": (64, 32, 192)}, "tile is (64, 32, 192); expected k of 64 or 128: four warps"),
    (UNALIGNED, {"cluster": (2, 1, 1)}, "cluster is (2, 1, 1); expected m and n of 1: threads load for their own"),
    (UNALIGNED, {"a": "tf32", "tile": (64, 32, 64)}, "expected one without 'unaligned': threads load 16-bit"),
    (LEAN, {"schedule": "leancoopblock"}, "schedule is 'leancoopblock'; expected one without scales in blocks"),
    (LEAN, {"schedule": "leancoopblockgrouped"}, "expected one without scales in blocks"),
    (LEAN, {"tile": (128, 16, 64), "epilogue": "fused_gated"}, "tile is (128, 16, 64); expected n a multiple of 128"),
    (LEAN, {"tile": (64, 32, 128), "schedule": "leanpingpongswap", "epilogue": "fused_gated"}, "expected m of 128"),
    (LEAN, {"schedule": "leanpingpongdeep", "layout": "nt", "epilogue": "fused_gated"}, "whole rows of products"),
    (LEAN, {"schedule": "leanpingpongdeep", "layout": "tn"}, "layout is 'tn'; expected 'nt': groups of k of 16-bit"),
    (LEAN, {"a": "e4m3", "tile": (128, 64, 256)}, "tile is (128, 64, 256); expected k of 128: sums of fp8 are"),
    (LEAN, {"a": "e4m3", "tile": (128, 128, 128)}, "tile is (128, 128, 128); expected m * n up to 24576: 192 accumul"),
    (
        LEAN,
        {"a": "e4m3", "tile": (128, 208, 128), "schedule": "leancoopblockswap"},
        "tile is (128, 208, 128); expected m * n up to 49152: 192 accumulators of a thread, with the parts of promoted",
    ),
    (LEAN, {"tile": (192, 64, 64)}, "tile is (192, 64, 64); expected m up to 128: rows of one warpgroup"),
    (LEAN, {"tile": (320, 64, 64)}, "tile is (320, 64, 64); expected m up to 256: TMA loads boxes of so many rows"),
    (
        LEAN,
        {"tile": (256, 192, 64), "schedule": "leancoop", "cluster": (1, 1, 2)},
        "tile is (256, 192, 64); expected m * n up to 43008: sums of slices lie where the stages were",
    ),
    (LEAN, {"cluster": (2, 1, 2)}, "cluster is (2, 1, 2); expected m and n of 1, 2, 4 or 8, and k of 1"),
    (LEAN, {"cluster": (1, 1, 9)}, "cluster is (1, 1, 9); expected m and n of 1, 2, 4 or 8, and k of 1"),
    (LEAN, {"a": "f16", "accumulator": "f16", "d": "f16", "cluster": (1, 1, 2)}, "cluster is (1, 1, 2); expected k of"),
    (LEAN, {"a": "s8", "tile": (128, 128, 128), "cluster": (1, 1, 2)}, "cluster is (1, 1, 2); expected k of 1: slices"),
    (LEAN, {"a": "s8", "tile": (128, 128, 128), "schedule": "leancoopblock"}, "expected one without scales in blocks"),
    (LEAN, {"a": "s8", "tile": (128, 128, 128), "d": "e4m3"}, "d is 'e4m3'; expected a result of sums in s32: bf16"),
    (LEAN, {"a": "tf32", "tile": (128, 128, 16)}, "tile is (128, 128, 16); expected k a multiple of 32: lines of 128"),
    (LEAN, {"a": "tf32", "tile": (128, 128, 32), "layout": "nn"}, "layout is 'nn'; expected 'tn': wgmma reads tf32"),
    (LEAN, {"a": "f64", "tile": (128, 128, 16)}, "a is 'f64'; expected what wgmma kernels (sm90_lean) multiply"),
    (WGMMA, {"cluster": (8, 1, 1), "tile": (64, 32, 64)}, "cluster is (8, 1, 1); expected parts of 8 rows"),
    (WGMMA, {"tile": (128, 128, 512)}, "tile is (128, 128, 512); expected (m + n) * k up to 55552: two stages"),
    (WGMMA, {"schedule": "pingpongdirect"}, "epilogue is 'linear'; expected 'linearc', which schedule pingpongdirect"),
    (STREAM_K, {"epilogue": "bias"}, "epilogue is 'bias'; expected 'linear', which schedule coopstreamk has alone"),
    (WGMMA, {"a": "s8", "epilogue": "bias"}, "epilogue is 'bias'; expected 'linear' or 'linearc': sums in s32 are"),
    (WGMMA, {"a": "s8", "d": "bf16"}, "epilogue is 'linear'; expected a scaled one: sums in s32 become bf16 by scales"),
    (E4M3, {"d": "e4m3", "epilogue": "linearc"}, "epilogue is 'linearc'; expected one without c, gate and aux"),
    (BLOCK, {"tile": (128, 128, 64)}, "tile is (128, 128, 64); expected k of 128: so many share a scale"),
    (BLOCK, {"tile": (128, 64, 128)}, "tile is (128, 64, 128); expected n a multiple of 128: columns that share"),
    (BLOCK, {"epilogue": "bias_gelu"}, "epilogue is 'bias_gelu'; expected one of "),
    # 2.x.
    (TENSOROP, {"cluster": (2, 1, 1)}, "cluster is (2, 1, 1); expected (1, 1, 1): clusters are of wgmma kernels"),
    (SIMT, {"arch": "90a"}, "arch is '90a'; expected 80, or none"),
    (TENSOROP, {"arch": "90a"}, "a is 'bf16'; expected what tensorop kernels (sm90_dgemm) multiply: c128, f64"),
    (TENSOROP, {"warps": None}, "warps is None; expected how many there are along m, n and k"),
    (TENSOROP, {"warps": (3, 2, 1)}, "warps is (3, 2, 1); expected divisors of the tile (128, 128, 32)"),
    (TENSOROP, {"warps": (2, 2, 2)}, "warps is (2, 2, 2); expected 1 along k"),
    (TENSOROP, {"tile": (256, 256, 64), "warps": (8, 8, 1), "stages": 2}, "warps is (8, 8, 1); expected 32 in all"),
    (TENSOROP, {"warps": (8, 2, 1), "layout": "nt"}, "warps is (8, 2, 1); expected warp tiles whose m is a multiple"),
    (TENSOROP, {"warps": (2, 8, 1), "layout": "nt"}, "warps is (2, 8, 1); expected warp tiles whose n is a multiple"),
    (TENSOROP, {"warps": (16, 2, 1)}, "warps is (16, 2, 1); expected warp tiles whose m is a multiple of 32"),
    (
        TENSOROP,
        {"a": "tf32", "tile": (96, 64, 32), "stages": 3, "alignment": 4},
        "warps is (2, 2, 1); expected warp tiles whose m is 16, or a multiple of 32; found (48, 32, 32)",
    ),
    (TENSOROP, {"warps": (1, 1, 1)}, "warps is (1, 1, 1); expected 128 registers of sums for a thread; found 512"),
    (TENSOROP, {"tile": (128, 128, 24)}, "tile is (128, 128, 24); expected k a multiple of 16, the instruction's"),
    (TENSOROP, {"tile": (128, 128, 16)}, "tile is (128, 128, 16); expected k of 32 or 64: lines of shared memory"),
    (SIMT, {"tile": (128, 128, 16)}, "tile is (128, 128, 16); expected k of 8"),
    (TENSOROP, {"tile": (96, 96, 32), "warps": (3, 3, 1)}, "tile is (96, 96, 32); expected m * k a multiple of 2304"),
    (TENSOROP, {"tile": (128, 32, 32), "warps": (4, 1, 1), "layout": "tt"}, "expected n a multiple of 64: layout tt"),
    (TENSOROP, {"alignment": 16}, "alignment is 16; expected a power of two up to 8"),
    (TENSOROP, {"alignment": 3}, "alignment is 3; expected a power of two up to 8"),
    (SIMT, {"alignment": 4}, "alignment is 4; expected 1: simt kernels read single elements"),
    (TENSOROP, {"stages": None}, "stages is None; expected 2 or more"),
    (TENSOROP, {"stages": 1}, "stages is 1; expected 2 or more"),
    (TENSOROP, {"alignment": 1}, "stages is 4; expected 2: cp.async moves 4 bytes or more, accesses of 1 bf16 are 2"),
    (SIMT, {"stages": 2}, "stages is 2; expected 3 or more: f32 goes by cp.async alone"),
    (TENSOROP, {"stages": 7}, "stages is 7; expected stages of 16384 bytes within 101376; found 114688 bytes"),
    (TENSOROP, {"epilogue": "bias"}, "epilogue is 'bias'; expected 'linearc', or 'linearc_' and an activation"),
    (TENSOROP, {"epilogue": "d_relu"}, "epilogue is 'd_relu'; expected 'linearc', or 'linearc_' and an activation"),
    (TENSOROP, {"schedule": "streamk", "epilogue": "linearc_relu"}, "epilogue is 'linearc_relu'; expected 'linearc': "),
    (SIMT, {"schedule": "streamk"}, "schedule is 'streamk'; expected 'tiled': stream-K is of f16 and bf16 here"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "changes", "message"), FAULTS, ids=lambda x: str(x)[:60])
def test_every_rule_has_its_fault(good, changes, message):
    assert good.faults() == ()
    found = [str(fault) for fault in replace(good, **changes).faults()]
    assert any(message in text for text in found), found


def test_all_faults_are_told_at_once():
    bad = replace(TENSOROP, b="f16", tile=(128, 128, 24), warps=(2, 2, 2), stages=1, alignment=3, epilogue="bias",
                  cluster=(2, 1, 1))  # fmt: skip
    fields = [fault.field for fault in bad.faults()]
    assert set(fields) == {"b", "tile", "warps", "stages", "alignment", "epilogue", "cluster"}
    with pytest.raises(ValueError) as refusal:
        bad.kernel()
    lines = str(refusal.value).splitlines()
    assert lines[0] == f"KernelDescription: {len(fields)} faults:"
    assert lines[1:] == [f"  {fault}" for fault in bad.faults()]
    assert not added


def test_an_unknown_name_hides_what_depends_on_it_alone():
    bad = replace(WGMMA, tile="128x128x64", cluster=(3, 1, 1), epilogue="swish", layout="rc")
    assert {fault.field for fault in bad.faults()} == {"tile", "epilogue", "layout"}
    assert {fault.field for fault in replace(bad, tile=(100, 128, 64)).faults()} == {
        "tile",
        "cluster",
        "epilogue",
        "layout",
    }


@pytest.mark.parametrize("value", [["x"], -3, {}, 2.5, "", True, (1, 2)], ids=str)
@pytest.mark.parametrize("name", [field.name for field in fields(KernelDescription)])
def test_nonsense_in_any_field_is_a_fault_of_that_field(name, value):
    for good in (WGMMA, TENSOROP):
        found = {fault.field for fault in replace(good, **{name: value}).faults()}
        allowed = {name, "warps"} | ({"tile", "stages"} if name in ("stages", "alignment", "instruction") else set())
        assert name in found and found <= allowed, found


def test_whole_numbers_of_any_kind_are_the_same_description():
    tile = [np.int64(128), np.int32(128), 32]
    given = replace(TENSOROP, tile=tile, warps=[2, 2, np.uint8(1)], stages=np.int64(4), alignment=np.int16(8))
    assert given == TENSOROP and hash(given) == hash(TENSOROP) and given.faults() == () and type(given.stages) is int
    assert all(type(x) is int for x in (*given.tile, *given.warps))
    assert replace(WGMMA, cluster=range(1, 4)).cluster == (1, 2, 3)
    assert replace(TENSOROP, tile=np.array(tile)) == TENSOROP
    for wrong in ((128.0, 128, 64), b"\x80\x80@", iter((128, 128, 64)), ()):
        assert {fault.found for fault in replace(WGMMA, tile=wrong).faults()} == {wrong}
    assert {fault.field for fault in replace(TENSOROP, stages=np.True_, warps=np.ones(2)).faults()} == {
        "stages",
        "warps",
    }
    assert {fault.field for fault in replace(TENSOROP, stages=True, tile=(True, 128, 32)).faults()} == {
        "stages",
        "tile",
    }


def test_a_fault_is_data():
    (fault,) = replace(WGMMA, tile=(96, 128, 64)).faults()
    assert fault == Fault("tile", (96, 128, 64), "m a multiple of 64: a warpgroup multiplies 64 rows")


# ---------------------------------------------------------------------------------------- a kernel like any other


NEW = replace(WGMMA, tile=(64, 80, 64), epilogue="bias_gelu", layout="tt")


@pytest.fixture
def registered():
    """A described kernel that nothing declares."""
    kernel = NEW.kernel()
    yield kernel
    added.clear()
    forget()


@pytest.mark.parametrize(
    ("a", "k", "accumulator", "d"),
    [("e4m3", 128, "f32", "bf16"), ("s8", 128, "s32", "s32"), ("tf32", 32, "f32", "f32"), ("f16", 64, "f32", "f16")],
)
def test_defaults_are_those_of_the_arithmetic(a, k, accumulator, d):
    kernel = KernelDescription(a=a, tile=(64, 128, k)).kernel()
    assert (kernel.config.accumulator, kernel.config.d) == (accumulator, d)
    assert kernel.name in named("declared") and not added


def test_a_declared_kernel_is_itself():
    kernel = kernel_named("sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear")
    assert WGMMA.kernel() is kernel and KernelDescription.of(kernel).kernel() is kernel
    assert not added
    with pytest.raises(ValueError, match="nothing is registered as"):
        unregister(kernel)


def test_a_described_kernel_is_found(registered):
    name = "sm90_gemm_bf16_bf16_f32_bf16_tt_64x80x64_1x1x1_pingpong_bias_gelu"
    assert registered.name == name and not registered.compiled
    assert NEW.kernel() is registered is kernel_named(name)
    assert get_kernels(where=lambda m: m.design.tile == (64, 80, 64), compiled=False) == [registered]
    args = problem(layout="tt", bias=cutlass_py.TensorSpec((512,), "bf16", device="cuda:63"), activation="gelu")
    assert registered in get_kernels(args, compiled=False) and registered not in get_kernels(args)
    assert registered.supports(args) and not registered.supports(problem())
    assert registered.metadata.operands["bias"].dtype == "bf16"
    assert KernelDescription.of(registered) == replace(NEW, b="bf16", accumulator="f32", d="bf16", schedule="pingpong")


def test_jit_may_choose_it_where_ours_do_not_do_the_same(registered, monkeypatch):
    """It would take minutes to compile."""
    args = problem(layout="tt", bias=cutlass_py.TensorSpec((512,), "bf16", device="cuda:63"), activation="gelu")
    product = cost.Estimates.product
    monkeypatch.setattr(
        cost.Estimates, "product", lambda self, k, splits=1: 0.5 if k is registered else product(self, k, splits)
    )
    with jit():
        assert explain(args).chosen.route.kernel is not registered
        monkeypatch.setattr(type(registered.config), "superseded", False)
        assert explain(args).chosen.route.kernel is registered
    assert explain(args).chosen is None or explain(args).chosen.route.kernel is not registered


def test_a_table_may_name_it(registered, monkeypatch):
    args = problem(layout="tt", bias=cutlass_py.TensorSpec((512,), "bf16", device="cuda:63"), activation="gelu")
    entry = tuned.Entry(registered.name, 1, 0, 1, 3.25, 13000, "none")
    monkeypatch.setattr(candidates, "lookups", lambda p, gpu: [(entry, True)])
    gpu = gpu_of(args.problem)
    choice = candidates._of_tables(args.problem, gpu, compiled=False)
    assert choice.route.kernel is registered and choice.microseconds == 3.25
    unregister(registered)
    assert candidates._of_tables(args.problem, gpu, compiled=False) is None


def test_it_can_be_unregistered(registered):
    before = len(get_kernels(compiled=False))
    number = _core.problem(*2 * [cutlass_py.TensorSpec((8, 8), "bf16")], kernel=registered).kernel
    unregister(registered.name)
    assert find(registered.name) is None and len(get_kernels(compiled=False)) == before - 1
    with pytest.raises(ValueError, match="no kernel is called"):
        _core.problem(*2 * [cutlass_py.TensorSpec((8, 8), "bf16")], kernel=registered.name)
    with pytest.raises(ValueError, match="nothing is registered as"):
        unregister(registered)
    again = NEW.kernel()
    assert again is not registered and again.name == registered.name
    assert _core.problem(*2 * [cutlass_py.TensorSpec((8, 8), "bf16")], kernel=again).kernel != number


def test_what_is_compiled_is_asked_anew(registered, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_core, "kernel_facts", lambda: {registered.name: {"stages": 4}})
        unregister(registered)
        assert NEW.kernel().compiled
        unregister(registered.name)
    assert not NEW.kernel().compiled


def test_users_epilogues_follow_what_is_described(registered):
    scaled = cutlass_py.epilogue(lambda accum, by: accum * by)
    args = problem(layout="tt", epilogue=scaled(by=2.0))
    carried = {kernel.metadata.design.tile for kernel in get_kernels(args, compiled=False)}
    assert (64, 80, 64) in carried
    unregister(registered)
    after = {kernel.metadata.design.tile for kernel in get_kernels(args, compiled=False)}
    assert after == carried - {(64, 80, 64)}


def test_what_cannot_be_unregistered():
    declared = kernel_named("sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear")
    for wrong in (declared, declared.name, "cpu_gemm_numpy"):
        with pytest.raises(ValueError, match="nothing is registered as"):
            unregister(wrong)
    for wrong in (None, [], 3):
        with pytest.raises(TypeError, match="expected a name or a Kernel"):
            unregister(wrong)


def test_its_source_is_that_of_its_values(registered):
    text = codegen.source([registered.config])
    assert "using Tile = cute::Shape<cute::_64, cute::_80, cute::_64>;" in text
    assert f"CUTLASS_PY_KERNEL({registered.name}, " in text


def test_what_is_no_cutlass_kernel_has_no_description():
    with pytest.raises(TypeError, match="<Kernel cpu_gemm_numpy> is no CUTLASS kernel"):
        KernelDescription.of(kernel_named("cpu_gemm_numpy"))


WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_a_described_kernel_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_PY_JIT", "1")
    kernel = replace(TENSOROP, tile=(64, 128, 64), stages=3, epilogue="linearc_silu", d="f32", layout="nn").kernel()
    artifact = kernel.compile()
    facts = kernel.facts
    assert artifact.library.parent == tmp_path and kernel.name in artifact.library.name
    assert (facts["tile"], facts["stages"], facts["threads"]) == ((64, 128, 64), 3, 128)
    assert (facts["a"], facts["d"], facts["layout"]) == ("bf16", "f32", "nn") and "f32" in DTYPES
    unregister(kernel)
    assert kernel not in get_kernels()
