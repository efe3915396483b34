"""Log lines, NVTX ranges and scripts of failed calls: off unless asked for, and what they say."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from specs import problem

import cutlass_py
from cutlass_py import GemmArguments, KernelMetadata, OperandMetadata, TensorSpec, _core, functions
from cutlass_py.diagnostics import instrumentation, reproducer
from cutlass_py.dispatch import candidates, planning
from cutlass_py.dispatch.launch_plan import LaunchPlan
from cutlass_py.epilogues.specialization import specialization_of
from cutlass_py.providers.provider import ProvidedKernel

A, B = np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)
LINE = "(8, 4, 16) tt: f32 @ f32 -> f32 on cpu: cpu_gemm_numpy"


@pytest.fixture(autouse=True)
def silent():
    yield
    cutlass_py.log("off")
    cutlass_py.nvtx(False)
    cutlass_py.dump(None)


def in_a_process(code, **environment):
    variables = {key: value for key, value in os.environ.items() if not key.startswith("CUTLASS_PY_")}
    command = [sys.executable, "-c", f"import numpy as np, cutlass_py\n{code}"]
    return subprocess.run(command, capture_output=True, text=True, env=variables | environment)


# ---------------------------------------------------------------------------------------- log


def test_off_by_default(caplog):
    assert _core.trace(0) == 0
    _core.clear_plans()
    cutlass_py.gemm(A, B)
    assert not caplog.records


def test_plans_are_told_once_for_a_class(caplog):
    cutlass_py.log("plans")
    for _ in range(3):
        cutlass_py.gemm(A, B)
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("cutlass_py", logging.INFO, f"plan of {LINE}")
    ]
    cutlass_py.log("plans")  # again from the start
    cutlass_py.gemm(A, B)
    assert len(caplog.records) == 2


def test_calls_are_told_each(caplog):
    cutlass_py.log("calls")
    for _ in range(2):
        cutlass_py.gemm(A, B)
    assert [r.getMessage() for r in caplog.records] == [f"plan of {LINE}", f"gemm {LINE}", f"gemm {LINE}"]
    assert caplog.records[-1].levelno == logging.DEBUG
    cutlass_py.log("off")
    cutlass_py.gemm(A, B)
    assert len(caplog.records) == 3 and _core.trace(0) == 0


def test_prepared_calls_are_told_too(caplog):
    args = GemmArguments(A, B)
    plan = cutlass_py.get_kernels(args)[0].plan(args)
    plan()
    assert not caplog.records
    cutlass_py.log("calls")
    plan(A, B)
    assert [r.getMessage() for r in caplog.records] == [f"gemm {LINE}"]


def test_the_level_of_the_logger_is_enough_for_plans(caplog):
    _core.clear_plans()
    with caplog.at_level(logging.INFO, "cutlass_py"):
        cutlass_py.gemm(A, B)
    assert [r.getMessage() for r in caplog.records] == [f"plan of {LINE}"]


def test_plans_of_devices_say_how_and_how_long(caplog, built):
    tn = next(k.name for k in cutlass_py.get_kernels(compiled=False) if "sm90_gemm_bf16_bf16_f32_bf16_tn" in k.name)
    built([tn])
    cutlass_py.log("plans")
    p = problem(512, 512, 64, layout="tt").problem
    choice = candidates.best(p)
    planning.log_plan(p, LaunchPlan(tn, pack_b="n"), choice)
    planning.log_plan(p, LaunchPlan(tn, scratch="f32", splits=4), choice)
    planning.log_plan(p, LaunchPlan(each=True), None)
    instrumentation.called(p, 0x7F, scratch="f32")
    said = [r.getMessage() for r in caplog.records]
    assert f": {tn}, packs b; estimated " in said[0] and said[0].endswith(" us")
    assert f": {tn}, splits k by 4; estimated " in said[1]
    assert said[2].endswith(": one matrix after the other")
    assert len(said) == 3  # calls are not asked for


def test_calls_on_devices_say_the_stream(caplog):
    cutlass_py.log("calls")
    p = problem(512, 512, 64).problem
    provided = cutlass_py.get_kernels(GemmArguments(A, B))[0].call
    for how, words in [
        ({"kernel": "a_kernel", "pack_a": "t", "scratch": "f32"}, "a_kernel, packs a, composed"),
        ({"kernel": "a_kernel", "pack_scales": True}, "a_kernel, packs scale_a"),
        ({"provided": provided}, "cpu_gemm_numpy"),
        ({"each": True}, "one matrix after the other"),
        ({"scratch": None}, "the epilogue alone"),
    ]:
        instrumentation.called(p, 0x7F, **how)
        assert caplog.records[-1].getMessage().endswith(f": {words}; stream 0x7f")


def test_a_level_of_the_user_s_own_is_left_as_it_was(caplog):
    logger = logging.getLogger("cutlass_py")
    before = logger.level
    try:
        for level in (logging.WARNING, logging.DEBUG):
            logger.setLevel(level)
            cutlass_py.log("off")
            assert logger.level == level
            cutlass_py.log("plans")
            assert logger.level == logging.INFO
            cutlass_py.log("calls")
            cutlass_py.log("off")
            cutlass_py.log("off")
            assert logger.level == level
        cutlass_py.log("plans")
        logger.setLevel(logging.ERROR)  # the last word
        cutlass_py.log("off")
        assert logger.level == logging.ERROR
    finally:
        logger.setLevel(before)


def test_unknown_levels():
    with pytest.raises(ValueError, match="log: 'loud'; expected one of off, plans, calls"):
        cutlass_py.log("loud")


def test_the_environment_asks():
    code = "a = np.ones((8, 16), 'f4'); cutlass_py.gemm(a, a.T); cutlass_py.gemm(a, a.T)"
    line = "(8, 8, 16) tn: f32 @ f32 -> f32 on cpu: cpu_gemm_numpy"
    done = in_a_process(code)
    assert (done.returncode, done.stderr) == (0, "")
    done = in_a_process(code, CUTLASS_PY_LOG="plans")
    assert done.stderr == f"cutlass_py: plan of {line}\n" and not done.stdout
    done = in_a_process(code, CUTLASS_PY_LOG="calls")
    assert done.stderr.splitlines()[1:] == [f"cutlass_py: gemm {line}"] * 2
    handled = "import logging; logging.basicConfig(format='mine %(message)s', stream=__import__('sys').stdout)\n"
    done = in_a_process(handled + "cutlass_py.log('plans')\n" + code)
    assert done.stdout == f"mine plan of {line}\n" and not done.stderr


@pytest.mark.parametrize(("variable", "known"), [("CUTLASS_PY_LOG", "off, plans, calls"), ("CUTLASS_PY_NVTX", "0, 1")])
def test_unknown_values_of_the_environment(variable, known):
    done = in_a_process("", **{variable: "loud"})
    assert done.returncode == 1 and f"ValueError: {variable} is 'loud'; expected one of {known}" in done.stderr


# ---------------------------------------------------------------------------------------- NVTX


def test_ranges_or_a_reason():
    if _core.has_ranges():
        cutlass_py.nvtx(True)
        assert (cutlass_py.gemm(A, B) == 16).all()
    else:
        with pytest.raises(RuntimeError, match="nvtx: this package was built without nvtx3/nvToolsExt.h"):
            cutlass_py.nvtx(True)
        done = in_a_process("print('on')", CUTLASS_PY_NVTX="1")
        assert done.stdout == "on\n" and "RuntimeWarning: cutlass_py: CUTLASS_PY_NVTX is 1: nvtx: this" in done.stderr
    cutlass_py.nvtx(False)


# ---------------------------------------------------------------------------------------- calls as code


def run_script(text, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_up_to_its_call(text):
    """Runs a script up to its call; its names."""
    namespace = {}
    exec(text.replace("cutlass_py.gemm(", "cutlass_py.GemmArguments(").replace("print(result)", ""), namespace)
    return namespace


def same_problem(text, args):
    """Runs a script up to its call, and compares what that would compute."""
    namespace = run_up_to_its_call(text)
    assert namespace["result"].problem == args.problem, text
    return namespace


def rows(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


BUFFER = np.zeros((32, 48), ml_dtypes.bfloat16)
CALLS = {
    "plain": lambda: GemmArguments(A, B),
    "column major": lambda: GemmArguments(rows(16, 8).T, rows(4, 16).T, out=rows(4, 8).T),
    "one buffer, in place": lambda: GemmArguments(
        BUFFER[:, :16], rows(16, 20, dtype=ml_dtypes.bfloat16), out=BUFFER[:, 20:40], c=BUFFER[:, 20:40], beta=0.5
    ),
    "off by an element": lambda: GemmArguments(BUFFER.reshape(-1)[1:129].reshape(8, 16), BUFFER[:16]),
    "backwards": lambda: GemmArguments(A[::-1, ::-1], B, alpha=2.5),
    "epilogue": lambda: GemmArguments(
        A, B, bias=rows(4), activation=cutlass_py.clamp(0.0, 6.0), aux=rows(8, 4), scale_out=0.5, out_dtype="f64"
    ),
    "gate": lambda: GemmArguments(A, B, gate=rows(8, 4), activation="silu", scale_a=rows(8), scale_b=3.0),
    "factors": lambda: GemmArguments(A, B, alpha=rows(1), c=rows(8, 4), beta=rows(1), bias_grad=rows(8, 1)),
    "derivative": lambda: GemmArguments(A, B, aux=rows(8, 4), activation="d_gelu"),
    "batch": lambda: GemmArguments(np.broadcast_to(A, (3, 8, 16)), rows(3, 16, 4), compute="tf32"),
    "list": lambda: GemmArguments([A, A.copy(), A.copy()], [B, B.copy(), B.copy()], c=rows(8, 4)),
    "list with out": lambda: GemmArguments([A], [B], out=[rows(8, 4)]),
    "switches": lambda: GemmArguments(A, B, splits=2, deterministic=True),
    "numbers without end": lambda: GemmArguments(
        A, B, alpha=float("inf"), beta=float("nan"), c=rows(8, 4), activation=cutlass_py.clamp(-float("inf"), 6.0)
    ),
    "complex without end": lambda: GemmArguments(
        rows(8, 8, dtype=np.complex64), rows(8, 8, dtype=np.complex64), alpha=complex(1, float("-inf"))
    ),
    "complex": lambda: GemmArguments(rows(8, 8, dtype=np.complex64), rows(8, 8, dtype=np.complex64), alpha=1 - 2j),
    "fp8": lambda: GemmArguments(
        rows(16, 32, dtype=ml_dtypes.float8_e4m3fn), rows(16, 32, dtype=ml_dtypes.float8_e5m2).T, compute="fast"
    ),
    "integers": lambda: GemmArguments(rows(8, 16, dtype=np.int8), rows(16, 8, dtype=np.uint8)),
    "no product": lambda: GemmArguments(rows(8, 0), rows(0, 4)),
    "specs": lambda: GemmArguments(
        TensorSpec((64, 32), "bf16", device="cpu", alignment=2), TensorSpec((32, 64), "bf16", (1, 32), device="cpu")
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_as_code(name):
    args = CALLS[name]()
    same_problem(reproducer.script(args), args)


@cutlass_py.epilogue
def several(accum, a, by, row=0.5):
    """Arguments are called as gemm's are."""
    kept = functions.where((accum > float("inf")) | ~(a <= 1), functions.gelu(accum - by), -accum / row)
    return kept, {
        "rounded": functions.cast(kept, "bf16"),
        "most": functions.max(kept, axis=-1),
        "total": functions.sum(kept),
    }


def test_a_users_epilogue_as_code(tmp_path):
    given = several(a=rows(8, 4), by=3.0, row=rows(4), rounded=rows(8, 4), most=rows(8, 1), total=rows())
    args = GemmArguments(A, B, epilogue=given)
    text = reproducer.script(args)
    again = run_up_to_its_call(text)["result"].problem
    ours, theirs = specialization_of(args.problem), specialization_of(again)
    assert (ours.epilogue.name, ours.kinds, ours.dtypes) == (theirs.epilogue.name, theirs.kinds, theirs.dtypes)
    assert "by=3.0" in text and run_script(text, tmp_path)


@cutlass_py.epilogue
def awkward(accum, v0, v_1, functions):
    """Arguments are called as a script's own names, an output by a keyword."""
    from cutlass_py.functions import gelu

    return gelu(accum + v0) * v_1 + functions, {"class": accum + v0 * functions, "lambda": accum}


def test_names_of_a_users_epilogue_that_a_script_has_too(tmp_path):
    given = awkward(v0=rows(4), v_1=3.0, functions=rows(8, 4), **{"class": rows(8, 4), "lambda": rows(8, 4)})
    args = GemmArguments(A, B, epilogue=given)
    text = reproducer.script(args)
    again = run_up_to_its_call(text)["result"].problem
    ours, theirs = specialization_of(args.problem), specialization_of(again)
    assert (ours.epilogue.name, ours.kinds, ours.program.names) == (
        theirs.epilogue.name,
        theirs.kinds,
        theirs.program.names,
    )
    assert run_script(text, tmp_path)


def test_shared_memory_stays_shared():
    space = same_problem(reproducer.script(args := CALLS["one buffer, in place"]()), args)
    assert np.shares_memory(space["c"], space["out"]) and not np.shares_memory(space["a"], space["out"])
    assert space["out"].ctypes.data - space["a"].ctypes.data == 40 and space["a"].strides == BUFFER.strides


def test_no_value_is_written():
    secret = np.full((4, 4), 0.123456, np.float32)
    assert "0.12" not in reproducer.script(GemmArguments(secret, secret))


def test_a_script_runs(tmp_path):
    assert run_script(reproducer.script(CALLS["epilogue"](), why='said """so\\'), tmp_path)


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_code_for_a_gpu(monkeypatch, library):
    monkeypatch.setattr(reproducer, "find_spec", lambda name: name == library)
    a = TensorSpec((64, 32), "bf16", device="cuda:1", alignment=16)
    text = reproducer.script(GemmArguments(a, TensorSpec((32, 8), "bf16", device="cuda:1")))
    compile(text, "script", "exec")
    if library == "torch":
        assert (
            'device = "cuda:1"' in text and "a = memory_0.view(torch.bfloat16).as_strided((64, 32), (32, 1), 8)" in text
        )
    else:
        assert "Device(1).use()" in text
        assert "a = cutlass_py.view(cupy.ndarray((64, 32), 'uint16', memory_0.data + 16, (64, 2)), 'bf16')" in text


def test_code_for_a_gpu_of_operands_that_torch_cannot_make(monkeypatch):
    monkeypatch.setattr(reproducer, "find_spec", lambda name: True)
    backwards = TensorSpec((64, 32), "f32", (-32, 1), device="cuda:1")
    text = reproducer.script(GemmArguments(backwards, TensorSpec((32, 8), "f32", device="cuda:1")))
    assert "import cupy" in text and "import torch" not in text and "(-128, 4))" in text


def test_torch_s_code_makes_what_it_says(monkeypatch):
    """With the CPU in place of the GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(reproducer, "_NumPy", reproducer._Torch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in set(CALLS) - {"backwards"}:
        args = CALLS[name]()
        same_problem(reproducer.script(args), args)


# ---------------------------------------------------------------------------------------- failures


@pytest.fixture
def failing(monkeypatch):
    """The CPU's kernel raises what it is told to."""
    errors = []

    def call(self, **given):
        raise errors[-1]

    monkeypatch.setattr(ProvidedKernel, "call", call)
    _core.clear_plans()
    yield errors.append
    _core.clear_plans()


@pytest.mark.parametrize("error", [RuntimeError("it broke"), cutlass_py.CudaError("gemm: it broke"), KeyError("it")])
def test_a_failed_call_leaves_a_script(failing, tmp_path, error):
    failing(error)
    cutlass_py.dump(tmp_path / "scripts")
    with pytest.raises(type(error), match="it") as caught:
        cutlass_py.gemm(A, B, activation="relu", kernel="cpu_gemm_numpy")
    (path,) = (tmp_path / "scripts").iterdir()
    said = getattr(caught.value, "__notes__", [str(caught.value)])[-1]
    assert f"{path} repeats the call" in said
    text = path.read_text()
    assert "it" in text.splitlines()[2] and "activation='relu', out_dtype='f32', kernel='cpu_gemm_numpy'" in text
    assert run_script(text, tmp_path)
    with pytest.raises(type(error)):
        cutlass_py.gemm(A, B, activation="relu", kernel="cpu_gemm_numpy")
    assert len(list((tmp_path / "scripts").iterdir())) == 1  # once for a class
    cutlass_py.dump(tmp_path / "others")
    with pytest.raises(type(error)):
        cutlass_py.gemm(A, B, activation="relu", kernel="cpu_gemm_numpy")
    assert len(list((tmp_path / "others").iterdir())) == 1  # wherever that is
    cutlass_py.dump(tmp_path / "scripts")
    with pytest.raises(type(error)):
        cutlass_py.gemm(A, B, kernel="cpu_gemm_numpy")
    assert len(list((tmp_path / "scripts").iterdir())) == 2  # beside those of before


def test_a_failed_call_of_a_kernel_that_a_script_cannot_have(tmp_path):
    operand = OperandMetadata("f32")
    mine = KernelMetadata("mine", dict.fromkeys("abd", operand), "f32", cc=(0, 0))
    cutlass_py.dump(tmp_path)
    with cutlass_py.register_kernel(mine, lambda call: 1 / 0), pytest.raises(Exception, match="division"):
        cutlass_py.gemm(A, B, kernel="mine")
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    assert "\n# The call asked for kernel='mine', which its process brought; here gemm chooses.\nresult = " in text
    assert "kernel=" not in text.split("result = ")[1] and run_script(text, tmp_path)


def test_a_kernel_of_the_declaration_stays_asked_for():
    name = "simt_gemm_f32_f32_f32_f32_tn_64x64x8_32x32x8_s4_a1_linearc"
    args = problem(64, 64, 64, dtype="f32")
    given = {key: value for key, value in args.keywords.items() if value is not None}
    facts = _core.call_facts(args.a, args.b, given | {"kernel": name})
    assert f"kernel={name!r}" in reproducer._script(facts, "")


def test_without_being_asked_nothing_is_written(failing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failing(RuntimeError("it broke"))
    with pytest.raises(RuntimeError, match="^it broke$") as caught:
        cutlass_py.gemm(A, B)
    assert not list(tmp_path.iterdir()) and not hasattr(caught.value, "__notes__")


def test_refusals_are_no_failures(tmp_path):
    cutlass_py.dump(tmp_path)
    with pytest.raises(ValueError, match="inner extents"):
        cutlass_py.gemm(A, A)
    with pytest.raises(ValueError, match="no kernel is called"):
        cutlass_py.gemm(A, B, kernel="nonesuch")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_does_not_hide_the_failure(failing, tmp_path):
    (tmp_path / "file").write_text("")
    cutlass_py.dump(tmp_path / "file" / "below")
    failing(RuntimeError("it broke"))
    with pytest.raises(RuntimeError, match="^it broke$") as caught:
        cutlass_py.gemm(A, B)
    assert not hasattr(caught.value, "__notes__")


def test_the_environment_asks_for_scripts(tmp_path):
    code = (
        "from cutlass_py.providers.provider import ProvidedKernel\n"
        "ProvidedKernel.call = lambda self, **given: 1 / 0\n"
        "a = np.ones((8, 8), 'f4'); cutlass_py.gemm(a, a)"
    )
    done = in_a_process(code, CUTLASS_PY_DUMP=str(tmp_path))
    (path,) = tmp_path.glob("gemm-*.py")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert str(path) in done.stderr or sys.version_info < (3, 11)
    assert run_script(path.read_text(), tmp_path)
