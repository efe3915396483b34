"""Measure the first GPU for two minutes, and fit to it the constants by which kernels are chosen.

What has been measured is kept: where it was interrupted, it goes on. Trees of what the formula leaves are grown anew
where LightGBM is installed (the extra `calibrate`).
"""

from __future__ import annotations

import argparse
import json
import secrets
from itertools import chain
from pathlib import Path
from typing import Any

from .. import _core
from ..support.files import replace
from ..support.terminal import print_table, progress
from .options import json_option, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--seconds", type=float, help="of measuring in all (default about 120)")
    parser.add_argument("--seed", type=int, help="of the problems (default: a new one, printed)")
    parser.add_argument("--measured", metavar="FILE", nargs="+", help="fit to what was measured before, in such files")
    parser.add_argument("--keep", metavar="FILE", help="keep what is measured, in this file")
    parser.add_argument("--export", metavar="FILE", help="write the calibration here, and not where it is used")
    json_option(parser)


def run(options: argparse.Namespace) -> int:
    """The command."""
    from .. import __version__
    from ..arrays.gpu import device
    from ..calibrating.fitting import fitted
    from ..operations.gemm import calibration

    if not _core.device_count() and not options.measured:
        raise ValueError(f"calibrate: needs a GPU: {_core.why_no_device()}")
    gpu = device(0)
    path = Path(options.export) if options.export else calibration.path_of(gpu)
    if options.export and not path.parent.is_dir():
        raise ValueError(f"calibrate: --export {options.export}: there is no such directory")
    here = {"gpu": gpu.name, "driver": gpu.driver, "version": __version__}
    kept = Path(options.keep or path.with_suffix(".measured"))
    if options.measured:
        if options.seed is not None:
            raise ValueError("calibrate: --seed is of problems to be measured; --measured has its own")
        seeds, parts = _together(options.measured, here)
    else:
        found = _begun(options, kept, here)
        _measure(options, found, gpu, kept)
        seeds, parts = [found["seed"]], found["parts"]
    made = fitted(calibration.nearest_of(gpu), parts, gpu, seeds)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, made.dumps().encode())
    if not (options.keep or options.measured):
        kept.unlink(missing_ok=True)
    calibration.forget()
    _say(options, made.evidence, path)
    return 0


def _together(files: list[str], here: dict[str, Any]) -> tuple[list[int], dict[str, list[Any]]]:
    """What several calibrations of one GPU measured: their seeds, and problems by part."""
    each: dict[int, dict[str, list[Any]]] = {}
    for name in files:
        if (found := _read(Path(name), here, named=True)) is None:
            raise ValueError(f"calibrate: --measured {name}: there is no such file")
        if found["seed"] in each:  # a problem would be in what is fitted to and in what is held out
            raise ValueError(f"calibrate: --measured {name}: seed {found['seed']} is in another of the files")
        seed = {"seed": found["seed"]}
        each[found["seed"]] = {part: [entry | seed for entry in x] for part, x in found["parts"].items()}
    names = dict.fromkeys(chain.from_iterable(each.values()))
    return list(each), {part: [x for parts in each.values() for x in parts.get(part, ())] for part in names}


def _begun(options: argparse.Namespace, kept: Path, here: dict[str, Any]) -> dict[str, Any]:
    """What an interrupted run has left, or nothing measured yet."""
    found = _read(kept, here, named=bool(options.keep))
    if found and options.seed not in (None, found["seed"]):
        raise ValueError(f"calibrate: --seed is {options.seed}; {kept} was begun with {found['seed']}")
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    return found or {**here, "seed": seed, "parts": {}}


def _measure(options: argparse.Namespace, found: dict[str, Any], gpu: Any, kept: Path) -> None:
    """Part by part, each of which is kept as it is done."""
    from ..calibrating.measuring import SECONDS, measure, parts

    asked = parts(gpu)
    share = options.seconds / sum(SECONDS[part] for part in asked) if options.seconds else 1.0
    left = [part for part in asked if part not in found["parts"]]
    kept.parent.mkdir(parents=True, exist_ok=True)
    with progress("measuring", len(left)) as advance:
        for part in left:
            found["parts"][part] = list(measure(part, gpu, SECONDS[part] * share, found["seed"]))
            replace(kept, json.dumps(found, separators=(",", ":")).encode())
            advance()


def _read(path: Path, here: dict[str, Any], named: bool) -> dict[str, Any] | None:
    """What was measured before; None where there is nothing that can be gone on with.

    Raises:
        ValueError: a file that was named holds something else.
    """
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        there = {name: found[name] for name in (*here, "seed", "parts")}
    except (OSError, ValueError, KeyError, TypeError):
        there = {}
    if {name: there.get(name) for name in here} == here:
        return there
    if named:
        expected = f"{here['gpu']}, driver {here['driver']}, version {here['version']}"
        raise ValueError(f"calibrate: {path} holds no measurements of {expected}")
    return None


def _say(options: argparse.Namespace, evidence: dict[str, Any], path: Path) -> None:
    if options.json:
        print_json({"file": str(path), **evidence})
        return
    print(f"seeds {' '.join(map(str, evidence['seeds']))}; the best of what was measured over the choice, on problems")
    print("that were held out:")
    rows = [
        (
            part,
            str(found["problems"]),
            "yes" if found["changed"] else "no",
            *(f"{found[when][of]:.3f}" for when in ("before", "after") for of in _OF),
        )
        for part, found in evidence["held_out"].items()
    ]
    print_table(("part", "problems", "changed", "before", "5%", "worst", "after", "5%", "worst"), rows)
    print(path)


_OF = ("geomean", "percentile_5", "worst")
