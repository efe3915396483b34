"""Drawn calls are run: operands made of plain data, results against float64, memory beside them, refused mistakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import gpu
import torch
from random_calls import POOL, Array, Call, Factor
from reference import FP8
from wrong_calls import MISTAKES

import cutlass_py
from cutlass_py.declaration.dtypes import BLOCK, DTYPES

# What each term of a sum in these dtypes may cost, 2**-22 in others; and what rounding the operands may.
TERM = {"f64": 2**-52, "c128": 2**-51, "f16": 2**-10, "fast": 2**-13, "s32": 0.0}
OPERANDS = {"tf32": 2**-9, "tf32x3": 2**-20}

# ---------------------------------------------------------------------------------------------------- operands


@cache
def pool(dtype: str, values: str, device: str) -> torch.Tensor:
    """Random numbers, the same in every process; operands are copies of parts of it."""
    assert device == gpu.DEVICE  # which may change between two tests
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.manual_seed(2026)
        if values == "powers":
            return (2.0 ** torch.randint(-1, 2, (POOL,), device=device)).to(gpu.DTYPES[dtype])
        if values == "factors":
            return torch.rand(POOL, device=device).add(0.25).to(gpu.DTYPES[dtype])
        whole = values == "integers" or dtype in gpu.INTEGER
        return (gpu.integers if whole else gpu.normals)((POOL,), dtype)


def held(x: Array) -> gpu.Guarded:
    """Memory of poison for an operand."""
    place, shape = x.place, x.shape if len(x.shape) > 1 else (1, *x.shape)
    *lead, rows, cols = shape
    row_major = place.layout == "t"
    whole = (*lead, rows, cols + place.offset) if row_major else (*lead, rows + place.offset, cols)
    outer = gpu.guarded(whole, x.dtype, place.layout, place.pad, place.step)
    view = outer.view[..., place.offset :] if row_major else outer.view[..., place.offset :, :]
    return gpu.Guarded(view if len(x.shape) > 1 else view[0], outer.buffer, outer.byte)


@dataclass
class Made:
    """The arguments of a call.

    Attributes:
        given: a, b and the keywords.
        read: the values that it reads of operands which become the result.
        written: what it writes.
    """

    given: dict[str, Any] = field(default_factory=dict)
    read: dict[str, torch.Tensor] = field(default_factory=dict)
    written: dict[str, gpu.Guarded] = field(default_factory=dict)

    def operand(self, name: str, x: Array | Factor | None, call: Call, *, reads: bool = True) -> None:
        """One that is read, if there is one; what is left unread is NaN."""
        if isinstance(x, Factor):
            self.given[name] = x.value
            if x.shape is not None:
                self.given[name] = torch.full(x.shape, x.value, device=gpu.DEVICE, dtype=gpu.DTYPES[call.scalar])
        elif x is not None:
            memory = held(x)
            if reads:
                kinds = ("factors", "powers") if name in ("scale_a", "scale_b") else ("normals", "integers")
                numbers = pool(x.dtype, kinds[call.integers], gpu.DEVICE)
                memory.view.copy_(numbers[x.start : x.start + prod(x.shape)].view(x.shape))
            self.given[name] = memory.view.expand(*x.expanded, *x.shape) if x.expanded else memory.view
            if name == call.out:
                self.read[name] = memory.view.clone()
                self.written["out"] = memory
                self.given["out"] = memory.view

    def result(self, name: str, x: Array | None) -> None:
        """One that is written, if there is one."""
        if x is not None:
            self.written[name] = held(x)
            self.given[name] = self.written[name].view


def made(call: Call) -> Made:
    x = Made()
    for name in ("a", "b"):
        x.operand(name, getattr(call, name), call, reads=call.reads_product)
    x.operand("c", call.c, call, reads=call.reads_c)
    for name in ("alpha", "beta", "bias", "gate", "scale_a", "scale_b", "scale_out"):
        x.operand(name, getattr(call, name), call)
    if call.derivative:
        x.operand("aux", call.aux, call)
    else:
        x.result("aux", call.aux)
    x.result("bias_grad", call.bias_grad)
    if call.out == "given":
        x.result("out", Array(call.d, call.shape, call.place))
    options = {"compute": call.compute, "splits": call.splits, "out_dtype": call.d if call.named else None}
    x.given |= {name: value for name, value in options.items() if value is not None}
    if call.deterministic:
        x.given["deterministic"] = True
    if call.activation:
        parameters = call.parameters
        x.given["activation"] = cutlass_py.Activation(call.activation, parameters) if parameters else call.activation
    return x


# ---------------------------------------------------------------------------------------------------- references


@dataclass
class Reference:
    """What a call gives in float64, and how far off z, y and d may be; the results are exact, or near."""

    result: gpu.Result
    z_error: torch.Tensor | float = 0.0
    y_error: torch.Tensor | float = 0.0
    d_error: torch.Tensor | float = 0.0
    exact: bool = True


def in_blocks(x: torch.Tensor, factors: torch.Tensor, axis: int) -> torch.Tensor:
    """A matrix times its factors, each of which is for BLOCK of k; k is `axis`. The last block may be shorter."""
    deep = gpu.wide(factors).repeat_interleave(BLOCK, axis).narrow(axis, 0, x.shape[axis])
    if axis == -2:
        deep = deep.repeat_interleave(BLOCK, -1).narrow(-1, 0, x.shape[-1])
    return x * deep


def reference(call: Call, x: Made) -> Reference:
    given = {**x.given, **x.read}
    a, b = gpu.wide(given.pop("a")), gpu.wide(given.pop("b"))
    if call.blocks:
        a, b = in_blocks(a, given.pop("scale_a"), -1), in_blocks(b, given.pop("scale_b"), -2)
    if not call.reads_product:
        a, b = torch.zeros_like(a), torch.zeros_like(b)
    if not call.reads_c:
        given["c"] = None
    result = gpu.epilogue(a @ b, **given)
    name = call.activation or "identity"
    if call.integers and name in gpu.EXACT:
        return Reference(result)
    last = 2**-51 if call.scalar in ("f64", "c128") else 2**-22  # what the steps behind the product round
    z_error = 0.0 if call.integers else linear_error(call, a, b, given, last)
    beside = given.get("gate", given.get("aux") if call.derivative else None)
    at = result.z if beside is None else gpu.wide(beside)
    if name in gpu.EXACT:
        slope = max(1.0, *map(abs, call.parameters)) if name == "leaky_relu" else 1.0
        factor = slope if beside is None else gpu.apply(given.get("activation"), at).abs()
        y_error = factor * z_error + 4 * last * result.y.abs()
    else:
        y_error = gpu.epilogue_error(name, result, at, z_error, fast=DTYPES[call.d].bits <= 16)
    scale = given.get("scale_out", 1)
    d_error = abs(gpu.wide(scale.reshape(())) if isinstance(scale, torch.Tensor) else scale) * y_error
    return Reference(result, z_error, y_error, d_error + 4 * last * result.d.abs(), exact=False)


def linear_error(call: Call, a: torch.Tensor, b: torch.Tensor, given: dict[str, Any], last: float) -> torch.Tensor:
    """What z may be off by: in the sum over k, and where factors and addends are rounded."""
    k, how = max(call.extents[2], 1), call.arithmetic
    relative = k * TERM.get(how.accumulator, 2**-22) + OPERANDS.get(how.operand, 0) + 4 * last
    if how.operand in FP8:  # tensor cores add up so many with about 14 bits, whatever is asked for
        relative += min(k, BLOCK) * 2**-13
    sizes = {name: abs(given[name]) for name in ("alpha", "beta", "scale_a", "scale_b") if name in given}
    added = {name: given.get(name) for name in ("c", "bias")}
    sizes |= {name: 4 * last * gpu.wide(t).abs() for name, t in added.items() if t is not None}
    return gpu.epilogue(gpu.product_error(a, b, relative / k), **sizes).z


def summed(x: torch.Tensor | float, call: Call, of: torch.Tensor) -> torch.Tensor:
    """The sums that bias_grad receives of values like `of`."""
    assert call.bias_grad
    shape = call.bias_grad.shape
    along_n = len(shape) == 1 or shape == (1, call.extents[1])
    axes = (*range(len(call.batch)), -2 if along_n else -1)
    return (x * torch.ones_like(of)).sum(axes).reshape(shape)


def sums(call: Call, wanted: Reference) -> tuple[torch.Tensor, torch.Tensor]:
    """What bias_grad receives, and how far off it may be: it may sum D as it is rounded, unless it is f64."""
    assert call.bias_grad
    y = wanted.result.y
    count = y.numel() // max(prod(call.bias_grad.shape), 1)
    unit = count * 2**-51
    if call.bias_grad.dtype != "f64":
        unit = count * 2**-23 + (torch.finfo(gpu.DTYPES[call.d]).eps if call.d in ("f16", "bf16", "f32") else 0)
    return summed(y, call, y), summed(wanted.y_error + unit * y.abs(), call, y)


# ---------------------------------------------------------------------------------------------------- verdicts


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().view(-1).view(torch.uint8)


def far(d: torch.Tensor, reference: torch.Tensor, error: torch.Tensor | float, exact: bool) -> torch.Tensor:
    """Which elements are off, as gpu.assert_exact and gpu.assert_near have it, without waiting for them."""
    if exact:
        return ~gpu.same(gpu.wide(d), gpu.saturated(reference, gpu.name_of(d.dtype)))
    return ~(gpu.excess(d, reference, error) <= 1)


def refused(call: Call, x: Made) -> torch.Tensor:
    """The call with its mistake is refused; whether it wrote anything."""
    assert call.wrong
    mistake = MISTAKES[call.wrong]
    changed = mistake.change(call)
    given = {**x.given, **changed}
    memory = [held.buffer for held in x.written.values()]
    memory += [value for value in changed.values() if isinstance(value, torch.Tensor)]
    before = [bits(part).clone() for part in memory]
    try:
        cutlass_py.gemm(given.pop("a"), given.pop("b"), **given)
    except mistake.error as error:
        assert mistake.says in str(error), f"the message is {str(error)!r}; expected {mistake.says!r} in it"
    else:
        raise AssertionError(f"{call.wrong}: the call is not refused")
    found = [(bits(part) != old).any() for part, old in zip(memory, before, strict=True)]
    return torch.stack(found).any() if found else torch.zeros((), dtype=torch.bool, device=gpu.DEVICE)


def check(call: Call) -> None:
    """Runs a call, after the mistake that was drawn for it; waits for the device once."""
    x = made(call)
    flags: dict[str, torch.Tensor] = {}
    if call.wrong:
        flags[f"{call.wrong}: a call that is refused has written"] = refused(call, x)
    given = dict(x.given)
    d = cutlass_py.gemm(given.pop("a"), given.pop("b"), **given)
    assert d is given["out"] if "out" in given else d.is_contiguous()
    assert (tuple(d.shape), gpu.name_of(d.dtype)) == (call.shape, call.d), f"the result is {d.shape} of {d.dtype}"
    wanted = reference(call, x)
    results = {"out": (d, wanted.result.d, wanted.d_error, wanted.exact)}
    if "aux" in x.written:
        results["aux"] = (x.written["aux"].view, wanted.result.z, wanted.z_error, call.integers)
    if "bias_grad" in x.written:
        results["bias_grad"] = (x.written["bias_grad"].view, *sums(call, wanted), False)
    masks = {name: far(*result) for name, result in results.items()}
    flags |= {name: mask.any() for name, mask in masks.items()}
    flags |= {f"memory beside {name} was written": held.written_outside().any() for name, held in x.written.items()}
    failed = [name for name, flag in zip(flags, torch.stack(list(flags.values())).tolist(), strict=True) if flag]
    assert not failed, "; ".join(said(masks[name], name, *results[name]) if name in masks else name for name in failed)


def said(mask: torch.Tensor, name: str, d: torch.Tensor, reference: torch.Tensor, *_: Any) -> str:
    """Where a result is off."""
    where = tuple(mask.nonzero()[0].tolist())
    return (
        f"{int(mask.sum())} of {d.numel()} elements of {name} are off, first at {where}: {d[where]}; "
        f"expected {reference.expand(d.shape)[where]}"
    )


def run(call: Call) -> None:
    """`check`, whose failure says how to repeat it."""
    try:
        check(call)
    except Exception as error:
        again = f"CUTLASS_PY_TEST_SEED={call.seed} CUTLASS_PY_TEST_CALLS={call.index}:{call.index + 1}"
        raise AssertionError(f"{type(error).__name__}: {error}\n{call}\nrepeat with {again}") from error
