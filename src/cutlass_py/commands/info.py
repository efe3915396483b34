"""What was built, which devices are there, which frameworks are installed."""

from __future__ import annotations

import argparse

from .. import _core
from .output import json_option, print_json, print_table


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from .. import __version__
    from ..demo import installed
    from ..kernels import CutlassKernel, all_kernels

    kernels = [k for k in all_kernels() if isinstance(k, CutlassKernel)]
    compiled = sum(k.compiled for k in kernels)
    build, frameworks = _core.build_info(), installed()
    devices = [_core.device_info(i) for i in range(_core.device_count())]
    if options.json:
        counts = {"compiled": compiled, "declared": len(kernels)}
        facts = {"version": __version__, "build": build, "kernels": counts}
        print_json({**facts, "devices": devices, "frameworks": frameworks})
        return 0
    rows = [("cutlass_py", __version__)]
    rows += [(name, str(value)) for name, value in build.items() if value]
    rows.append(("compiled", f"{compiled} of {len(kernels)} declared kernels"))
    rows += [(f"cuda:{i}", _device_line(d)) for i, d in enumerate(devices)]
    if not devices:
        rows.append(("device", f"CPU only: {_core.why_no_device()}"))
    rows += list(frameworks.items())
    print_table(("", ""), rows)
    return 0


def _device_line(device: dict[str, object]) -> str:
    from ..families import FAMILIES
    from ..kernels import get_kernels

    cc = int(str(device["cc"]))
    usable = len(get_kernels(cc=cc))
    line = f"{device['name']}, compute capability {cc / 10:.1f}, {device['sm_count']} multiprocessors: "
    if not usable:
        return line + "none of the compiled kernels runs on it"
    newer = cc > max(family.cc[0] for family in FAMILIES.values())
    return line + f"{usable} kernels run on it" + (", from PTX: it is newer than what was built for" if newer else "")
