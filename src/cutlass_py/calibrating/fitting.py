"""Constants that suit what was measured.

Robust least squares (Huber's) of the logarithm of estimate over time, by Levenberg and Marquardt's steps from the
constants of before, which one that the problems say nothing about stays near. An arm counts by how near it is to its
problem's best, and what all arms of a problem have in common counts less: the choice among them does not depend on it.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from .. import __version__, _core
from ..arrays.gpu import Gpu
from ..bench.results import geomean
from ..declaration.config import SCHEDULES
from ..declaration.families import find
from ..kernels.adaptation import Way
from ..kernels.registry import cutlass_kernel
from ..operations.gemm.calibration import BESIDE, ROUTES, TILED, Calibration, Tree, instead, line_of
from ..operations.gemm.cost import Estimates, by_formula, is_tiled
from ..operations.gemm.cost import design_of as formula_of
from ..operations.gemm.problems import arguments
from ..operations.gemm.routes import other_kernel, residual_of
from ..operations.gemm.tiled_estimate import rate_name
from ..operations.gemm.wgmma_estimate import design_of
from ..operations.grouped_gemm.operation import mean_product
from .measuring import Entry, problem_of
from .residual import can_grow, grown, grown_of_routes

# How far a constant may go from where it was before that counts as an error; of all others, a half.
_WIDE = {"outside_along": 2.0, "lines16": 2.0, "panels32": 3.0, "panels16": 6.0, "load": 1.0, "beside": 1.0,
         "joined": 1.0, "direct": 1.0, "narrow": 1.0, "rate": 0.3, "near": 1.0, "series": 1.0}  # fmt: skip
_FAR = 3.5  # times the best: what is slower says nothing about the choice
_NEAR, _LEAST = 0.2, 0.03  # an arm that is slower by this share counts 1/e, and this at least
_COMMON = 0.3  # what counts of a problem's common error: kernels of other formulas are beside its arms
_USUAL, _NOISE = 0.15, 0.03  # errors beyond the former count linearly; the latter is one unit
# Of the constants of kernels without wgmma those that many of them share, but for what few routes tell apart.
_COMMON_TILED = tuple(name for name in TILED if name not in ("instruction", "memory", "join", "gemv"))
_WORST, _FEWEST = 10, 8  # problems that are told; and that are worth looking at

# ---------------------------------------------------------------------------------------------------- readings


class Readings(ABC):
    """Arms of many problems, and how estimates by some constants err on them."""

    def __init__(self, us: Sequence[np.ndarray]) -> None:
        counts = [len(each) for each in us]
        self.first = np.cumsum([0, *counts[:-1]])
        self.of = np.repeat(np.arange(len(us)), counts)
        self.us = np.concatenate(us)
        self.weigh(self.us)

    @abstractmethod
    def estimates(self, constants: np.ndarray) -> np.ndarray:
        """Of each arm."""

    def weigh(self, estimated: np.ndarray) -> None:
        """By how near an arm is to the best one, measured or estimated."""
        ratios = [values / np.minimum.reduceat(values, self.first)[self.of] for values in (self.us, estimated)]
        self.weights = np.exp((1 - np.minimum(*ratios)) / _NEAR) + _LEAST
        self.total = np.add.reduceat(self.weights, self.first)

    def errors(self, constants: np.ndarray) -> np.ndarray:
        """Logarithms, most of what the arms of a problem have in common taken off."""
        values = np.log(self.us / self.estimates(constants))
        common = np.add.reduceat(self.weights * values, self.first) / self.total
        return np.asarray(values - (1 - _COMMON) * common[self.of])

    def choices(self, estimated: np.ndarray) -> np.ndarray:
        """For each problem the best time over that of the arm which estimates put first."""
        ends = [*self.first[1:], len(self.us)]
        return np.array([
            self.us[low:high].min() / self.us[low + estimated[low:high].argmin()]
            for low, high in zip(self.first, ends, strict=True)
        ])  # fmt: skip


class WgmmaReadings(Readings):
    """Of kernels that take the operands as they lie, each in an order of its tiles."""

    def __init__(self, entries: Sequence[Entry], clusters: tuple[int, ...]) -> None:
        near = [_near(entry["arms"]) for entry in entries]
        arms = [(entry, arm) for entry, (kept, _) in zip(entries, near, strict=True) for arm in kept]
        self.arms = _core.WgmmaArms(
            [_size(entry, arm[0]) for entry, arm in arms],
            [design_of(_config(arm[0]), entry["activation"]) for entry, arm in arms],
            [(arm[1], arm[2]) for _, arm in arms],
        )
        self.clusters = clusters
        super().__init__([us for _, us in near])
        names = (f"{of} {arm[0]}" for of, (_, arm) in zip(self.of, arms, strict=True))
        self.kernels = np.unique(list(names), return_inverse=True)[1]  # of each problem

    def estimates(self, constants: np.ndarray) -> np.ndarray:
        """By the formula of estimate.h."""
        return np.array(_core.WgmmaEstimates(list(constants), self.clusters).times(self.arms))

    def with_residual(self, constants: np.ndarray, trees: list[Tree]) -> np.ndarray:
        """As a choice goes by them: of a kernel's orders the formula's best alone, with what the trees say."""
        model = _core.WgmmaEstimates(list(constants), self.clusters, trees)
        times = np.array(model.times(self.arms))
        least = np.full(self.kernels.max() + 1, np.inf)
        np.minimum.at(least, self.kernels, times)
        return np.where(times > least[self.kernels], np.inf, times * np.exp(model.residuals(self.arms)))


class RouteReadings(Readings):
    """Of routes: the constants are logarithms of those of what is beside our own kernels."""

    def __init__(self, entries: Sequence[Entry], known: Calibration, gpu: Gpu) -> None:
        self.known, self.gpu = known, gpu
        near = [_near([(each, each["us"]) for each in entry["routes"]]) for entry in entries]
        routes = [
            (arguments(entry["problem"], "cuda:0").problem, cutlass_kernel(_config(x["kernel"])), x)
            for entry, (kept, _) in zip(entries, near, strict=True)
            for x, _ in kept
        ]
        self.parts = np.array([x["splits"] for *_, x in routes])
        self.products = [(p, kernel.config, parts) for (p, kernel, _), parts in zip(routes, self.parts, strict=True)]
        self.detours = [self._detours(p, kernel, Way.of(x.__getitem__), x["splits"]) for p, kernel, x in routes]
        self.constants = {  # that a product depends on
            i: (*_COMMON_TILED, rate_name(c)) if is_tiled(c) else ("gemv",)
            for i, (_, c, _) in enumerate(self.products)
            if is_tiled(c) or SCHEDULES[c.schedule].gemv
        }
        self.names = [("tiled", name) for name in dict.fromkeys(chain.from_iterable(self.constants.values()))]
        self.names += [("beside", name) for name in BESIDE]
        self.at = self.start()
        with instead(gpu, known):
            self.kernels = [self._kernel(p, kernel) for p, kernel, _ in routes]
            self.times = np.array([self._product(i) for i in range(len(routes))])
        super().__init__([us for _, us in near])

    def start(self) -> np.ndarray:
        """The constants as they are."""
        return np.log([getattr(self.known, table)[name] for table, name in self.names])

    def changed(self, constants: np.ndarray) -> Calibration:
        """The calibration with others."""
        tables = {"tiled": dict(self.known.tiled), "beside": dict(self.known.beside)}
        for (table, name), value in zip(self.names, np.exp(constants).tolist(), strict=True):
            tables[table][name] = value
        return replace(self.known, tiled=tables["tiled"], beside=tables["beside"])

    def estimates(self, constants: np.ndarray) -> np.ndarray:
        """By cost.py. Of kernels only those anew that depend on a constant which has changed."""
        changed = self.changed(constants)
        anew = {
            name
            for (table, name), x, y in zip(self.names, constants, self.at, strict=True)
            if table == "tiled" and x != y
        }
        times = self.times.copy()
        if anew:
            with instead(self.gpu, changed):
                for i, own in self.constants.items():
                    if not anew.isdisjoint(own):
                        times[i] = self._product(i)
        if len(anew) > 1:  # a step, from which others are taken
            self.at, self.times = constants, times
        return np.asarray(times * np.where(self.parts > 1, changed.beside["cut"], 1) + self.around(changed.beside))

    def around(self, x: Mapping[str, float]) -> np.ndarray:
        """What surrounds the kernels, by these constants."""
        launches, moved, turned_launches, turned = np.array(self.detours).T
        launches, moved = launches + x["transposed"] * turned_launches, moved + x["transposed"] * turned
        return np.asarray(launches * x["launch"] + moved / x["rate"])

    def _seen(self) -> list[tuple[Any, ...]]:
        """What trees are told of each."""
        times, around = self.estimates(self.start()).tolist(), self.around(self.known.beside).tolist()
        each = zip(self.products, self.kernels, around, times, strict=True)
        return [(p, kernel, int(parts), beside, us) for (p, _, parts), kernel, beside, us in each]

    def features(self) -> np.ndarray:
        """What trees look at, by the constants as they are; no number of a kernel without a formula."""
        none = [math.nan] * len(_core.route_features())
        return np.array([_core.RouteResidual.features(*each) or none for each in self._seen()])

    def with_residual(self) -> np.ndarray:
        """Estimates by the constants as they are, with what the trees say."""
        residual = residual_of(self.known)
        return np.array([residual.applied(*each) for each in self._seen()])

    def _kernel(self, p: Any, kernel: Any) -> Any:
        """As routes.h has it."""
        own, _ = by_formula((kernel,))
        if own:
            return design_of(kernel.config, p.activation)
        return other_kernel(kernel.config, formula_of(kernel.config, p, self.gpu))

    def _product(self, i: int) -> float:
        """In parts, as if they were a batch."""
        p, c, parts = self.products[i]
        estimates = Estimates(p, self.gpu)
        return sum(estimates.launch(c, *each) for each in p.launches(int(parts)))

    def _detours(self, p: Any, kernel: Any, way: Way, parts: int) -> tuple[float, float, float, float]:
        """Launches and bytes of all that surrounds the kernel; and those of copies that turn rows into columns."""

        def found(launch: float, rate: float, transposed: float) -> float:
            beside = {"launch": launch, "rate": rate, "transposed": transposed, "cut": 1.0}
            with instead(self.gpu, replace(self.known, beside=beside)):
                return Estimates(p, self.gpu).detours(way, kernel.interface, parts)

        turned = [found(launch, rate, 2.0) - found(launch, rate, 1.0) for launch, rate in ((1.0, np.inf), (0.0, 1.0))]
        return found(1.0, np.inf, 1.0) - turned[0], found(0.0, 1.0, 1.0) - turned[1], turned[0], turned[1]


def _size(entry: Entry, kernel: str) -> tuple[int, int, int, int]:
    """m, n, k and how many, by which a kernel's time is estimated."""
    problem = entry["problem"]
    if not isinstance(problem, dict):
        return tuple(problem)
    return mean_product(_grouped(json.dumps(problem)), _config(kernel), entry.get("sizes", ()))


@cache
def _grouped(entry: str) -> Any:
    return problem_of(json.loads(entry))


def _config(name: str) -> Any:
    config = find(name)
    assert config, name
    return config


def _near(arms: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """Arms that are not far from the best, and their medians over rounds, from each of which its own level was taken.

    That is the clock's.
    """
    rounds = min(len(arm[-1]) for arm in arms)
    logs = np.log([arm[-1][:rounds] for arm in arms])
    us = np.exp(np.median(logs - np.median(logs - logs.mean(1, keepdims=True), 0), 1))
    near = np.flatnonzero(us < _FAR * us.min())
    return [arms[i] for i in near.tolist()], us[near]


# ---------------------------------------------------------------------------------------------------- fitting


def descend(readings: Readings, start: np.ndarray, width: np.ndarray, rounds: int = 2, steps: int = 12) -> np.ndarray:
    """The constants that err least, by steps from where they were."""
    x = start
    for _ in range(rounds):
        x = _steps(readings, x, start, width, steps)
        readings.weigh(readings.estimates(x))
    return x


def _steps(readings: Readings, x: np.ndarray, start: np.ndarray, width: np.ndarray, steps: int) -> np.ndarray:
    def cost(errors: np.ndarray, x: np.ndarray) -> float:
        size = np.abs(errors)
        huber = np.where(size < _USUAL, errors**2, 2 * _USUAL * size - _USUAL**2)
        return float((readings.weights * huber).sum() / _NOISE**2 + (((x - start) / width) ** 2).sum())

    damping, moved = 1.0, 1e-3 * np.minimum(width, 1)
    errors = readings.errors(x)
    before = cost(errors, x)
    for _ in range(steps):
        slopes = np.stack([(readings.errors(x + row) - errors) / row.sum() for row in np.diag(moved)], 1)
        weights = readings.weights * np.minimum(1, _USUAL / np.maximum(np.abs(errors), 1e-9)) / _NOISE**2
        curvature = (slopes * weights[:, None]).T @ slopes + np.diag(width**-2.0)
        downhill = -(slopes * weights[:, None]).T @ errors - (x - start) / width**2
        for _ in range(8):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill)
            there = x + np.clip(step, -0.7 * width, 0.7 * width)
            new = readings.errors(there)
            if (after := cost(new, there)) < before:
                break
            damping *= 4
        else:
            return x
        done = before - after < 1e-3 * before
        x, errors, before, damping = there, new, after, damping / 4
        if done:
            return x
    return x


def fitted(known: Calibration, measured: Mapping[str, Sequence[Entry]], gpu: Gpu, seeds: Sequence[int]) -> Calibration:
    """A calibration with what suits the parts that were measured, and the evidence.

    Constants of a part change where they choose better on a quarter of its problems that was held out, by more than the
    standard error of that; they are then those found from all. Nothing that `known` was fitted to is held out, unless
    there is little else.

    Args:
        known: what it starts from.
        measured: problems by part; each may name the seed it is of.
        gpu: that was measured.
        seeds: of the problems; the first is that of the quarter.

    Raises:
        ValueError: there are too few problems of every part.
    """
    found, scores = known, dict[str, Any]()
    seen = [seed for name in ("seeds", "earlier") for seed in known.evidence.get(name, ())]
    for part, problems in measured.items():
        entries = [entry for entry in map(_declared, problems) if entry]
        if len(entries) < _FEWEST:
            continue
        Random(seeds[0]).shuffle(entries)
        unseen = [entry for entry in entries if entry.get("seed") not in seen]
        held = (unseen if len(unseen) >= _FEWEST else entries)[::4]
        others = [entry for entry in entries if not any(entry is one for one in held)]
        before = choices(part, known, held, gpu)
        after = choices(part, fit(part, known, others, gpu), held, gpu)
        better = _is_better(before, after)
        if better:
            found = fit(part, found, entries, gpu)
        scores[part] = {
            "problems": len(entries), "changed": better, "before": _said(before), "after": _said(after),
            "worst": _worst(after if better else before, held),
        }  # fmt: skip
    if not scores:
        raise ValueError(f"calibrate: too few problems were measured: expected {_FEWEST} of some part")
    return replace(
        found, gpu=gpu.name, cc=gpu.cc, sm_count=gpu.sm_count, bandwidth=gpu.bandwidth, driver=gpu.driver,
        version=__version__, evidence={"seeds": list(seeds), "earlier": seen, "held_out": scores}, nearest=False,
    )  # fmt: skip


def fit(part: str, known: Calibration, entries: Sequence[Entry], gpu: Gpu) -> Calibration:
    """With constants of one part that suit its problems best, and trees of what these leave."""
    if part == ROUTES:
        routes = RouteReadings(entries, known, gpu)
        start = routes.start()
        changed = routes.changed(descend(routes, start, np.full(len(start), 0.5), rounds=1))
        tiled, beside = ({name: _rounded(x) for name, x in table.items()} for table in (changed.tiled, changed.beside))
        known = replace(known, tiled=tiled, beside=beside)
        if not can_grow():
            return known
        lines = [line_of(tree) for tree in grown_of_routes(RouteReadings(entries, known, gpu))]
        return replace(known, residual=known.residual | {part: lines})
    names = _core.wgmma_constants()
    width = np.array([_WIDE.get(name, 0.5) for name in names])
    readings = WgmmaReadings(entries, gpu.clusters)
    found = descend(readings, np.array(known.constants(part)), width)
    values = {name: _rounded(value) for name, value in zip(names, found.tolist(), strict=True)}
    trees = {part: [line_of(tree) for tree in grown(readings, np.array(list(values.values())))]} if can_grow() else {}
    return replace(known, sums=known.sums | {part: values}, residual=known.residual | trees)


def choices(part: str, known: Calibration, entries: Sequence[Entry], gpu: Gpu) -> np.ndarray:
    """How near the choice among what was measured comes to the best of it, problem by problem."""
    if part == ROUTES:
        routes = RouteReadings(entries, known, gpu)
        return routes.choices(routes.with_residual())
    readings = WgmmaReadings(entries, gpu.clusters)
    return readings.choices(readings.with_residual(np.array(known.constants(part)), known.trees(part)))


def _is_better(before: np.ndarray, after: np.ndarray) -> bool:
    gained = np.log(after / before)
    return bool(gained.mean() > gained.std() / math.sqrt(len(gained)))


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _worst(shares: np.ndarray, entries: Sequence[Entry]) -> list[Any]:
    by_share = sorted(zip(shares.tolist(), (x["problem"] for x in entries), strict=True), key=lambda each: each[0])
    return [[round(share, 3), problem] for share, problem in by_share[:_WORST]]


def _said(shares: np.ndarray) -> dict[str, float]:
    values = {"geomean": geomean(shares.tolist()), "percentile_5": np.percentile(shares, 5), "worst": shares.min()}
    return {name: round(float(value), 4) for name, value in values.items()}


def _declared(entry: Entry) -> Entry | None:
    """A problem without kernels that are gone since it was measured."""
    if "routes" in entry:
        routes = [x for x in entry["routes"] if find(x["kernel"])]
        return {**entry, "routes": routes} if len(routes) > 1 else None
    arms = [arm for arm in entry["arms"] if find(arm[0])]
    return {**entry, "arms": arms} if len(arms) > 1 else None
