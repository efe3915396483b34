"""Derivatives of cutlass_py.torch by finite differences: leaves in f64, the check, and torch's own activations."""

from __future__ import annotations

import pytest
import torch

from cutlass_py.declaration import epilogues

DERIVATIVES = [name for name, row in epilogues.ACTIVATIONS.items() if row.derivative]
THEIRS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "tanh": torch.tanh}
THEIRS |= {"gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(2026)


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def check(function, *operands):
    assert torch.autograd.gradcheck(function, operands)
    assert torch.autograd.gradgradcheck(function, operands)
