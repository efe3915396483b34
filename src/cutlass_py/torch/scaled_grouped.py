"""Scaled fp8 products of unequal size for torch: the operator `cutlass_py::scaled_grouped_gemm`, `scaled_grouped_mm`.

There is no gradient, as torch has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, library
from torch.overrides import handle_torch_function, has_torch_function
from torch.utils.flop_counter import register_flop_formula

from ..declaration.dtypes import BLOCK
from .dtypes import FP8, NAME, WIDE
from .fast_path import (
    any_lazy_or_wrapped,
    are_plain_types,
    is_torch_function_proxy,
    needs_gradient,
    no_interceptors,
)
from .gemm_function import check_tensors, gemm
from .grouped import (
    check_ends,
    check_groups,
    divided_axis,
    flop,
    multiply_groups,
    new_result,
    refuse_groups,
    result_shape,
    wrong_operands,
)
from .operators import LIBRARY
from .sharding import RULES, register_if_used

_FUNCTION = "scaled_grouped_mm"
# What the function calls the operands of grouped_gemm.
_NAMES = {"a": "mat_a", "b": "mat_b", "offsets": "offs"}
_RESULTS = (torch.bfloat16, torch.float16, torch.float32)
_VECTORS, _LINES, _SQUARES = ("TensorWise", "RowWise"), "BlockWise1x128", "BlockWise128x128"
# Recipes of an operand by what groups divide.
_RECIPES = {
    **{("a", divided): (*_VECTORS, _LINES) for divided in ("", "m", "n")},
    **{("b", divided): (*_VECTORS, _LINES, _SQUARES) for divided in ("", "m")},
    ("b", "n"): (*_VECTORS, _LINES),  # a square would have columns of two groups
    ("a", "k"): _VECTORS,
    ("b", "k"): _VECTORS,
}


class _Call(NamedTuple):
    """The operator's arguments, in order; scales in the shapes that cutlass_py.grouped_gemm takes."""

    a: Tensor
    b: Tensor
    scale_a: Tensor
    scale_b: Tensor
    offsets: Tensor
    bias: Tensor | None
    out_dtype: torch.dtype
    fast: bool


LIBRARY.define(
    "scaled_grouped_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, Tensor? bias, "
    "ScalarType out_dtype, bool fast) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout),
)
operator = torch.ops.cutlass_py.scaled_grouped_gemm.default
_TENSORS = 6


def scaled_grouped_mm(
    mat_a: Tensor, mat_b: Tensor, scale_a: Tensor | list[Tensor], scale_recipe_a: Any,
    scale_b: Tensor | list[Tensor], scale_recipe_b: Any, swizzle_a: Any = None, swizzle_b: Any = None,
    bias: Tensor | None = None, offs: Tensor | None = None, output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (), use_fast_accum: bool = False,
) -> Tensor:  # fmt: skip
    """torch.nn.functional.scaled_grouped_mm of fp8, with a bias, scales in blocks of 128, and other results than bf16.

    Groups are as in `grouped_mm`, and so are the results. Scales are f32, by their recipe; for RowWise as torch has
    them, for blocks as torch.nn.functional.scaled_mm has them of each matrix, in any strides:

        TensorWise        one element
        RowWise           (M,), (N,) where groups divide that axis; (G, M), (G, N) where they do not; where they divide
                          k, one behind the other: (G * M,), (G * N,)
        BlockWise1x128    (M, ceil(K / 128)) of mat_a, (N, ceil(K / 128)) of mat_b; of each matrix, where there are many
        BlockWise128x128  (ceil(K / 128), ceil(N / 128)) of each matrix of mat_b; lines of k may be padded to fours

    Args:
        mat_a, mat_b: of torch.float8_e4m3fn or torch.float8_e5m2, in any layout; mat_a row-major and mat_b column-major
            are read in place.
        scale_a, scale_b: each one tensor, or a list of one.
        scale_recipe_a, scale_recipe_b: torch.nn.functional.ScalingType, or its name. Both are blocks, or neither is.
            Where groups divide columns, mat_b has blocks of 1x128; where they divide k, there are none.
        swizzle_a, swizzle_b: none.
        bias: (N,), or (G, N): a row for each group, unless groups divide columns; in f32 or the dtype of the result.
        offs: as in `grouped_mm`.
        output_dtype: torch.bfloat16 (also where it is None), torch.float16 or torch.float32.
        contraction_dim: none, or the dimensions of k: the last one of mat_a and the one before of mat_b.
        use_fast_accum: sums stay in the tensor cores, which keep about 14 bits. Sums of blocks do not.

    Returns:
        A row-major tensor without gaps. Rows or columns behind the last group are zeros.

    Raises:
        RuntimeError: shapes, dtypes, recipes or numbers that do not fit; a gradient is asked for.
        TypeError: an operand that is no tensor.
    """
    scale_a, scale_b = _only(scale_a), _only(scale_b)
    given = (mat_a, mat_b, scale_a, scale_b, bias, offs)
    if has_torch_function(given) and any(map(is_torch_function_proxy, given)):
        recipes = (scale_recipe_a, scale_b, scale_recipe_b, swizzle_a, swizzle_b)
        keywords = {"contraction_dim": contraction_dim, "use_fast_accum": use_fast_accum}
        others = (mat_a, mat_b, scale_a, *recipes, bias, offs, output_dtype)
        return handle_torch_function(scaled_grouped_mm, given, *others, **keywords)
    needed = {"mat_a": mat_a, "mat_b": mat_b, "scale_a": scale_a, "scale_b": scale_b}
    check_tensors(_FUNCTION, needed, bias=bias, offs=offs)
    check_ends(_FUNCTION, offs)
    out_dtype = torch.bfloat16 if output_dtype is None else output_dtype
    wrong = wrong_operands(_NAMES, mat_a, mat_b, offs, bias, FP8, alike=False)
    wrong = wrong or _wrong_rest(mat_a, mat_b, swizzle_a, swizzle_b, out_dtype, contraction_dim)
    if not wrong:
        divided = "" if offs is None else "k" if mat_a.dim() == mat_b.dim() else "mn"[mat_b.dim() == 2]
        groups = mat_a.shape[0] if offs is None else offs.shape[0]
        of_a = _Scale("a", scale_a, _name(scale_recipe_a), mat_a, mat_a.shape[-2], divided, groups)
        of_b = _Scale("b", scale_b, _name(scale_recipe_b), mat_b, mat_b.shape[-1], divided, groups)
        wrong = of_a.wrong() or of_b.wrong() or _wrong_beside(of_a, of_b)
    if wrong:
        raise RuntimeError(f"{_FUNCTION}: {wrong}")
    if needs_gradient(given):
        raise RuntimeError(f"{_FUNCTION}: an operand requires a gradient; expected none, for there is no derivative")
    scales = {"scale_a": of_a.as_grouped(), "scale_b": of_b.as_grouped()}
    try:
        if offs is not None:
            return _run(
                _Call(mat_a, mat_b, **scales, offsets=offs, bias=bias, out_dtype=out_dtype, fast=use_fast_accum)
            )
        rows = bias.unsqueeze(1) if bias is not None and bias.dim() == 2 else bias
        if of_a.recipe == "RowWise":
            scales["scale_a"] = scales["scale_a"].unsqueeze(2)
        if of_b.recipe == "RowWise":
            scales["scale_b"] = scales["scale_b"].unsqueeze(1)
        return gemm(mat_a, mat_b, bias=rows, compute=_compute_name(use_fast_accum), out_dtype=out_dtype, **scales)
    except (ValueError, TypeError, NotImplementedError) as refusal:
        refuse_groups(_FUNCTION, refusal, _NAMES)


def _only(x: Any) -> Any:
    return x[0] if isinstance(x, (list, tuple)) and len(x) == 1 else x


def _name(x: Any) -> str:
    """Of a recipe or a swizzle."""
    only = _only(x)
    return str(getattr(only, "name", only))


def _compute_name(fast: bool) -> str:
    return "fast" if fast else "f32"


# ---------------------------------------------------------------------------------------------------- scales


class _Scale(NamedTuple):
    """The scale of an operand of so many rows or columns; what groups divide, and how many there are."""

    name: str
    scale: Tensor
    recipe: str
    matrix: Tensor
    lines: int
    divided: str
    groups: int

    def wrong(self) -> str:
        """What does not fit."""
        known = _RECIPES[self.name, self.divided]
        if self.recipe not in known:
            axis = {"n": "columns", "k": "k"}.get(self.divided)
            return (
                f"scale_recipe_{self.name} is {self.recipe}; expected one of {', '.join(known)}"
                + f", where groups divide {axis}" * bool(axis)
            )
        shape, expected = tuple(self.scale.shape), self._shapes()
        if self.scale.dtype != torch.float32:
            return f"scale_{self.name} is {self.scale.dtype}; expected torch.float32"
        if self.recipe == "TensorWise" and self.scale.numel() != 1:
            return f"scale_{self.name} is {shape}; expected one element"
        if self.recipe != "TensorWise" and shape not in expected:
            return f"scale_{self.name} is {shape}; expected {' or '.join(map(str, expected))}"
        return ""

    def as_grouped(self) -> Tensor:
        """In a shape that cutlass_py.grouped_gemm takes."""
        if self.recipe == "TensorWise":
            return self.scale.reshape(1)
        if self.recipe == "RowWise":
            return self.scale.reshape(self.groups, self.lines) if self.divided == "k" else self.scale
        if self.recipe == _SQUARES:
            return self.scale.narrow(-2, 0, self._depth)
        return self.scale if self.name == "a" else self.scale.mT

    @property
    def _depth(self) -> int:
        return _blocks(self.matrix.shape[-1 if self.name == "a" else -2])

    def _shapes(self) -> list[tuple[int, ...]]:
        lead, k = self.matrix.shape[:-2], self._depth
        if self.recipe == "RowWise":
            return [(self.groups * self.lines,) if self.divided == "k" else (*lead, self.lines)]
        if self.recipe == _LINES:
            return [(*lead, self.lines, k)]
        padded = (k + 3) // 4 * 4  # as torch's scaled_mm has it
        return [(*lead, depth, _blocks(self.lines)) for depth in ((k,) if k == padded else (k, padded))]


def _blocks(extent: int) -> int:
    return (extent + BLOCK - 1) // BLOCK


def _wrong_beside(a: _Scale, b: _Scale) -> str:
    if (a.recipe in _VECTORS) == (b.recipe in _VECTORS):
        return ""
    return f"scale_recipe_a is {a.recipe} but scale_recipe_b is {b.recipe}; expected both in blocks, or neither"


def _wrong_rest(
    a: Tensor, b: Tensor, swizzle_a: Any, swizzle_b: Any, out_dtype: Any, contraction: Sequence[int]
) -> str:
    for name, x in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if x and _name(x) != "NO_SWIZZLE":
            return f"{name} is {_name(x)}; expected NO_SWIZZLE"
    if out_dtype not in _RESULTS:
        return f"output_dtype is {out_dtype}; expected one of {', '.join(map(str, _RESULTS))}"
    of_k = [a.dim() - 1, b.dim() - 2]
    if len(contraction) and [dim % x.dim() for dim, x in zip(contraction, (a, b), strict=False)] != of_k:
        return f"contraction_dim is {list(contraction)}; expected {of_k}"
    return ""


# ---------------------------------------------------------------------------------------------------- the operator


def _run(call: _Call) -> Tensor:
    """The operator; where nothing has to see it, without torch's dispatch."""
    tensors = call[:_TENSORS]
    unseen = no_interceptors() and are_plain_types(tensors) and not any_lazy_or_wrapped(tensors)
    if not unseen:
        register_if_used()
    found: Tensor = (_compute if unseen else operator)(*call)
    return found


def _compute(*arguments: Any) -> Tensor:
    call = _Call(*arguments)
    d = new_result(call.a, result_shape(call.a, call.b, call.offsets), call.offsets, call.out_dtype)
    multiply_groups(call.a, call.b, call.offsets, d, **_keywords(call))
    return d


def _fake(*arguments: Any) -> Tensor:
    call = _Call(*arguments)
    check_groups(call.a, call.b, call.offsets, out_dtype=NAME[call.out_dtype], **_keywords(call))
    return call.a.new_empty(result_shape(call.a, call.b, call.offsets), dtype=call.out_dtype)


def _keywords(call: _Call) -> dict[str, Any]:
    scales = {"scale_a": call.scale_a, "scale_b": call.scale_b}
    return {"bias": call.bias, "compute": _compute_name(call.fast), **scales}


def _shardings(*arguments: Any) -> list[tuple[list[Any], list[Any]]]:
    """DTensor's rules (sharding.py): as of grouped_gemm, scales with their rows and columns. No block is parted.

    Raises:
        RuntimeError: the matrices of the groups are sharded over these.
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    call, whole = _Call(*arguments), Replicate()
    a, b = len(call.a.shape), len(call.b.shape)
    divided = divided_axis(_FUNCTION, call.a, call.b)
    d = 3 if divided == "k" else 2
    blocks = divided != "k" and len(call.scale_b.shape) == b

    def way(result: Any, **parts: Any) -> tuple[list[Any], list[Any]]:
        tensors = zip(_Call._fields, call[:_TENSORS], strict=False)
        given = [None if x is None else parts.get(name, whole) for name, x in tensors]
        return [result], given + [None] * (len(call) - _TENSORS)

    def along(x: Any, extent: int, dim: int) -> Any:
        return Shard(len(x.shape) + dim) if x is not None and x.shape[dim] == extent > 1 else whole

    rows, columns = call.a.shape[-2], call.b.shape[-1]
    ways = {"": way(whole)}
    if divided != "m":
        ways["m"] = way(Shard(d - 2), a=Shard(a - 2), scale_a=along(call.scale_a, rows, -2 if blocks else -1))
    if divided != "n" and not (blocks and call.scale_b.shape[-1] != columns):
        ways["n"] = way(
            Shard(d - 1), b=Shard(b - 1), scale_b=along(call.scale_b, columns, -1), bias=along(call.bias, columns, -1)
        )
    if divided != "k" and not blocks and call.out_dtype in WIDE:
        ways["k"] = way(Partial(), a=Shard(a - 1), b=Shard(b - 2), bias=Partial())
    return list(ways.values())


for _backend in ("CPU", "CUDA"):
    LIBRARY.impl("scaled_grouped_gemm", _compute, _backend)
library.register_fake(operator, _fake, lib=LIBRARY)
register_flop_formula(torch.ops.cutlass_py.scaled_grouped_gemm, get_raw=True)(flop)
RULES[operator] = _shardings
