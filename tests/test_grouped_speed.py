"""benchmarks/grouped.py: which problems a seed draws, what its arms compute, on the CPU, and what is said of them."""

from __future__ import annotations

import json
import secrets
from math import exp
from random import Random

import pytest
from fake_gpu import OnCpu

import cutlass_py
from cutlass_py.operations.grouped_gemm.operation import SPREADS
from cutlass_py.operations.grouped_gemm.suites import KINDS, LAYERS, Experts, drawn, sizes_of

KEYS = ("rows", "decode", "k", "even", "gather", "gated", "fp8", "blocks")
SMALL = {
    "rows": Experts("rows", "3/4 empty", (0, 5, 0, 3), 16, 24),
    "decode": Experts("decode", "1 to 16", (1, 3, 16), 32, 8),
    "k": Experts("k", "Dirichlet(1)", (0, 7, 1), 16, 24),
    "even": Experts("even", "even", (8, 8), 16, 8),
    "gather": Experts("gather", "even", (8, 8), 16, 8),
    "gated": Experts("gated", "even", (8, 8), 16, 8),
    "fp8": Experts("fp8", "3/4 empty", (0, 16), 16, 16),
    "blocks": Experts("blocks", "even", (8, 8), 136, 144),
}
US = {"torch": 30.0, "cutlass_py": 20.0, "tuned": 15.0, "copy": 18.0, "dense": 19.0, "select": 22.0, "plain": 17.0}
US |= {"threads": 38.0, "apart": 26.0, "fast": 16.0, "torch fast": 24.0}
BESIDE = {
    "decode": ["torch", "copy"], "even": ["torch", "dense"], "gather": ["torch", "dense", "select", "plain"],
    "gated": ["torch", "plain", "apart"], "blocks": ["dense"],
}  # fmt: skip
OTHERS = {"gather": {"threads": 0.5}, "fp8": {"fast": 1.5}}  # ratios over others than the choice
CHECKED = {"gather": {"select", "plain"}, "gated": {"apart"}, "fp8": {"fast", "torch fast"}}


def scaled_grouped_mm(torch):
    """torch's, which has no CPU: a loop."""

    def product(a, b, scale_a, scale_b, *, offs, out_dtype, use_fast_accum):
        d, begin = torch.zeros((len(a), b.shape[2]), dtype=out_dtype), 0
        for i, end in enumerate(offs.tolist()):
            z = a[begin:end].float() @ b[i].float()
            d[begin:end] = (z * scale_a[begin:end, None] * scale_b[i]).to(out_dtype)
            begin = end
        return d

    return product


@pytest.fixture
def grouped(script):
    return script("grouped")


@pytest.fixture
def run(grouped, monkeypatch, tmp_path):
    """The script on a GPU that is none, whose arms run on the CPU and take the times above."""
    torch = pytest.importorskip("torch")
    path, gpu = tmp_path / "x.json", OnCpu(torch)

    def regime_us(gpu, regime, arms, sets, rough, budget_ms):
        for arm in arms:
            arm.launch(sets + 1)
        return {"us": {arm.name: US[arm.name] for arm in arms}, "rounds_us": {arm.name: [US[arm.name]] for arm in arms}}

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped_mm(torch))
    replaced = {
        "Torch": lambda: gpu, "environment": lambda commit: {"machine": {"gpu": "x"}, "versions": {"torch": "0"}},
        "settle": lambda gpu: None, "gpu_state": lambda: {}, "regime_us": regime_us, "rough_us": lambda gpu, arm: 1.0,
        "drawn": lambda kind, seed, count: [SMALL[kind]] * (count or 1),
        "host_cost": lambda gpu: {"us": {"cutlass_py": {"median": 1.0}, "framework": {"median": 2.0}}},
    }  # fmt: skip
    for name, value in replaced.items():
        monkeypatch.setattr(grouped, name, value)

    def started(*options):
        return grouped.main([*options, "--json", str(path)]), json.loads(path.read_text())

    started.gpu = gpu
    return started


# ---------------------------------------------------------------------------------------- the problems


@pytest.mark.parametrize("kind", KEYS)
def test_a_seed_draws_the_same_problems(kind):
    """Of which a larger count has more; another seed draws others."""
    first = drawn(kind, 7, 6)
    assert first == drawn(kind, 7, 20)[:6] and first != drawn(kind, 8, 6)
    assert len(drawn(kind, 7)) == KINDS[kind]


def test_a_seed_draws_the_same_problems_for_ever():
    assert [str(drawn(kind, 1, 1)[0]) for kind in KEYS] == [
        "rows: 128 x (4096, 1024), 28672 lines, even",
        "decode: 160 x (768, 2048), 1351 lines, 1 to 16",
        "k: 64 x (2048, 768), 6208 lines, even",
        "even: 16 x (4096, 6144), 39736 lines, even",
        "gather: 32 x (2048, 4096), 65056 lines, even",
        "gated: 8 x (4096, 1024), 5880 lines, even",
        "fp8: 73 x (4096, 14336), 17024 lines, even",
        "blocks: 4 x (4096, 2048), 87381 lines, even",
    ]
    assert drawn("decode", 1, 1)[0].sizes[:8] == (9, 1, 8, 6, 15, 2, 6, 13)


@pytest.mark.parametrize("kind", KEYS)
def test_problems_are_bounded(kind):
    """By time and memory: 15 GB of torch's, ours and theirs, and some milliseconds."""
    for p in drawn(kind, 11, 300):
        assert (p.n, p.k) in LAYERS and p.lines == sum(p.sizes) > 0 and min(p.sizes) >= 0
        assert p.flop <= 2e12 and len(p.sizes) <= 256 and (kind != "even" or min(p.sizes) >= 2048)
        results = (p.weights if p.deep else p.lines * p.n) * 2  # torch's, outside and inside of a graph
        assert 2 * (p.elements + results) < 15e9
        assert len(p.sizes) >= (128 if kind == "decode" else 4)
        assert kind != "decode" or {*p.sizes} <= {*range(1, 17)}


def test_spreads_are_what_they_say():
    for p in drawn("rows", 3, 80):
        groups, mean = len(p.sizes), p.lines / len(p.sizes)
        if p.spread == "even":
            assert max(p.sizes) - min(p.sizes) <= 1
        elif p.spread == "U(0.7, 1.3)":
            assert 0.5 * mean < min(p.sizes) + 1 and max(p.sizes) < 1.9 * mean + 1
        elif p.spread == "3/4 empty":
            assert sum(map(bool, p.sizes)) == groups // 4
        else:
            assert groups < 32 or max(p.sizes) > 2 * mean
    assert {p.spread for p in drawn("rows", 3, 4)} == {*SPREADS}


@pytest.mark.parametrize("spread", SPREADS)
def test_estimates_know_spreads_as_they_are_drawn(spread):
    """By the middles of the quartiles."""
    sizes = sorted(sizes_of(spread, 4000, 4_000_000, Random(5).random))
    middles = [sizes[4000 * quartile // 8] / 1000 for quartile in (1, 3, 5, 7)]
    assert middles == pytest.approx(SPREADS[spread], abs=0.08)


# ---------------------------------------------------------------------------------------- the arms


def test_every_kind(run, capsys):
    """Each arm computes what it says, in both regimes; ratios are others' times over ours."""
    code, found = run("--seed", "7")
    assert code == 0 and found["seed"] == 7 and [record["kind"] for record in found["timed"]] == [*KEYS]
    for record in found["timed"]:
        kind = record["kind"]
        beside, theirs = BESIDE.get(kind, ["torch"]), {"torch"} if kind != "blocks" else set()
        assert {*record["error"]} == {"cutlass_py", *theirs, *CHECKED.get(kind, ())} and record["wrong"] == [], record
        for regime in ("sustained", "mixed"):
            assert record[regime]["ratio"] == {name: US[name] / 20 for name in beside} | OTHERS.get(kind, {})
    p, (decode,) = SMALL["decode"], (record for record in found["timed"] if record["kind"] == "decode")
    assert decode["mixed"]["GB/s"] == pytest.approx(2 * 3 * p.n * p.k / 20e-6 / 1e9, rel=1e-5)
    assert decode["mixed"]["TFLOP/s"] == pytest.approx(2 * 20 * p.n * p.k / 20e-6 / 1e12, rel=1e-5)
    assert run.gpu.freed == len(KEYS)
    printed = capsys.readouterr().out
    assert "torch 0, 8 problems, seed 7" in printed and "host time of a call, us: 1.0, torch's 2.0" in printed
    assert "decode: 3 x (32, 8), 20 lines, 1 to 16" in printed


def test_both_regimes_time_every_arm(grouped, monkeypatch):
    """By the clock of a GPU that is none, which calls turn forward."""
    torch = pytest.importorskip("torch")
    gpu, theirs, ours = OnCpu(torch), torch._grouped_mm, cutlass_py.grouped_gemm

    def grouped_mm(*operands, **keywords):
        gpu.tick(30)
        return theirs(*operands, **keywords)

    def grouped_gemm(a, b, **keywords):
        gpu.tick(20 if "gather" in keywords else 16)
        return ours(a, b, **keywords)

    monkeypatch.setattr(torch, "_grouped_mm", grouped_mm)
    monkeypatch.setattr(cutlass_py, "grouped_gemm", grouped_gemm)
    args = grouped.parse(["--budget-ms", "0.5"])
    record = grouped.measure(SMALL["rows"], gpu, args)
    assert {regime: record[regime]["ratio"] for regime in args.regime} == {
        "sustained": {"torch": 30 / 16}, "mixed": {"torch": 30 / 16},
    }  # fmt: skip
    monkeypatch.setattr(cutlass_py, "get_kernels", lambda args: [])  # no dense arms without kernels
    record = grouped.measure(SMALL["gather"], gpu, args)
    assert {*record["mixed"]["us"]} == {"torch", "cutlass_py", "select", "plain"}
    assert record["sustained"]["ratio"] == {"torch": 1.5, "select": 0.8, "plain": 0.8}


def test_a_new_seed_is_printed(run, monkeypatch, capsys):
    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)
    code, found = run("--kinds", "even", "rows", "--problems", "2")
    assert code == 0 and "4 problems, seed 4294967295" in capsys.readouterr().out
    assert [record["kind"] for record in found["timed"]] == ["even", "even", "rows", "rows"]


def test_a_tuned_choice_beside_the_default_one(run, grouped, monkeypatch):
    """The default choice goes by its name then, since a call without a name is tuned."""
    named, one = [], cutlass_py.grouped_gemm

    def grouped_gemm(a, b, *, kernel, **keywords):
        named.append(kernel)
        return one(a, b, **keywords)

    def tune(asked):
        best = cutlass_py.explain(asked).chosen
        return type("Tuning", (), {"best": type("Best", (), {"choice": best})})

    monkeypatch.setattr(cutlass_py, "grouped_gemm", grouped_gemm)
    monkeypatch.setattr(cutlass_py, "tune", tune)
    code, found = run("--kinds", "rows", "--tune")
    (record,) = found["timed"]
    assert code == 0 and record["sustained"]["ratio"] == {"torch": 1.5, "tuned": 2.0}
    assert record["tuned"] == record["kernel"] == "cpu_grouped_gemm_numpy"
    assert {*named} == {None, record["kernel"]}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("value", [100.0, float("nan")])
def test_a_wrong_result_is_told(run, monkeypatch, capsys, kind, value):
    one = cutlass_py.grouped_gemm

    def grouped_gemm(a, b, *, out, **keywords):
        one(a, b, out=out, **keywords)
        out.view(-1)[-1] = value

    monkeypatch.setattr(cutlass_py, "grouped_gemm", grouped_gemm)
    code, found = run("--kinds", kind)
    checked = {"cutlass_py", *CHECKED.get(kind, ())} - {"torch fast"}
    assert code == 1 and {*found["timed"][0]["wrong"]} == checked
    assert f"WRONG: {SMALL[kind]}, cutlass_py: off by " in capsys.readouterr().out


def test_a_product_before_the_activation_that_is_not_written_is_told(run, monkeypatch):
    one = cutlass_py.grouped_gemm

    def grouped_gemm(a, b, *, gated=None, **keywords):
        if gated:
            one(a, b, gated=gated, **keywords)

    monkeypatch.setattr(cutlass_py, "grouped_gemm", grouped_gemm)
    code, found = run("--kinds", "gated")
    assert code == 1 and found["timed"][0]["wrong"] == ["apart"]


def test_a_problem_that_fails_does_not_lose_the_others(run, grouped, monkeypatch, capsys):
    measure = grouped.measure

    def fails(p, gpu, args):
        if p.kind == "decode":
            raise MemoryError
        return measure(p, gpu, args)

    monkeypatch.setattr(grouped, "measure", fails)
    code, found = run()
    assert code == 1 and [record["kind"] for record in found["timed"]] == [kind for kind in KEYS if kind != "decode"]
    assert f"FAILED: {SMALL['decode']}: MemoryError\n" in capsys.readouterr().out
    assert run.gpu.freed == len(KEYS)


def test_a_gpu_that_works_no_more_ends_the_run(run, monkeypatch, capsys):
    def free():
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(run.gpu, "free", free)
    code, found = run()
    assert code == 1 and len(found["timed"]) == 1
    assert "the GPU works no more: RuntimeError: an illegal memory access" in capsys.readouterr().out


def test_the_summary(grouped):
    """By kind and ratio; the 5th percentile is the second worst of 21 to 40."""
    ratios = [0.5, 0.8, *[1.0] * 38]
    records = [{"kind": "rows", "problem": str(i), "mixed": {"ratio": {"torch": x}}} for i, x in enumerate(ratios)]
    records.append({"kind": "even", "problem": "e", "mixed": {"ratio": {"torch": exp(1), "dense": 0.9}}})
    rows, even, dense = grouped.summary(records, ["mixed"])
    assert rows["geomean"] == pytest.approx(0.4 ** (1 / 40)) and (rows["5%"], rows["worst"]) == (0.8, 0.5)
    assert rows["worst at"] == "0" and rows["problems"] == 40 and rows["ratio"] == "torch / cutlass_py"
    assert (even["kind"], even["geomean"], dense["ratio"], dense["worst"]) == (
        "even", pytest.approx(exp(1)), "dense / cutlass_py", 0.9,
    )  # fmt: skip


def test_the_host_s_time(grouped):
    """Both statements run, on the CPU here."""
    gpu = OnCpu(pytest.importorskip("torch"))
    found = grouped.host_cost(gpu)
    assert found["ratio"]["median"] > 0 and {*found["us"]} == {"cutlass_py", "framework"}


@pytest.mark.parametrize(("options", "message"), [
    (["--kinds", "columns"], "argument --kinds: invalid choice: 'columns'"),
    (["--problems", "0"], "argument --problems: '0' is no whole number of 1 or more"),
    (["--seed", "-1"], "argument --seed: '-1' is no whole number of 0 or more"),
])  # fmt: skip
def test_wrong_usage(grouped, capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        grouped.main(options)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_without_a_gpu(grouped, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert grouped.main([]) == 2 and "no GPU was found" in capsys.readouterr().out
