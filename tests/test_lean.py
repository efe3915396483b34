"""Our own kernels for sm90, as nvcc compiles them. That they are right, tests/simulated says."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest
from nvcc import why_not

from cutlass_py import GemmArguments, TensorSpec, epilogue
from cutlass_py.compiling import compiler
from cutlass_py.declaration import codegen
from cutlass_py.declaration.config import GemmConfig
from cutlass_py.declaration.families import find
from cutlass_py.epilogues.specialization import specialization
from cutlass_py.functions import max as max_over
from cutlass_py.functions import sum as sum_over

WHY_NOT = why_not()
LARGEST = (
    "bf16_bf16_f32_bf16_tn_128x256x64_2x1x1_leancoop_fused",
    "bf16_bf16_f32_f32_nt_256x192x64_1x2x1_leancoopswap_fused",
    "f16_f16_f32_f16_nn_128x192x64_2x1x1_leanpingpong_fused",
    "f16_f16_f32_f16_tt_128x256x64_1x2x1_leancoop_fused",
    "bf16_bf16_f32_bf16_tt_128x256x64_2x1x1_leancoop_fused_gate",
    "f16_f16_f32_f16_tn_128x256x64_2x1x1_leancoop_fused_aux",
    "e4m3_e4m3_fast_bf16_tn_128x256x128_1x1x1_leancoop_fused_scaled",
    "bf16_bf16_f32_bf16_tn_128x256x64_2x1x1_leancoop_fusedc",
    "f16_f16_f32_f32_nn_128x256x64_2x1x1_leancoopdirectswap_fusedc",
    "bf16_bf16_f32_bf16_nt_64x64x128_1x1x1_leanpingpongunaligned_fusedc",
    "f16_f16_f32_f16_tn_128x64x64_1x1x1_leanpingpongunalignedswap_fusedc",
    "bf16_bf16_f32_bf16_nn_64x16x128_1x1x3_leanpingpongunaligned_fusedc",
    "f16_f16_f16_f16_nt_128x256x64_2x1x1_leancoopswap_fused",
    "e4m3_e4m3_f32_bf16_tn_128x192x128_1x2x1_leancoop_fused_scaled",
    "e5m2_e5m2_f32_bf16_tn_256x96x128_2x1x1_leancoop_fused_scaled",
    "e4m3_e4m3_f32_bf16_tn_128x96x128_2x1x1_leanpingpong_fused_scaled",
    "e4m3_e4m3_f32_bf16_tn_128x128x128_2x1x1_leancoopblock_fused",
    "e4m3_e4m3_f32_f32_tn_128x64x128_1x1x1_leancoopgroup_fusedc",
    "f16_f16_f32_f16_tn_128x256x64_1x1x4_leancoop_fused",
    "tf32_tf32_f32_f32_tn_128x256x32_2x1x1_leancoop_fused",
    "tf32_tf32_f32_f32_tn_128x256x32_1x2x1_leancoopswap_fusedc",
    "s8_u8_s32_s32_tn_128x256x128_1x2x1_leancoop_linear",
    "u8_u8_s32_s32_tn_128x256x128_2x1x1_leancoopdirectswap_linearc",
    "u8_s8_s32_f16_tn_128x192x128_2x1x1_leanpingpong_fused_scaled",
    "s8_s8_s32_s8_tn_128x256x128_2x1x1_leancoop_fused_scaled",
    "e4m3_e5m2_f32_e5m2_tn_256x96x128_2x1x1_leancoopswap_fused_scaled",
    "e4m3_e4m3_f32_f32_tn_128x192x128_1x2x1_leancoop_fused_scaled",
    "e4m3_e4m3_fast_e4m3_tn_128x256x128_1x1x1_leancoop_fused_scaled",
    "e4m3_e4m3_f32_e4m3_tn_128x128x128_1x1x1_leancoopdirect_fused_scaled",
)
REDUCING = (
    "bf16_bf16_f32_bf16_tn_128x256x64_2x1x1_leancoop_fused",
    "bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpong_fused",
    "e4m3_e4m3_fast_e4m3_tn_128x256x128_2x1x1_leancoop_fused_scaled",
)


def reducing(name: str) -> GemmConfig:
    """A design that keeps what it joins along both axes."""
    kept = epilogue(lambda x, bias: (x + bias, {"rows": sum_over(x, axis=-1), "columns": max_over(x, axis=-2)}))
    n = 4096
    a, b, bias, rows, columns = (
        TensorSpec(shape, dtype, device="cuda:63")
        for shape, dtype in (((n, n), "bf16"), ((n, n), "bf16"), ((n,), "bf16"), ((n, 1), "f32"), ((n,), "f32"))
    )
    args = GemmArguments(a, b, epilogue=kept(bias=bias, rows=rows, columns=columns))
    return replace(find(name), epilogue=specialization(args.problem.user).epilogue.name)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_registers_hold_everything_and_products_are_not_serialised(tmp_path):
    """The largest sums, fused and not; ptxas says so where a wgmma waits for the one before (C7510)."""
    found = [find(f"sm90_lean_{name}") for name in LARGEST] + [reducing(f"sm90_lean_{name}") for name in REDUCING]
    recipe = compiler.recipe(found[0])
    source = tmp_path / "lean.cu"
    source.write_text(codegen.source(found))
    nvcc = compiler.find_nvcc()
    assert nvcc
    flags = [flag for flag in recipe.flags if flag not in ("-shared", "-cudart=static")]
    include = [f"-I{place}" for place in recipe.include]
    command = [nvcc[0], *flags, *include, "-Xptxas=-v", "-c", str(source), "-o", str(tmp_path / "lean.o")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    kernels = [x for x in set(re.findall(r"Compiling entry function '(\w+)'", said)) if "joining_kernel" not in x]
    assert len(kernels) == len(LARGEST) + len(REDUCING)
    assert set(re.findall(r"(\d+) bytes spill", said)) == {"0"}
    assert "C75" not in said
