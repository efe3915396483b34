"""What a kernel can compute: every reason why not, packing and scratch on the way, and that core covers all."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import REAL
from specs import A100, ARITHMETICS, B200, CORE, DEVICE, ladder, listed, operand, problem, tma, vector

from cutlass_py import GemmArguments, TensorSpec, clamp
from cutlass_py.arrays.gpu import ABSENT, Gpu
from cutlass_py.declaration import families
from cutlass_py.declaration.config import SCHEDULES
from cutlass_py.declaration.dtypes import COMPUTE, DTYPES, LAYOUTS, PAIRS
from cutlass_py.declaration.epilogues import ACTIVATIONS
from cutlass_py.kernels.kernel import CutlassKernel
from cutlass_py.operations.gemm.legality import Way

SM90, SM90_C = tma(), tma("linearc")
DIRECT, DIRECT_F32 = (tma("linearc", "pingpongdirect", d) for d in ("bf16", "f32"))
BIAS, BIAS_M, BIAS_GELU = tma("bias"), tma("biasm"), tma("bias_gelu")
SUMS = tma("fused_bias_grad", "leanpingpong", family="sm90_lean")
AUX, GATE, DERIVATIVE = tma("bias_gelu_aux"), tma("gate_silu"), tma("d_gelu")
E4M3 = tma(dtypes="e4m3 e4m3 f32")
FAST, SCALED = tma(dtypes="e4m3 e4m3 fast"), tma("scaled", dtypes="e4m3 e4m3 f32")
SCALED_E4M3 = tma("scaled", d="e4m3", dtypes="e4m3 e4m3 f32")
S32, S32_DIRECT = (tma(e, s, "s32", dtypes="s8 s8 s32") for e, s in (("linear", "pingpong"), ("linearc", "coopdirect")))
F16, F16_IN_F16 = (tma(d="f16", dtypes=f"f16 f16 {accumulator}") for accumulator in ("f32", "f16"))
ARRAY = tma("linearc", "cooparray", family="sm90_array")
ARRAY_LINEAR = tma("linear", "cooparray", family="sm90_array")
STREAM_K = tma(schedule="coopstreamk", family="sm90_streamk")
SM80, SM80_TT, SM80_NN = (ladder(layout) for layout in ("tn", "tt", "nn"))
SM80_GELU, SM80_STREAM_K = ladder(epilogue="linearc_gelu"), ladder(schedule="streamk")
SIMT = ladder(family="simt_gemm", dtype="f32", align=1)

D = operand(512, 512, "t")


def lists(n=512, layout="tn", **keywords):
    """Arguments with a list on both sides."""
    return GemmArguments(listed(512, 512, layout[0]), listed(512, n, layout[1]), **keywords)


# ---------------------------------------------------------------------------------------- obstacles


OBSTACLES = [
    (SM90, problem(dtype="f16"), "multiplies bf16; the operands are f16"),
    (SIMT, problem(dtype="tf32"), "multiplies f32; the operands are tf32"),
    (SIMT, problem(dtype="tf32x3"), "multiplies f32; the operands are tf32x3"),
    (E4M3, problem(dtype="e4m3", b="e5m2"), "multiplies e4m3; the operands are e4m3 by e5m2"),
    (
        tma(dtypes="s8 u8 s32", d="s32"),
        problem(dtype="u8", b="s8"),
        "multiplies s8 by u8; the operands are u8 by s8",
    ),
    (F16_IN_F16, problem(dtype="f16"), "sums in f16; f32 is asked for"),
    (FAST, problem(dtype="e4m3"), "sums in fast; f32 is asked for"),
    # Lists and decompositions.
    (ARRAY, problem(), "takes lists of matrices; a and b are arrays"),
    (SM90_C, lists(), "takes arrays; the operands are lists of matrices"),
    (SM80_STREAM_K, lists(), "takes arrays; the operands are lists of matrices"),
    (SM80, lists(n=1 << 23), "is one launch, which reaches n = 2096896; n is 8388608"),
    (
        SM80_STREAM_K,
        GemmArguments(operand(64, 64, "t", batch=2), operand(64, 64, "n", batch=2)),
        "deals out the k loops of one problem; the batch is 2",
    ),
    (SM90, problem(splits="stream"), "does not deal out its k loops; splits='stream' is asked for"),
    (SM80, problem(splits="stream"), "does not deal out its k loops; splits='stream' is asked for"),
    (STREAM_K, problem(splits=4), "splits k as it likes; splits=4 is asked for"),
    (SM80_STREAM_K, problem(splits=1), "splits k as it likes; splits=1 is asked for"),
    # 2.x reads whole vectors.
    (SM80, problem(k=100), "reads vectors of 8 along k; k is 100"),
    (SM80_NN, problem(m=100, layout="nn"), "reads vectors of 8 along m; m is 100"),
    (SM80_TT, problem(n=100, layout="tt"), "reads vectors of 8 along n; n is 100"),
    (SM80, problem(n=97), "writes vectors of 8 along n; n is 97"),
    # From here on a product that is rounded, or touched, and so cannot be finished elsewhere. The function first.
    (SM90, problem(activation="gelu"), "computes alpha * acc; gelu is asked for"),
    (BIAS_GELU, problem(), "computes gelu(alpha * acc + bias[n]); identity is asked for"),
    (BIAS_GELU, problem(activation="gelu_tanh"), "computes gelu(alpha * acc + bias[n]); gelu_tanh is asked for"),
    (
        BIAS_GELU,
        problem(gate=D, activation="gelu"),
        "computes gelu(alpha * acc + bias[n]); a gate through gelu is asked for",
    ),
    (GATE, problem(activation="silu"), "computes (alpha * acc) * silu(gate); silu is asked for"),
    (GATE, problem(gate=D), "computes (alpha * acc) * silu(gate); a gate through identity is asked for"),
    (DERIVATIVE, problem(aux=D, activation="d_relu"), "computes (alpha * acc) * d_gelu(aux); d_relu is asked for"),
    (DERIVATIVE, problem(activation="gelu"), "computes (alpha * acc) * d_gelu(aux); gelu is asked for"),
    (BIAS, problem(bias_grad=vector(512, "f64")), "does not sum a bias gradient; bias_grad is given"),
    (SUMS, problem(), "sums a bias gradient in f32 along n; bias_grad is not given"),
    (SUMS, problem(bias_grad=vector(512, "f64")), "sums a bias gradient in f32 along n; bias_grad is in f64 along n"),
    (
        SUMS,
        problem(bias_grad=vector((512, 1), "f32")),
        "sums a bias gradient in f32 along n; bias_grad is in f32 along m",
    ),
    # Scales.
    (E4M3, problem(dtype="e4m3", scale_a=vector(512, "f32")), "does not apply scales; scale_a is given"),
    (E4M3, problem(dtype="e4m3", scale_b=vector(1, "f32")), "does not apply scales; scale_b is given"),
    (E4M3, problem(dtype="e4m3", scale_out=0.5), "does not apply scales; scale_out is given"),
    (
        SCALED,
        problem(dtype="e4m3", scale_a=vector((512, 1), "f32", (2, 1))),
        "reads scale_a by unit stride; it has none",
    ),
    # What the activation is applied to.
    (BIAS_GELU, problem(activation="gelu", aux=D), "does not store aux; aux is given"),
    (AUX, problem(activation="gelu"), "stores aux; no aux is given"),
    (BIAS, problem(aux=D), "does not store aux; aux is given"),
    (GATE, problem(gate=D, activation="silu", aux=D), "does not store aux; aux is given"),
    # The bias.
    (SM90, problem(bias=vector(512)), "adds no bias along n; one is given"),
    (BIAS, problem(bias=vector((512, 1))), "adds no bias along m; one is given"),
    (BIAS_M, problem(bias=vector(512)), "adds no bias along n; one is given"),
    (BIAS, problem(bias=vector(512, "f32")), "adds a bias in bf16; it is f32"),
    (SCALED_E4M3, problem(dtype="e4m3", out_dtype="e4m3", bias=vector(512, "e4m3")), "adds a bias in f32; it is e4m3"),
    (BIAS, problem(bias=vector(512, strides=[2])), "reads the bias by 2 bytes; it is aligned to 1"),
    (BIAS, problem(bias=vector(512, strides=[2])), "reads the bias by 2 bytes; it is aligned to 1"),
    (SM80, problem(bias=vector(512, alignment=8)), "reads the bias by 16 bytes; it is aligned to 8"),
    (SM80, problem(bias=vector(512), c=D), "adds no bias along n; one is given"),
    (SM80, problem(bias=vector((512, 1))), "adds no bias along m; one is given"),
    (
        SM80,
        lists(bias=vector(512)),
        "adds no bias along n; one is given; lists of matrices are neither packed nor finished elsewhere",
    ),
    # D and what lies like it.
    (SM90, problem(out_dtype="f32"), "writes bf16; out is f32"),
    (SM90, problem(n=97, out=operand(512, 97, "t", pad=7)), "TMA writes rows in granules of 8 elements; n is 97"),
    (SM90, problem(out=operand(512, 512, "t", pad=2)), "writes 16 bytes at once; out is aligned to 4"),
    (
        SM90,
        problem(out=TensorSpec((512, 512), "bf16", (1024, 2), device=DEVICE)),
        "writes rows without gaps; out has no unit stride",
    ),
    (SM90, problem(c=D), "does not read c; c is given"),
    (SM90_C, problem(c=operand(512, 512, "t", "f32")), "takes c in bf16; it is f32"),
    (SM90_C, problem(c=operand(512, 512, "n")), "reads c as out lies, row by row; it lies otherwise"),
    (SM90_C, problem(c=operand(512, 512, "t", pad=1)), "takes c by 16 bytes; it is aligned to 2"),
    (GATE, problem(gate=operand(512, 512, "t", "f32"), activation="silu"), "takes gate in bf16; it is f32"),
    (
        GATE,
        problem(gate=operand(512, 512, "n"), activation="silu"),
        "reads gate as out lies, row by row; it lies otherwise",
    ),
    (AUX, problem(aux=operand(512, 512, "t", pad=4), activation="gelu"), "takes aux by 16 bytes; it is aligned to 8"),
    (DERIVATIVE, problem(aux=operand(512, 512, "t", "f16"), activation="d_gelu"), "takes aux in bf16; it is f16"),
    # Lists are neither packed nor finished.
    (
        ARRAY,
        lists(layout="tt"),
        "reads b column-major; it is row-major; lists of matrices are neither packed nor finished elsewhere",
    ),
    (
        ARRAY_LINEAR,
        lists(c=listed(512, 512, "t")),
        "does not read c; c is given; lists of matrices are neither packed nor finished elsewhere",
    ),
]


@pytest.mark.parametrize(("kernel", "args", "reason"), OBSTACLES, ids=[reason for *_, reason in OBSTACLES])
def test_obstacle(kernel, args, reason):
    assert kernel.way(args.problem, ABSENT) == reason
    assert kernel.supports(args).error == reason


@pytest.mark.parametrize(
    ("kernel", "gpu", "reason"),
    [
        (SM90, A100, "runs on compute capability 9.0 only; an A100 has 8.0"),
        (SM80, Gpu("a T4", 75, 40, 300.0), "runs on compute capability 8.0 and newer; a T4 has 7.5"),
        (SM90, None, "runs on a GPU; the operands are on the CPU"),
    ],
)
def test_the_wrong_device(kernel, gpu, reason):
    assert kernel.way(problem().problem, gpu) == reason


def test_a_range_of_capabilities():
    interface = replace(SM80.interface, cc=(80, 89))
    assert interface.way(problem().problem, ABSENT).startswith("runs on compute capability 8.0 to 8.9; ")


# ---------------------------------------------------------------------------------------- as they lie


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (SM90, problem()),
        (SM90, problem(splits=1)),
        (SM90, problem(alpha=vector(1, "f32"))),
        (SM90_C, problem(c=D, beta=0.5)),
        (BIAS, problem()),  # an absent bias adds nothing
        (BIAS, problem(bias=vector(512))),
        (BIAS, problem(bias=vector((1, 512), alignment=2))),
        (BIAS_M, problem(bias=vector((512, 1)))),
        (BIAS_GELU, problem(activation="gelu", bias=vector(512))),
        (BIAS_GELU, problem(activation="gelu")),
        (AUX, problem(activation="gelu", bias=vector(512), aux=D)),
        (GATE, problem(gate=D, activation="silu")),
        (DERIVATIVE, problem(aux=D, activation="d_gelu")),
        (tma("biasc_clamp"), problem(c=D, bias=vector(512), activation=clamp(-1, 1))),
        (SCALED, problem(dtype="e4m3")),
        (SCALED, problem(dtype="e4m3", scale_a=vector((512, 1), "f32"), scale_b=vector(512, "f32"), scale_out=0.5)),
        (SCALED, problem(dtype="e4m3", scale_a=vector(1, "f32"), bias=vector(512))),
        (SCALED_E4M3, problem(dtype="e4m3", out_dtype="e4m3", bias=vector(512, "f32"))),
        (S32, problem(dtype="s8", alpha=1.0)),
        (ARRAY, lists(c=listed(512, 512, "t"))),
        (SM80, lists()),
        (STREAM_K, problem(splits="stream")),
        (SM80_STREAM_K, problem()),
        # 2.x reads a bias along n as a C whose rows are all the same.
        (SM80, problem(bias=vector(512))),
        (SM80_GELU, problem(bias=vector(512), activation="gelu")),
        # compute= is a permission: what sums more accurately may serve it.
        (E4M3, problem(dtype="e4m3", compute="fast")),
        (FAST, problem(dtype="e4m3", compute="fast")),
        (F16, problem(dtype="f16", compute="f16")),
        (F16_IN_F16, problem(dtype="f16", compute="f16")),
    ],
    ids=lambda x: getattr(x, "name", str(x)),
)
def test_taken_as_it_lies(kernel, args):
    assert kernel.way(args.problem, ABSENT) == Way()
    assert kernel.supports(args)


@pytest.fixture(scope="module")
def one_of_each():
    """A 16-bit kernel for each epilogue of each family."""
    found = {
        (c.family, c.epilogue): CutlassKernel(c, None)
        for c in families.named("declared").values()
        if (c.a, c.d, c.layout) == ("bf16", "bf16", "tn")
    }
    return list(found.values())


@pytest.mark.parametrize("activation", ["identity", "silu", "gelu_tanh", "d_silu", "d_gelu_tanh"])
def test_a_kernel_that_takes_a_problem_as_it_lies_does_all_of_it(one_of_each, activation):
    derivative, taken = ACTIVATIONS[activation].derivative, 0
    for c, bias, gate, aux, scale, sums in product((0, 1), ("", "n", "m"), (0, 1), (0, 1), (0, 1), (0, 1)):
        if derivative and (gate or not aux):
            continue  # gemm refuses it
        given = {"c": D, "beta": 0.5} if c else {}
        given |= {"bias": vector(512) if bias == "n" else vector((512, 1))} if bias else {}
        given |= {"gate": D} if gate else {}
        given |= {"aux": D} if aux else {}
        given |= {"scale_a": vector(1, "f32")} if scale else {}
        given |= {"bias_grad": vector(512, "f32")} if sums else {}
        p = problem(activation=activation, **given).problem
        for kernel in one_of_each:
            if kernel.way(p, ABSENT) != Way():
                continue
            e, taken = kernel.interface.epilogue, taken + 1
            as_c = kernel.interface.bias_as_c and e.source and not c and bias == "n"
            assert e.applies(activation, bool(gate or derivative)), kernel
            assert e.aux == bool(aux and not derivative), kernel
            assert e.bias_grad == bool(sums), kernel
            assert not c or e.source, kernel
            assert bias in e.bias or as_c, kernel
            assert not scale or e.scaled, kernel
    assert taken


# ---------------------------------------------------------------------------------------- detours


SPREAD = TensorSpec((512, 512), "f32", (1024, 2), device=DEVICE)
DETOURS = [
    (SM90, problem(layout="tt"), "reads b column-major; it is row-major", {"pack_b": "n"}),
    (SM90, problem(layout="nn"), "reads a row-major; it is column-major", {"pack_a": "t"}),
    (SM90, problem(k=511), "reads a by 16 bytes; it is aligned to 2", {"pack_a": "t", "pack_b": "n"}),
    (SM90, problem(k=510), "reads a by 16 bytes; it is aligned to 4", {"pack_a": "t", "pack_b": "n"}),
    (E4M3, problem(dtype="e4m3", layout="nt"), "reads a row-major; it is column-major", {"pack_a": "t", "pack_b": "n"}),
    (SIMT, problem(dtype="f32", out_dtype="bf16"), "writes f32; out is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(n=97), "writes f32; out is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(out_dtype="f32", c=operand(512, 512, "t")), "takes c in f32; it is bf16", {"scratch": "f32"}),
    (DIRECT_F32, problem(out=SPREAD), "writes rows without gaps; out has no unit stride", {"scratch": "f32"}),
    (DIRECT_F32, problem(activation="tanh"), "computes alpha * acc + beta * c; tanh is asked for", {"scratch": "f32"}),
    (
        DIRECT_F32,
        problem(bias_grad=vector(512, "f32"), scale_out=0.5, out_dtype="f32"),
        "does not sum a bias gradient; bias_grad is given",
        {"scratch": "f32"},
    ),
    (SM90, problem(bias_grad=vector(512, "f32")), "does not sum a bias gradient; bias_grad is given", {"sums": True}),
    (DIRECT_F32, problem(bias=vector((512, 1))), "adds no bias along m; one is given", {"scratch": "f32"}),
    (DIRECT_F32, problem(aux=D), "does not store aux; aux is given", {"scratch": "f32"}),
    (DIRECT_F32, problem(scale_a=vector(512, "f32")), "does not apply scales; scale_a is given", {"scratch": "f32"}),
    (SM80, problem(k=504, layout="nt", pad=4), "reads a row-major; it is column-major", {"pack_a": "t", "pack_b": "n"}),
    (
        S32,
        problem(dtype="s8", alpha=0.5),
        "stores sums in s32 as they are; what is applied to them would wrap around",
        {"scratch": "s32"},
    ),
    (
        S32,
        problem(dtype="s8", alpha=vector(1, "f32")),
        "stores sums in s32 as they are; what is applied to them would wrap around",
        {"scratch": "s32"},
    ),
    (
        S32_DIRECT,
        problem(dtype="s8", c=operand(512, 512, "t", "s32")),
        "stores sums in s32 as they are; what is applied to them would wrap around",
        {"scratch": "s32"},
    ),
    (S32_DIRECT, problem(dtype="s8", out_dtype="bf16"), "writes s32; out is bf16", {"scratch": "s32"}),
    (
        S32_DIRECT,
        problem(dtype="s8", bias=vector(512, "f32")),
        "adds no bias along n; one is given",
        {"scratch": "s32"},
    ),
    (
        tma(d="f32", dtypes="e4m3 e4m3 fast"),
        problem(dtype="e4m3", compute="fast"),
        "writes f32; out is bf16",
        {"scratch": "f32"},
    ),
]


@pytest.mark.parametrize(("kernel", "args", "reason", "how"), DETOURS, ids=[reason for _, _, reason, _ in DETOURS])
def test_detour(kernel, args, reason, how):
    way = kernel.way(args.problem, ABSENT)
    assert isinstance(way, Way)
    assert way.detours[0] == reason
    assert {key: getattr(way, key) for key in ("pack_a", "pack_b", "scratch", "sums") if getattr(way, key)} == how
    assert kernel.supports(args).error == reason


def test_operand_without_unit_stride_is_packed():
    args = GemmArguments(TensorSpec((512, 512), "bf16", (1024, 2), device=DEVICE), operand(512, 512, "n"))
    assert SM90.way(args.problem, ABSENT) == Way(pack_a="t", detours=("reads a row-major; it has no unit stride",))


def test_pointer_alignment_counts():
    args = GemmArguments(operand(512, 512, "t", alignment=8), operand(512, 512, "n"))
    assert SM90.supports(args).error == "reads a by 16 bytes; it is aligned to 8"
    assert SM80.supports(args).error == "reads a by 16 bytes; it is aligned to 8"


def test_the_least_alignment_of_a_list_counts():
    aligned, odd = (GemmArguments(listed(512, 512, "t", alignment=x), listed(512, 512, "n")) for x in (16, 8))
    assert aligned.problem.align_a == 16 and odd.problem.align_a == 8
    assert ARRAY.supports(aligned) and not ARRAY.supports(odd)


def test_batch_stride_alignment_counts():
    b = operand(512, 512, "n", batch=3)
    fits = GemmArguments(operand(512, 512, "t", batch=3), b)
    odd = GemmArguments(TensorSpec((3, 512, 512), "bf16", (512 * 512 + 4, 512, 1), device=DEVICE), b)
    assert SM90.supports(fits)
    assert SM90.supports(odd).error == "reads a by 16 bytes; it is aligned to 8"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_swapped_kernel_takes_what_its_plain_form_takes(layout):
    """Axes of a bias are the caller's."""
    forms: dict[bool, set[str]] = {False: set(), True: set()}
    for k in CORE:
        schedule = SCHEDULES[k.config.schedule]
        mine = (k.config.a, k.config.layout, schedule.lean) == ("bf16", layout, True)
        if mine and not schedule.direct and k.interface.epilogue.plain:
            name = k.name.replace(schedule.name, schedule.name.removesuffix("swap"))
            for bias in (vector(512), vector((8, 1))):
                if k.supports(problem(m=8, layout=layout, activation="silu", bias=bias)):
                    forms[schedule.swap].add(f"{name} {bias.shape}")
    assert forms[False] == forms[True] and len(forms[True]) > 60
    biased = tma("bias", "pingpongswap"), tma("biasm", "pingpongswap")
    for kernel, bias in zip(biased, (vector(512), vector((512, 1))), strict=True):
        assert kernel.supports(problem(bias=bias))


# ---------------------------------------------------------------------------------------- what CUTLASS gets wrong


def test_odd_extent_in_padded_rows_goes_to_tma():
    """CUTLASS's can_implement refuses k = 99 with lda = 104, which runs exactly."""
    assert SM90.supports(problem(m=256, n=256, k=99, pad=5))


def test_misaligned_rows_do_not():
    assert not SM90.supports(problem(k=513))


def test_odd_n_goes_to_the_kernel_that_stores_directly():
    assert DIRECT.supports(problem(m=4096, n=97, k=4096, out=operand(4096, 97, "t", pad=7)))


# ---------------------------------------------------------------------------------------- the canonical problem


def test_column_major_out_is_the_transposed_problem():
    args = GemmArguments(operand(100, 40, "t"), operand(40, 60, "t"), out=operand(100, 60, "n"), bias=vector(60))
    p = args.problem
    assert p.transposed and (p.m, p.n, p.k) == (60, 100, 40)
    assert (p.layout_a, p.layout_b, p.layout_d, p.bias_axis) == ("n", "n", "t", "m")


def test_beta_zero_makes_c_disappear():
    c = operand(512, 512, "t", "f32")
    assert problem(c=c, beta=0).problem == problem().problem
    assert problem(c=c).problem.c == "f32"
    assert problem().problem.c is None


def test_layouts_of_vectors_need_no_leading_dimension():
    """One row or one column: the stride that is never used does not cost the alignment."""
    for a in "tn":
        for b in "tn":
            assert GemmArguments(operand(1, 64, a), operand(64, 136, b)).problem.align_a == 16
    row = GemmArguments(TensorSpec((1, 64), "bf16", (7, 1), device=DEVICE), operand(64, 136, "n"))
    assert row.problem.align_a == 16 and row.problem.layout_a == "t"


# ---------------------------------------------------------------------------------------- coverage by core


INTERFACES = {k.interface: k for k in CORE}
GPUS = [ABSENT, A100, B200]
extents = st.integers(1, 300)
paddings = st.sampled_from([0, 0, 1, 2, 3, 4, 8])


def ways(p, gpu):
    """Every way of a core kernel to a problem, with its interface."""
    found = ((interface, interface.way(p, gpu)) for interface in INTERFACES)
    return [(interface, way) for interface, way in found if isinstance(way, Way)]


@st.composite
def arguments(draw, dtype, compute):
    """Any problem of an arithmetic: partner, extents, layouts, alignment, batch, result, epilogue."""
    complex_ = dtype.startswith("c")
    partners = [dtype, *(other for pair in PAIRS for other in pair if dtype in pair)]
    m, n, k = (draw(extents) for _ in range(3))
    batch = draw(st.sampled_from([None, None, 1, 3]))
    d = draw(st.sampled_from(("c64", "c128") if complex_ else REAL))

    def array(rows, cols, kinds):
        kind = draw(st.sampled_from(kinds))
        alignment = draw(st.sampled_from([DTYPES[kind].itemsize, 16, 256]))
        return operand(rows, cols, draw(st.sampled_from("tn")), kind, draw(paddings), batch, alignment=alignment)

    def maybe(value):
        return value() if draw(st.booleans()) else None

    def like_d():
        return array(m, n, ("c64", "c128") if complex_ else REAL)

    accumulator = COMPUTE[dtype][compute].accumulator
    factor = {"f64": "f64", "c64": "c64", "c128": "c128"}.get(accumulator, "f32")
    bias = {"s": ("f32", "s32"), "u": ("f32", "s32"), "c": (d,)}.get(d[0], (d, "f32"))
    shapes = [n, (1, n), (m, 1)]
    keywords = {
        "c": maybe(like_d),
        "alpha": draw(st.sampled_from([1.0, 2, 0.3, vector(1, factor)])),
        "bias": maybe(lambda: vector(draw(st.sampled_from(shapes)), draw(st.sampled_from(bias)))),
        "deterministic": draw(st.booleans()),
    }
    if not complex_:
        f = draw(st.sampled_from([a for a in ACTIVATIONS if a != "clamp"]))
        derivative = ACTIVATIONS[f].derivative
        keywords |= {
            "activation": f,
            "aux": like_d() if derivative else maybe(like_d),
            "gate": None if derivative else maybe(like_d),
            "scale_a": draw(st.sampled_from([None, 0.5, vector(1, factor), vector((m, 1), factor)])),
            "scale_b": draw(st.sampled_from([None, vector(1, factor), vector(n, factor)])),
            "scale_out": draw(st.sampled_from([None, 0.5, vector(1, factor)])),
        }
        if isinstance(keywords["alpha"], TensorSpec) and keywords["scale_a"] == 0.5:
            keywords["scale_a"] = None
        float_d = d if d[0] not in "su" else "f32"
        keywords["bias_grad"] = maybe(
            lambda: vector(draw(st.sampled_from(shapes)), draw(st.sampled_from([float_d, "f32"])))
        )
    out = array(m, n, (d,))
    return GemmArguments(array(m, k, (dtype,)), array(k, n, partners), out=out, compute=compute, **keywords)


@pytest.mark.parametrize(("dtype", "compute"), ARITHMETICS)
@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: str(g.cc))
@settings(max_examples=15)
@given(data=st.data())
def test_core_has_a_way_to_every_problem(gpu, dtype, compute, data):
    """8-bit floats are multiplied by wgmma alone."""
    args = data.draw(arguments(dtype, compute))
    found = ways(args.problem, gpu)
    assert bool(found) == (gpu.cc == 90 or dtype not in ("e4m3", "e5m2")), f"{args}"
    for interface, way in found:
        detours = [way.pack_a, way.pack_b, way.scratch]
        assert len(way.detours) == sum(map(bool, detours))
        assert way.pack_a in (None, interface.layout[0]) and way.pack_b in (None, interface.layout[1])
        assert way.scratch in (None, interface.d) and (not way.scratch or interface.finishable)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "tf32x3", "f32", "f64", "c64", "c128"])
@pytest.mark.parametrize("gpu", GPUS, ids=lambda g: str(g.cc))
@settings(max_examples=8)
@given(m=extents, n=extents, k=extents, pads=st.tuples(paddings, paddings, paddings), data=st.data())
def test_every_shape_has_a_kernel_that_takes_it_as_it_lies(gpu, dtype, layout, m, n, k, pads, data):
    storage = "f32" if dtype.startswith("tf32") else dtype
    alignment = data.draw(st.sampled_from([DTYPES[storage].itemsize, 8, 16, 256]))
    alignment = max(alignment, DTYPES[storage].itemsize)
    out = operand(m, n, data.draw(st.sampled_from("tn")), storage, pads[2], alignment=alignment)
    args = GemmArguments(
        operand(m, k, layout[0], storage, pads[0], alignment=alignment),
        operand(k, n, layout[1], storage, pads[1], alignment=alignment),
        out=out, c=data.draw(st.sampled_from([None, out])), compute={"tf32": "tf32", "tf32x3": "3xtf32"}.get(dtype),
    )  # fmt: skip
    assert any(not way.detours for _, way in ways(args.problem, gpu)), f"{args}"


@pytest.mark.parametrize(("dtype", "compute"), ARITHMETICS)
@settings(max_examples=15)
@given(m=extents, n=extents, k=extents, pad=paddings, layout=st.sampled_from(LAYOUTS))
def test_more_alignment_never_costs_a_way(dtype, compute, m, n, k, pad, layout):
    def found(alignment):
        a = operand(m, k, layout[0], dtype, pad, alignment=alignment)
        b = operand(k, n, layout[1], dtype, pad, alignment=alignment)
        p = GemmArguments(a, b, compute=compute).problem
        return {interface: len(way.detours) for interface, way in ways(p, ABSENT)}

    before = found(DTYPES[dtype].itemsize)
    after = found(256)
    assert all(after.get(interface, 9) <= detours for interface, detours in before.items())
