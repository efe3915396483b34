"""Trees of what the formula for wgmma kernels leaves: boosted by LightGBM, where that is installed.

They are complete and of one depth (trees.h), so that a kernel's are summed in a microsecond. What arms of a problem
have in common says nothing about the choice and is taken off, as where constants are fitted; arms count likewise.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..operations.gemm.calibration import Tree

if TYPE_CHECKING:
    from .fitting import WgmmaReadings

_DEPTH, _TREES = 4, 60
_OPTIONS = {
    "n_estimators": _TREES, "max_depth": _DEPTH, "num_leaves": 2**_DEPTH, "learning_rate": 0.12, "verbose": -1,
    "min_child_samples": 40, "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.7, "random_state": 1,
    "objective": "huber", "alpha": 0.1, "deterministic": True, "force_row_wise": True,
}  # fmt: skip


def can_grow() -> bool:
    """Whether LightGBM is installed (the extra `calibrate`); without it trees stay as they are."""
    return find_spec("lightgbm") is not None


def grown(readings: WgmmaReadings, constants: np.ndarray) -> list[Tree]:
    """Trees of what these constants leave of the readings."""
    import lightgbm

    model = _core.WgmmaEstimates(list(constants), readings.clusters)
    features = np.array(model.features(readings.arms))
    found = lightgbm.LGBMRegressor(**_OPTIONS)
    found.fit(features, readings.errors(constants), sample_weight=readings.weights)
    return [_complete(tree["tree_structure"]) for tree in found.booster_.dump_model()["tree_info"]]


def _complete(root: dict[str, Any]) -> Tree:
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
