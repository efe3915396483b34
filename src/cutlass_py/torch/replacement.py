"""The exchange of a model's linear layers for those of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from .dtypes import FLOATS
from .modules import Linear, Sequential, is_hooked, is_perceptron
from .sharding import register_if_used


@dataclass(frozen=True)
class Replacement:
    """What replace_linear did; prints as a table.

    Attributes:
        replaced: names of the modules that are now cutlass_py.torch.Linear.
        left: name of each other linear module, and why it stayed.
        fused: names of the modules that are now cutlass_py.torch.Sequential.
    """

    replaced: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    fused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [(name, "replaced") for name in self.replaced] + [(n, f"left: {why}") for n, why in self.left.items()]
        count = len(rows)
        rows += [(name, "fused") for name in self.fused]
        width = max((len(name) for name, _ in rows), default=0)
        lines = [f"{name or '(the model itself)':{width}}  {what}" for name, what in rows]
        return "\n".join([*lines, f"{len(self.replaced)} of {count} linear modules replaced"])


def replace_linear(
    model: nn.Module, *, where: Callable[[str, nn.Linear], bool] | None = None, fuse: bool = False
) -> Replacement:
    """Makes a model's nn.Linear modules cutlass_py.torch.Linear, in place.

    Modules, parameters and buffers stay the same objects: optimisers, tied weights and modules that are used in several
    places keep working, state_dict does not change. Left alone: subclasses of nn.Linear, modules with hooks,
    parametrizations, a forward or an attribute `activation` of their own, lazy and quantised ones, those on the meta
    device, those whose weights are sparse or of a dtype that gemm does not multiply, those of an
    nn.TransformerEncoderLayer (which in inference reads their weights and does not call them), and what `where` says no
    to.

    Args:
        model: any module.
        where: (qualified name, module) -> whether to replace it.
        fuse: also makes each nn.Sequential that holds a Linear, an activation and a Linear in a row a
            cutlass_py.torch.Sequential, which computes these together. Results differ by rounding: what the activation
            is applied to is not rounded first.

    Returns:
        What was replaced, what was left and why, and what was fused.
    """
    register_if_used()
    report = Replacement()
    modules = dict(model.named_modules())
    for name, module in modules.items():
        looks_like_one = isinstance(module, nn.Linear) or type(module).__name__.endswith("Linear")
        if isinstance(module, Linear) or not looks_like_one:
            continue
        parent = modules[name.rpartition(".")[0]]
        encoder = isinstance(parent, nn.TransformerEncoderLayer)
        why = _rejection(module)
        if not why and encoder and type(parent).forward is nn.TransformerEncoderLayer.forward:
            why = "nn.TransformerEncoderLayer reads its weight without calling it in inference"
        if why or (where and not where(name, module)):
            report.left[name] = why or "where said no"
            continue
        module.__class__ = Linear
        module.activation = None
        report.replaced.append(name)
    for name, module in modules.items() if fuse else ():
        if type(module) is nn.Sequential and "forward" not in vars(module):
            row = list(module)
            if any(is_perceptron(row[i : i + 3]) for i in range(len(row))):
                module.__class__ = Sequential
                report.fused.append(name)
    return report


def _rejection(module: nn.Module) -> str:
    """Why a module that looks like nn.Linear stays as it is; empty if nothing speaks against it."""
    if type(module) is not nn.Linear:
        kind = "parametrized" if parametrize.is_parametrized(module) else "of type"
        return f"{kind} {type(module).__module__}.{type(module).__qualname__}"
    if hasattr(module, "activation"):
        return "it has an attribute activation"
    if "forward" in vars(module):
        return "its forward is replaced"
    if is_hooked(module):
        return "it has hooks"
    weight: Any = getattr(module, "weight", None)  # pruning and offloading take it away
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.is_meta:
        return "it is on the meta device"
    if weight.layout != torch.strided:
        return f"its weight is {weight.layout}"
    if weight.dtype not in FLOATS:
        return f"its weight is {weight.dtype}"
    return ""
