"""Activations and fused epilogues: what can happen to a product before it is stored.

Standard library and its sibling tables only: the build reads it before the package exists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .epilogue_cpp import Traced


@dataclass(frozen=True)
class ActivationRow:
    """A function that an epilogue applies; C++ has it as cutlass_py::<name> (activation.h).

    Attributes:
        parameters: name and default of each run-time parameter; None where it has to be given.
        derivative: it takes `aux`, where the function was evaluated, and multiplies the product by its value.
        formula: as documented.
        instructions: of a scheduler for one number of a 16-bit result, counted in sm_90a's machine code: all of them,
            or twice those that compare, or eight times the special functions, whichever is most.
    """

    name: str
    formula: str
    instructions: int
    parameters: tuple[tuple[str, float | None], ...] = ()
    derivative: bool = False


# The order is the numbering used by C++ (activation.h): append only. identity stands for no activation.
_ACTIVATIONS = [
    ActivationRow("identity", "x", 0),
    ActivationRow("relu", "max(x, 0)", 2),
    ActivationRow("leaky_relu", "x if x > 0 else slope * x", 2, (("slope", 0.01),)),
    ActivationRow("gelu", "x * (1 + erf(x / sqrt(2))) / 2", 16),
    ActivationRow("gelu_tanh", "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2", 16),
    ActivationRow("silu", "x / (1 + exp(-x))", 16),
    ActivationRow("sigmoid", "1 / (1 + exp(-x))", 16),
    ActivationRow("tanh", "tanh(x)", 8),
    ActivationRow("hardswish", "x * min(max(x + 3, 0), 6) / 6", 5),
    ActivationRow("clamp", "min(max(x, low), high)", 4, (("low", None), ("high", None))),
    ActivationRow("d_relu", "1 if x > 0 else 0", 6, derivative=True),
    ActivationRow("d_gelu", "(1 + erf(x / sqrt(2))) / 2 + x * exp(-x**2 / 2) / sqrt(2 * pi)", 60, derivative=True),
    ActivationRow(
        "d_gelu_tanh",
        "(1 + t) / 2 + x * (1 - t**2) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2) / 2, t as in gelu_tanh",
        16,
        derivative=True,
    ),
    ActivationRow("d_silu", "s * (1 + x * (1 - s)), s = sigmoid(x)", 16, derivative=True),
    ActivationRow("d_sigmoid", "s * (1 - s), s = sigmoid(x)", 16, derivative=True),
]
ACTIVATIONS = {a.name: a for a in _ACTIVATIONS}


# What a gate may go through whose values lie beside it (`gated`): what has a derivative.
GATED = tuple(a.name.removeprefix("d_") for a in _ACTIVATIONS if a.derivative)
INTERLEAVED = "_interleaved"  # behind its name, where a value lies behind each gate, and not all behind all

TOLD = "f"  # an activation that the launch tells


@dataclass(frozen=True)
class Epilogue:
    """What a kernel does to the product before it stores it: one fused variant (kernel.h has the whole formula).

    Attributes:
        source: reads c and adds beta * c; where beta is 0 it is left unread.
        bias: axis of the vector it adds, "n" (one value per column of D) or "m", or "nm" for either; absent it adds
            nothing.
        activation: applied to the result; TOLD for any.
        gated: instead multiplies by activation(gate), or by the derivative's value at aux.
        aux: stores what the activation is applied to, in D's dtype.
        bias_grad: leaves the sums of D's columns, before D is rounded.
        scaled: multiplies by scale_a and scale_b (vectors, or single values in device memory), at the end by scale_out.
        pairs: whose columns are gates and, behind them, as many values. "b": D is activation(gate) * value of the two
            products, which aux has both. "d": the product is the gradient of such a D, whose gates and values are in
            aux; D has theirs.
        user: what a user's function does instead of all this.
    """

    name: str
    source: bool = False
    bias: str = ""
    activation: str = "identity"
    gated: bool = False
    aux: bool = False
    bias_grad: bool = False
    scaled: bool = False
    pairs: str = ""
    user: Traced | None = None

    @staticmethod
    def of_user(traced: Traced) -> Epilogue:
        """A user's epilogue, known by its name from now on; the same one for the same content."""
        return _user.setdefault(traced.name, Epilogue(traced.name, user=traced))

    def instructions(self, activation: str = "identity") -> int:
        """Of a scheduler for one element, about; `activation` is what the launch tells, where it does."""
        if self.user:
            return self.user.program.instructions
        return ACTIVATIONS[activation if self.told else self.activation].instructions

    @property
    def told(self) -> bool:
        """Whether the launch tells the activation, and along which axis the bias is added."""
        return self.activation == TOLD

    @property
    def plain(self) -> bool:
        """Whether it is alpha * acc, with or without beta * c, and nothing else; or can be."""
        if self.user or self.gated or self.aux or self.bias_grad or self.pairs:
            return False
        return self.told or not (self.bias or self.scaled or self.activation != "identity")

    @property
    def derivative(self) -> bool:
        """Whether it multiplies by a derivative at aux, and never by a gate."""
        return not self.told and ACTIVATIONS[self.activation].derivative

    @property
    def functions(self) -> list[str]:
        """The activations that it can apply."""
        if self.pairs and self.told:
            return [f"d_{f}" if self.gated else f for f in GATED]
        return [a.name for a in _ACTIVATIONS if self.gated or not a.derivative] if self.told else [self.activation]

    def applies(self, activation: str, gated: bool, pairs: str = "") -> bool:
        """Whether it can apply an activation, to the product or, `gated`, to a gate or aux; with such pairs."""
        return (gated, pairs) == (self.gated, self.pairs) and self.activation in (activation, TOLD)

    @property
    def matrices(self) -> int:
        """How many it reads and writes beside D, each as large: of pairs a half is one."""
        if self.pairs:
            return 3 if self.gated else 2 * self.aux
        return self.source + self.gated + self.aux

    def as_told(self, activation: str, bias: str, scaled: bool = True, source: bool = True) -> Epilogue:
        """What it is for a launch that tells this activation, this axis of a bias, "" for none, and what it reads."""
        if not self.told:
            return self
        scaled, source = self.scaled and scaled, self.source and source
        return replace(self, activation=activation, bias=bias, scaled=scaled, source=source)

    def covers(self, other: Epilogue) -> bool:
        """Whether it is another one, or can be told to be."""
        if not self.told:
            return self is other
        same = ("source", "gated", "aux", "bias_grad", "scaled", "pairs", "user")
        return other.bias in self.bias and all(getattr(self, name) == getattr(other, name) for name in same)

    @cached_property
    def formula(self) -> str:
        """In words, as kernels' metadata shows it."""
        if self.user:
            return self.user.formula
        return self.form(self.activation)

    def form(self, f: str) -> str:
        """The formula with a function of this name."""
        z = "alpha * scale_a * scale_b * acc" if self.scaled else "alpha * acc"
        z += " + beta * c" if self.source else ""
        z += f" + bias[{' or '.join(self.bias)}]" if self.bias else ""
        z = f"(aux = {z})" if self.aux else z
        if self.pairs and self.gated:
            z = f"z * values * {f}(gates) | z * {f.removeprefix('d_')}(gates) of aux, z = {z}"
        elif self.pairs:
            z = f"{f}(gates) * values of {z}"
        elif self.gated:
            z = f"({z}) * {f}({'aux' if self.derivative else 'gate'})"
        elif self.activation != "identity":
            z = f"{f}({z})"
        z = f"(bias_grad[n] = sums of {z})" if self.bias_grad else z
        return f"scale_out * ({z})" if self.scaled else z


def _epilogues() -> Iterator[Epilogue]:
    plain = [a.name for a in _ACTIVATIONS if not a.derivative]
    yield Epilogue("linear")
    yield Epilogue("linearc", source=True)
    for prefix, axis, source in (("bias", "n", False), ("biasm", "m", False), ("biasc", "n", True)):
        for f in plain:
            yield Epilogue(prefix if f == "identity" else f"{prefix}_{f}", source, axis, f)
    for f in plain[1:]:
        yield Epilogue(f"linearc_{f}", source=True, activation=f)
        yield Epilogue(f"bias_{f}_aux", bias="n", activation=f, aux=True)
    for f in plain:
        yield Epilogue(f"gate_{f}", activation=f, gated=True)
        yield Epilogue("scaled" if f == "identity" else f"scaled_{f}", bias="n", activation=f, scaled=True)
    for a in _ACTIVATIONS:
        if a.derivative:
            yield Epilogue(a.name, activation=a.name, gated=True)
    # Of our own kernels; the gate may be aux, and f a derivative.
    told = partial(Epilogue, bias="nm", activation=TOLD)
    yield told("fused")
    yield told("fusedc", source=True)
    yield told("fused_gate", gated=True)
    yield told("fused_aux", aux=True)
    yield told("fused_scaled", scaled=True)
    yield told("fusedc_scaled", source=True, scaled=True)
    yield told("fused_bias_grad", bias_grad=True)
    yield told("fused_gate_bias_grad", gated=True, bias_grad=True)
    yield told("fused_gated", pairs="b")
    yield told("fused_gated_aux", aux=True, pairs="b")
    yield told("fused_gated_scaled", scaled=True, pairs="b")
    yield told("fused_d_gated", gated=True, pairs="d")
    yield Epilogue("linearc_told", source=True, activation=TOLD)  # of 2.x kernels of groups


EPILOGUES = {e.name: e for e in _epilogues()}
_user: dict[str, Epilogue] = {}  # by the name of their content, which is no declared one's


def epilogue_named(name: str) -> Epilogue:
    """A declared epilogue, or one that a user wrote."""
    return EPILOGUES.get(name) or _user[name]
