"""What was built, which devices are there, which frameworks are installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import _core
from ..kernels import packs
from ..support.terminal import print_table
from .options import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--cmake-dir", action="store_true", help="print only the directory that find_package(cutlass_py) needs"
    )
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from .. import __version__
    from ..arrays.gpu import device
    from ..kernels.kernel import CutlassKernel
    from ..kernels.registry import all_kernels
    from ..operations.gemm import calibration
    from ..support.versions import installed

    if options.cmake_dir:
        print_json({"cmake_dir": _cmake_dir()}) if options.json else print(_cmake_dir())
        return 0
    kernels = [k for k in all_kernels() if isinstance(k, CutlassKernel)]
    compiled = sum(k.compiled for k in kernels)
    found = packs.installed()
    build, frameworks = _core.build_info(), installed()
    devices = [_core.device_info(i) | {"estimates": calibration.said(device(i))} for i in range(_core.device_count())]
    if options.json:
        counts = {"compiled": compiled, "declared": len(kernels)}
        facts = {"version": __version__, "build": build, "kernels": counts}
        of_packs = [
            {
                "name": p.name, "version": p.version, "directory": str(p.directory), "error": packs.why_left_out(p),
                "kernels": [manifest.kernel for manifest in p.kernels], "tables": [path.name for path in p.tables],
            }
            for p in found
        ]  # fmt: skip
        print_json({**facts, "devices": devices, "frameworks": frameworks, "packs": of_packs})
        return 0
    rows = [("cutlass_py", __version__)]
    rows += [(name, str(value)) for name, value in build.items() if value]
    rows.append(("compiled", f"{compiled} of {len(kernels)} declared kernels"))
    for pack in found:
        reason, holds = packs.why_left_out(pack), f"{len(pack.kernels)} kernels, {len(pack.tables)} tuned tables"
        rows.append((f"pack {pack.name}", f"left out: {reason}" if reason else f"{pack.version}: {holds}"))
    for i, found_here in enumerate(devices):
        rows += [(f"cuda:{i}", _device_line(found_here)), ("estimates", str(found_here["estimates"]))]
    if not devices:
        rows.append(("device", f"CPU only: {_core.why_no_device()}"))
    rows += list(frameworks.items())
    print_table(("", ""), rows)
    return 0


def _cmake_dir() -> str:
    """Beside the extension: a module's __file__ is elsewhere in an editable install."""
    place = Path(_core.__file__).parent / "cmake"
    if not (place / "cutlass_pyConfig.cmake").is_file():
        raise ValueError(f"info: there is no cutlass_pyConfig.cmake in {place}: a source tree, which is not installed")
    return str(place)


def _device_line(device: dict[str, object]) -> str:
    from ..declaration.families import FAMILIES
    from ..dispatch.discover import get_kernels

    cc = int(str(device["cc"]))
    usable = len(get_kernels(cc=cc))
    line = f"{device['name']}, compute capability {cc / 10:.1f}, {device['sm_count']} multiprocessors: "
    if not usable:
        return line + "none of the compiled kernels runs on it"
    newer = cc > max(family.cc[0] for family in FAMILIES.values())
    return line + f"{usable} kernels run on it" + (", from PTX: it is newer than what was built for" if newer else "")
