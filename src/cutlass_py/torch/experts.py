"""Mixtures of experts of Hugging Face's transformers by grouped products: `register_experts`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .grouped import grouped_mm
from .modules import is_hooked

NAME = "cutlass_py"


def register_experts() -> str:
    """Adds grouped_mm of this package to the implementations of experts that transformers knows.

    Models of transformers take it by name from then on: `model.set_experts_implementation(name)`, or
    `from_pretrained(..., experts_implementation=name)`. It computes what their "grouped_mm" does, by the same weights,
    in every dtype, and differentiably; nothing waits for the router's choice on a device.

    Returns:
        The name, "cutlass_py".

    Raises:
        ImportError: there is no transformers, or one older than 5, which asks nobody for experts.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, experts_forward)
    return NAME


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """What a module of experts computes, as transformers calls it: tokens sorted by expert, two grouped products.

    Gates and values that are halves of the first one become its result there; others do in between.

    Args:
        self: the module: its weights (E, ...), and how they lie.
        hidden_states: (T, H).
        top_k_index: (T, K), the experts of each token; E or more where another device has that one.
        top_k_weights: (T, K), what each counts.

    Returns:
        (T, H), in the dtype of hidden_states.
    """
    (tokens, top_k), experts = top_k_index.shape, self.num_experts
    experts_in_order, order = top_k_index.reshape(-1).sort(stable=True)
    each = torch.arange(experts, device=order.device)
    ends = torch.searchsorted(experts_in_order, each, right=True, out_int32=True)
    weights = top_k_weights.reshape(-1)[order]
    if getattr(self, "_is_expert_parallel", False):
        weights = weights.masked_fill(experts_in_order >= experts, 0)

    x, gated = hidden_states[order // top_k], _gated(self)
    z = _linear(self, x, "gate_up_proj" if self.has_gate else "up_proj", ends, gated)
    if not gated:
        z = self._apply_gate(z) if self.has_gate else self.act_fn(z)
    z = _linear(self, z, "down_proj", ends)
    if getattr(self, "has_post_expert_norm", False):
        z = self.post_expert_norm(z)
    places = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    z = (z * weights.unsqueeze(-1))[places].view(tokens, top_k, -1)
    return z.sum(1).to(hidden_states.dtype)


def _gated(self: Any) -> str | None:
    """The function of the gates, by the name that `gated` has, where gates and values are halves of one product."""
    halves, names = _known()
    if not self.has_gate or getattr(self._apply_gate, "__func__", None) is not halves:
        return None
    name = names.get(type(self.act_fn))
    return None if name is None or is_hooked(self.act_fn) else name


def _known() -> tuple[Any, dict[type, str]]:
    """What transformers makes of halves, where a model has nothing else; and its functions, by their modules."""
    from transformers import activations
    from transformers.integrations import moe

    return getattr(moe, "_default_apply_gate", None), {
        torch.nn.SiLU: "silu",
        activations.SiLUActivation: "silu",
        activations.GELUActivation: "gelu",
        activations.GELUTanh: "gelu_tanh",
        activations.NewGELUActivation: "gelu_tanh",
        torch.nn.ReLU: "relu",
    }


def _linear(experts: Any, x: Tensor, name: str, ends: Tensor, gated: str | None = None) -> Tensor:
    """Each row by the weights of its expert; rows behind the last one are zeros."""
    weight = getattr(experts, name)
    bias = getattr(experts, f"{name}_bias") if experts.has_bias else None
    weight = weight if experts.is_transposed else weight.mT
    return grouped_mm(x.to(weight.dtype), weight, offs=ends, bias=bias, gated=gated)
