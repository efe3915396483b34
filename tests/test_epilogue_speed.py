"""What an epilogue costs: the problems of the script, its arms on the CPU, and what it says of given times."""

from __future__ import annotations

import json
import secrets

import pytest
from fake_gpu import SMALL, OnCpu

import cutlass_py
from cutlass_py.bench.suites import Case
from cutlass_py.operations.gemm.suites import RANDOM

COST, BIAS, GAIN, FUSED = (
    "default / plain default", "bias / plain default", "torch plain / plain default", "addmm / default",
)  # fmt: skip


@pytest.fixture
def speed(script):
    return script("epilogue_speed")


@pytest.fixture
def run(speed, monkeypatch, tmp_path):
    """The script on a GPU that is none: exit code, and the result it wrote."""
    torch = pytest.importorskip("torch")
    path, facts = tmp_path / "x.json", {"machine": {"gpu": "x"}, "versions": {"torch": "0"}}
    operands = speed.Operands

    def small(case, gpu):
        return operands(case if max(case.shape) < 1000 else SMALL, gpu)  # the warm-up is large

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    replaced = {"Torch": lambda: OnCpu(torch), "environment": lambda commit: facts, "Operands": small}
    replaced |= {"warm_up": lambda *_: None, "gpu_state": lambda: {}}
    for name, value in replaced.items():
        monkeypatch.setattr(speed, name, value)

    def started(*options):
        return speed.main([*options, "--json", str(path)]), json.loads(path.read_text())

    return started


def drawn(shape, sustained, mixed=None, f="gelu_tanh"):
    """A record of a drawn problem, by its ratios in each regime."""
    record = {**dict(zip("mnk", shape, strict=True)), "activation": f, "wrong": []}
    record["default"] = {"kernel": "a_kernel", "scratch": None}
    regimes = {"sustained": sustained, "mixed": mixed or sustained}
    return record | {regime: {"us": {"plain default": 1.0}, "ratio": ratio} for regime, ratio in regimes.items()}


# ---------------------------------------------------------------------------------------- the problems


@pytest.mark.parametrize("suite", ["random", "random-layer"])
def test_a_seed_draws_the_same_problems(speed, suite):
    """Those of `bench`, of which a larger count has more."""

    def problems(*options):
        return speed.parse(["--suite", suite, *options]).shape

    first = problems("--seed", "7", "--count", "4")
    assert first == [shape[1:] for shape in RANDOM[suite].shapes(7, 4)] == problems("--seed", "7", "--count", "9")[:4]
    assert first != problems("--seed", "8", "--count", "4")
    assert len(problems("--seed", "7")) == RANDOM[suite].count


def test_a_new_seed_is_printed_and_kept(speed, run, monkeypatch, capsys):
    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)
    monkeypatch.setattr(speed, "measure", lambda shape, f, gpu, args: drawn(shape, {COST: 1.0, FUSED: 2.0}))
    options = ["--suite", "random", "--count", "3"]
    code, found = run(*options)
    assert code == 0 and "random, 3 problems, seed 4294967295; JSON: " in capsys.readouterr().out
    assert (found["suite"], found["seed"], len(found["problems"])) == ("random", 4294967295, 3)
    assert [[record[extent] for extent in "mnk"] for record in found["timed"]] == found["problems"]
    assert run(*options, "--seed", "4294967295")[1]["problems"] == found["problems"]


def test_without_a_suite(speed):
    """Shapes and activations are what they are by default, or as asked for."""
    args = speed.parse([])
    assert (args.shape, args.activation) == (speed.SHAPES, [*speed.ACTIVATIONS])
    assert (args.kernel, args.ratios) == (speed.KERNEL, speed.RATIOS)
    args = speed.parse(["--shape", "1,2,3", "--shape", "4,5,6", "--activation", "relu", "silu", "--kernel", "x"])
    assert (args.shape, args.activation, args.kernel) == ([(1, 2, 3), (4, 5, 6)], ["relu", "silu"], "x")


@pytest.mark.parametrize(("options", "message"), [
    (["--suite", "llm"], "argument --suite: invalid choice: 'llm'"),
    (["--suite", "random-batched"], "argument --suite: invalid choice: 'random-batched'"),
    (["--suite"], "argument --suite: expected one argument"),
    (["--suite", "random", "--count", "0"], "argument --count: '0' is no whole number of 1 or more"),
    (["--suite", "random", "--count", "1.5"], "argument --count: '1.5' is no whole number of 1 or more"),
    (["--suite", "random", "--seed", "-1"], "argument --seed: '-1' is no whole number of 0 or more"),
    (["--count", "3"], "--seed and --count are of --suite"),
    (["--shape", "1,2,3", "--seed", "0"], "--seed and --count are of --suite"),
    (["--suite", "random", "--shape", "1,2,3"], "argument --shape: not allowed with argument --suite"),
    (["--suite", "random", "--kernel", "x"], "expected no --kernel, and one --activation"),
    (["--suite", "random", "--activation", "relu", "silu"], "expected no --kernel, and one --activation"),
    (["--shape", "1,2"], "argument --shape: '1,2' is not M,N,K"),
])  # fmt: skip
def test_wrong_usage(speed, capsys, options, message):
    with pytest.raises(SystemExit) as stopped:
        speed.main(options)
    assert stopped.value.code == 2 and message in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- the arms

US = {"plain default": 10.0, "bias default": 10.2, "default": 10.3, "torch plain": 11.0, "addmm": 12.0}


@pytest.fixture
def timed(speed, run, monkeypatch):
    """Two small problems, whose arms run on the CPU and take the times above."""

    def regime_us(gpu, regime, arms, sets, rough, budget_ms):
        for arm in arms:
            arm.launch(sets + 1)
        return {"us": {arm.name: US[arm.name] for arm in arms}, "rounds_us": {arm.name: [US[arm.name]] for arm in arms}}

    monkeypatch.setattr(speed, "regime_us", regime_us)
    monkeypatch.setattr(speed, "rough_us", lambda gpu, arm: 1.0)
    shapes = [(1, 24, 16, 8), (1, 1, 65, 99)]
    monkeypatch.setattr(speed, "cases", lambda *_, **__: [Case("random", "bf16", "tn", shape) for shape in shapes])
    return lambda *options: run("--suite", "random", *options)


@pytest.mark.parametrize("f", ["gelu_tanh", "relu", "identity", "silu"])
def test_drawn_problems_are_of_choices(timed, f):
    """Each arm computes what its name says; cuBLASLt's fused epilogue is there for some activations."""
    code, found = timed("--activation", f)
    assert code == 0 and found["problems"] == [[24, 16, 8], [1, 65, 99]] and found["seed"] >= 0
    for record in found["timed"]:
        ratios = {COST: 1.03, BIAS: 1.02, GAIN: 1.1, FUSED: 12.0 / 10.3}
        if f == "silu":
            del ratios[FUSED]
        assert record["activation"] == f and record["wrong"] == []
        assert all(float(error) < record["limit"] for error in record["error"].values())
        for regime in ("sustained", "mixed"):
            assert record[regime]["ratio"] == pytest.approx(ratios, rel=1e-5)
            assert list(record[regime]["us"]) == [arm for arm in US if arm != "addmm" or f != "silu"]


def test_every_arm_of_a_single_shape_computes_what_it_says(speed):
    """Users' epilogues too, one of which stores a matrix and sums beside D."""
    gpu = OnCpu(pytest.importorskip("torch"))
    operands = speed.Operands(Case("epilogue", "bf16", "tn", (1, 24, 16, 8)), gpu)
    biases = [gpu.random((16,), "bf16") for _ in range(operands.count)]
    arms = speed.arms_of("gelu", operands, biases, None)
    errors = speed.errors("gelu", arms, operands, biases[0])
    assert {"user", "outputs", "user default"} < {*errors} and max(errors.values()) < 0.01


@pytest.mark.parametrize("arm", ["plain default", "bias default", "default"])
def test_a_wrong_result_is_told(timed, monkeypatch, capsys, arm):
    gemm = cutlass_py.gemm

    def off(a, b, **keywords):
        gemm(a, b, **keywords)
        of = {0: "plain default", 1: "bias default", 2: "default"}[len({"bias", "activation"} & {*keywords})]
        if of == arm:
            keywords["out"][0, 0] += 100

    monkeypatch.setattr(cutlass_py, "gemm", off)
    code, found = timed()
    assert code == 1 and [record["wrong"] for record in found["timed"]] == [[arm], [arm]]
    assert f"WRONG: gelu_tanh (24, 16, 8) {arm}: off by " in capsys.readouterr().out


def test_a_problem_that_fails_does_not_lose_the_others(timed, speed, monkeypatch, capsys):
    measure = speed.measure

    def fails(shape, f, gpu, args):
        if shape == (24, 16, 8):
            raise MemoryError
        return measure(shape, f, gpu, args)

    monkeypatch.setattr(speed, "measure", fails)
    code, found = timed("--seed", "7")
    assert code == 1 and len(found["timed"]) == 1 and len(found["problems"]) == 2
    printed = capsys.readouterr().out
    assert "FAILED: gelu_tanh (24, 16, 8): MemoryError\n" in printed
    assert f"reached: gelu_tanh random mixed, geomean of 1: {COST} = 1.030, bar 1.04" in printed
    monkeypatch.setattr(speed, "measure", lambda *_: (_ for _ in ()).throw(MemoryError()))
    assert timed()[0] == 1 and "geomean of" not in capsys.readouterr().out


def test_an_epilogue_that_fails_does_not_lose_the_others(speed, run, monkeypatch, capsys):
    def measure(shape, f, gpu, args):
        if f == "relu":
            raise ValueError("not this one")
        timed = {"us": {"plain": 1.0}, "ratio": {}}
        record = {"m": 8, "n": 8, "k": 8, "activation": f, "wrong": [], "mixed": timed}
        return record | {"default": {"kernel": "x", "scratch": None}}

    monkeypatch.setattr(speed, "measure", measure)
    code, found = run("--shape", "8,8,8", "--activation", "relu", "silu", "--regime", "mixed")
    assert code == 1 and [case["activation"] for case in found["cases"]] == ["silu"]
    assert "FAILED: relu (8, 8, 8): ValueError: not this one" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------- what is said


def test_the_means_of_drawn_problems(speed):
    """Of costs the worst is the largest, of gains the least; the 5th percentile is the second worst of 21 to 40."""
    costs, gains = [1.1, 3.0, *[1.0] * 38], [0.5, 0.8, *[1.0] * 38]
    records = [
        drawn((4096, 4096, 64 + i), {COST: cost, FUSED: gain}, {COST: 2.0, FUSED: 4.0})
        for i, (cost, gain) in enumerate(zip(costs, gains, strict=True))
    ]
    rows = {(row["regime"], row["mode"]): row for row in speed.means(records, "random", ["sustained", "mixed"])}
    assert list(rows) == [(regime, name) for regime in ("sustained", "mixed") for name in (COST, FUSED)]
    cost, gain, other = rows["sustained", COST], rows["sustained", FUSED], rows["mixed", COST]
    assert cost["cases"] == gain["cases"] == 40
    assert cost["geomean"] == pytest.approx(3.3 ** (1 / 40)) and gain["geomean"] == pytest.approx(0.4 ** (1 / 40))
    assert (cost["percentile_5"], cost["worst"]) == (pytest.approx(1.1), pytest.approx(3.0))
    assert (gain["percentile_5"], gain["worst"]) == (0.8, 0.5)
    assert (cost["worst_shape"], gain["worst_shape"]) == ([1, 4096, 4096, 65], [1, 4096, 4096, 64])
    assert (other["geomean"], other["percentile_5"], other["worst"]) == (pytest.approx(2.0), 2.0, 2.0)


def test_the_means_are_printed(speed, capsys):
    """Few tiles and a long k have a row of their own, which no bar is about."""
    records = [drawn((8, 64, 2000), {COST: 4.0}), drawn((4096, 4096, 64), {COST: 1.0})]
    rows = speed.means(records, "random", ["sustained"])
    speed.print_means(rows)
    header, *lines = capsys.readouterr().out.strip().splitlines()
    assert header.split() == "suite dtype layout regime ratio cases geomean 5% worst worst at".split()
    numbers = [line.split(COST)[1].split(maxsplit=4) for line in lines]
    assert numbers == [
        ["2", "2.000", "4.000", "4.000", "(8, 64, 2000)"], ["1", "4.000", "4.000", "4.000", "(8, 64, 2000)"],
    ]  # fmt: skip
    assert lines[1].startswith("random: few tiles, long k")
    assert [demand[2:] for demand in speed.barred_means(rows, "gelu_tanh")] == [(pytest.approx(2.0), 1.04)]


@pytest.mark.parametrize(("cost", "gain", "words"), [
    (1.03, 1.06, ("reached", "reached")), (1.05, 1.06, ("MISSED", "reached")), (1.03, 1.04, ("reached", "MISSED")),
])  # fmt: skip
def test_bars_of_means(speed, run, monkeypatch, capsys, cost, gain, words):
    """A mean is judged, by regime, whatever the single problems have."""

    def measure(shape, f, gpu, args):
        spread = 2.0 if shape == args.shape[0] else 0.5
        return drawn(
            shape, {COST: cost * spread, BIAS: 9.0, GAIN: 0.1, FUSED: gain * spread}, {COST: 1.0, FUSED: 2.0}, f
        )

    monkeypatch.setattr(speed, "measure", measure)
    options = ["--suite", "random-layer", "--count", "2", "--seed", "7"]
    code, _ = run(*options)
    assert code == ("MISSED" in words)
    assert [line for line in capsys.readouterr().out.splitlines() if ", bar " in line] == [
        f"{words[0]}: gelu_tanh random-layer sustained, geomean of 2: {COST} = {cost:.3f}, bar 1.04",
        f"{words[1]}: gelu_tanh random-layer sustained, geomean of 2: {FUSED} = {gain:.3f}, bar 1.05",
        f"reached: gelu_tanh random-layer mixed, geomean of 2: {COST} = 1.000, bar 1.04",
        f"reached: gelu_tanh random-layer mixed, geomean of 2: {FUSED} = 2.000, bar 1.05",
    ]
    assert run(*options, "--activation", "relu")[0] == 0 and ", bar " not in capsys.readouterr().out


@pytest.mark.parametrize(("f", "shape", "ratio", "said"), [
    ("gelu_tanh", (512, 8, 8), {"fused / plain": 1.05, "torch / default": 1.05}, ["reached", "reached"]),
    ("gelu_tanh", (512, 8, 8), {"fused / plain": 1.06, "torch / default": 1.04}, ["MISSED", "MISSED"]),
    ("gelu_tanh", (512, 8, 8), {"fused / plain": 1.0}, ["reached", "MISSED"]),  # what was not measured
    ("gelu", (8192, 4096, 4096), {"user / plain": 1.06, "outputs / plain": 1.04}, ["MISSED", "reached"]),
    ("gelu", (512, 8, 8), {"user / plain": 1.06}, []),
    ("relu", (8192, 4096, 4096), {"fused / plain": 9.0}, []),
])  # fmt: skip
def test_bars_of_single_shapes(speed, capsys, f, shape, ratio, said):
    records = [drawn(shape, ratio, f=f)]
    missed = speed.verdicts(speed.barred_cases(records, ["mixed"]), records)
    lines = capsys.readouterr().out.splitlines()
    assert missed == said.count("MISSED") and [line.split(":")[0] for line in lines] == said
    assert all(f": {f} {shape} mixed: " in line for line in lines)


def test_a_summary_keeps_no_drawn_problems(script, timed, tmp_path):
    """Their times are over no tile of one name, as those of its table are."""
    timed()
    assert script("summary").main([str(tmp_path / "x.json"), "--into", str(tmp_path / "kept")]) == 0
    assert not (tmp_path / "kept").exists()
