"""Our own layer over sm90 against CuTe's: descriptors, where numbers lie, the text of instructions.

What CUTLASS has is read from its headers as the tests run. All designs are compared, as far as they differ in this.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from filelock import FileLock
from nvcc import why_not
from reference import NUMPY
from stand_in import ROOT

from cutlass_py.compiling import compiler
from cutlass_py.declaration import codegen
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.families import FAMILIES

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

# ---------------------------------------------------------------------------------------------------- what is compared


class Design(NamedTuple):
    """What descriptors and places depend on, of the C++ type that lean_cpp.py writes."""

    text: str
    left: str
    right: str
    d: str
    m: int
    n: int
    lines: int
    left_along: bool
    right_along: bool

    @property
    def size(self) -> int:
        """Bytes of an operand's element."""
        return DTYPES[self.left].itemsize


@cache
def source() -> str:
    return codegen.source(list(FAMILIES["sm90_lean"].declared))


@cache
def designs() -> list[Design]:
    """So many that each operand and each part of D is there, by all that it depends on, and all pairs of types."""
    known: set[Any] = set()
    kept = []
    for text in dict.fromkeys(re.findall(r"using Design = (sm90::Design<.*>);", source())):
        left, right, _, d, m, n, lines, cluster_m, cluster_n, pingpong, *rest = text[13:-1].split(", ", 18)
        _, direct, unaligned, _, _, left_along, right_along, split, epilogue = rest
        if unaligned == "true" or "sm90::Pairs::" in text:
            continue  # no box is copied to it, or two of halves; what is told to wgmma is as of the others
        left, right, d = (x.removeprefix("numbers::").lower() for x in (left, right, d))
        size = DTYPES[left].itemsize
        operands = (size, m, left_along, cluster_n, pingpong), (size, n, right_along, cluster_m, lines)
        part_of_d = d, n, direct, split == "true" or "Role::none" not in epilogue
        depends_on = {(left, right), *operands, part_of_d}
        if not depends_on <= known:
            known |= depends_on
            along = left_along == "true", right_along == "true"
            kept.append(Design(text, left, right, d, int(m), int(n), int(lines), *along))
    return kept


def cutlass() -> Path:
    include = compiler.recipe(FAMILIES["simt_gemm"].declared[0]).include
    return next(place for place in include if (place / "cute").is_dir())


class Libraries(NamedTuple):
    ours: ctypes.CDLL
    cute: ctypes.CDLL


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Libraries:
    """Both as the compiler of the host has them; once for all workers."""
    run = tmp_path_factory.getbasetemp()
    place = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "sm90_cute"
    place.mkdir(exist_ok=True)
    include = {
        "ours": (ROOT / "tests" / "simulated" / "cuda", ROOT / "tests" / "simulated", ROOT / "src" / "cpp", place),
        "cute": (cutlass(),),
    }
    nvcc = compiler.find_nvcc()
    assert nvcc
    with FileLock(place / "lock"):
        if not (place / "done").exists():
            (place / "designs.inc").write_text("".join(f"DESIGN({d.text})\n" for d in designs()))
            flags = ["-std=c++17", "-shared", "-cudart=none", "-Xcompiler=-fPIC,-w"]
            flags.append(f"-L{Path(nvcc[0]).parent.parent / 'lib'}")  # of wheels, where nvcc itself does not look
            running = []
            for name, found in include.items():
                files = ROOT / "tests" / "cpp" / f"sm90_{name}.cpp", "-o", place / f"{name}.so"
                running.append(subprocess.Popen([nvcc[0], *flags, *(f"-I{x}" for x in found), *files]))
            assert [each.wait() for each in running] == [0, 0]
            (place / "done").touch()
    return Libraries(*(ctypes.CDLL(str(place / f"{name}.so")) for name in include))


def places(*shape: int) -> np.ndarray:
    return np.full(shape, 2**32 - 1, np.uint32)


def at(x: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def cute_operand(library: ctypes.CDLL, along: bool, size: int, rows: int, blocks: int, address: int = 0) -> Any:
    """Where the numbers of a line of k lie [row, k], and descriptors [block, instruction]."""
    lies, told = places(rows * blocks, 128 // size), np.zeros((blocks, 4), np.uint64)
    library.operand(along, size, rows, blocks, address, at(lies), at(told))
    return lies, told


def test_the_designs_have_every_kind_of_operand():
    """Along k and along rows, panels of 64, 32 and 16, all types: what follows compares nothing else."""
    assert {d.m for d in designs()} == {64, 128, 256}
    assert {(d.size, d.left_along) for d in designs()} == {(1, False), (2, False), (2, True), (4, False)}
    types = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"}
    assert {d.left for d in designs()} == {d.right for d in designs()} == types
    assert {d.n for d in designs() if d.right_along} == {d.n for d in designs() if not d.right_along} >= {16, 32, 64}


# ---------------------------------------------------------------------------------------------------- descriptors


def test_descriptors_are_those_of_cute(compiled):
    """Of every block of rows, line and instruction, in the first stage and in the last one.

    Whole words: leading offsets too, which the hardware ignores along k, and of an operand in a single panel. Both
    sides give them the same value.
    """
    ours, cute = compiled
    for i, d in enumerate(designs()):
        blocks = d.m // 64
        for stage in (0, ours.stages(i) - 1):
            addresses, told = places(d.lines, 2), np.zeros((d.lines, blocks, 4, 2), np.uint64)
            ours.descriptors(i, stage, at(addresses), at(told))
            for (left, right), line in zip(addresses.tolist(), told, strict=True):
                _, expected = cute_operand(cute, d.left_along, d.size, 64, blocks, left)
                np.testing.assert_array_equal(line[..., 0], expected, f"left, {d.text}")
                _, expected = cute_operand(cute, d.right_along, d.size, d.n, 1, right)
                np.testing.assert_array_equal(line[..., 1], np.repeat(expected, blocks, 0), f"right, {d.text}")


def test_operands_are_loaded_to_where_cute_has_them_and_read_from_there(compiled):
    """What the copy engine is told, by all blocks of a cluster; what descriptors mean, as the simulated GPU has it."""
    ours, cute = compiled
    for i, d in enumerate(designs()):
        for is_left, along, rows, blocks in ((1, d.left_along, 64, d.m // 64), (0, d.right_along, d.n, 1)):
            expected, _ = cute_operand(cute, along, d.size, rows, blocks)
            loaded = places(*(expected.T if along else expected).shape)
            ours.loads(i, is_left, at(loaded))
            np.testing.assert_array_equal(loaded.T if along else loaded, expected, f"loaded, {is_left}, {d.text}")
            read = places(*expected.shape)
            ours.reads(i, is_left, ours.stages(i) - 1, at(read))
            np.testing.assert_array_equal(read, expected, f"read, {is_left}, {d.text}")


# ---------------------------------------------------------------------------------------------------- D


def cute_part(compiled: Libraries, i: int, d: Design, turned: bool) -> np.ndarray:
    """Where the numbers of a part lie, by lines of D, in the widest rows that fill them."""
    columns = compiled.ours.columns(i)
    lies = places(columns, 64) if turned else places(64, columns)
    size = DTYPES[d.d].itemsize
    compiled.cute.part(*lies.shape, size, row_bytes(lies.shape[1] * size), at(lies))
    return lies


def row_bytes(line: int) -> int:
    return next(x for x in (128, 64, 32, 16) if line % x == 0)


def test_parts_of_d_have_every_kind_of_row(compiled):
    """By the bytes of an element: what follows compares nothing else. Turned, they have those of 64 rows, or 128."""
    sizes = [DTYPES[d.d].itemsize for d in designs()]
    kinds = {(size, row_bytes(compiled.ours.columns(i) * size)) for i, size in enumerate(sizes)}
    assert kinds == {(1, 128), (1, 64), (1, 32), (1, 16), (2, 128), (2, 64), (2, 32), (4, 128), (4, 64)}
    assert {d.d for d in designs()} == {"f16", "bf16", "f32", "s32", "e4m3", "e5m2", "s8"}


def test_parts_of_d_lie_as_in_cute(compiled):
    """As the copy engine takes them, and as threads do where it does not."""
    for i, d in enumerate(designs()):
        for turned in (False, True):
            expected = cute_part(compiled, i, d, turned)
            stored = places(*expected.shape)
            if compiled.ours.stores(i, turned, at(stored)):
                np.testing.assert_array_equal(stored, expected, f"stored, {turned}, {d.text}")
            for words in (False, True):
                compiled.ours.elements(i, turned, words, at(seen := places(*expected.shape)))
                np.testing.assert_array_equal(seen, expected, f"seen, {turned}, {words}, {d.text}")


def told_apart(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Numbers up to 255 as different ones of a dtype; of a byte up to 127, whose bytes are those of finite numbers."""
    return x.astype(dtype) if dtype.itemsize > 1 else (x + (x & 64)).astype(np.uint8).view(dtype)


def test_threads_put_their_sums_where_cute_says_that_they_belong(compiled):
    """Each number stands for its row, and then for its column."""
    ours, cute = compiled
    sums = np.zeros((128, 128), np.int32)
    cute.sums(at(sums))
    for i, d in enumerate(designs()):
        columns, dtype = ours.columns(i), NUMPY[d.d]
        bits = f"u{dtype.itemsize}"
        mine = sums[:, : columns // 2]
        rows, across = np.meshgrid(np.arange(64), np.arange(columns), indexing="ij")
        for turned in (False, True):
            lies = cute_part(compiled, i, d, turned) // dtype.itemsize
            for numbers, place in ((mine % 64, rows), (mine // 64, across)):
                given = np.ascontiguousarray(told_apart(numbers, dtype), np.float32)
                put = np.zeros(64 * columns, bits)
                ours.put(i, turned, at(given), at(put))
                found, expected = put[lies.T if turned else lies], told_apart(place, dtype).view(bits)
                np.testing.assert_array_equal(found, expected, f"{turned}, {d.text}")


# ---------------------------------------------------------------------------------------------------- instructions


class Assembly(NamedTuple):
    """An asm statement: its text, and what its operands are bound to (constraint, C++)."""

    text: str
    operands: list[tuple[str, str]]

    def statements(self) -> Iterator[tuple[str, str]]:
        """Instructions without their guards and jumps: name, operands as they stand."""
        for statement in self.text.split(";"):
            begins = r"[{}\s]+|\w+:(?!:)|@!?%?\w+\s"  # a block, a label, a guard
            plain = re.sub(rf"^(?:{begins})+", "", statement).strip()
            if plain and not plain.startswith((".reg", "bra ")):
                name, _, operands = plain.partition(" ")
                yield name, re.sub(r"\s", "", operands)

    def forms(self) -> Iterator[tuple[str, str]]:
        """Instructions with kinds of registers in the place of operands."""
        kinds = {"b32": "r", "u32": "r", "b64": "l", "u64": "l"}
        named = {
            name: kinds.get(kind, kind)
            for kind, names in re.findall(r"\.reg\s+\.(\w+)\s+([^;]+);", self.text)
            for name in re.findall(r"[%\w]+", names)
        }
        for name, operands in self.statements():
            bound = re.sub(r"%(\d+)", lambda x: self.operands[int(x[1])][0].strip("=+&"), operands)
            yield name, re.sub(r"[%\w]+", lambda x: named.get(x[0], x[0]), bound)


def split(text: str, separator: str) -> list[str]:
    """Where the separator is in no parentheses and in no string."""
    pieces, depth = [""], 0
    for token in re.findall(r'"(?:[^"\\]|\\.)*"|[^"]', text):
        depth += (token == "(") - (token == ")")
        if token == separator and not depth:
            pieces.append("")
        else:
            pieces[-1] += token
    return pieces


def assemblies(text: str) -> Iterator[Assembly]:
    text = re.sub(r"//[^\n]*|/\*.*?\*/|\\\n", "", text, flags=re.DOTALL)
    for begin in re.finditer(r"\basm\s*(?:volatile)?\s*\(", text):
        end, depth = begin.end(), 1
        for token in re.finditer(r'"(?:[^"\\]|\\.)*"|[()]', text[begin.end() :]):
            depth += (token[0] == "(") - (token[0] == ")")
            if not depth:
                end += token.start()
                break
        said, *bound = split(text[begin.end() : end], ":")
        literals = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', said))
        words = literals.replace("\\n", "\n").replace("\\t", " ").replace("%%", "%")
        operands = [re.fullmatch(r'\s*"([^"]+)"\s*\((.*)\)\s*', x, re.DOTALL) for x in split(",".join(bound[:2]), ",")]
        yield Assembly(words, [(x[1], "".join(x[2].split())) for x in operands if x])


@cache
def products_of_cute() -> str:
    names = ("mma_sm90_gmma.hpp", "mma_sm90_gmma_ext.hpp")
    return "".join((cutlass() / "cute" / "arch" / name).read_text() for name in names)


def enumerator(name: str, value: str) -> int:
    found = re.search(rf"enum class {name}\b[^}}]*\b{value}\s*=\s*(-?\d+)", products_of_cute())
    assert found
    return int(found[1])


def test_products_are_those_of_cute():
    """Names and types, registers, whether sums are added to, signs, and which way operands lie."""
    said = source()
    heads = list(re.finditer(r"struct Wgmma<numbers::(\w+), numbers::(\w+), Sum(\w+), (\d+), (\w+), (\w+)>", said))
    assert len(heads) == said.count("struct Wgmma<") > 200
    assert {int(head[4]) for head in heads} == {d.n for d in designs()}
    assert {x.lower() for head in heads for x in head.groups()[:2]} == {x for d in designs() for x in (d.left, d.right)}
    one = enumerator("ScaleIn", "One")
    for head in heads:
        a, b, sums, n = (x.lower() for x in head.groups()[:4])
        size = DTYPES[a].itemsize
        name = f"MMA_64x{n}x{32 // size}_{(sums + a + b).upper()}_SS{'' if size == 2 else '_TN'}"
        begin = products_of_cute().index(f"struct {name}\n")
        theirs = next(assemblies(products_of_cute()[begin : products_of_cute().index("#else", begin)]))
        ours = next(assemblies(said[head.end() : said.index("wait_but", head.end())]))

        (_, condition), (instruction, operands) = theirs.statements()
        registers, their_a, their_b, predicate, *rest = split_operands(operands)
        count = registers.count("%")
        assert condition == f"{predicate},%{count + 2},0" and theirs.operands[count + 2][1] == "int32_t(scale_D)"
        assert [theirs.operands[int(x[1:])] for x in (their_a, their_b)] == [("l", "desc_a"), ("l", "desc_b")]
        value = {"int32_t(scaleA)": one, "int32_t(scaleB)": one}
        value |= {
            f"int32_t(tnsp{x})": enumerator("Major", "MN" if along == "true" else "K")
            for x, along in zip("AB", head.groups()[4:], strict=True)
        }
        immediates = [value[theirs.operands[int(x[1:])][1]] for x in rest]
        kinds = [kind for kind, _ in theirs.operands[:count]]

        assert [kind for kind, _ in ours.operands[:count]] == kinds
        assert [x for _, x in ours.operands[:count]] == [f"sums[{i}]" for i in range(count)]
        steps = f"next_bytes<{head[5]},64>()", f"next_bytes<{head[6]},panel_of({n})>()"
        bound = [("l", "a"), ("l", "b"), ("r", "accumulate"), *(("n", step) for step in steps)]
        assert ours.operands[count:] == bound
        values = {f"%{count}": ("a", 0), f"%{count + 1}": ("b", 0)}  # descriptors, and how many steps on
        predicates, done = {}, 0
        for name_of, text in ours.statements():
            to, *others = split_operands(text)
            if name_of.startswith("setp"):
                predicates[to] = name_of, *others
            elif name_of == "add.s64":
                which, steps_on = values[others[0]]
                assert others[1] == f"%{count + (3 if which == 'a' else 4)}"
                values[to] = which, steps_on + 1
            else:
                left, right, predicate, *last = others
                assert (name_of, to, [*map(int, last)]) == (instruction, registers, immediates), name
                assert (values[left], values[right]) == (("a", done), ("b", done))
                first = "setp.ne.b32", f"%{count + 2}", "0"
                assert predicates[predicate] == (("setp.eq.b32", "0", "0") if done else first)
                done += 1
        assert done == 4


def split_operands(text: str) -> list[str]:
    return re.findall(r"\{[^}]*\}|[^,{}]+", text)


HEADERS = (
    *(f"cute/arch/{x}.hpp" for x in ("cluster_sm90", "copy_sm75", "copy_sm80", "copy_sm90")),
    *(f"cute/arch/copy_sm90_{x}.hpp" for x in ("desc", "tma")),
    *(f"cutlass/arch/{x}.h" for x in ("barrier", "grid_dependency_control", "memory", "memory_sm75", "reg_reconfig")),
    "cutlass/numeric_conversion.h",
)
# Ours that CUTLASS has in no form, or in another one.
OWN = {
    # CUTLASS's have .aligned, which asks for all threads of a warp at once: ours promises less.
    "barrier.cluster.arrive": "",
    "barrier.cluster.arrive.relaxed": "",
    "barrier.cluster.wait": "",
    # Bits without a type, for CUTLASS's .u16 and .u32; f32 by four; and from another block's memory.
    "ld.shared.b16": "h,[r]",
    "ld.shared.b32": "r,[r]",
    "ld.shared.v4.f32": "{f,f,f,f},[r]",
    "st.shared.b16": "[r],h",
    "st.shared.b32": "[r],r",
    "st.shared.v2.b32": "[r],{r,r}",
    "st.shared.v4.b32": "[r],{r,r,r,r}",
    "st.shared.v4.f32": "[r],{f,f,f,f}",
    "ld.shared::cluster.v4.f32": "{f,f,f,f},[r]",
    # CUTLASS has none of a byte.
    "ld.shared.u8": "h,[r]",
    "st.shared.u8": "[r],h",
    # CUTLASS has CUDA's functions, and variables.
    "mov.u32": "r,%tid.x",
    "cvt.rn.f16x2.f32": "r,f,f",
}


def usual(form: tuple[str, str]) -> tuple[str, str]:
    """Without hints for the cache; what stmatrix and ldmatrix are told in one order, for PTX takes several."""
    name, operands = form
    name = name.removesuffix(".L2::128B")
    if name.endswith(".L2::cache_hint"):
        name, operands = name.removesuffix(".L2::cache_hint"), operands.removesuffix(",l")
    if "matrix." in name:
        name = ".".join(sorted(name.split(".")))
    return name, operands


@cache
def instructions_of_cutlass() -> list[Assembly]:
    texts = [(cutlass() / header).read_text() for header in HEADERS]
    texts.append(products_of_cute()[: products_of_cute().index("struct MMA_")])
    return [x for text in texts for x in assemblies(text)]


@cache
def instructions_cuh() -> str:
    return (ROOT / "src" / "cpp" / "kernels" / "sm90" / "instructions.cuh").read_text()


@cache
def our_instructions() -> list[Assembly]:
    found = list(assemblies(instructions_cuh()))
    assert len(found) == len(re.findall(r"\basm\b", instructions_cuh()))
    return found


def test_other_instructions_are_those_of_cutlass():
    """Each has a form there, by name and by kinds of operands, or is among the exceptions; of those none is idle."""
    theirs = {usual(form) for x in instructions_of_cutlass() for form in x.forms()}
    ours = {form for x in our_instructions() for form in x.forms()}
    assert {form for form in ours if usual(form) not in theirs} == set(OWN.items())


def pairs_packed(found: list[Assembly]) -> Iterator[tuple[str, str, str]]:
    """Instructions that make a register of two numbers: name, and both as C++ names them."""
    for x in found:
        for name, operands in x.statements():
            two = re.fullmatch(r"%?\w+,%(\d+),%(\d+)(,\w+)?", operands)
            if name.startswith("cvt.") and two:
                yield name, x.operands[int(two[1])][1], x.operands[int(two[2])][1]


def test_pairs_are_packed_in_the_order_of_cutlass():
    """The number that comes second in memory stands first in the instruction."""
    ours = list(pairs_packed(our_instructions()))
    assert len(ours) == 5 and all("high" in first and "low" in second for _, first, second in ours)
    names, compared = {name for name, *_ in ours}, set()
    for name, *pair in pairs_packed(instructions_of_cutlass()):
        if name in names:
            first, second = (int(re.findall(r"\[(\d+)\]", x)[-1]) for x in pair)
            assert first == second + 1, name
            compared.add(name)
    assert compared == names - OWN.keys()


def test_pairs_are_packed_as_what_they_are_of():
    """Each in the branch of its type; the one that is left over is f16's."""
    typed = re.findall(r'numbers::(\w+)>\)[^"]*"(cvt\.[\w.]+)', instructions_cuh())
    assert sorted(x for x, _ in typed) == ["Bf16", "E4m3", "E5m2", "S8"]
    assert all(re.search(rf"\.{x.lower()}(x2)?\.", name) for x, name in typed)
    assert {name for name, *_ in pairs_packed(our_instructions())} - {name for _, name in typed} == {"cvt.rn.f16x2.f32"}
