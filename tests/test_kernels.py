"""Kernels as values: what exists, numbers and names, metadata, get_kernels, and the answers of explain."""

from __future__ import annotations

import re
from typing import get_type_hints

import pytest
from specs import CORE, operand, problem, vector

from cutlass_py import GemmArguments, Kernel, Status, TensorSpec, _core, explain, get_kernels
from cutlass_py.dtypes import DTYPES
from cutlass_py.epilogues import ACTIVATIONS, EPILOGUES
from cutlass_py.families import FAMILIES, named
from cutlass_py.gpu import gpu_of
from cutlass_py.kernels import CutlassKernel
from cutlass_py.provider import KernelCall
from cutlass_py.registry import all_kernels, kernel_named, number_of, numbered
from cutlass_py.select import rank

# ---------------------------------------------------------------------------------------- values


def test_status_is_true_or_has_a_reason():
    assert Status() and Status().error is None
    assert not Status("why") and Status("why").error == "why"
    assert Status("why") == Status("why") != Status()


EPILOGUE_KINDS = {c.epilogue: CutlassKernel(c, None) for c in named("declared").values()}


@pytest.mark.parametrize("k", [*CORE[::17], CORE[-1], *EPILOGUE_KINDS.values()], ids=lambda k: k.name)
def test_metadata_describes_the_config(k):
    c, metadata, e = k.config, k.metadata, EPILOGUES[k.config.epilogue]
    assert (metadata.name, metadata.family, metadata.api) == (c.name, c.family, FAMILIES[c.family].api)
    a, b, d = (metadata.operands[x] for x in "abd")
    assert (a.layout, b.layout, d.layout) == (*c.layout, "t")
    assert (a.dtype, b.dtype, d.dtype) == tuple(DTYPES[x].storage or x for x in (c.a, c.b, c.d))
    derivative = ACTIVATIONS[e.activation].derivative
    assert set(metadata.operands) - set("abd") == {
        *("c" for _ in range(e.source)),
        *("aux" for _ in range(e.aux or derivative)),
        *("gate" for _ in range(e.gated and not derivative)),
        *("bias" for _ in range(bool(e.bias))),
        *(name for name in ("scale_a", "scale_b") if k.interface.block),
    }
    if e.bias:
        assert metadata.operands["bias"].layout == e.bias and metadata.operands["bias"].dtype == c.bias
    assert (metadata.design.tile, metadata.design.cluster, metadata.design.schedule) == (c.tile, c.cluster, c.schedule)
    assert metadata.accumulator == c.accumulator and metadata.epilogue == e.formula
    assert a.alignment in (1, 2, 4, 8, 16) and metadata.deterministic is True
    assert hash(metadata.design) == hash(k.metadata.design)


def test_kernels_are_kernels_and_say_whether_they_are_compiled():
    for k in all_kernels():
        assert isinstance(k, Kernel) and k.compiled == (k.name in _core.kernel_facts() or k.name == "cpu_gemm_numpy")
    assert repr(CORE[0]) == f"<Kernel {CORE[0].name} (not compiled)>"


# ---------------------------------------------------------------------------------------- numbers and names


def test_a_kernel_has_a_number_once_it_is_asked_for():
    kernels = [all_kernels()[3], all_kernels()[-1], CORE[-1]]
    for k in kernels:
        assert number_of(k) == number_of(k.name) and numbered(number_of(k)).name == k.name
    assert len({number_of(k) for k in kernels}) == len(kernels)


def test_a_kernel_is_one_object():
    for k in (all_kernels()[3], all_kernels()[-1]):
        assert kernel_named(k.name) is k is numbered(number_of(k.name))


def test_names_that_are_none():
    for ask in (number_of, kernel_named):
        with pytest.raises(ValueError, match=r"no kernel is called 'typo'; cutlass_py.get_kernels\(\) lists them"):
            ask("typo")
    with pytest.raises(ValueError, match="no kernel is called 'typo'"):
        number_of("typo")  # not remembered either
    with pytest.raises(TypeError, match="kernel is a int; expected a Kernel or its name"):
        number_of(3)


# ---------------------------------------------------------------------------------------- get_kernels


def test_get_kernels_without_arguments_is_the_declaration():
    everything = get_kernels(compiled=False)
    assert [k.name for k in everything] == [*named("declared"), "cpu_gemm_numpy"]
    declared = {name for name in _core.kernel_facts() if "_user_" not in name}
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
        (lambda m: "gate" in m.operands, lambda c: c.epilogue.startswith("gate_")),
        (lambda m: m.design.schedule == "cooparray", lambda c: c.family == "sm90_array"),
        (lambda m: False, lambda c: False),
    ],
)
def test_where_filters_the_whole_declaration(where, expected):
    found = [k.name for k in get_kernels(where=where, compiled=False) if k.name != "cpu_gemm_numpy"]
    assert found == [name for name, c in named("declared").items() if expected(c)]


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


@pytest.mark.parametrize(
    ("cc", "families"),
    [
        (75, set()),
        (80, {"sm80_gemm", "simt_gemm"}),
        (89, {"sm80_gemm", "simt_gemm"}),
        (90, set(FAMILIES)),
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
    cpu = kernel_named("cpu_gemm_numpy")
    assert cpu.supports(problem()).error == "runs on the CPU; the operands are on cuda:63"


def test_cpu_kernel_says_what_it_reads():
    """Every operand of a call, as its own argument or in its formula."""
    metadata = kernel_named("cpu_gemm_numpy").metadata
    kinds = get_type_hints(KernelCall)
    arrays = {name for name, kind in kinds.items() if kind in (_core.Operand, _core.Operand | None)}
    factors = {"alpha", "beta", "scale_out"}
    assert arrays == set(metadata.operands)
    assert arrays - {"a", "b", "d"} | factors < set(re.findall(r"\w+", metadata.epilogue))


def test_unknown_keyword_and_wrong_type():
    with pytest.raises(TypeError, match="expected GemmArguments, found int"):
        get_kernels(3)
    with pytest.raises(TypeError, match="cc_"):
        get_kernels(cc_=90)


# ---------------------------------------------------------------------------------------- explain


def test_explain_on_a_problem_without_compiled_kernels(built):
    lines = ["(512, 512, 512) tn: e4m3 @ e4m3 -> bf16 on cuda:63", "no kernel fits"]
    built(["sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x1x1_pingpong_linear"])
    assert str(explain(problem(dtype="e4m3"))).splitlines()[:2] == lines
    built([])
    assert explain(problem(dtype="e4m3")).note == "no kernel fits: none is compiled in this package"


def test_explain_names_transposition_batch_addend_and_compute():
    args = GemmArguments(operand(9, 5, "t", "f32", batch=3), operand(5, 7, "t", "f32", batch=3),
                         c=operand(9, 7, "t", "f16"), compute="tf32")  # fmt: skip
    assert explain(args).problem == "3 x (9, 7, 5) tt: f32 @ f32 + f16 C -> f32 computed in tf32 on cuda:63"
    out = operand(100, 60, "n")
    assert "(transposed: out is column-major)" in str(explain(operand(100, 40, "t"), operand(40, 60, "t"), out=out))


@pytest.mark.parametrize(
    ("keywords", "formula"),
    [
        ({"bias": vector(512), "activation": "gelu"}, "bf16 @ bf16 + bias -> gelu -> bf16"),
        ({"bias": vector((512, 1))}, "bf16 @ bf16 + bias per row -> bf16"),
        ({"aux": operand(512, 512, "t"), "activation": "relu"}, "bf16 @ bf16 (kept in aux) -> relu -> bf16"),
        ({"aux": operand(512, 512, "t"), "activation": "d_relu"}, "bf16 @ bf16 * d_relu(aux) -> bf16"),
        ({"gate": operand(512, 512, "t"), "activation": "silu"}, "bf16 @ bf16 * silu(gate) -> bf16"),
        ({"gate": operand(512, 512, "t")}, "bf16 @ bf16 * gate -> bf16"),
        ({"scale_a": vector(512, "f32"), "scale_out": 0.5}, "bf16 @ bf16 * scale_a * scale_out -> bf16"),
        ({"bias_grad": vector(512, "f32"), "out_dtype": "f32"}, "bf16 @ bf16 -> bias_grad -> f32"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_explain_says_the_epilogue(keywords, formula):
    assert explain(problem(**keywords)).problem == f"(512, 512, 512) tn: {formula} on cuda:63"


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


def test_explain_lists_the_kernels_that_cannot(built):
    built([k.name for k in CORE])
    answer = explain(problem(n=97))
    assert answer.rejected and all(reason for _, reason in answer.rejected)
    taken = {choice.route.kernel.name for choice in answer.ranking}
    assert not taken & {k.name for k, _ in answer.rejected}
    assert f"not possible, {len(answer.rejected)} in all:" in str(answer)


def test_explain_takes_keywords_of_arguments_or_none():
    with pytest.raises(TypeError, match="activation belong into the GemmArguments"):
        explain(problem(), activation="relu")


@pytest.mark.parametrize(
    "args",
    [
        problem(),
        problem(layout="tt"),
        problem(k=511),
        problem(dtype="f32", out_dtype="bf16", c=operand(512, 512, "n")),
        problem(bias=vector(512), activation="hardswish"),
        problem(m=64, n=64, k=1 << 16),
    ],
    ids=str,
)
def test_explain_says_why(built, args):
    """Each kind of choice in turn, as if its kernel were the only one compiled."""
    built([k.name for k in CORE])
    ranking = rank(args.problem)
    first = {(choice.route.direct, choice.route.splits > 1): choice for choice in reversed(ranking)}
    for wanted in first.values():
        built([wanted.route.kernel.name])
        answer = explain(args)
        chosen, text = answer.chosen, str(answer)
        assert f"chosen: {wanted.route.kernel.name}" in text
        way = chosen.route.way
        assert all(f"  reason: {reason}" in text for reason in way.detours)
        for name, layout in (("a", way.pack_a), ("b", way.pack_b)):
            assert (f"  packs {name} first" in text) == bool(layout)
        assert ("composed: the product goes through" in text) == bool(way.scratch)
        assert ("splits k into" in text) == (chosen.route.splits > 1)
        assert f"estimated {chosen.microseconds:.1f} us" in text
        assert ("next of " in text) == (len(answer.ranking) > 1)
