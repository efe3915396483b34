"""Trees of what formulas leave, of wgmma kernels and of whole routes: boosted by LightGBM, where that is installed.

They are complete and of one depth (trees.h), so that a kernel's are summed in a microsecond. What arms of a problem
have in common says nothing about the choice and is taken off, as where constants are fitted; arms count likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..operations.gemm.calibration import Tree

if TYPE_CHECKING:
    from .fitting import RouteReadings, WgmmaReadings

_DEPTH, _TREES, _RATE = 4, 120, 0.15
_ROUTE_RATE = 0.25  # kernels of several formulas differ in more ways (docs/performance/choice.md)
_OPTIONS = {
    "max_depth": _DEPTH, "num_leaves": 2**_DEPTH, "min_data_in_leaf": 40, "seed": 1,
    "bagging_fraction": 0.8, "bagging_freq": 1, "feature_fraction": 0.7, "objective": "huber", "alpha": 0.1,
    "deterministic": True, "force_row_wise": True, "verbose": -1,
    "num_threads": 1,  # so few numbers; more threads wait for each other where other processes are busy
}  # fmt: skip


def can_grow() -> bool:
    """Whether there is LightGBM (the extra `calibrate`); without it trees stay as they are."""
    try:
        import lightgbm  # noqa: F401
    except (ImportError, OSError):  # the latter where a library that it needs is missing
        return False
    return True


def grown(readings: WgmmaReadings, constants: np.ndarray) -> list[Tree]:
    """Trees of what these constants leave of the readings."""
    model = _core.WgmmaEstimates(list(constants), readings.clusters)
    return boosted(np.array(model.features(readings.arms)), readings.errors(constants), readings.weights)


def grown_of_routes(readings: RouteReadings) -> list[Tree]:
    """Trees of what the constants leave that the readings have."""
    features, left = readings.features(), readings.errors(readings.start())
    known = ~np.isnan(features[:, 0])
    return boosted(features[known], left[known], readings.weights[known], _ROUTE_RATE)


def boosted(features: np.ndarray, values: np.ndarray, weights: np.ndarray, rate: float = _RATE) -> list[Tree]:
    """Trees whose sum is about such values of such features."""
    import lightgbm

    options = {**_OPTIONS, "learning_rate": rate}
    found = lightgbm.train(options, lightgbm.Dataset(features, values, weight=weights), _TREES)
    return [complete(tree["tree_structure"]) for tree in found.dump_model()["tree_info"]]


def complete(root: dict[str, Any]) -> Tree:
    """With every node: where there is none, both of its sides are the leaf above."""
    level, features, thresholds = [root], list[int](), list[float]()
    for _ in range(_DEPTH):
        below = []
        for node in level:
            features.append(node.get("split_feature", 0))
            thresholds.append(node.get("threshold", 0.0))
            below += [node["left_child"], node["right_child"]] if "split_feature" in node else [node, node]
        level = below
    return features, thresholds, [leaf["leaf_value"] for leaf in level]
