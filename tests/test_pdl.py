"""CUTLASS's kernels ask kernels/sm90/pdl.cuh when their successor may begin: an order of includes that nvcc accepts."""

from __future__ import annotations

import re
import subprocess

import pytest
from nvcc import why_not

from cutlass_py.compiling import compiler
from cutlass_py.declaration.families import find

KERNEL = "sm90_gemm_bf16_bf16_f32_bf16_tn_64x128x64_1x1x1_pingpong_linear"
WHY_NOT = why_not()


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_cutlasss_kernels_call_ours(tmp_path):
    made, (nvcc, _) = compiler.recipe(find(KERNEL), (90,)), compiler.find_nvcc()
    source = tmp_path / "kernel.cu"
    source.write_text(made.source)
    flags = [flag for flag in made.flags if flag.startswith(("-D", "-std"))]
    command = [nvcc, "-E", *flags, *(f"-I{place}" for place in made.include), str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    called = re.findall(r"arch::(launch_dependent_grids\w*)\(\);", text)
    assert len(called) >= 4 and set(called) == {"launch_dependent_grids_early"}
