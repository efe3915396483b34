"""The command line as a whole: one module a command, the same options everywhere, exit codes; then each command."""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py import _core, commands
from cutlass_py.commands import COMMANDS, main
from cutlass_py.compiling import cache as cache_module
from cutlass_py.declaration.families import named
from cutlass_py.declaration.operands import OPERANDS
from cutlass_py.kernels import archive
from cutlass_py.support import files

ROOT = Path(__file__).resolve().parent.parent
BARS = ROOT / "tests" / "data" / "results.json"
NO_GPU = pytest.mark.skipif(_core.device_count() > 0, reason="there is a GPU")
SIMT = "simt_gemm_f32_f32_f32_f32_tn_64x64x8_32x32x8_s4_a1_linearc"
# Every form of each command that works on any machine and prints JSON.
JSON = [
    "info --json",
    "kernels simt --all --json",
    "kernels --coverage --json",
    "explain 64 32 16 --device cpu --json",
    "explain 64 32 16 --jit --json",
    "bench --from {stored} --json",
    "bench --bars key --from {stored} --json",
    "cache info --json",
    "cache clear --json",
    "cache build {problems} --json",
    f"emit {SIMT} --json",
    f"emit {SIMT} -o {{there}} --json",
    f"emit {SIMT} --cmake -o {{there}} --json",
    f"emit {SIMT} --torch-extension -o {{there}} --json",
    "demo --size 16 --json",
]
ELSEWHERE = {"tune", "calibrate", "pack"}  # test_tuning.py, test_calibration.py, with clocks; test_packs.py


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))


def parsers():
    """Every command's parser; of commands with actions, each action's."""
    found = {}

    def collect(parser, name):
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        for action in below:
            for word, sub in action.choices.items():
                collect(sub, f"{name} {word}".strip())
        if not below:
            found[name] = parser

    collect(commands._parser(), "")
    return found


PARSERS = parsers()


def said(capsys, line):
    code = main(line.split())
    return code, capsys.readouterr()


# ---------------------------------------------------------------------------------------- all of them


def test_without_a_command_the_commands_are_listed(capsys):
    code, printed = said(capsys, "")
    assert code == 0 and all(name in printed.out for name in COMMANDS)


def test_every_command_is_tried():
    assert {line.split()[0] for line in JSON} | ELSEWHERE == set(COMMANDS)
    tried = {" ".join(line.split()[:2]) for line in JSON}
    assert {name for name in PARSERS if " " in name} <= tried  # every action
    assert {name.split()[0] for name in PARSERS} == set(COMMANDS)
    modules = {path.stem for path in (ROOT / "src" / "cutlass_py" / "commands").glob("*.py")}
    assert set(COMMANDS) <= modules


@pytest.mark.parametrize("name", PARSERS)
def test_help_is_helpful(name, capsys):
    with pytest.raises(SystemExit) as done:
        main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert done.value.code == 0 and PARSERS[name].description.split("\n")[0].split()[0] in text
    options = [action for action in PARSERS[name]._actions if action.dest != "help"]
    assert all(action.help for action in options), [action.dest for action in options if not action.help]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_does(name, capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    line = (import_module(f"cutlass_py.commands.{name}").__doc__ or "").splitlines()[0]
    assert line.endswith(".")
    text = " ".join(capsys.readouterr().out.split())
    assert f"{name} {' '.join(line.split())}" in text


@pytest.mark.parametrize("name", PARSERS)
def test_json_is_an_option_everywhere(name):
    options = {option for action in PARSERS[name]._actions for option in action.option_strings}
    assert "--json" in options


@pytest.mark.parametrize("line", JSON)
def test_json_is_printed_and_nothing_else(line, capsys, tmp_path, monkeypatch):
    if not (Path(_core.__file__).parent / "include").is_dir():
        known = [str(ROOT / "src" / "cpp"), *filter(None, [os.environ.get("CUTLASS_PY_INCLUDE")])]
        monkeypatch.setenv("CUTLASS_PY_INCLUDE", os.pathsep.join(known))
    (tmp_path / "none.json").write_text("[]")
    places = {"there": tmp_path / "there", "problems": tmp_path / "none.json"}
    code, printed = said(capsys, line.format(stored=BARS, **places))
    assert code == 0 and json.loads(printed.out) is not None


def test_the_version(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--version"])
    assert done.value.code == 0 and capsys.readouterr().out == f"cutlass_py {cutlass_py.__version__}\n"


# ---------------------------------------------------------------------------------------- tables on a terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def drawn(monkeypatch):
    """What a command draws on a terminal."""
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "300")

    def drawn(line):
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert main(line.split()) == 0
        return sys.stdout.getvalue()

    return drawn


def test_kernels_on_a_terminal(drawn):
    text = drawn(f"kernels {SIMT} --all")
    assert "shared memory" in text and "─" in text and f" {SIMT} " in text and " 8.0+ " in text


@pytest.mark.parametrize("line", ["kernels _coop_linearc --all", "explain 512 512 512 --jit --device cuda:63"])
def test_names_of_kernels_are_not_broken(drawn, line, monkeypatch):
    """They are what the next command takes: on a narrow terminal the rest of their row stands below them."""
    names = {kernel.name for kernel in cutlass_py.get_kernels(compiled=False)}
    for columns in ("80", "120", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        shown = [word for word in drawn(line).split() if word.startswith("sm90_")]
        assert shown and set(shown) <= names
        assert ("─" in sys.stdout.getvalue()) == (columns != "80")


def test_no_kernel_on_a_terminal(drawn, capsys):
    assert drawn("kernels nonesuch") == "" and "no kernel matches" in capsys.readouterr().err


def test_the_cache_on_a_terminal(drawn, tmp_path):
    name = f"a_kernel-{'0' * 32}-nvcc13.0"
    cache_module.store(name, b"x" * 100_000)
    text = drawn("cache info")
    assert "1 kernels" in text and "─" in text
    assert ["a_kernel", "0.1", f"{'0' * 32}-nvcc13.0"] in [line.split() for line in text.splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_not_known(name, capsys):
    with pytest.raises(SystemExit) as done:
        main([name, "--nonesuch"])
    assert done.value.code == 2 and "error: " in capsys.readouterr().err


@pytest.mark.parametrize("line", ["explain 9 9 9", "cache info", "kernels simt"])
def test_an_unknown_option_is_said_with_the_usage_of_its_command(line, capsys):
    with pytest.raises(SystemExit) as done:
        main([*line.split(), "--nosuch"])
    text = capsys.readouterr().err
    command = line if line in PARSERS else line.split()[0]
    assert done.value.code == 2 and text.startswith(f"usage: python -m cutlass_py {command} ")
    assert text.endswith("error: unrecognized arguments: --nosuch\n")


@pytest.mark.parametrize("options", [["-m", "cutlass_py", "info"], ["-mcutlass_py"]], ids=" ".join)
def test_a_wrong_environment_is_wrong_usage_of_a_command(options):
    done = subprocess.run(
        [sys.executable, *options], env=os.environ | {"CUTLASS_PY_LOG": "bad"}, capture_output=True, text=True
    )
    assert done.returncode == 2 and not done.stdout
    assert done.stderr == "error: CUTLASS_PY_LOG is 'bad'; expected one of off, plans, calls\n"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"), TypeError("no"), cutlass_py.NoKernelError("no"), cutlass_py.CudaError("no"), OSError("no"),
        MemoryError("no"),
    ],
)  # fmt: skip
def test_errors_are_one_line_and_code_2(capsys, monkeypatch, error):
    def run(options):
        raise error

    monkeypatch.setattr(import_module("cutlass_py.commands.info"), "run", run)
    code, printed = said(capsys, "info")
    assert (code, printed.out, printed.err) == (2, "", "error: no\n")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [(cutlass_py.CompileError("no"), 1, "error: no\n"), (KeyboardInterrupt(), 130, "interrupted\n")],
)
def test_kernels_that_cannot_be_compiled_and_interruptions_have_codes_of_their_own(
    capsys, monkeypatch, error, code, line
):
    def run(options):
        raise error

    monkeypatch.setattr(import_module("cutlass_py.commands.info"), "run", run)
    assert said(capsys, "info") == (code, ("", line))


def test_as_a_process():
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_py", "kernels", "simt", "--all"], capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("simt_") and not done.stderr
    done = subprocess.run([sys.executable, "-m", "cutlass_py"], capture_output=True, text=True)
    assert done.returncode == 0 and "usage: python -m cutlass_py" in done.stdout


# ---------------------------------------------------------------------------------------- each of them


def test_info(capsys):
    facts = json.loads(said(capsys, "info --json")[1].out)
    assert facts["build"] == _core.build_info() and len(facts["devices"]) == _core.device_count()
    assert "declared kernels" in said(capsys, "info")[1].out


def test_where_cmake_looks_as_json(capsys, tmp_path, monkeypatch):
    (tmp_path / "cmake").mkdir()
    (tmp_path / "cmake" / "cutlass_pyConfig.cmake").touch()
    monkeypatch.setattr(_core, "__file__", str(tmp_path / "_core.so"))
    assert json.loads(said(capsys, "info --cmake-dir --json")[1].out) == {"cmake_dir": str(tmp_path / "cmake")}


def test_what_a_pack_is_compiled_for(capsys, monkeypatch):
    def of_kernel(config, cc):
        raise ValueError(f"{config.name} for {cc}")

    monkeypatch.setattr(archive, "of_kernel", of_kernel)
    for more, cc in (("", []), (" --cc 80 --cc 90a", [80, 90])):
        code, printed = said(capsys, f"pack some --kernel {SIMT}{more}")
        assert code == 2 and printed.err == f"error: {SIMT} for {cc}\n"


def test_kernels(capsys):
    rows = json.loads(said(capsys, "kernels simt --all --json")[1].out)
    compiled = {kernel.name for operation in OPERANDS for kernel in cutlass_py.get_kernels(operation=operation)}
    assert rows and all("simt" in row["name"] and row["compiled"] == (row["name"] in compiled) for row in rows)
    assert {row["name"] for row in rows if row["compiled"]} == {name for name in compiled if "simt" in name}
    assert all(row["design"].keys() >= {"registers", "threads"} and "kernel" not in row["design"] for row in rows)
    listed = said(capsys, "kernels simt --all")[1].out.splitlines()
    assert [line.split()[0] for line in listed] == [row["name"] for row in rows]
    assert "| operands |" in said(capsys, "kernels --coverage")[1].out
    assert {row["fused"]["name"] for row in rows} == {"linearc", "linearc_told", "fusedc", "fusedc_scaled"}
    assert json.loads(said(capsys, "kernels nonesuch --json")[1].out) == []
    hint = "no kernel matches; --all includes those not compiled\n"
    assert said(capsys, "kernels nonesuch") == (0, ("", hint))
    assert said(capsys, "kernels nonesuch --all") == (0, ("", "no kernel matches\n"))


@pytest.mark.parametrize("line", ["kernels --cc", "pack x --cc", "cache build --cc"])
@pytest.mark.parametrize("cc", ["7", "9.0", "sm_90"])
def test_a_compute_capability_that_is_none(line, cc, capsys):
    with pytest.raises(SystemExit) as done:
        main([*line.split(), cc])
    assert done.value.code == 2
    assert f"'{cc}' is no compute capability times ten, such as 80 or 90" in capsys.readouterr().err


def test_coverage(capsys):
    found = json.loads(said(capsys, "kernels --coverage --json")[1].out)
    assert sum(row["declared"] for row in found["kernels"]) == len(named("declared"))
    assert {"fused": "alpha * acc", "f in core": ["yes"]}.items() <= found["epilogues"][0].items()
    for more in ("simt", "--cc 90", "--all"):
        code, printed = said(capsys, f"kernels --coverage {more}")
        assert code == 2 and "--coverage is about the whole declaration" in printed.err and not printed.out


def test_explain_within_jit(capsys):
    line = "explain 512 256 128 --device cuda:63"
    found = [json.loads(said(capsys, f"{line} {more} --json")[1].out) for more in ("", "--jit")]
    assert len(found[0]["ranking"]) < len(found[1]["ranking"]) and found[1]["chosen"]
    assert not _core.jit_allowed()
    hint = "add --jit to choose among all declared kernels\n"
    assert said(capsys, line)[1].out.endswith(hint) == (not found[0]["chosen"])
    assert hint not in said(capsys, f"{line} --jit")[1].out


def test_cache(capsys, tmp_path):
    assert json.loads(said(capsys, "cache info --json")[1].out) == {
        "directory": str(tmp_path), "bytes": 0, "entries": [],
    }  # fmt: skip
    assert json.loads(said(capsys, "cache clear --json")[1].out)["removed"] == 0
    assert said(capsys, "cache build")[0] == 2


def test_demo(capsys):
    rows = json.loads(said(capsys, "demo --size 16 --json")[1].out)
    assert {row["framework"] for row in rows} >= {"numpy"} and all(row["error"] <= row["bound"] for row in rows)
    table = said(capsys, "demo --size 16")[1].out
    assert "error vs float64" in table and ("CPU only: " in table) == (not _core.device_count())
    assert said(capsys, "demo --size 0")[1].err == "error: demo: --size is 0; expected 1 or more\n"


def test_bench(capsys):
    cases = json.loads(BARS.read_text())["cases"]
    assert len(json.loads(said(capsys, f"bench --from {BARS} --json")[1].out)["cases"]) == len(cases)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("bench nokernel 64 64 64", "bench: no kernel is called 'nokernel'"),
        (f"bench {SIMT} 64 64", f"bench: 2 extents behind {SIMT}; expected M N K, or B M N K, 1 or more"),
        (f"bench {SIMT} 64 0 64", f"bench: 3 extents behind {SIMT}; expected M N K"),
        (f"bench {SIMT} 64 64 64 --suite llm", "bench: KERNEL M N K says what is measured"),
    ],
)
def test_what_is_wrong_with_one_kernel_is_said_without_a_gpu(line, message, capsys):
    code, printed = said(capsys, line)
    assert code == 2 and printed.err.startswith(f"error: {message}") and not printed.out


@NO_GPU
def test_commands_that_measure_need_a_gpu(capsys):
    for line in ("tune", "bench"):
        code, printed = said(capsys, line)
        assert code == 2 and printed.err.startswith(f"error: {line}: needs a GPU: ")


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_stream_that_is_closed(monkeypatch, closed):
    monkeypatch.setattr(sys, closed, None)
    assert main(["info"]) == 0 and main(["kernels", "--json"]) == 0


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_not_replaced(tmp_path, kind):
    path, target = tmp_path / kind, tmp_path / "target"
    if kind == "link":
        target.write_bytes(b"before")
        path.symlink_to(target)
        files.replace(path, b"content")
        assert path.is_symlink() and target.read_bytes() == b"content"
        return
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    files.replace(path, b"content")
    assert path.is_fifo() and os.read(reader, 100) == b"content"
    os.close(reader)
