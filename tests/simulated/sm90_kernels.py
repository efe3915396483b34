"""Our own kernels for sm90 that the simulated GPU has, as the compiler of the host takes them: one of every kind.

Run by CMake, which says where the package's tables are; tests ask for KERNELS.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

_HALF = {
    # one block; panels of 64, 32 and 16; depths; in every layout
    "tn": ["128x128x64_1x1x1_leanpingpong", "64x16x128_1x1x1_leanpingpongswap", "128x80x64_1x1x1_leanpingpong"],
    "tt": ["64x32x128_1x1x1_leanpingpong", "128x96x64_1x1x1_leanpingpongswap", "128x80x64_1x1x1_leanpingpong"],
    "nn": ["128x128x64_1x1x1_leanpingpongswap", "128x112x64_1x1x1_leanpingpong"],
    "nt": ["128x160x64_1x1x1_leancoop", "128x80x64_1x1x1_leanpingpongswap"],
}
_CLUSTERS = {
    "tn": ["64x32x128_2x1x1_leanpingpong", "256x128x64_1x2x1_leancoop", "128x208x64_2x1x1_leancoopswap"],
    "tt": ["128x128x64_1x2x1_leanpingpong"],
    "nn": ["128x96x64_2x1x1_leanpingpong"],
    "nt": ["256x96x64_2x1x1_leancoopswap"],
}
KERNELS = [
    *(f"sm90_lean_bf16_bf16_f32_bf16_{layout}_{x}_fused" for layout, all in _HALF.items() for x in all),
    *(f"sm90_lean_f16_f16_f32_f16_{layout}_{x}_fused" for layout, all in _CLUSTERS.items() for x in all),
    *(f"sm90_lean_bf16_bf16_f32_f32_{layout}_{all[0]}_fused" for layout, all in _HALF.items()),
    *(f"sm90_lean_f16_f16_f32_f32_{layout}_{all[-1]}_fused" for layout, all in _CLUSTERS.items()),
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpongswap_fused",
    "sm90_lean_f16_f16_f32_f16_nt_128x128x64_2x1x1_leanpingpong_fused",
    "sm90_lean_f16_f16_f32_f16_nn_128x128x64_1x2x1_leanpingpongswap_fused",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpong_fusedc",
    "sm90_lean_bf16_bf16_f32_bf16_tt_128x128x64_1x2x1_leanpingpongswap_fusedc",
    "sm90_lean_f16_f16_f32_f16_tn_64x32x128_1x1x1_leanpingpongswap_fused_gate",
    "sm90_lean_f16_f16_f32_f16_nn_128x256x64_2x1x1_leancoop_fused_gate",
    "sm90_lean_bf16_bf16_f32_bf16_nt_128x128x64_1x1x1_leanpingpong_fused_aux",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_2x1x1_leanpingpongswap_fused_aux",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpong_fused_gate_bias_grad",
    "sm90_lean_f16_f16_f32_f16_tt_64x32x128_1x1x1_leanpingpongswap_fused_bias_grad",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpongdirect_fusedc",
    "sm90_lean_f16_f16_f32_f16_tt_64x32x128_1x1x1_leanpingpongdirectswap_fusedc",
    "sm90_lean_bf16_bf16_f32_f32_nt_128x256x64_2x1x1_leancoopdirect_fusedc",
    "sm90_lean_f16_f16_f32_f32_nn_128x256x64_2x1x1_leancoopdirectswap_fusedc",
    # operands that threads load: along k, along rows and columns in panels of 64, 32 and 16, in slices
    "sm90_lean_bf16_bf16_f32_bf16_tn_64x16x128_1x1x1_leanpingpongunaligned_fusedc",
    "sm90_lean_bf16_bf16_f32_bf16_tt_64x32x128_1x1x1_leanpingpongunaligned_fusedc",
    "sm90_lean_f16_f16_f32_f16_nn_64x16x128_1x1x1_leanpingpongunaligned_fusedc",
    "sm90_lean_bf16_bf16_f32_bf16_nt_64x16x128_1x1x1_leanpingpongunaligned_fusedc",
    "sm90_lean_bf16_bf16_f32_bf16_tt_128x64x64_1x1x1_leanpingpongunaligned_fusedc",
    "sm90_lean_f16_f16_f32_f16_tn_64x16x128_1x1x3_leanpingpongunalignedswap_fusedc",
    # parts whose last one lies over the one in front of it, as it does in 128x208
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x176x64_1x1x1_leanpingpong_fused",
    "sm90_lean_bf16_bf16_f32_f32_tn_128x80x64_1x1x1_leanpingpong_fused",
    # blocks share out k, evenly or not
    "sm90_lean_bf16_bf16_f32_bf16_tn_64x16x128_1x1x4_leanpingpongswap_fused",
    "sm90_lean_f16_f16_f32_f16_nn_128x96x64_1x1x3_leanpingpong_fused",
    "sm90_lean_f16_f16_f32_f16_tt_128x256x64_1x1x8_leancoop_fused",
    # a block has all slices of k, one after the other
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x4_leancoopserial_fused",
    "sm90_lean_f16_f16_f32_f16_nt_64x96x64_1x1x8_leanpingpongserialswap_fused",
    # sums in f16; promoted sums: by parts (one block of rows, and two), by turns
    "sm90_lean_f16_f16_f16_f16_tn_128x128x64_1x1x1_leanpingpong_fused",
    "sm90_lean_f16_f16_f16_f16_nt_128x256x64_2x1x1_leancoopswap_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_64x16x128_1x1x1_leanpingpongswap_fused_scaled",
    "sm90_lean_e4m3_e5m2_f32_bf16_tn_128x64x128_2x1x1_leanpingpong_fused_scaled",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x64x128_1x1x1_leancoop_fused_scaled",
    "sm90_lean_e5m2_e4m3_f32_bf16_tn_128x128x128_1x2x1_leancoopswap_fused_scaled",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_256x96x128_2x1x1_leancoop_fused_scaled",
    "sm90_lean_e5m2_e5m2_f32_bf16_tn_128x160x128_1x2x1_leancoop_fused_scaled",
    # factors in blocks
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x128x128_2x1x1_leancoopblock_fused",
    "sm90_lean_e4m3_e5m2_f32_f32_tn_64x128x128_1x1x1_leanpingpongblock_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_64x32x128_1x1x1_leanpingpongblockswap_fused",
    "sm90_lean_e5m2_e4m3_f32_f32_tn_128x32x128_1x1x1_leancoopblockswap_fusedc",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x144x128_1x2x1_leancoopblockswap_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_256x96x128_1x2x1_leancoopblockswap_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_256x64x128_2x1x1_leancoopblock_fusedc",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x112x128_1x1x1_leancoopblock_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_64x32x128_1x1x3_leanpingpongblockswap_fused",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x96x128_1x1x1_leancoopgroup_fused",
    "sm90_lean_e4m3_e4m3_fast_bf16_tn_64x32x256_1x1x1_leanpingpongswap_fused_scaled",
    "sm90_lean_e4m3_e5m2_fast_bf16_tn_128x160x128_1x1x1_leanpingpong_fused_scaled",
    "sm90_lean_e5m2_e4m3_fast_bf16_tn_256x128x128_2x1x1_leancoopswap_fused_scaled",
    # tf32
    "sm90_lean_tf32_tf32_f32_f32_tn_64x16x64_1x1x1_leanpingpongswap_fused",
    "sm90_lean_tf32_tf32_f32_f32_tn_128x192x32_2x1x1_leanpingpong_fused",
    "sm90_lean_tf32_tf32_f32_f32_tn_128x256x32_1x2x1_leancoopswap_fused",
    "sm90_lean_tf32_tf32_f32_f32_tn_64x32x64_1x1x1_leanpingpong_fusedc",
    "sm90_lean_tf32_tf32_f32_f32_tn_128x128x32_2x1x1_leanpingpongswap_fused_aux",
    "sm90_lean_tf32_tf32_f32_f32_tn_128x256x32_2x1x1_leancoopdirect_fusedc",
    # integers: every pair, and every result
    "sm90_lean_s8_s8_s32_s32_tn_64x32x256_1x1x1_leanpingpongswap_linear",
    "sm90_lean_u8_u8_s32_s32_tn_128x128x128_1x1x1_leanpingpong_linear",
    "sm90_lean_u8_u8_s32_s32_tn_256x128x128_2x1x1_leancoopswap_linear",
    "sm90_lean_s8_u8_s32_s32_tn_128x256x128_1x2x1_leancoop_linear",
    "sm90_lean_u8_s8_s32_s32_tn_128x128x128_1x1x1_leanpingpongdirectswap_linearc",
    "sm90_lean_u8_s8_s32_bf16_tn_64x64x256_1x1x1_leanpingpongswap_fused_scaled",
    "sm90_lean_s8_u8_s32_f16_tn_128x192x128_2x1x1_leanpingpong_fused_scaled",
    "sm90_lean_s8_s8_s32_f32_tn_64x256x128_1x1x1_leanpingpongswap_fused_scaled",
    # results of a byte: rows of 128, 64, 32 and 16 bytes, and turned; element by element
    "sm90_lean_s8_s8_s32_s8_tn_128x256x128_2x1x1_leancoopdirectswap_fused_scaled",
    "sm90_lean_s8_s8_s32_s8_tn_128x256x128_1x2x1_leancoop_fused_scaled",
    "sm90_lean_u8_s8_s32_s8_tn_64x16x256_1x1x1_leanpingpong_fused_scaled",
    "sm90_lean_e4m3_e4m3_f32_e4m3_tn_256x96x128_1x2x1_leancoop_fused_scaled",
    "sm90_lean_e4m3_e4m3_f32_e4m3_tn_256x80x128_2x1x1_leancoopswap_fused_scaled",
    "sm90_lean_e5m2_e4m3_f32_e5m2_tn_128x64x128_1x1x1_leanpingpong_fused_scaled",
    "sm90_lean_e4m3_e4m3_fast_e4m3_tn_256x128x128_1x2x1_leancoopswap_fused_scaled",
    "sm90_lean_e4m3_e5m2_fast_e5m2_tn_128x64x128_1x1x1_leanpingpongswap_fused_scaled",
    "sm90_lean_e4m3_e4m3_f32_e5m2_tn_128x128x128_1x1x1_leancoopdirect_fused_scaled",
    "sm90_lean_e5m2_e5m2_f32_f16_tn_128x192x128_2x1x1_leancoop_fused_scaled",
    "sm90_lean_e4m3_e5m2_f32_f32_tn_64x96x128_1x1x1_leanpingpongswap_fused_scaled",
]

# Of groups: of lines on either side, wide and narrow; of k, by turns and together. Those of test_grouped_kernels.py.
GROUPED = [
    "sm90_grouped_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingponggrouped_fused",
    "sm90_grouped_f16_f16_f32_f16_tt_64x32x128_1x1x1_leanpingponggroupedswap_fusedc",
    "sm90_grouped_bf16_bf16_f32_bf16_nn_128x256x64_1x1x1_leancoopgrouped_fused",
    "sm90_grouped_f16_f16_f32_f16_tn_128x16x128_1x1x1_leancoopgroupedswap_fused",
    "sm90_grouped_bf16_bf16_f32_f32_nt_128x128x64_1x1x1_leanpingpongdeep_fused",
    "sm90_grouped_f16_f16_f32_f16_nt_256x128x64_1x1x1_leancoopdeep_fused",
    "sm90_grouped_bf16_bf16_f32_bf16_nt_128x192x64_1x1x1_leanpingpongdeep_fused",
    # sums of fp8: promoted by parts, and by turns; fast; with factors in blocks: one for a tile's rows, for each column
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_64x32x128_1x1x1_leanpingponggroupedswap_fused_scaled",
    "sm90_grouped_e5m2_e4m3_f32_f32_tn_128x128x128_1x1x1_leancoopgrouped_fused_scaled",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x192x128_1x1x1_leancoopgroupedswap_fused_scaled",
    "sm90_grouped_e4m3_e5m2_fast_bf16_tn_128x128x128_1x1x1_leanpingponggrouped_fused_scaled",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_64x32x128_1x1x1_leanpingpongblockgroupedswap_fused",
    "sm90_grouped_e5m2_e5m2_f32_f32_tn_128x128x128_1x1x1_leancoopblockgrouped_fused",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x160x128_1x1x1_leancoopblockgroupedswap_fused",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x64x128_1x1x1_leancoopgroupgrouped_fused",
    "sm90_grouped_s8_s8_s32_s32_tn_64x32x256_1x1x1_leanpingponggroupedswap_linear",
    "sm90_grouped_s8_s8_s32_bf16_tn_128x128x128_1x1x1_leanpingponggrouped_fused_scaled",
    "sm90_grouped_tf32_tf32_f32_f32_tn_128x128x32_1x1x1_leanpingponggrouped_fused",
    # groups of k that begin and end within a line
    "sm90_grouped_e4m3_e5m2_f32_f32_tn_64x128x128_1x1x1_leanpingpongdeep_fused_scaled",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x128x128_1x1x1_leancoopdeep_fused_scaled",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x192x128_1x1x1_leancoopdeep_fused_scaled",
    "sm90_grouped_e5m2_e4m3_fast_bf16_tn_128x128x128_1x1x1_leanpingpongdeep_fused_scaled",
    "sm90_grouped_s8_s8_s32_s32_tn_128x128x128_1x1x1_leanpingpongdeep_linear",
    "sm90_grouped_tf32_tf32_f32_f32_tn_128x128x32_1x1x1_leanpingpongdeep_fused",
]

# Of gates and values, in columns or rows of a tile: forward, with aux, and backward. Those of test_gated_kernels.py.
GATED = [
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpong_fused_gated",
    "sm90_lean_f16_f16_f32_f16_tt_128x256x64_2x1x1_leancoop_fused_gated",
    "sm90_lean_f16_f16_f32_f16_tt_128x16x128_1x1x1_leanpingpongswap_fused_gated",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x32x64_1x1x1_leanpingpongswap_fused_gated_aux",
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x256x64_1x2x1_leancoop_fused_gated_aux",
    "sm90_lean_f16_f16_f32_f16_tt_128x128x64_1x2x1_leanpingpong_fused_d_gated",
    "sm90_lean_bf16_bf16_f32_bf16_tn_64x32x128_1x1x1_leanpingpongswap_fused_d_gated",
    "sm90_grouped_bf16_bf16_f32_bf16_tn_128x32x64_1x1x1_leanpingponggroupedswap_fused_gated",
    "sm90_grouped_f16_f16_f32_f16_tt_128x128x64_1x1x1_leanpingponggrouped_fused_gated_aux",
    "sm90_grouped_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingponggrouped_fused_d_gated",
    "sm90_lean_e4m3_e4m3_f32_bf16_tn_128x128x128_1x1x1_leancoop_fused_gated_scaled",
    "sm90_grouped_e4m3_e4m3_f32_bf16_tn_128x32x128_1x1x1_leanpingponggroupedswap_fused_gated_scaled",
    "sm90_grouped_e4m3_e4m3_fast_bf16_tn_128x128x128_1x1x1_leanpingponggrouped_fused_gated_scaled",
]

# Designs with epilogues of users', those of test_sm90_kernels.py.
USERS = [
    "sm90_lean_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_leanpingpong_fused",
    "sm90_lean_f16_f16_f32_f16_tt_128x96x64_1x1x1_leanpingpongswap_fused",
    "sm90_lean_f16_f16_f32_f16_nt_128x96x64_1x1x3_leanpingpong_fused",
    "sm90_lean_bf16_bf16_f32_bf16_nn_128x192x64_2x1x1_leancoop_fused",
    "sm90_lean_bf16_bf16_f32_f32_tn_64x16x128_1x1x1_leanpingpongswap_fused",
    "sm90_lean_tf32_tf32_f32_f32_tn_128x64x32_1x1x1_leanpingpong_fused",
    "sm90_lean_u8_s8_s32_f16_tn_128x128x128_1x1x1_leanpingpong_fused_scaled",
    "sm90_lean_e4m3_e5m2_fast_e5m2_tn_128x64x128_1x1x1_leanpingpongswap_fused_scaled",
]
# What their operands are: "h" a number, "s" one element, vectors along n and m, "t" matrices.
OPERANDS = {
    "mixed": {
        "scale": ("h", None),
        "bias": ("n", "f16"),
        "row": ("m", "f32"),
        "left": ("t", "bf16"),
        "aux": ("t", "f32"),
    },
    "joined": {
        "row": ("m", "f32"),
        "rows": ("m", "f32"),
        "columns": ("n", "f32"),
        "kept": ("t", "bf16"),
        "least": ("m", "f32"),
        "total": ("s", "f32"),
    },
}


def users(load: Callable[[str], Any]) -> dict[tuple[str, str], Any]:
    """Their configurations, by epilogue and design, from the package's tables as `load` has them."""
    ir, families, epilogues = (load(f"declaration.{name}") for name in ("epilogue_ir", "families", "epilogues"))
    traced, output, node = load("declaration.epilogue_cpp").Traced, ir.Output, ir.Node
    mixed = ("scale", "bias", "row", "left")
    steps = [("multiply", (1, 0)), ("add", (5, 2)), ("relu", (6,)), ("multiply", (7, 4)), ("add", (8, 3))]
    nodes = (node("accum"), *(node("input", (), name) for name in mixed), *(node(*step) for step in steps))
    programs = [ir.Program("mixed", mixed, nodes, 9, (output("aux", 6),))]
    nodes = (node("accum"), node("input", (), "row"), node("add", (0, 1)), node("relu", (2,)))
    outputs = (
        output("rows", 2, "sum", "m"),
        output("columns", 2, "max", "n"),
        output("kept", 2),
        output("least", 0, "min", "m"),
        output("total", 2, "sum", "s"),
    )
    programs.append(ir.Program("joined", ("row",), nodes, 3, outputs))
    made = {}
    for program in programs:
        of_user = epilogues.Epilogue.of_user(traced(program, tuple(OPERANDS[program.name].values())))
        made |= {(program.name, design): replace(families.find(design), epilogue=of_user.name) for design in USERS}
    return made


def source() -> str:
    """Translation units with all of them, and what adds them to the library's kernels."""
    from generate import load_module

    families, codegen = load_module("declaration.families"), load_module("declaration.codegen")
    configs = [*map(families.find, (*KERNELS, *GROUPED, *GATED)), *users(load_module).values()]
    add = "".join(f"  simulated::kernels().push_back(&cutlass_py_{c.name});\n" for c in configs)
    return (
        f"{codegen.source(configs)}\n"
        f'#include "kernels.h"\n\nstatic const bool added = [] {{\n{add}  return true;\n}}();\n'
    )


if __name__ == "__main__":
    _, cmake, out = sys.argv
    sys.path.insert(0, cmake)
    Path(out).write_text(source(), encoding="utf-8")
