"""A gemm that XLA divides among devices by itself: jit on sharded arrays, outside of shard_map.

XLA asks here how the sharding of one array carries over to the others, and for the program of one device. That is a
gemm of the local shapes, with a kernel and scratch for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import jax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from .. import _core
from ..arrays.dtype_names import dtype_name
from ..compiling.compiler import jit
from ..declaration.dtypes import DTYPES
from .functions import rounded
from .primitive import bind, gemm_p
from .reference import compute
from .spec import Result, Spec, axes_of, factor_dtype, product_of

_Axes = tuple[str, ...]  # of a mesh
_Split = dict[str, _Axes]  # by letter


def divided(lowered: Callable[..., list[Any]]) -> Callable[..., Any]:
    """The lowering rule of gemm_p for a platform.

    Args:
        lowered: operands and spec to results, in operations that the platform has.
    """
    whole = mlir.lower_fun(lowered, multiple_results=True)
    parts = mlir.lower_fun(partial(_partitioned, lowered), multiple_results=True)

    def rule(ctx: mlir.LoweringRuleContext, *operands: Any, spec: Spec) -> Any:
        devices = _devices(ctx)
        if devices is None:
            return whole(ctx, *operands, spec=spec)
        module = ctx.module_context.replace(axis_context=devices)
        results = parts(ctx.replace(module_context=module), *operands, spec=spec)
        # The operation names a function of this process, nothing of the call: JAX's cache on disk could not tell two.
        said = {gemm_p.name: mlir.ir.StringAttr.get(repr(spec))}
        results[0].owner.attributes["mhlo.frontend_attributes"] = mlir.ir.DictAttr.get(said)
        return results

    return rule


def _devices(ctx: mlir.LoweringRuleContext) -> mlir.ShardingContext | None:
    """What custom_partitioning has to know of the devices; None where XLA does not partition or cannot ask us."""
    module, context = ctx.module_context, ctx.module_context.axis_context
    if not isinstance(context, mlir.ShardingContext) or context.num_devices == 1:
        return None
    if module.lowering_parameters.for_export or module.backend is None or not jax.config.jax_use_shardy_partitioner:
        return None
    number = context.num_devices
    backend, mesh = module.get_backend(optional=True), _mesh(number, (x.sharding.mesh for x in ctx.avals_in))
    if backend is None or mesh is None or len(backend.devices()) < number:
        return None
    # Any devices do: shardings speak of them by their place in the program.
    return mlir.ShardingContext(number, tuple(backend.devices()[:number]), mesh)


def _mesh(devices: int, typed: Iterable[Any]) -> AbstractMesh | None:
    """One along whose axes every sharding can be told: the program's, each of its axes split into prime factors."""
    sizes = next((mesh.axis_sizes for mesh in typed if mesh.size == devices), None)
    factors = [p for size in sizes or (devices,) for p in _factors(size)]
    if sizes is None and len(set(factors)) > 1:
        return None  # 6 devices may be 2 x 3 or 3 x 2
    return AbstractMesh(tuple(factors), tuple(f"axis{i}" for i in range(len(factors))))


def _factors(number: int) -> Iterator[int]:
    for p in range(2, number + 1):
        while number % p == 0:
            yield p
            number //= p


def _partitioned(lowered: Callable[..., list[Any]], *operands: Any, spec: Spec) -> Any:
    division = _Division(lowered, spec, spec.letters([x.shape for x in operands]), _core.jit_allowed())
    call = custom_partitioning(lambda *operands: bind(spec, operands))
    call.def_partition(division.partition, sharding_rule=division.rule())
    return call(*operands)


@dataclass(frozen=True)
class _Division:
    """A call whose arrays are to be divided: those that run along the same letter in the same way."""

    lowered: Callable[..., list[Any]]
    spec: Spec
    letters: Sequence[tuple[str, ...]]  # of the operands, then of the results
    compiling: bool  # whether kernels may be: a setting of the caller's thread

    @property
    def operands(self) -> int:
        return len(self.spec.operands)

    def rule(self) -> SdyShardingRule:
        """For Shardy, which settles the shardings before XLA asks `partition`."""
        ones = iter(range(sum(map(len, self.letters))))
        mappings = [ArrayMapping(*(x or f"one{next(ones)}" for x in along)) for along in self.letters]
        reduced = ("k",) if "k" in self.letters[0] else ()
        return SdyShardingRule(
            tuple(mappings[: self.operands]), tuple(mappings[self.operands :]), reduction_factors=reduced
        )

    def partition(self, mesh: Any, operands: Any, results: Any) -> tuple[Any, ...]:
        """The program of one device, and the shardings that it expects and gives."""
        split = self._split(mesh, operands, results)
        shardings = [NamedSharding(mesh, PartitionSpec(*(split.get(x) for x in along))) for along in self.letters]
        local = partial(self._local, self._local_spec(mesh, split), split)
        return mesh, local, shardings[self.operands :], tuple(shardings[: self.operands])

    def _split(self, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> _Split:
        """The axes along which a letter is divided: k if a and b agree, then as the results are, then as the operands.

        What axes do not divide evenly stays whole: XLA would pad it, and the padding would end up in sums.
        """
        letters = (*self.letters[self.operands :], *self.letters[: self.operands])
        wishes = [
            (letter, axes_of(entry), extent)
            for x, along in zip((*results, *operands), letters, strict=True)
            for letter, entry, extent in zip(along, x.sharding.spec, x.shape, strict=True)
            if letter and axes_of(entry)
        ]
        others = [wish for wish in wishes if wish[0] != "k"]
        of_k = [] if self.spec.kernel else [wish for wish in wishes if wish[0] == "k"]  # a kernel is asked for all of k
        agreed = of_k if len(of_k) == 2 and of_k[0] == of_k[1] else []
        found: _Split = {}
        for letter, axes, extent in (*agreed, *others, *of_k):
            free = tuple(axis for axis in axes if not any(axis in taken for taken in found.values()))
            if free and letter not in found and extent % prod(mesh.shape[axis] for axis in free) == 0:
                found[letter] = free
        return found

    def _local_spec(self, mesh: Any, split: _Split) -> Spec:
        """With the local shapes of what is written beside D."""

        def local(result: Result, along: tuple[str, ...]) -> Result:
            parts = [prod(mesh.shape[axis] for axis in split.get(letter, ())) for letter in along]
            return replace(result, shape=tuple(n // part for n, part in zip(result.shape, parts, strict=True)))

        aux, sums = self.spec.aux, self.spec.bias_grad
        return replace(
            self.spec,
            aux=aux and local(aux, self.letters[self.operands + 1]),
            bias_grad=sums and local(sums, self.letters[-1]),
        )

    def _local(self, spec: Spec, split: _Split, *operands: Any) -> list[Any]:
        """One call; of a part of k the product alone, to which, summed, XLA's operations apply the epilogue."""
        # XLA asks in a thread of its own, with settings of its own; every dtype is said here.
        with jax.enable_x64(True), jit() if self.compiling else nullcontext():
            over = self._summed(split)
            wide, sums = spec, spec.bias_grad
            if over and sums and DTYPES[sums.dtype].itemsize < 4:  # parts of the sums are added up
                dtype = factor_dtype(dtype_name(operands[0].dtype, "a"))
                wide = replace(spec, bias_grad=replace(sums, dtype=dtype))
            if "k" in split:
                results = compute(wide, wide.named(operands), self._product(wide, operands, split["k"]))
            else:
                results = self.lowered(*operands, spec=wide)
            if spec.bias_grad and over:
                results[-1] = rounded(jax.lax.psum(results[-1], over), spec.bias_grad.dtype)
            return results

    def _summed(self, split: _Split) -> _Axes:
        """The axes along which each device has a part of bias_grad."""
        lost = set(self.letters[self.operands]) - set(self.letters[-1]) if self.spec.bias_grad else ()
        return tuple(axis for letter in sorted(lost) for axis in split.get(letter, ()))

    def _product(self, spec: Spec, operands: Sequence[Any], axes: _Axes) -> Any:
        """a @ b of the whole k."""
        (part,) = self.lowered(*operands[:2], spec=product_of(spec, operands))
        return jax.lax.psum(part, axes)
