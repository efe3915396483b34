"""Sharded arrays in cutlass_py.jax: automatic and explicit axes, on eight devices of JAX's CPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

from cutlass_py import _core  # noqa: E402

SCRIPT = Path(__file__).parent / "eight_devices.py"


def run(*arguments: str) -> None:
    found = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    assert found.stdout == "done\n", found.stderr


@pytest.mark.parametrize("part", ["automatic", "untyped", "explicit", "quantize", "ragged", "one"])
def test_sharded_arrays(part):
    run(part)


@pytest.mark.skipif(not shutil.which("g++"), reason="compiles with g++")
@pytest.mark.skipif(_core.device_count() > 0, reason="a GPU would be given addresses of the host")
def test_the_custom_call_of_one_device(tmp_path):
    import xla_on_host

    run("custom_call", str(xla_on_host.build(tmp_path)))
