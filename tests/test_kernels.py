"""Kernels as values: what each takes and why not, routes and detours, coverage of every shape, ranking, explain."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_py import (
    GemmArguments,
    Kernel,
    NoKernelError,
    Status,
    TensorSpec,
    _core,
    explain,
    get_kernels,
)
from cutlass_py.cost import estimate
from cutlass_py.families import DTYPES, EPILOGUES, FAMILIES, LAYOUTS, SCHEDULES, KernelConfig
from cutlass_py.gpu import ABSENT, Gpu, gpu_of
from cutlass_py.kernels import CutlassKernel, Route, all_kernels, number_of
from cutlass_py.select import plan, rank

A100 = Gpu("an A100", 80, 108, 1500.0)
DEVICE = "cuda:63"  # no such device: judged as an H200 wherever the tests run
CORE = [CutlassKernel(c, None) for f in FAMILIES.values() for c in f.core]
STORAGE = {"tf32": "f32"}
COMPUTE = {"tf32": "tf32"}


def operand(rows, cols, layout, dtype="bf16", pad=0, batch=None, **keywords):
    """A (batch, rows, cols) spec, row-major ('t') or column-major ('n') with `pad` more elements per line."""
    keywords.setdefault("device", DEVICE)
    lines, line = (rows, cols) if layout == "t" else (cols, rows)
    ld = line + pad
    strides = [ld, 1] if layout == "t" else [1, ld]
    if batch is None:
        return TensorSpec([rows, cols], dtype, strides, **keywords)
    return TensorSpec([batch, rows, cols], dtype, [ld * lines, *strides], **keywords)


def problem(m=512, n=512, k=512, layout="tn", dtype="bf16", pad=0, **keywords):
    """GemmArguments of specs; `dtype` names the arithmetic."""
    storage = STORAGE.get(dtype, dtype)
    a = operand(m, k, layout[0], storage, pad)
    b = operand(k, n, layout[1], storage, pad)
    return GemmArguments(a, b, compute=COMPUTE.get(dtype), **keywords)


def tma(epilogue="linear", schedule="pingpong", d="bf16"):
    """A 3.x kernel that need not be declared: how it is judged depends on its fields alone."""
    config = KernelConfig("sm90_gemm", "bf16", "bf16", d, "tn", (128, 128, 64), epilogue, (1, 1, 1), schedule)
    return CutlassKernel(config, None)


def ladder(layout="tn", family="sm80_gemm", dtype="bf16", align=8):
    """A 2.x kernel, likewise."""
    shape = {"warp": (64, 64, 32), "stages": 4, "align": align}
    return CutlassKernel(KernelConfig(family, dtype, dtype, dtype, layout, (128, 128, 32), "linearc", **shape), None)


SM90, SM90_C = tma(), tma("linearc")
DIRECT, DIRECT_F32 = (tma("linearc", "pingpongdirect", d) for d in ("bf16", "f32"))
SM80, SM80_TT, SM80_NN = (ladder(layout) for layout in ("tn", "tt", "nn"))
SIMT = ladder(family="simt_gemm", dtype="f32", align=1)


# ---------------------------------------------------------------------------------------- obstacles


OBSTACLES = [
    (SM90, problem(dtype="f16"), ABSENT, "multiplies bf16; the operands are f16"),
    (SIMT, problem(dtype="tf32"), ABSENT, "multiplies f32; the operands are tf32"),
    (SM90, problem(), A100, "runs on compute capability 9.0 only; an A100 has 8.0"),
    (SM80, problem(), Gpu("a T4", 75, 40, 300.0), "runs on compute capability 8.0 and newer; a T4 has 7.5"),
    (SM90, problem(), None, "runs on a GPU; the operands are on the CPU"),
    (SM80, problem(k=100), ABSENT, "reads vectors of 8 along k; k is 100"),
    (SM80_NN, problem(m=100, layout="nn"), ABSENT, "reads vectors of 8 along m; m is 100"),
    (SM80_TT, problem(n=100, layout="tt"), ABSENT, "reads vectors of 8 along n; n is 100"),
    (SM80, problem(n=97), ABSENT, "writes vectors of 8 along n; n is 97"),
    # A product rounded to 16 bits cannot be finished elsewhere: these have no route at all.
    (SM90, problem(out_dtype="f32"), ABSENT, "writes bf16; out is f32"),
    (
        SM90,
        problem(n=97, out=operand(512, 97, "t", pad=7)),
        ABSENT,
        "TMA writes rows in granules of 8 elements; n is 97",
    ),
    (SM90, problem(c=operand(512, 512, "t")), ABSENT, "does not read C"),
    (SM90_C, problem(c=operand(512, 512, "t", "f32")), ABSENT, "reads C in bf16; c is f32"),
    (SM90_C, problem(c=operand(512, 512, "n")), ABSENT, "c does not lie as out does"),
    (SM90_C, problem(c=operand(512, 512, "t", pad=1)), ABSENT, "reads C by 16 bytes; c is aligned to 2"),
    (SM90, problem(out=operand(512, 512, "t", pad=2)), ABSENT, "writes 16 bytes at once; out is aligned to 4"),
    (SM90, problem(out=TensorSpec((512, 512), "bf16", (1024, 2), device=DEVICE)), ABSENT, "out has no unit stride"),
]


@pytest.mark.parametrize(("kernel", "args", "gpu", "reason"), OBSTACLES, ids=[reason for *_, reason in OBSTACLES])
def test_obstacle(kernel, args, gpu, reason):
    found = kernel.route(args.problem, gpu)
    assert isinstance(found, Status) and not found
    assert found.error == reason


SPREAD = TensorSpec((512, 512), "f32", (1024, 2), device=DEVICE)
DETOURS = [
    (SM90, problem(layout="tt"), "reads b column-major; it is row-major", {"pack_b": "n"}),
    (SM90, problem(layout="nn"), "reads a row-major; it is column-major", {"pack_a": "t"}),
    (SM90, problem(k=511), "reads a by 16 bytes; it is aligned to 2", {"pack_a": "t", "pack_b": "n"}),
    (SM90, problem(k=510), "reads a by 16 bytes; it is aligned to 4", {"pack_a": "t", "pack_b": "n"}),
    (SIMT, problem(dtype="f32", out_dtype="bf16"), "writes f32; out is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(n=97), "writes f32; out is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(out_dtype="f32", c=operand(512, 512, "t")), "reads C in f32; c is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(out=SPREAD), "out has no unit stride", {"scratch": "f32"}),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "args", "reason", "how"), DETOURS, ids=[reason for _, _, reason, _ in DETOURS])
def test_detour(kernel, args, reason, how):
    route = kernel.route(args.problem, ABSENT)
    assert isinstance(route, Route)
    assert route.detours[0] == reason
    assert {key: getattr(route, key) for key in ("pack_a", "pack_b", "scratch") if getattr(route, key)} == how
    assert kernel.supports(args) == Status(reason)


def test_operand_without_unit_stride_is_packed():
    args = GemmArguments(TensorSpec((512, 512), "bf16", (1024, 2), device=DEVICE), operand(512, 512, "n"))
    route = SM90.route(args.problem, ABSENT)
    assert route.pack_a == "t" and route.pack_b is None and route.detours == ("a has no unit stride",)


def test_pointer_alignment_counts():
    args = GemmArguments(operand(512, 512, "t", alignment=8), operand(512, 512, "n"))
    assert SM90.supports(args).error == "reads a by 16 bytes; it is aligned to 8"
    assert SM80.supports(args).error == "reads a by 16 bytes; it is aligned to 8"


def test_batch_stride_alignment_counts():
    b = operand(512, 512, "n", batch=3)
    fits = GemmArguments(operand(512, 512, "t", batch=3), b)
    odd = GemmArguments(TensorSpec((3, 512, 512), "bf16", (512 * 512 + 4, 512, 1), device=DEVICE), b)
    assert SM90.supports(fits)
    assert SM90.supports(odd).error == "reads a by 16 bytes; it is aligned to 8"


# ---------------------------------------------------------------------------------------- what CUTLASS gets wrong


def test_odd_extent_in_padded_rows_goes_to_tma():
    """CUTLASS's can_implement refuses k = 99 with lda = 104, which runs exactly."""
    assert SM90.supports(problem(m=256, n=256, k=99, pad=5))


def test_misaligned_rows_do_not():
    assert not SM90.supports(problem(k=513))


def test_odd_n_goes_to_the_kernel_that_stores_directly():
    args = problem(m=4096, n=97, k=4096, out=operand(4096, 97, "t", pad=7))
    assert DIRECT.supports(args)
    best = get_kernels(args, compiled=False)[0]
    assert best.metadata.design.schedule.endswith("direct")


def test_every_swapped_kernel_takes_what_its_plain_form_takes():
    swapped = [k for k in CORE if k.config.schedule and SCHEDULES[k.config.schedule].swap and k.config.layout == "tn"]
    assert swapped
    assert all(k.supports(problem(m=8, dtype=k.config.a)) for k in swapped)


def test_column_major_out_is_the_transposed_problem():
    args = GemmArguments(operand(100, 40, "t"), operand(40, 60, "t"), out=operand(100, 60, "n"))
    p = args.problem
    assert p.transposed and (p.m, p.n, p.k) == (60, 100, 40)
    assert (p.layout_a, p.layout_b, p.layout_d) == ("n", "n", "t")


def test_beta_zero_makes_c_disappear():
    c = operand(512, 512, "t", "f32")
    assert problem(c=c, beta=0).problem == problem().problem
    assert problem(c=c).problem.c == "f32"
    assert problem().problem.c is None


# ---------------------------------------------------------------------------------------- coverage


extents = st.integers(1, 300)
paddings = st.sampled_from([0, 0, 1, 2, 3, 4, 8])
alignments = st.sampled_from([8, 16, 256])


def _direct(args, gpu=ABSENT):
    found = (k.route(args.problem, gpu) for k in CORE)
    return [route.kernel for route in found if isinstance(route, Route) and not route.detours]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32", "f64"])
@pytest.mark.parametrize("gpu", [ABSENT, A100, Gpu("a B200", 100, 148, 6000.0)], ids=lambda g: str(g.cc))
@settings(max_examples=12)
@given(
    m=extents, n=extents, k=extents, pads=st.tuples(paddings, paddings, paddings), shift=st.booleans(), data=st.data()
)
def test_every_shape_has_a_kernel_that_takes_it_as_it_lies(gpu, dtype, layout, m, n, k, pads, shift, data):
    storage = STORAGE.get(dtype, dtype)
    alignment = DTYPES[storage].itemsize if shift else data.draw(alignments)
    a = operand(m, k, layout[0], storage, pads[0], alignment=alignment)
    b = operand(k, n, layout[1], storage, pads[1], alignment=alignment)
    out = operand(m, n, data.draw(st.sampled_from("tn")), storage, pads[2], alignment=alignment)
    c = data.draw(st.sampled_from([None, out]))
    args = GemmArguments(a, b, out=out, c=c, compute=COMPUTE.get(dtype))
    assert _direct(args, gpu), str(args)


@pytest.mark.parametrize("d", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32", "f64"])
def test_every_output_dtype_has_a_route(dtype, d):
    p = problem(m=33, n=77, k=55, dtype=dtype, out_dtype=d, c=operand(33, 77, "n", "f16")).problem
    assert any(isinstance(k.route(p, ABSENT), Route) for k in CORE)


def test_fp8_has_no_kernel_yet_and_says_so():
    args = problem(dtype="e4m3")
    assert get_kernels(args, compiled=False) == []
    with pytest.raises(NoKernelError, match="fits .*e4m3 @ e4m3 -> bf16") as error:
        plan(args.problem)
    assert isinstance(error.value, NotImplementedError)


def test_no_kernel_error_counts_and_names_the_nearest():
    with pytest.raises(
        NoKernelError, match=rf"none of {len(all_kernels())} kernels fits \(512, 512, 512\) tn: e4m3"
    ) as error:
        plan(problem(dtype="e4m3").problem)
    nearest = str(error.value).split("Nearest:\n")[1].splitlines()
    assert 1 <= len(nearest) <= 3
    assert all(re.fullmatch(r"  \w*gemm\w*: (multiplies|runs on) .+", line) for line in nearest), nearest


def test_a_kernel_that_could_but_is_not_built_is_the_nearest(monkeypatch):
    for k in all_kernels():
        monkeypatch.setattr(k, "compiled", False)
    with pytest.raises(NoKernelError, match=r"Nearest:\n  sm90_gemm_bf16_\w+: is declared but not in the built set"):
        plan(problem().problem)
    assert re.search(r"possible but not in the built set: \d+ kernels", str(explain(problem())))


# ---------------------------------------------------------------------------------------- plans


@pytest.fixture
def built(monkeypatch):
    """As if the core set were compiled: selection alone can then be asked about everything."""
    core = {k.name for k in CORE}
    for k in all_kernels():
        monkeypatch.setattr(k, "compiled", k.name in core)


def test_a_plan_is_the_first_of_the_ranking(built):
    args = problem(m=4096, n=4096, k=4096)
    chosen = plan(args.problem)
    assert chosen.kernel == get_kernels(args)[0].name == explain(args).chosen.route.kernel.name
    assert (chosen.pack_a, chosen.pack_b, chosen.scratch, chosen.host) == (None, None, None, None)


def test_a_plan_with_detours(built):
    args = GemmArguments(
        TensorSpec((300, 300), "bf16", (600, 2), device=DEVICE),
        operand(300, 300, "n"),
        out=TensorSpec((300, 300), "f64", (600, 2), device=DEVICE),
        c=operand(300, 300, "n", "f16"),
    )
    chosen = plan(args.problem)
    assert chosen.pack_a in ("t", "n") and chosen.scratch == "f32"
    assert get_kernels(args) == []
    text = str(explain(args))
    assert "packs a first" in text and "composed: " in text and "reason: a has no unit stride" in text


def test_a_large_misaligned_problem_is_packed_and_a_small_one_is_not(built):
    large, small = (problem(m=m, n=m, k=m - 1) for m in (4096, 64))
    assert plan(large.problem).pack_a == "t" and plan(large.problem).kernel.startswith("sm90")
    assert plan(small.problem).pack_a is None and plan(small.problem).kernel.startswith("sm80")


def test_no_product_no_kernel(built):
    chosen = plan(problem(k=0).problem)
    assert chosen.kernel is None and chosen.host is None


def test_a_forced_kernel_that_would_need_a_detour(built):
    name = next(k.name for k in CORE if k.config.schedule == "pingpong" and k.config.layout == "tn")
    with pytest.raises(ValueError, match=rf"kernel {name} does not fit .*: reads b column-major; it is row-major"):
        plan(_forced(problem(layout="tt"), name))
    assert plan(_forced(problem(), name)).kernel == name


def test_explain_lists_the_kernels_that_cannot(built):
    answer = explain(problem(n=97))
    assert answer.rejected and all(reason for _, reason in answer.rejected)
    taken = {choice.route.kernel.name for choice in answer.ranking}
    assert not taken & {k.name for k, _ in answer.rejected}
    assert f"not possible, {len(answer.rejected)} in all:" in str(answer)


# ---------------------------------------------------------------------------------------- ranking


@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32", "f64"])
def test_get_kernels_lists_supporting_kernels_best_first(dtype):
    args = problem(m=640, n=768, k=512, dtype=dtype)
    found = get_kernels(args, compiled=False)
    assert found and all(k.supports(args) for k in found)
    choices = [choice for choice in rank(args.problem, compiled=False) if choice.direct]
    assert found == [choice.route.kernel for choice in choices]
    times = [choice.microseconds for choice in choices]
    assert times == sorted(times) and times[0] > 0
    assert {k.name for k in found} == {k.name for k in all_kernels() if k.supports(args)}


def test_small_m_prefers_a_swapped_kernel():
    assert get_kernels(problem(m=8, n=4096, k=4096), compiled=False)[0].metadata.design.schedule.endswith("swap")


def test_large_problems_prefer_large_tiles():
    tile = get_kernels(problem(m=8192, n=8192, k=8192), compiled=False)[0].metadata.design.tile
    assert tile[0] * tile[1] == 128 * 256


def test_larger_problems_take_longer():
    times = [rank(problem(m=m, n=m, k=m).problem, compiled=False)[0].microseconds for m in (256, 1024, 4096, 8192)]
    assert times == sorted(times) and len(set(times)) == len(times)


def test_a_detour_costs_time():
    straight, packed = problem(m=4096, n=4096, k=4096), problem(m=4096, n=4096, k=4096, layout="tt")
    times = [estimate(SM90.route(args.problem, ABSENT), args.problem, ABSENT) for args in (straight, packed)]
    assert times[1] > times[0]


# ---------------------------------------------------------------------------------------- get_kernels


def test_get_kernels_without_arguments_is_the_declaration():
    everything = get_kernels(compiled=False)
    assert [k.name for k in everything] == [k.name for k in all_kernels()]
    assert set(get_kernels()) == {k for k in everything if k.compiled}
    assert "cpu_gemm_numpy" in {k.name for k in get_kernels()}


def test_where_filters_by_metadata():
    found = get_kernels(where=lambda m: m.operands["a"].dtype == "f64" and m.design.tile[0] == 64, compiled=False)
    assert found and all(k.config.a == "f64" and k.config.tile[0] == 64 for k in found)
    assert get_kernels(problem(), where=lambda m: m.api == 2, compiled=False)[0].family.api == 2
    assert get_kernels(where=lambda m: False, compiled=False) == []


@pytest.mark.parametrize(
    ("cc", "families"),
    [
        (75, set()),
        (80, {"sm80_gemm", "simt_gemm"}),
        (89, {"sm80_gemm", "simt_gemm"}),
        (90, {"sm80_gemm", "simt_gemm", "sm90_gemm", "sm90_dgemm"}),
        (120, {"sm80_gemm", "simt_gemm"}),
    ],
)
def test_get_kernels_by_compute_capability(cc, families):
    assert {k.metadata.family for k in get_kernels(cc=cc, compiled=False)} == families


def test_get_kernels_on_cpu_arguments():
    args = GemmArguments(TensorSpec((4, 5), "f32", device="cpu"), TensorSpec((5, 6), "f32", device="cpu"))
    assert [k.name for k in get_kernels(args)] == ["cpu_gemm_numpy"]
    assert gpu_of(args.problem) is None


def test_cpu_kernel_refuses_device_operands():
    cpu = all_kernels()[number_of("cpu_gemm_numpy")]
    assert cpu.supports(problem()).error == "runs on the CPU; the operands are on cuda:63"


def test_unknown_keyword_and_wrong_type():
    with pytest.raises(TypeError, match="expected GemmArguments, found int"):
        get_kernels(3)
    with pytest.raises(TypeError, match="cc_"):
        get_kernels(cc_=90)


# ---------------------------------------------------------------------------------------- values


def test_status_is_true_or_has_a_reason():
    assert Status() and Status().error is None
    assert not Status("why") and Status("why").error == "why"
    assert Status("why") == Status("why") != Status()


@pytest.mark.parametrize("k", [*CORE[::17], CORE[-1]], ids=lambda k: k.name)
def test_metadata_describes_the_config(k):
    c, metadata = k.config, k.metadata
    assert (metadata.name, metadata.family, metadata.api) == (c.name, c.family, FAMILIES[c.family].api)
    assert (metadata.operands["a"].layout, metadata.operands["b"].layout) == tuple(c.layout)
    assert metadata.operands["a"].dtype == STORAGE.get(c.a, c.a) and metadata.operands["d"].dtype == c.d
    assert ("c" in metadata.operands) == EPILOGUES[c.epilogue].source
    assert (metadata.design.tile, metadata.design.cluster, metadata.design.schedule) == (c.tile, c.cluster, c.schedule)
    assert metadata.accumulator == c.accumulator and metadata.epilogue == EPILOGUES[c.epilogue].formula
    assert metadata.operands["a"].alignment in (2, 4, 8, 16)
    assert hash(metadata.design) == hash(metadata.design)


def test_kernels_are_kernels_and_say_whether_they_are_compiled():
    for k in all_kernels():
        assert isinstance(k, Kernel) and k.compiled == (k.name in _core.kernel_facts() or k.name == "cpu_gemm_numpy")
    assert repr(CORE[0]) == f"<Kernel {CORE[0].name} (not compiled)>"


def test_number_of():
    for number, k in enumerate(all_kernels()):
        assert number_of(k) == number_of(k.name) == number
    with pytest.raises(ValueError, match=r"no kernel is called 'typo'; cutlass_py.get_kernels\(\) lists them"):
        number_of("typo")
    with pytest.raises(TypeError, match="kernel is a int; expected a Kernel or its name"):
        number_of(3)


# ---------------------------------------------------------------------------------------- forced kernels


def _forced(args, name):
    keywords = {key: value for key, value in args.keywords.items() if value is not None}
    return _core.problem(args.a, args.b, **keywords, kernel=name)


def test_forced_kernel_that_does_not_fit():
    with pytest.raises(ValueError, match=r"kernel cpu_gemm_numpy does not fit \(512, 512, 512\) tn.*runs on the CPU"):
        plan(_forced(problem(), "cpu_gemm_numpy"))


def test_forced_kernel_is_a_class_of_its_own():
    name = all_kernels()[3].name
    plain, forced = problem().problem, _forced(problem(), name)
    assert plain != forced and (forced.kernel, plain.kernel) == (3, -1)


# ---------------------------------------------------------------------------------------- explain


def test_explain_on_a_problem_without_compiled_kernels():
    text = str(explain(problem(dtype="e4m3")))
    assert text.splitlines()[:2] == ["(512, 512, 512) tn: e4m3 @ e4m3 -> bf16 on cuda:63", "no kernel fits"]


def test_explain_names_transposition_batch_addend_and_compute():
    args = GemmArguments(operand(9, 5, "t", "f32", batch=3), operand(5, 7, "t", "f32", batch=3),
                         c=operand(9, 7, "t", "f16"), compute="tf32")  # fmt: skip
    assert explain(args).problem == "3 x (9, 7, 5) tt: f32 @ f32 + f16 C -> f32 computed in tf32 on cuda:63"
    out = operand(100, 60, "n")
    assert "(transposed: out is column-major)" in str(explain(operand(100, 40, "t"), operand(40, 60, "t"), out=out))


@pytest.mark.parametrize(("k", "alpha"), [(0, 1.0), (64, 0.0)])
def test_explain_without_a_product(k, alpha):
    answer = explain(problem(k=k, alpha=alpha, c=operand(512, 512, "t")))
    assert answer.chosen is None and answer.ranking == ()
    assert "no product" in str(answer)


def test_explain_on_the_cpu_names_the_provider():
    spec = TensorSpec((8, 8), "f32", device="cpu")
    answer = explain(spec, spec)
    assert answer.chosen.route.kernel.name == "cpu_gemm_numpy"
    assert str(answer).startswith("(8, 8, 8) tt: f32 @ f32 -> f32 on cpu\nchosen: cpu_gemm_numpy")
    assert answer.rejected == () and answer.not_compiled == ()


@pytest.mark.parametrize(
    "args",
    [
        problem(),
        problem(layout="tt"),
        problem(k=511),
        problem(dtype="f32", out_dtype="bf16", c=operand(512, 512, "n")),
    ],
    ids=str,
)
def test_explain_says_why_for_compiled_kernels(monkeypatch, args):
    """As on a machine with the core set built: the steps of the choice name each detour."""
    from cutlass_py import explanation

    compiled = tuple(choice for choice in rank(args.problem, compiled=False))
    monkeypatch.setattr(explanation, "rank", lambda p: compiled)
    for chosen in (compiled[0], next((c for c in compiled if not c.direct), compiled[0])):
        monkeypatch.setattr(explanation, "rank", lambda p, first=chosen: (first, *compiled[:3]))
        text = str(explain(args))
        assert f"chosen: {chosen.route.kernel.name}" in text
        for reason in chosen.route.detours:
            assert reason in text
        for name, layout in (("a", chosen.route.pack_a), ("b", chosen.route.pack_b)):
            assert (f"  packs {name} first" in text) == bool(layout)
        assert ("composed: the product goes through" in text) == bool(chosen.route.scratch)
        assert "next of 4:" in text and " us  " in text


def test_layouts_of_vectors_need_no_leading_dimension():
    """One row or one column: the stride that is never used does not cost the alignment."""
    for a, b in product(("t", "n"), repeat=2):
        args = GemmArguments(operand(1, 64, a), operand(64, 136, b))
        assert args.problem.align_a == 16
    row = GemmArguments(TensorSpec((1, 64), "bf16", (7, 1), device=DEVICE), operand(64, 136, "n"))
    assert row.problem.align_a == 16 and row.problem.layout_a == "t"
