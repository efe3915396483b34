"""What estimates know of a GPU: constants that were fitted to what it was measured to take.

A file for each GPU (`python -m cutlass_py calibrate`): the user's own, else one that came with the package. What nobody
has calibrated has the nearest one's, in proportion to its multiprocessors and its memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from hashlib import sha256
from math import isfinite, log
from pathlib import Path
from typing import Any

from ... import _core
from ...arrays.gpu import ABSENT, Gpu, file_stem
from ...compiling import cache as files
from ...declaration.families import FAMILIES
from ...errors import CompileError
from ...support.files import read_json

FORMAT = 3
GROUPS, DEPTH = "groups", "depth"  # of unequal size: each with lines of its own, or with a part of k
# How our own kernels sum: bf16 stands for all that do as usual.
SUMS = ("usual", "fast", "promoted", "factors", GROUPS, DEPTH)
ROUTES = "routes"  # all kernels beside each other, with what surrounds them
PLACE = Path(__file__).with_name("calibrations")  # those that came with the package
_PREFIX = "calibration"
# By name, in microseconds unless it says so; tiled_estimate.py, gemv_estimate.py and cost.py say what each is.
TILED = (
    "launch", "fill", "instruction", "memory", "shared", "copies", "turned", "alone", "step", "latency", "deal",
    "join", "gemv",
)  # fmt: skip
BESIDE = ("launch", "rate", "transposed", "cut")
Tree = tuple[list[int], list[float], list[float]]  # features, thresholds and values: trees.h
_UNIT = 1e-4  # of the values


@dataclass(frozen=True, eq=False)  # equal is only what is the same: what is made of constants is kept by them
class Calibration:
    """The constants of one GPU.

    Attributes:
        gpu, cc, sm_count, bandwidth: of the GPU that was measured, as Gpu has them.
        driver, version: of the CUDA driver (13000 for 13.0) and of this package at the time.
        sums: of estimate.h, by how a kernel sums and by name.
        tiled: of kernels without wgmma. "rate" with a family and an operand's dtype: TFLOP/s of its tensor cores.
        beside: of packing, finishing and cutting k.
        features: what trees look at, in the order of their numbers: those of estimate.h, and of routes.h.
        residual: by how a kernel sums, the trees of estimate.h that say what its formula leaves, and of ROUTES those of
            routes.h: of each a line with feature and threshold of every node, and the values of the leaves in units of
            1e-4 of a logarithm.
        evidence: what was measured, with which seeds, which earlier ones its first constants were of, and how near the
            choice came to the best of what was held out.
        nearest: whether it stands in for another GPU.
    """

    gpu: str
    cc: int
    sm_count: int
    bandwidth: float
    driver: int
    version: str
    sums: dict[str, dict[str, float]]
    tiled: dict[str, float]
    beside: dict[str, float]
    features: list[list[str]] = field(default_factory=lambda: [_core.wgmma_features(), _core.route_features()])
    residual: dict[str, list[str]] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    nearest: bool = False

    def constants(self, sums: str) -> list[float]:
        """Of one way to sum, in the order of estimate.h."""
        return [self.sums[sums][name] for name in _core.wgmma_constants()]

    def trees(self, of: str) -> list[Tree]:
        """Of one way to sum, as WgmmaEstimates takes them, or of ROUTES, as RouteResidual does.

        Raises:
            ValueError: a line is no tree.
        """
        return [_tree(line) for line in self.residual.get(of, ())]

    def dumps(self) -> str:
        """As a file has it, with a digest of the rest."""
        import json

        body = {"format": FORMAT} | {name: x for name, x in asdict(self).items() if name != "nearest"}
        return json.dumps(body | {"sha256": _digest(body)}, indent=1) + "\n"


def line_of(tree: Tree) -> str:
    """A tree as a file has it."""
    features, thresholds, values = tree
    nodes = (f"{feature}>{threshold:.6g}" for feature, threshold in zip(features, thresholds, strict=True))
    return " ".join((*nodes, *(str(round(value / _UNIT)) for value in values)))


def _tree(line: str) -> Tree:
    parts = line.split()
    nodes = [part.split(">") for part in parts if ">" in part]
    values = [int(part) * _UNIT for part in parts if ">" not in part]
    return [int(feature) for feature, _ in nodes], [float(threshold) for _, threshold in nodes], values


def _digest(body: Mapping[str, Any]) -> str:
    import json

    return sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def path_of(gpu: Gpu) -> Path:
    """The user's calibration of such GPUs. Need not exist.

    Raises:
        CompileError: CUTLASS_PY_CACHE_DIR names the home of nobody.
    """
    return files.directory() / name_of(gpu)


def name_of(gpu: Gpu) -> str:
    """What a calibration of such GPUs is called."""
    return f"{_PREFIX}-{file_stem(gpu.name, gpu.sm_count)}.json"


def read(path: Path) -> Calibration:
    """A file.

    Raises:
        ValueError: it is no calibration, or not as it was written; the message names the file.
        OSError: it cannot be read.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: expected a calibration of format {FORMAT}: `calibrate` makes one")
    body = {name: x for name, x in content.items() if name != "sha256"}
    if content.get("sha256") != _digest(body):
        raise ValueError(f"{path}: its digest is not that of its contents: it was changed, or torn")
    try:
        found = Calibration(**{name: x for name, x in body.items() if name != "format"})
        complete = _is_complete(found)
        above = [*found.tiled.values(), *found.beside.values()]  # of the others these are the logarithms
        numbers = [*above, *(y for x in found.sums.values() for y in x.values())]
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not complete:
        raise ValueError(f"{path}: is of other constants than this version has")
    if not all(isinstance(x, int | float) and isfinite(x) for x in numbers) or min(above) <= 0:
        raise ValueError(f"{path}: a constant is no number, or not above 0")
    return found


def _is_complete(x: Calibration) -> bool:
    names = set(_core.wgmma_constants())
    sums = set(x.sums) == set(SUMS) and all(set(found) == names for found in x.sums.values())
    sums = sums and x.features == [_core.wgmma_features(), _core.route_features()]
    sums = sums and set(x.residual) <= {*SUMS, ROUTES}
    return sums and set(x.tiled) == tiled_names() and set(x.beside) == set(BESIDE)


@cache
def tiled_names() -> frozenset[str]:
    """Those of the table `tiled`: with a rate for each family and what it multiplies."""
    families = (f for f in FAMILIES.values() if f.operation == "gemm" and (f.api == 2 or f.name == "sm90_dmma"))
    return frozenset((*TILED, *(f"rate {c.family} {c.a}" for f in families for c in f.declared)))


_known: dict[Gpu, Calibration] = {}


def calibration_of(gpu: Gpu) -> Calibration:
    """The user's of such a GPU, else that of the package, else the nearest one of the package.

    What is there and cannot be taken, a warning names.
    """
    found = _known.get(gpu)
    return _known.setdefault(gpu, _users(gpu) or nearest_of(gpu)) if found is None else found


@contextmanager
def instead(gpu: Gpu, x: Calibration) -> Iterator[None]:
    """Within it, estimates for such a GPU are by these constants."""
    before, _known[gpu] = _known.get(gpu), x
    try:
        yield
    finally:
        _known.pop(gpu)
        if before:
            _known[gpu] = before


def nearest_of(gpu: Gpu) -> Calibration:
    """Of those that came with the package: its own, or that of a GPU which is most like it."""
    known = shipped()
    if own := next((x for x in known if (x.gpu, x.sm_count) == (gpu.name, gpu.sm_count)), None):
        return own
    nearest = min(known, key=lambda x: (x.cc // 10 != gpu.cc // 10, abs(x.cc - gpu.cc), abs(x.sm_count - gpu.sm_count)))
    return scaled(nearest, gpu)


@cache
def shipped() -> tuple[Calibration, ...]:
    """Those that came with the package."""
    return tuple(map(read, sorted(PLACE.glob(f"{_PREFIX}-*.json"))))


def said(gpu: Gpu) -> str:
    """In words whose constants estimates for such a GPU are by."""
    found = calibration_of(gpu)
    if found.nearest:
        return f"in proportion to what was measured on {found.gpu}: `calibrate` measures this one"
    seeds = " ".join(map(str, found.evidence.get("seeds", ())))
    return f"by what was measured on {found.gpu}{'' if found in shipped() else f' here (seeds: {seeds})'}"


def forget() -> None:
    """Calibrations are read anew, and choices made anew."""
    _known.clear()
    _core.clear_plans()


def scaled(x: Calibration, gpu: Gpu) -> Calibration:
    """In proportion to multiprocessors, as rates of the whole are, and to memory; times beside them stay."""
    processors = gpu.sm_count / x.sm_count
    memory = gpu.bandwidth / x.bandwidth if gpu.bandwidth else processors
    sums = {name: found | {"memory": found["memory"] + log(memory)} for name, found in x.sums.items()}
    tiled = {name: value * (processors if name.startswith("rate ") else 1) for name, value in x.tiled.items()}
    tiled["memory"] *= memory
    beside = x.beside | {"rate": x.beside["rate"] * memory}
    return replace(x, sums=sums, tiled=tiled, beside=beside, nearest=True)


def _users(gpu: Gpu) -> Calibration | None:
    try:
        path = path_of(gpu)
    except CompileError:  # for those to say who write there
        return None
    if files.unsafe(path.parent):
        return None
    try:
        found = read(path)
        if error := _mismatch(found, gpu) or _no_trees(found):
            raise ValueError(f"{path}: {error}")
        return found
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"cutlass_py: a calibration is left out: {error}", RuntimeWarning, stacklevel=2)
        return None


def _no_trees(x: Calibration) -> str | None:
    """What is wrong with its trees: of those that came with the package only what is needed is looked at."""
    try:
        for sums in SUMS:
            _core.WgmmaEstimates(x.constants(sums), ABSENT.clusters, x.trees(sums))
        _core.RouteResidual(x.trees(ROUTES))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        return f"of what the formula leaves: {error}"
    return None


def _mismatch(x: Calibration, gpu: Gpu) -> str | None:
    from ... import __version__

    here = (gpu.name, gpu.sm_count, __version__)
    if (x.gpu, x.sm_count, x.version) == here and (gpu.absent or x.driver == gpu.driver):
        return None
    expected = f"{gpu.name} with {gpu.sm_count} multiprocessors, driver {gpu.driver}, version {__version__}"
    return (
        f"is of {x.gpu} with {x.sm_count} multiprocessors, driver {x.driver}, version {x.version}; expected {expected}"
    )
