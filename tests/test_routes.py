"""Routes by numbers: the first is the first of all; what was listed for one problem holds for all that are alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from random import Random

import pytest
from specs import ARITHMETICS, listed, operand, problem, vector

from cutlass_py import GemmArguments, _core, epilogue
from cutlass_py.arrays.gpu import ABSENT
from cutlass_py.declaration.dtypes import COMPUTE, DTYPES, LAYOUTS
from cutlass_py.dispatch.candidates import best, rank
from cutlass_py.kernels import registry
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import concerned
from cutlass_py.operations.gemm import routes
from cutlass_py.operations.gemm.batch_invariance import WHOLE
from cutlass_py.operations.gemm.calibration import calibration_of, instead

ALIGNED = (256, 256, 256, 16, 8, 4, 1)  # bytes


@epilogue
def stored(accum):
    return accum, {"narrow": accum}


@epilogue
def shifted(accum, matrix, column):
    return accum * matrix + column


def drawn(dtype: str, compute: str, count: int) -> list[_core.Problem]:
    """Products of few kinds, whose extents and addresses are multiples of anything."""
    r, found = Random(f"{dtype} {compute}"), []
    outputs, layouts = (COMPUTE[dtype][compute].output, r.choice(("f32", "bf16", "e4m3"))), r.sample(LAYOUTS, 2)
    while len(found) < count:
        m, n, k = (r.choice((1, 2, 4, 8, 16)) * r.choice((1, 3, 10, 37, 200)) for _ in "mnk")
        lies = {"pad": r.choice((0, 0, 0, 1, 2, 4, 8)), "batch": r.choice((None, None, None, 1, 3))}
        layout, d = r.choice(layouts), r.choice(outputs)
        aligned = [
            {"alignment": max(x, DTYPES[y].itemsize)} for x, y in zip(r.choices(ALIGNED, k=2), (dtype, d), strict=True)
        ]
        keywords = r.choice(
            (
                {},
                {"out": operand(m, n, "t", d, **lies, **aligned[1])},
                {"bias": vector(n, d)},
                {"c": operand(m, n, r.choice("ttn"), d, **lies)},
                {"activation": "relu"},
                {"splits": r.choice((2, "stream"))},
                {"deterministic": True},
                {"batch_invariant": True},
                {"epilogue": shifted(matrix=operand(m, n, "t", "bf16", **lies), column=vector(n, "f32"))},
            )
        )
        try:
            if r.random() < 0.05:
                a, b = listed(m, k, layout[0], dtype), listed(k, n, layout[1], dtype)
            else:
                a, b = operand(m, k, layout[0], dtype, **lies, **aligned[0]), operand(k, n, layout[1], dtype, **lies)
            found.append(GemmArguments(a, b, **{"compute": compute, "out_dtype": d} | keywords).problem)
        except (TypeError, ValueError):
            continue  # a combination that gemm refuses
    return found


def told(all_routes, p):
    """Every route that was listed: the kernel and what surrounds it, and what that takes."""
    estimates = routes.Estimates(p, ABSENT)

    def ask(place, kernel, parts):
        return all_routes.parts[place].kernels[kernel].microseconds(estimates, parts)

    parts = [([kernel.name for kernel in part.kernels], part.way.steps()) for part in all_routes.parts]
    return parts, p.user < 0 and all_routes.routes.find(p, True, True, ask)  # else each kernel is asked


def check(p):
    """What is kept of a problem, perhaps from another one, is what would be listed for it alone."""
    groups = concerned(p, p.user < 0)
    kept = routes._alike(p, ABSENT, groups).routes(p, ABSENT, groups)
    assert told(kept, p) == told(routes._Alike().routes(p, ABSENT, groups), p)


@pytest.mark.parametrize(("dtype", "compute"), ARITHMETICS)
def test_what_is_listed_once_holds_for_all_that_are_alike(core, dtype, compute):
    for p in drawn(dtype, compute, 400):
        check(p)


def test_the_ends_of_a_launch_tell_problems_apart(core):
    """One of a user's epilogue is of so many columns, and so many products, at most; stream-K is of one product."""
    for n, batch in ((64, 1), (1 << 22, 1), (64, 2), (64, 70000)):
        lies = {"batch": batch}
        a, b = operand(8, 64, "t", "bf16", **lies), operand(64, n, "t", "bf16", **lies)
        matrix = operand(8, n, "t", "bf16", **lies)
        for keywords in {"epilogue": shifted(matrix=matrix, column=vector(n, "f32"))}, {"splits": "stream"}, {}:
            check(GemmArguments(a, b, **keywords).problem)


@pytest.mark.parametrize(("dtype", "compute"), ARITHMETICS)
def test_the_best_is_the_first_of_all(core, dtype, compute):
    for p in drawn(dtype, compute, 60):
        assert best(p) == next(iter(rank(p)), None)


def test_what_is_kept_is_of_the_constants_and_the_kernels_of_now(core):
    p, known = problem().problem, calibration_of(ABSENT)
    before, groups = best(p), concerned(p, True)
    usual = known.sums["usual"]
    with instead(ABSENT, replace(known, sums=known.sums | {"usual": usual | {"launch": usual["launch"] + 1}})):
        assert best(p).microseconds > before.microseconds + 1
    assert best(p) == before
    registry.forget()
    assert concerned(p, True) is not groups and best(p) == before


def test_what_is_kept_is_bounded(core, monkeypatch):
    monkeypatch.setattr(routes, "_MOST_KEPT", 3)
    problems = [problem(m, 256, 64 + m, layout=layout).problem for layout in LAYOUTS for m in (1, 2, 4, 8, 16)]
    groups = concerned(problems[0], True)
    for p in problems:
        assert best(p) == rank(p)[0]
        assert len(groups.kept) <= 3 and all(len(alike.listed) <= 3 for alike in groups.kept.values())


def test_what_is_kept_of_users_epilogues_is_bounded(core, monkeypatch):
    monkeypatch.setattr(routes, "_MOST_KEPT", 3)
    for m, n, k in product((8, 16, 24), (64, 65, 66), (64, 72, 80, 81)):
        matrix, column = operand(m, n, "t", "bf16"), vector(n, "f32")
        p = problem(m, n, k, epilogue=shifted(matrix=matrix, column=column)).problem
        assert best(p) == rank(p)[0]
        groups = concerned(p, False)
        assert groups.kept and len(groups.kept) <= 3
        assert all(len(x.listed) <= 3 and len(x.parts) <= 3 * len(groups) for x in groups.kept.values())


@pytest.mark.parametrize("first", [4, 8])
def test_rows_of_what_an_epilogue_stores_may_be_no_granules(core, first):
    """Of 8 columns f16 has 16 bytes, of 4 only 8, which TMA does not write; of f32, which D is in, either are whole."""
    for n in (first, 12 - first):
        narrow = operand(64, n, "t", "f16", pad=8 - n)  # rows begin alike
        p = problem(64, n, 64, epilogue=stored(narrow=narrow), out_dtype="f32").problem
        names = [choice.route.kernel.name for choice in rank(p)]
        assert best(p).route.kernel.name == names[0]
        assert any("sm90" in name and "direct" not in name for name in names) == (n == 8)


def test_no_divisor_goes_beyond_what_is_kept(core):
    interfaces = list(concerned(problem().problem, False))
    assert max(max(each.divisors) for each in interfaces) <= WHOLE < 2 * max(max(each.divisors) for each in interfaces)


def test_a_kernel_with_an_epilogue_of_the_users_is_asked(core, monkeypatch):
    asked = []

    def microseconds(kernel, estimates, splits=1):
        asked.append(kernel)
        if len(asked) == 3:
            raise RuntimeError("enough")
        return 1e6

    monkeypatch.setattr(CutlassKernel, "microseconds", microseconds)
    matrix = operand(512, 512, "t", "bf16")
    assert best(problem().problem) and not asked
    with pytest.raises(RuntimeError, match="enough"):
        best(problem(epilogue=shifted(matrix=matrix, column=vector(512, "f32"))).problem)
    assert all(kernel.interface.epilogue.user for kernel in asked)


# ---------------------------------------------------------------------------------------- formulas


def detours(**steps: int) -> _core.Detours:
    names = ("pack_a", "pack_b", "turn_a", "turn_b", "pack_scales", "finish", "finish_sum", "sums")
    return _core.Detours(**(dict.fromkeys(names, 0) | {"turn_a": False, "turn_b": False} | steps))


def test_what_surrounds_a_kernel_takes_launches_and_bytes():
    p, beside = problem(10, 20, 300, dtype="e4m3").problem, (3.0, 2.0, 5.0, 1.0)
    assert detours().microseconds(p, 1, beside) == 0
    assert detours(pack_a=1).microseconds(p, 1, beside) == 3 + 2 * 10 * 300 / 2
    assert detours(pack_b=2, turn_b=True).microseconds(p, 1, beside) == 5 * (3 + 2 * 20 * 300 * 2 / 2)
    assert detours(pack_scales=4).microseconds(p, 1, beside) == 3 + 2 * 10 * 3 * 4 / 2
    assert detours(finish=2, finish_sum=4, sums=2).microseconds(p, 3, beside) == 6 + 10 * 20 * (2 + 3 * 4 + 2) / 2


def tiled(m: int, n: int, k: int = 640, batch: int = 1, **changes) -> float:
    usual = {
        "tile": (128, 128, 32), "resident": 2, "stream_k": False, "size": 2, "d_size": 2, "step": 0.5, "alone": 0.1,
        "fill": 1.0, "join": 4.0, "fixed": 3.0, "deal": 0.0, "memory": 1e9, "sm_count": 4,
    }  # fmt: skip
    return _core.TiledDesign(**usual | changes).microseconds(problem(m, n, k).problem, k, batch)


def test_tiles_come_in_waves():
    """Of eight tiles, two for each of four multiprocessors; what is left is shared out."""
    assert tiled(128, 128) == pytest.approx(3 + 20 * 0.5 + 1)
    assert tiled(512, 128) == tiled(1, 1) == tiled(128, 128) and tiled(512, 256) == pytest.approx(3 + 20 + 1)
    assert tiled(512, 257) == pytest.approx(3 + 30 + 2) == tiled(513, 256) == tiled(128, 128, batch=9)
    assert tiled(128, 128, 1280) == pytest.approx(tiled(128, 128) + 10)


def test_a_step_of_few_tiles_waits_for_one_warp():
    assert tiled(128, 128, alone=0.8) == pytest.approx(3 + 20 * 0.8 + 1)
    assert tiled(512, 256, alone=0.8) == tiled(512, 256)  # two beside each other take longer
    assert tiled(512, 257, alone=0.8) == pytest.approx(3 + 20 * (1 + 0.8) + 2)
    assert tiled(128, 128, alone=0.8, stream_k=True) > tiled(128, 128, stream_k=True)


def test_memory_bounds_tiles():
    moved = 2 * (128 * 640 * 2 + 128 * 128)
    assert tiled(128, 128, memory=moved / 1000) == pytest.approx(1003)
    assert tiled(128, 128, memory=moved / 11) == pytest.approx(3 + 11 * 2**0.25)


def test_what_is_dealt_out_fills_every_wave():
    dealt = [tiled(128 * tiles, 128, stream_k=True) for tiles in range(1, 14)]
    assert dealt == sorted(dealt) and dealt[8] < tiled(128 * 9, 128)
    assert tiled(128, 128, stream_k=True, deal=7.0) == dealt[0] + 7
    assert dealt[0] < tiled(128, 128)  # in parts, as many as are worth joining
