"""What kernels there are: numbers and names, get_kernels, and that questions stay cheap in large declarations."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import pytest
from specs import CORE, operand, problem, vector

from cutlass_py import GemmArguments, TensorSpec, _core, explain, get_kernels
from cutlass_py.arrays.gpu import gpu_of
from cutlass_py.declaration.dtypes import DTYPES
from cutlass_py.declaration.epilogues import EPILOGUES
from cutlass_py.declaration.families import families, named
from cutlass_py.dispatch import candidates
from cutlass_py.dispatch.candidates import rank
from cutlass_py.kernels import registry
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.kernels.registry import all_kernels, kernel_by_id, kernel_id, kernel_named
from cutlass_py.operations.gemm import cost
from cutlass_py.operations.gemm.legality import Interface, Way

# ---------------------------------------------------------------------------------------- numbers and names


def test_a_kernel_has_a_number_once_it_is_asked_for():
    kernels = [all_kernels()[3], all_kernels()[-1], CORE[-1]]
    for k in kernels:
        assert kernel_id(k) == kernel_id(k.name) and kernel_by_id(kernel_id(k)).name == k.name
    assert len({kernel_id(k) for k in kernels}) == len(kernels)


def test_a_kernel_is_one_object():
    for k in (all_kernels()[3], all_kernels()[-1]):
        assert kernel_named(k.name) is k is kernel_by_id(kernel_id(k.name))


def test_names_that_are_none():
    for ask in (kernel_id, kernel_named):
        with pytest.raises(
            ValueError, match=r"no kernel is called 'typo'; cutlass_py.get_kernels\(compiled=False\) lists them"
        ):
            ask("typo")
    with pytest.raises(ValueError, match="no kernel is called 'typo'"):
        kernel_id("typo")  # not remembered either
    with pytest.raises(TypeError, match="kernel is an int; expected a Kernel or its name"):
        kernel_id(3)


# ---------------------------------------------------------------------------------------- get_kernels


def test_a_first_listing_waits_for_no_garbage_collection(built):
    built([])
    collected = []

    def seen(phase, info):
        collected.append(info["generation"])

    gc.callbacks.append(seen)
    try:
        assert len(get_kernels(where=lambda meta: meta.api == 3, compiled=False)) > 1000
    finally:
        gc.callbacks.remove(seen)
    assert len(collected) < 10, "once in a while between two listings, that is"


def test_designs_that_are_numbered_at_the_same_time_have_two_numbers(monkeypatch):
    one, another = CORE[0].config, CORE[-1].config

    class Interrupted(dict):
        was = False

        def setdefault(self, key, number):
            if not self.was:
                self.was = True
                cost.design(another)  # as a thread that comes in between
            return super().setdefault(key, number)

    monkeypatch.setattr(cost, "_designs", Interrupted())
    assert cost.design(one) != cost.design(another)


def test_what_is_listed_while_a_kernel_comes_is_not_kept(built, monkeypatch):
    first, second = sorted(k.name for k in CORE[:2])
    built([first])
    facts, begun, goes_on = _core.kernel_facts(), threading.Event(), threading.Event()

    def slowly():
        found = dict(facts)
        if threading.current_thread() is other:
            begun.set()
            goes_on.wait(0.5)
        return found

    monkeypatch.setattr(_core, "kernel_facts", slowly)
    other = threading.Thread(target=lambda: all_kernels(compiled=True))
    other.start()
    begun.wait()
    facts[second] = {}
    registry.forget()
    goes_on.set()
    other.join()
    assert [k.name for k in all_kernels(compiled=True) if isinstance(k, CutlassKernel)] == [first, second]


def test_what_is_compiled_is_listed_by_name():
    names = [k.name for k in get_kernels() if isinstance(k, CutlassKernel)]
    assert names == sorted(names)


def test_get_kernels_without_arguments_is_the_declaration():
    everything = get_kernels(compiled=False)
    assert [k.name for k in everything] == [*named("declared"), "cpu_gemm_numpy"]
    declared = {name for name in _core.kernel_facts() if name in named("declared")}
    assert {k.name for k in get_kernels()} == {*declared, "cpu_gemm_numpy"}


def test_what_is_compiled_is_listed(built):
    names = [k.name for k in CORE]
    built(names)
    assert {k.name for k in get_kernels()} == {*names, "cpu_gemm_numpy"} and all(k.compiled for k in get_kernels())
    assert sum(k.compiled for k in get_kernels(compiled=False)) == len(names) + 1


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (lambda m: m.operands["a"].dtype == "f64", lambda c: c.a == "f64"),
        (lambda m: m.operands["a"].dtype == "f32", lambda c: c.a in ("f32", "tf32", "tf32x3")),
        (
            lambda m: m.operands["b"].dtype == "e5m2" and m.accumulator == "fast",
            lambda c: (c.b, c.accumulator) == ("e5m2", "fast"),
        ),
        (lambda m: m.design.tile[:2] == (64, 16), lambda c: c.tile[:2] == (64, 16)),
        (
            lambda m: m.api == 2 and m.operands["a"].alignment == 1,
            lambda c: c.api == 2 and c.align * DTYPES[c.a].itemsize == 1,
        ),
        (lambda m: "gelu_tanh" in m.epilogue, lambda c: EPILOGUES[c.epilogue].activation.endswith("gelu_tanh")),
        (
            lambda m: "gate" in m.operands,
            lambda c: c.epilogue.startswith(("gate_", "fused_gate")) and not EPILOGUES[c.epilogue].pairs,
        ),
        (lambda m: m.fused.name == "bias_gelu", lambda c: c.epilogue == "bias_gelu"),
        (lambda m: m.fused.aux == "written", lambda c: c.epilogue.endswith("_aux")),
        (lambda m: m.design.stages == 3 and m.api == 2, lambda c: c.stages == 3),
        (lambda m: m.design.schedule == "cooparray", lambda c: c.family == "sm90_array"),
        (lambda m: False, lambda c: False),
    ],
)
def test_where_filters_the_whole_declaration(where, expected):
    found = [k.name for k in get_kernels(where=where, compiled=False) if k.name != "cpu_gemm_numpy"]
    assert found == [name for name, c in named("declared").items() if expected(c)]


@pytest.mark.parametrize(
    ("cc", "families"),
    [
        (75, set()),
        ("80", {"sm80_gemm", "simt_gemm", "simt_gemv"}),
        (80, {"sm80_gemm", "simt_gemm", "simt_gemv"}),
        (89, {"sm80_gemm", "simt_gemm", "simt_gemv"}),
        ("90", set(families())),
        (90, set(families())),
        (
            "90a",
            {
                "sm90_gemm",
                "sm90_streamk",
                "sm90_array",
                "sm90_block",
                "sm90_dmma",
                "sm90_dgemm",
                "sm90_lean",
                "sm90_gemv",
            },
        ),
        ("100", {"sm80_gemm", "simt_gemm", "simt_gemv"}),
        (120, {"sm80_gemm", "simt_gemm", "simt_gemv"}),
    ],
)
def test_cc_is_a_number_or_its_text(cc, families):
    assert {k.metadata.family for k in get_kernels(cc=cc, compiled=False)} == families
    found = get_kernels(problem(), where=lambda m: m.design.tile[0] == 128, cc=cc, compiled=False)
    assert bool(found) == bool(families) and {k.family.name for k in found} <= families


def test_what_takes_minutes_to_compile_is_taken_by_name_alone(built):
    """CUTLASS's wgmma kernels where ours do the same: they come last, without an estimate."""
    p = problem()
    name = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_linear"
    for there in ([], [name]):
        built(there)
        ranking = rank(p.problem, compiled=False)
        superseded = [choice.route.kernel.config.superseded for choice in ranking]
        assert {c.route.kernel.family.name for c in ranking if c.route.kernel.config.superseded} >= {"sm90_gemm"}
        assert any(superseded)
        estimated = [choice for choice in ranking if choice.microseconds]
        assert [c.route.kernel.name for c in estimated if c.route.kernel.config.superseded] == there
        assert ranking[: len(estimated)] == estimated and kernel_named(name).supports(p)


@pytest.mark.parametrize("cc", ["9.0", "sm_90", "90b", "", -80, True])
def test_cc_that_is_none(cc):
    with pytest.raises(
        ValueError, match="cc is .*; expected a compute capability times ten, such as 80 or '90', or '90a'"
    ):
        get_kernels(cc=cc)


def test_unknown_keyword_and_wrong_type():
    with pytest.raises(TypeError, match="^get_kernels: args is an int; expected GemmArguments or another operation's$"):
        get_kernels(3)
    with pytest.raises(TypeError, match="cc_"):
        get_kernels(cc_=90)
    with pytest.raises(TypeError, match="^get_kernels: where is an int; expected a function of KernelMetadata$"):
        get_kernels(problem(), where=5)


# ---------------------------------------------------------------------------------------- of arguments


def test_get_kernels_on_cpu_arguments():
    args = GemmArguments(TensorSpec((4, 5), "f32", device="cpu"), TensorSpec((5, 6), "f32", device="cpu"))
    assert [k.name for k in get_kernels(args)] == ["cpu_gemm_numpy"]
    assert [k.name for k in get_kernels(args.replace(splits=3))] == ["cpu_gemm_numpy"]
    assert gpu_of(args.problem) is None


def test_where_filters_what_supports_arguments():
    found = get_kernels(problem(), where=lambda m: m.api == 2, compiled=False)
    assert found and all(k.family.api == 2 and k.supports(problem()) for k in found)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "tf32x3", "f32", "f64", "e4m3", "s8", "c64", "c128"])
def test_get_kernels_lists_supporting_kernels_best_first(dtype):
    args = problem(m=640, n=768, k=512, dtype=dtype)
    found = get_kernels(args, compiled=False)
    choices = [choice for choice in rank(args.problem, compiled=False) if choice.route.direct]
    assert found and found == [choice.route.kernel for choice in choices]
    assert {k.name for k in found} == {k.name for k in all_kernels() if k.supports(args)}


@pytest.mark.parametrize("layout", ["tn", "tt"])
@pytest.mark.parametrize("splits", [None, 1, 3, "stream"])
def test_get_kernels_is_the_order_in_which_gemm_would_take_them(layout, splits):
    args = problem(m=96, n=640, k=4096, layout=layout, splits=splits, out_dtype="f32")
    parts = 3 if splits == 3 else 1
    ranked = [c.route.kernel for c in candidates.rank(args.problem, compiled=False) if c.route.splits == parts]
    found = get_kernels(args, compiled=False)
    assert found and [k for k in ranked if k in found] == found
    assert all(k.supports(args) for k in found)


def test_a_measured_kernel_comes_first(built, monkeypatch):
    built([k.name for k in CORE])
    args = problem()
    order = get_kernels(args)
    slow = order[-1]
    way = slow.way(args.problem, candidates.gpu_of(args.problem))
    assert isinstance(way, Way)
    choice = candidates.Choice(candidates.Route(slow, way), 1.5, measured=True)
    monkeypatch.setattr(candidates, "_of_tables", lambda p, gpu, compiled: choice)
    assert get_kernels(args) == [slow, *order[:-1]]
    row = explain(args).rows()[0]
    assert (row.kernel, row.microseconds, row.measured) == (slow.name, 1.5, True)


@pytest.mark.parametrize(
    "keywords",
    [
        {"bias": vector(768), "activation": "gelu"},
        {"bias": vector((640, 1))},
        {"gate": operand(640, 768, "t"), "activation": "silu"},
        {"aux": operand(640, 768, "t"), "activation": "d_gelu"},
        {"aux": operand(640, 768, "t"), "activation": "relu"},
        {"c": operand(640, 768, "t"), "bias": vector(768)},
    ],
    ids=lambda keywords: "-".join(map(str, keywords)),
)
def test_every_form_of_the_epilogue_is_fused_somewhere(keywords):
    args = problem(m=640, n=768, k=512, **keywords)
    found = get_kernels(args, compiled=False)
    assert found and {k.name for k in found} == {k.name for k in all_kernels() if k.supports(args)}


def blown_up(times):
    """The declared kernels, and copies of CUTLASS's for wgmma that differ in a tile and count as declared too."""
    configs = [*named("declared").values()]
    wide = [c for c in configs if c.superseded]
    copies = [replace(c, tile=(c.tile[0] + 64 * i, *c.tile[1:])) for i in range(1, times) for c in wide]
    return {c.name: c for c in (*configs, *copies)}


@pytest.fixture
def declaration(monkeypatch):
    """As if so many kernels were declared."""

    def pretend(times):
        large = blown_up(times)
        for name, family in families().items():
            mine = tuple(c for c in large.values() if c.family == name)
            monkeypatch.setitem(vars(family), "declared", mine)  # which a family lists once
        monkeypatch.setattr(registry, "_cutlass", {})
        registry.forget()
        return large

    yield pretend
    monkeypatch.undo()
    registry.forget()


@pytest.mark.parametrize(
    "args",
    [
        problem(),
        problem(n=96, bias=vector(96), activation="gelu"),
        problem(layout="tt", dtype="f16"),
        problem(dtype="e4m3", scale_a=vector((512, 1), "f32")),
    ],
    ids=str,
)
def test_a_query_by_arguments_looks_at_few_of_many_kernels(declaration, monkeypatch, args):
    """And makes no Choice of any, of which it would keep the kernel alone."""
    large = declaration(3)
    assert len(large) > 10_000
    asked = []
    way = Interface.way
    monkeypatch.setattr(Interface, "way", lambda self, p, gpu: asked.append(self) or way(self, p, gpu))
    monkeypatch.setattr(candidates, "Choice", lambda *_: pytest.fail("makes a Choice"))
    found = get_kernels(args, compiled=False)
    assert len(asked) < 40 and len(asked) == len(set(map(id, asked)))
    monkeypatch.undo()
    kernels = [CutlassKernel(c, None) for c in large.values()]
    assert {k.name for k in found} == {k.name for k in kernels if k.supports(args)}
