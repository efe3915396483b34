"""The declaration tables: names, sources, what `core` holds, and that compiled kernels are what was declared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from cutlass_py import _core
from cutlass_py.declaration import codegen, families
from cutlass_py.declaration.config import SCHEDULES, GemmConfig
from cutlass_py.declaration.dtypes import ARITHMETICS, COMPUTE, DTYPES, LAYOUTS, PAIRS, STORAGE, WIDER
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.operations.gemm.legality import interface_of

CONFIGS = families.named("declared")
CORE = [c for f in families.families().values() for c in f.core]
# What tells one piece of generated text from another: a kernel of each.
KINDS = list({(c.family, c.a, c.b, c.accumulator, c.d, c.schedule, c.epilogue): c for c in CONFIGS.values()}.values())
LEAN = [c for c in KINDS if SCHEDULES[c.schedule].lean]  # our own, not of CUTLASS's types
FACTS = _core.kernel_facts()
_FP8_PAIRS = list(product(("e4m3", "e5m2"), repeat=2))
ROOT = Path(__file__).resolve().parent.parent


def test_names_are_unique():
    distinct = {c for f in families.families().values() for c in f.declared}
    repeated = [name for name, count in Counter(c.name for c in distinct).items() if count > 1]
    assert not repeated
    assert len(CONFIGS) == len(distinct)


def test_a_kernel_is_found_by_its_name():
    for c in (CORE[0], *(f.declared[-1] for f in FAMILIES.values())):
        assert families.find(c.name) == c
    assert families.find("sm90_gemm_typo") is None


def test_names_are_identifiers_that_read_from_general_to_particular():
    accumulator = "f16|f32|f64|s32|c64|c128|fast"
    dtype = r"[a-z]+\d+\w*?"
    pattern = rf"([a-z]+\d*_\w+?)_({dtype})_({dtype})_({accumulator})_(\w+?)_([tn]{{2}})_\d+x\d+x\d+_.+"
    for name, c in CONFIGS.items():
        match = re.fullmatch(pattern, name)
        assert match and name.isidentifier(), name
        assert match.groups() == (c.family, c.a, c.b, c.accumulator, c.d, c.layout)
        assert name.endswith(f"_{c.epilogue}")


def test_every_field_of_a_kernel_is_declared():
    for c in CONFIGS.values():
        family = FAMILIES[c.family]
        assert c.api == family.api and c.schedule in SCHEDULES
        assert {c.a, c.b, c.d, c.accumulator} <= set(DTYPES) and c.layout in LAYOUTS and c.epilogue in EPILOGUES
        assert c.d in STORAGE, f"{c.name} writes {c.d}, which no array holds"
        if family.api == 3:
            assert not c.stages and not c.align
            swap, bits = SCHEDULES[c.schedule].swap, DTYPES[c.a].bits
            assert c.layout == "tn" or bits in (16, 64) or (bits, c.layout) == (32, "tt" if swap else "nn"), c.name
        elif family.api == 2:
            assert c.stages >= 2 and c.align and c.cluster == (1, 1, 1)
            assert all(tile % warp == 0 for tile, warp in zip(c.tile, c.warp, strict=True)), c.name


def test_every_arithmetic_is_asked_for_by_some_compute():
    asked = {(x.operand, x.accumulator) for x in ARITHMETICS}
    assert {(c.a, c.accumulator) for c in CONFIGS.values()} == asked
    assert {(c.b, c.accumulator) for c in CONFIGS.values()} == asked


def test_operands_that_differ_are_a_pair():
    pairs = {frozenset((c.a, c.b)) for c in CONFIGS.values() if c.a != c.b}
    assert pairs == set(map(frozenset, PAIRS))


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_every_schedule_is_used(name):
    declared = {**CONFIGS, **families.named("declared", "grouped_gemm")}
    assert any(c.schedule == name for c in declared.values())


@pytest.mark.parametrize("name", list(EPILOGUES))
def test_every_epilogue_is_used(name):
    declared = {**CONFIGS, **families.named("declared", "grouped_gemm")}
    assert any(c.epilogue == name for c in declared.values())


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_kernels_of_its_own(name):
    assert {c.family for c in FAMILIES[name].declared} == {name}


def test_two_stages_where_cp_async_cannot_move_so_little():
    narrow = [c for c in CONFIGS.values() if c.family == "sm80_gemm" and c.align * DTYPES[c.a].itemsize < 4]
    assert narrow and all(c.stages == 2 for c in narrow)


# ---------------------------------------------------------------------------------------- core


def test_core_is_as_large_as_minutes_allow():
    """In core-seconds of two cores, as measured (docs/decisions/0054): our own by functions, of which kernels share."""
    functions = len({FAMILIES["sm90_lean"].function(c) for c in FAMILIES["sm90_lean"].core})
    others = Counter(FAMILIES[c.family].api for c in CORE if c.family != "sm90_lean")
    assert 400 <= functions <= 850 and 90 <= others[2] <= 160 and others[3] <= 4


def test_many_designs_for_the_commonest_problem():
    designs = {(c.tile, c.cluster, c.schedule) for c in FAMILIES["sm90_lean"].core if (c.a, c.layout) == ("bf16", "tn")}
    assert len(designs) >= 60
    assert any(SCHEDULES[schedule].swap and tile[1] <= 16 for tile, _, schedule in designs), "none for small m"


@pytest.mark.parametrize(("dtype", "layout"), list(product(("bf16", "f16"), LAYOUTS)))
def test_core_has_tma_kernels_for_each_layout(dtype, layout):
    mine = [c for c in FAMILIES["sm90_lean"].core if (c.a, c.layout, c.d) == (dtype, layout, dtype)]
    assert {SCHEDULES[c.schedule].tma_store for c in mine} == {True, False}


def test_a_layer_of_core_fuses_what_frameworks_ask_for():
    fused = {(c.a, c.layout, c.epilogue) for c in FAMILIES["sm90_lean"].core}
    asked = {(layout, "fused") for layout in LAYOUTS} | {(layout, "fusedc") for layout in LAYOUTS}
    beside = ("fused_gate", "fused_aux", "fused_gated", "fused_gated_aux", "fused_d_gated")
    asked |= {(layout, e) for layout in ("tn", "tt") for e in beside}
    assert {(dtype, *each) for dtype in ("bf16", "f16") for each in asked} <= fused


@pytest.mark.parametrize("pair", _FP8_PAIRS, ids="_".join)
def test_core_multiplies_every_pair_of_fp8_by_tma(pair):
    mine = [c for c in FAMILIES["sm90_lean"].core if (c.a, c.b) == pair]
    assert {(c.accumulator, bool(SCHEDULES[c.schedule].block)) for c in mine} == {
        ("f32", False),
        ("fast", False),
        ("f32", True),
    }


def test_kernels_of_one_function_stand_in_one_file():
    """Or it would be compiled twice."""
    written = "import sys; sys.path.insert(0, 'cmake'); import generate\n"
    written += "f = generate.load_module('declaration.families'); family = f.FAMILIES['sm90_lean']\n"
    written += "files = [set(map(family.function, part)) for part in generate.split(family, list(family.core))]\n"
    written += "print(sum(map(len, files)), len(set().union(*files)), max(map(len, files)))"
    found = subprocess.run([sys.executable, "-I", "-c", written], cwd=ROOT, capture_output=True, text=True, check=True)
    compiled, distinct, most = map(int, found.stdout.split())
    assert compiled == distinct and most <= FAMILIES["sm90_lean"].per_file


@pytest.mark.parametrize(("dtype", "layout"), list(product(("f16", "bf16", "tf32"), LAYOUTS)))
def test_alignment_ladder_reaches_one_element(dtype, layout):
    output = {"tf32": "f32"}.get(dtype, dtype)
    rungs = {c.align for c in CORE if (c.family, c.a, c.layout, c.d) == ("sm80_gemm", dtype, layout, output)}
    vector = 16 // DTYPES[dtype].itemsize
    assert {1, vector} <= rungs <= {vector >> i for i in range(vector.bit_length())}


@pytest.mark.parametrize(("compute", "layout"), list(product(("f32", "f64", "c64", "c128", "tf32x3"), LAYOUTS)))
def test_scalar_families_take_any_alignment(compute, layout):
    assert any(c.a == compute and c.layout == layout and c.align == 1 for c in CORE)


@pytest.mark.parametrize("pair", list(product(("s8", "u8"), repeat=2)), ids="_".join)
def test_integers_of_any_alignment_have_kernels_since_sm80(pair):
    rungs = {c.align for c in CORE if (c.family, c.a, c.b, c.layout) == ("sm80_gemm", *pair, "tn")}
    assert 16 in rungs and 1 in rungs


def test_core_computes_every_arithmetic_and_finishes_it_elsewhere():
    """Under the composed epilogue: what no kernel fuses works without a compiler."""
    finishable = {(i.a, i.b, i.accumulator) for i in map(interface_of, CORE) if i.finishable}
    for row in COMPUTE.values():
        for x in row.values():
            accumulator = WIDER.get(x.accumulator, x.accumulator)
            partners = [x.operand, *(b for pair in PAIRS for b in pair if x.operand in pair)]
            assert {(x.operand, b, accumulator) for b in partners} <= finishable


# ---------------------------------------------------------------------------------------- sources


@pytest.mark.parametrize("config", KINDS, ids=[c.name for c in KINDS])
def test_source_is_whole(config: GemmConfig):
    text = codegen.source([config])
    assert text.splitlines()[config.dear_header] == f'#include "{FAMILIES[config.family].header}"'
    assert text.count("{") == text.count("}") and text.count("<") == text.count(">")
    assert "None" not in text and "{" + "}" not in text
    assert f"struct config_{config.name} {{" in text
    assert re.search(rf"^CUTLASS_PY_KERNEL\({config.name}, .*config_{config.name}>\)$", text, re.M)


GEMV = [c for c in KINDS if SCHEDULES[c.schedule].gemv]


@pytest.mark.parametrize("config", GEMV, ids=lambda c: c.name)
def test_source_for_few_rows_says_what_the_config_says(config: GemmConfig):
    fields = dict(re.findall(r"(?:using|static constexpr \w+) (\w+) = (.+);", codegen.source([config])))
    assert [fields[x] for x in "ABD"] == [f"numbers::{_TAGS[_storage(x)]}" for x in (config.a, config.b, config.d)]
    assert fields["d"] == f"Dtype::{config.d}"
    flags = {"a_along": config.layout[0] == "n", "b_along": config.layout[1] == "t"}
    flags["swap"] = config.schedule == "columns"
    assert {name: fields[name] for name in flags} == {name: str(x).lower() for name, x in flags.items()}


@pytest.mark.parametrize("config", [c for c in KINDS if c not in LEAN + GEMV], ids=lambda c: c.name)
def test_source_says_what_the_config_says(config: GemmConfig):
    text = codegen.source([config])
    fields = dict(re.findall(r"(?:using|static constexpr \w+) (\w+) = (.+);", text))
    assert fields["Accumulator"] == DTYPES[config.accumulator].cpp
    assert fields["A"] == DTYPES[config.a].cpp and fields["D"] == DTYPES[config.d].cpp
    assert re.findall(r"\d+", fields["Tile"]) == [str(x) for x in config.tile]
    assert fields["LayoutA"].endswith("RowMajor" if config.layout[0] == "t" else "ColumnMajor")
    assert fields["LayoutB"].endswith("RowMajor" if config.layout[1] == "t" else "ColumnMajor")


_TAGS = {"bf16": "Bf16", "f16": "F16", "f32": "F32", "tf32": "Tf32", "e4m3": "E4m3", "e5m2": "E5m2"}
_TAGS |= {"f64": "F64", "s8": "S8", "u8": "U8", "s32": "S32"}


@pytest.mark.parametrize("config", LEAN, ids=lambda c: c.name)
def test_source_of_our_own_says_what_the_config_says(config: GemmConfig):
    """With a swap the left operand is B, which lies along its rows where it is row-major."""
    text = codegen.source([config])
    swap, epilogue = SCHEDULES[config.schedule].swap, EPILOGUES[config.epilogue]
    left, right, sums, d, *numbers = re.search(r"sm90::Design<(.+?), sm90::Fused", text).group(1).split(", ")
    dtypes = (config.b, config.a, config.d) if swap else (config.a, config.b, config.d)
    assert [left, right, d] == [f"numbers::{_TAGS[x]}" for x in dtypes]
    assert sums == f"sm90::Sum{_TAGS[DTYPES[config.accumulator].stored]}"
    along = [config.layout[0] == "n", config.layout[1] == "t"][:: -1 if swap else 1]
    lines = config.tile[2] * DTYPES[config.a].itemsize // 128
    block = SCHEDULES[config.schedule].block
    groups = [0, 0] if not block else [1, block][:: -1 if swap else 1]
    promoted = DTYPES[config.a].bits == 8 and config.accumulator == "f32"
    unaligned = "unaligned" in config.schedule
    ways = ["pingpong" in config.schedule, promoted, unaligned or "direct" in config.schedule, unaligned]
    slices = "none" if config.cluster[2] == 1 else "serial" if "serial" in config.schedule else "by_block"
    shape = [*config.tile[:2], lines, *config.cluster[:2], *ways, *groups, *along]
    assert numbers == [*(str(x).lower() for x in shape), f"sm90::Slices::{slices}"]
    pairs = f", sm90::Pairs::{'left' if swap else 'right'}>" if epilogue.pairs == "b" else ">"
    assert f"{str(epilogue.bias_grad).lower()}>{', sm90::Grouping::none' if pairs != '>' else ''}{pairs}" in text
    assert f"static constexpr bool swap = {str(swap).lower()};" in text
    assert f"static constexpr int slices = {config.cluster[2]};" in text
    bias = f"numbers::{_TAGS[config.bias]}" if epilogue.bias else "void"
    role = "source" if epilogue.source else "gate" if epilogue.gated else "aux" if epilogue.aux else "none"
    if epilogue.pairs:
        role = {"gate": "d_gated", "aux": "gated_aux", "none": "gated"}[role]
    fused = f"{d}, {bias}, {str(epilogue.scaled).lower()}"
    assert f"sm90::Fused<{fused}, sm90::Role::{role}, {str(epilogue.bias_grad).lower()}>" in text
    instruction = f"wgmma.mma_async.sync.aligned.m64n{config.tile[1]}k{256 // DTYPES[config.a].bits}."
    assert text.count(instruction) == 4 + 1 and f"{instruction}{sums[-3:].lower()}.{dtypes[0]}.{dtypes[1]} " in text


def test_one_file_includes_its_header_once():
    kernels = FAMILIES["simt_gemm"].core
    text = codegen.source(list(kernels))
    assert text.count("#include") == 1
    assert text.count("CUTLASS_PY_KERNEL(") == len(kernels)


def test_widths_that_cute_has_on_request_are_asked_for_and_stand_apart(tmp_path):
    """Without, a tile of 160 columns would be multiplied 32 at a time; with, every file takes a minute longer."""
    asks = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED\n"
    usual = (8, 16, 32, 64, 96, 128, 192, 256)
    for c in CONFIGS.values():
        if c.api == 3 and c.epilogue == "linear" and not SCHEDULES[c.schedule].lean:
            assert codegen.source([c]).startswith(asks) == (c.tile[1] not in usual), c.name
    names = tmp_path / "names.txt"
    plain = [c for c in FAMILIES["sm90_gemm"].declared if (c.a, c.layout, c.epilogue) == ("bf16", "tn", "linear")]
    names.write_text("".join(f"{c.name}\n" for c in plain))
    written = (
        "import re, sys; sys.path.insert(0, 'cmake'); import generate\n"
        "f = generate.load_module('declaration.families')\n"
    )
    written += "for text in generate.library(f, f.select(sys.argv[1], ['90a'])).values():\n"
    written += "    widths = {int(width) for width in re.findall('x([0-9]+)x[0-9]+_[0-9]x[0-9]x[0-9]_', text)}\n"
    written += f"    print(bool(widths - {set(usual)}), 'EXTENDED' in text, 256 in widths)"
    command = [sys.executable, "-I", "-c", written, os.fspath(names)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    kinds = {tuple(word == "True" for word in line.split()) for line in found.stdout.splitlines()[:-2]}
    assert {kind[:2] for kind in kinds} == {(True, True), (False, False)} and (True, True, True) not in kinds


def test_families_that_are_compiled_alike_share_files():
    written = (
        "import sys; sys.path.insert(0, 'cmake'); import generate\n"
        "f = generate.load_module('declaration.families')\n"
        "files = generate.library(f, f.select('core', ['80', '90a']))\n"
        "print(*(name for name, text in files.items() if 'CUTLASS_PY_KERNEL(simt_gemm_' in text))"
    )
    found = subprocess.run([sys.executable, "-I", "-c", written], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() and all(name.startswith("sm80_gemm_") for name in found.stdout.split())


def test_void_c_for_epilogues_without_source():
    for c in FAMILIES["sm90_gemm"].declared:
        epilogue = EPILOGUES[c.epilogue]
        assert ("using C = void;" in codegen.source([c])) == (not epilogue.source and not epilogue.gated)


def test_tables_load_outside_of_the_package():
    """The build reads them before the package exists: standard library only."""
    code = (
        "import sys, types; package = types.ModuleType('tables'); package.__path__ = [sys.argv[1]];"
        "sys.modules['tables'] = package; from tables import codegen, families, shared_memory;"
        "assert not {'cutlass_py', 'numpy'} & set(sys.modules); print(len(families.named('declared')))"
    )
    command = [sys.executable, "-I", "-c", code, os.path.dirname(families.__file__)]
    assert int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) == len(CONFIGS)


# ---------------------------------------------------------------------------------------- select


def test_select_by_architecture():
    everything = families.select("core", ["80", "90a"])
    assert set(everything) == {c for family in FAMILIES.values() for c in family.core}
    only = families.select("core", ["80"])
    assert only and {FAMILIES[c.family].arch for c in only} == {"80"}
    assert set(families.select("core", ["90a"])) == set(everything) - set(only)


def test_select_from_a_file(tmp_path):
    names = [c.name for c in (CORE[0], CORE[-1])]
    path = tmp_path / "kernels.txt"
    path.write_text(f"# two kernels\n{names[1]}  # the last\n\n{names[0]}\n{names[1]}\n")
    assert [c.name for c in families.select(os.fspath(path), ["80", "90a"])] == [names[1], names[0]]


def test_select_refuses_an_unknown_architecture():
    with pytest.raises(ValueError, match=r"CUTLASS_PY_ARCHS: '75' is not one of 80, 90a"):
        families.select("core", ["80", "75"])


def test_select_refuses_an_unknown_kernel(tmp_path):
    path = tmp_path / "kernels.txt"
    path.write_text("sm90_gemm_typo\n")
    with pytest.raises(ValueError, match="no kernel is called 'sm90_gemm_typo'") as error:
        families.select(os.fspath(path), ["80"])
    assert os.fspath(path) in str(error.value)


def test_select_refuses_a_set_that_does_not_exist():
    with pytest.raises((ValueError, OSError), match="cores"):
        families.select("cores", ["80"])


# ---------------------------------------------------------------------------------------- compiled


def _storage(dtype: str) -> str:
    return DTYPES[dtype].storage or dtype


@pytest.mark.skipif(not FACTS, reason="the package was built without kernels")
@pytest.mark.parametrize("name", [name for name in FACTS if name in CONFIGS])
def test_compiled_kernels_are_what_was_declared(name):
    c, facts = CONFIGS[name], FACTS[name]
    family, epilogue = FAMILIES[c.family], EPILOGUES[c.epilogue]
    source = c.d if epilogue.source or epilogue.gated else "void"
    vector = interface_of(c).align_a
    declared = {
        "a": _storage(c.a), "b": _storage(c.b), "accumulator": _storage(c.accumulator), "d": c.d,
        "c": source, "layout": c.layout, "api": family.api, "tile": c.tile,
        "cluster": c.cluster, "align_a": vector, "align_b": vector, "align_c": c.align_d, "align_d": c.align_d,
        "pointers": interface_of(c).takes_lists,
    }  # fmt: skip
    if c.stages:
        declared["stages"] = c.stages
    assert {key: facts[key] for key in declared} == declared
    assert facts["threads"] in range(32, 1025, 32)
    assert 0 < facts["smem_bytes"] <= 227 << 10 and facts["stages"] >= (2 if c.api else 1)


@pytest.mark.skipif(not FACTS, reason="the package was built without kernels")
def test_the_built_set_is_the_one_recorded():
    build = _core.build_info()
    if build["kernels"] != "core":
        pytest.skip(f"built from a list: {build['kernels']}")
    archs = build["archs"].replace(",", ";").split(";")
    assert set(FACTS) == {c.name for c in families.select("core", archs)}
