"""What differs between array frameworks, one row each: streams, allocation, export. Called by the extension.

A framework without a row of its own still works: its arrays are read through DLPack, and results come back as `Buffer`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from .._core import Buffer, TypedView, current_operation
from ..declaration.dtypes import DTYPES, STORAGE
from ..errors import wrong_type, wrong_value
from .dtype_names import BY_NUMPY_NAME

# The unsigned integer dtype that carries values of a dtype which a framework cannot name, by bytes per element.
_CARRIER = {1: "uint8", 2: "uint16"}


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        empty: (shape, dtype name, device ordinal or -1, stream, wanted as TypedView) -> new array, usable on `stream`.
        finish: turns what `empty` made into what the caller receives.
        current_stream: () -> the function device ordinal -> CUDA stream, bound once, for it is called by every gemm;
            None where the framework has no such thing.
        under: (device ordinal, stream) -> a context in which these are the current device and stream.
        export: (array, stream, operand name) -> (DLPack capsule, dtype name or None); None: the array's own __dlpack__.
        check: (array, operand name) raises if the array's values are not what its memory holds.
            With `recording`, called for arrays whose gradient would be lost, or that are lazy; otherwise for all.
        lazy: methods that say whether an array's values are not what its memory holds; called where the extension
            cannot look for itself (torch_private.h).
        mutable: whether arrays may be written.
        recording: () -> (-> whether gradients are recorded); None where arrays have no `requires_grad`.
        on_write: () -> what is told a tuple of arrays that were written; None where nobody has to know.
    """

    name: str
    empty: Callable[[tuple[int, ...], str, int, int, bool], Any]
    finish: Callable[[Any], Any] = lambda array: array
    current_stream: Callable[[], Callable[[int], int]] | None = None
    under: Callable[[int, int], AbstractContextManager[Any]] | None = None
    export: Callable[[Any, int | None, str], tuple[Any, str | None]] | None = None
    check: Callable[[Any, str], None] | None = None
    lazy: tuple[str, ...] = ()
    mutable: bool = True
    recording: Callable[[], Callable[[], bool]] | None = None
    on_write: Callable[[], Callable[[tuple[Any, ...]], None]] | None = None


_NATIVE = ("f16", "f32", "f64", "s8", "u8", "s32", "c64", "c128")  # every framework can name these


def carrier_of(dtype: str) -> str | None:
    """NumPy's name of the integers that carry a dtype, None where every framework can name it."""
    return None if dtype in _NATIVE else _CARRIER[DTYPES[dtype].itemsize]


def _carried(make: Callable[[str], Any], dtype: str, typed: bool) -> Any:
    """An array by NumPy dtype name; as a TypedView of integers where the caller works with those."""
    carrier = carrier_of(dtype) if typed else None
    return TypedView(make(carrier), dtype) if carrier else make(DTYPES[dtype].numpy)


# ---------------------------------------------------------------------------------------------------- NumPy


def _numpy_empty(shape: tuple[int, ...], dtype: str, device: int, stream: int, typed: bool) -> Any:
    import ml_dtypes  # noqa: F401  (registers bfloat16 and the fp8 names with NumPy)
    import numpy as np

    return _carried(lambda name: np.empty(shape, np.dtype(name)), dtype, typed)


def _numpy_export(array: Any, stream: int | None, operand: str) -> tuple[Any, str | None]:
    # NumPy exports neither ml_dtypes' types nor (before DLPack 1.0) read-only arrays.
    if hasattr(array, "mask"):
        found = f"is a numpy.ma.MaskedArray, whose mask {current_operation()} does not apply"
        raise wrong_type(operand, found, hint=f"pass {operand}.filled()")
    dtype = array.dtype
    name = BY_NUMPY_NAME.get(dtype.name) if dtype.num >= 256 else None  # NumPy's own have lower numbers
    if name is not None and dtype.isnative:
        array = array.view(_CARRIER[DTYPES[name].itemsize])
    if (dtype.kind == "V" and name is None) or dtype.kind not in "Vfiucb" or dtype.char in "gG" or not dtype.isnative:
        expected = f"one of {', '.join(STORAGE)}, in native byte order"
        raise wrong_type(operand, f"has dtype {dtype}", expected, about="dtype")
    if not array.flags.writeable:
        return array.__dlpack__(max_version=(1, 0)), name
    return array.__dlpack__(), name


# ---------------------------------------------------------------------------------------------------- torch


def _torch_empty(shape: tuple[int, ...], dtype: str, device: int, stream: int, typed: bool) -> Any:
    import torch

    def make(name: str) -> Any:
        if device < 0:
            return torch.empty(shape, dtype=getattr(torch, name), device="cpu")  # whatever torch's default is
        # Allocated under the launch stream, so that the caching allocator orders the memory's reuse behind it.
        with _torch_under(device, stream):
            return torch.empty(shape, dtype=getattr(torch, name), device=f"cuda:{device}")

    return _carried(make, dtype, typed)


def _torch_under(device: int, stream: int) -> Any:
    import torch

    # ExternalStream(0) would be a stream of torch's pool, not the default one.
    default = torch.cuda.default_stream(device)
    return torch.cuda.stream(default if stream == 0 else torch.cuda.ExternalStream(stream, device=device))


def _torch_check(array: Any, operand: str) -> None:
    import torch

    if array.requires_grad and torch.is_grad_enabled():
        found = f"requires a gradient, which {current_operation()} does not track"
        raise wrong_value(operand, found, hint=f"call it under torch.no_grad() or pass {operand}.detach()")
    if array.is_neg() or array.is_conj():
        hint = f"pass {operand}.resolve_neg().resolve_conj()"
        raise wrong_value(operand, "is a lazily negated or conjugated view", hint=hint)


def _torch_recording() -> Callable[[], bool]:
    import torch

    recording: Callable[[], bool] = torch.is_grad_enabled
    return recording


def _torch_on_write() -> Callable[[tuple[Any, ...]], None]:
    from .torch_private import increment_version

    # Autograd knows by a tensor's version that it was written to after it was kept; DLPack does not change that.
    return increment_version


def _torch_streams() -> Callable[[int], int]:
    from torch.cuda import current_stream

    return lambda device: current_stream(device).cuda_stream


# ---------------------------------------------------------------------------------------------------- CuPy


class _Stream:
    """A raw CUDA stream under the protocol that CuPy adopts streams by."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _cupy_empty(shape: tuple[int, ...], dtype: str, device: int, stream: int, typed: bool) -> Any:
    import cupy

    # CuPy names no bfloat16 or fp8: those come back as integers with their dtype beside them.
    typed = typed or dtype not in _NATIVE
    with cupy.cuda.Device(device):
        if stream == cupy.cuda.get_current_stream(device).ptr:
            return _carried(lambda name: cupy.empty(shape, name), dtype, typed)
    # Allocated under the launch stream: CuPy's pool keeps memory by stream.
    with _cupy_under(device, stream):
        return _carried(lambda name: cupy.empty(shape, name), dtype, typed)


@contextmanager
def _cupy_under(device: int, stream: int) -> Iterator[None]:
    import cupy

    adopt = getattr(cupy.cuda.Stream, "from_external", None)  # CuPy 14; ExternalStream before
    with cupy.cuda.Device(device), adopt(_Stream(stream)) if adopt else cupy.cuda.ExternalStream(stream):
        yield


def _cupy_streams() -> Callable[[int], int]:
    from cupy.cuda import get_current_stream

    return lambda device: get_current_stream(device).ptr


# ---------------------------------------------------------------------------------------------------- JAX


def _jax_empty(shape: tuple[int, ...], dtype: str, device: int, stream: int, typed: bool) -> Any:
    # JAX arrays are written by JAX alone: the result is made outside and handed over when it is ready.
    if device < 0:
        return _numpy_empty(shape, dtype, device, stream, typed)
    if typed:
        raise wrong_type(found="JAX names every dtype", hint="pass the array itself instead of a view")
    return Buffer(shape, dtype, device)


def _jax_check(array: Any, operand: str) -> None:
    import jax

    if isinstance(array, jax.core.Tracer):
        found = f"is a JAX {type(array).__name__}, which has no memory"
        hint = f"within jax.jit, grad, vmap and the like, call cutlass_py.jax.{current_operation()}"
        raise wrong_type(operand, found, hint=hint)
    if array.is_deleted():
        raise wrong_value(operand, "is a JAX array that was deleted or donated")


def _jax_on_cpu(array: Any) -> Any:
    """NumPy's result on JAX's first CPU device, and not on the default device, which may be a GPU.

    Not on the operands' own of several CPU devices: DLPack, by which they are read, has no numbers for those.
    """
    import jax

    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out: the operands are in pinned memory
        return jax.numpy.asarray(array)
    return jax.device_put(array, cpu)


def _jax_adopt(buffer: Buffer) -> Any:
    import jax

    from . import xla_stream

    array = jax.dlpack.from_dlpack(buffer)
    # XLA gives memory of others back when its readers are queued, and they are not on the stream that it asked for.
    buffer.read_on(xla_stream.of(array.device))
    return array


def _jax_finish(array: Any) -> Any:
    import jax

    if isinstance(array, TypedView):
        return TypedView(_jax_on_cpu(array.array), array.dtype)
    adopt = _jax_adopt if isinstance(array, Buffer) else _jax_on_cpu
    if array.dtype in ("f64", "c128", "float64", "complex128"):  # which JAX would narrow otherwise
        with jax.enable_x64(True):
            return adopt(array)
    return adopt(array)


# ---------------------------------------------------------------------------------------------------- others


def _other_empty(shape: tuple[int, ...], dtype: str, device: int, stream: int, typed: bool) -> Any:
    return Buffer(shape, dtype, device) if device >= 0 else _numpy_empty(shape, dtype, device, stream, typed)


_ROWS = {
    "numpy": Framework("numpy", _numpy_empty, export=_numpy_export),
    "torch": Framework(
        "torch",
        _torch_empty,
        current_stream=_torch_streams,
        under=_torch_under,
        check=_torch_check,
        lazy=("is_neg", "is_conj"),
        recording=_torch_recording,
        on_write=_torch_on_write,
    ),
    "cupy": Framework("cupy", _cupy_empty, current_stream=_cupy_streams, under=_cupy_under),
    "jax": Framework("jax", _jax_empty, finish=_jax_finish, check=_jax_check, mutable=False),
    "other": Framework("other", _other_empty),
}
_ROWS["jaxlib"] = _ROWS["jax"]


def split(array: Any, pieces: Iterable[tuple[int, int, int]] = ()) -> list[Any]:
    """The matrices of a batch, for results of lists; or of one dimension: where each begins, its rows and columns."""
    if isinstance(array, TypedView):
        return [TypedView(matrix, array.dtype) for matrix in split(array.array, pieces)]
    matrices = [array[first : first + rows * cols].reshape((rows, cols)) for first, rows, cols in pieces]
    return matrices or list(array)


def launching_on(device: int, stream: int) -> ExitStack:
    """A context in which a stream is the current one of every framework that this process has imported."""
    stack = ExitStack()
    for known in _ROWS.values():
        if known.under and known.name in sys.modules and sys.modules[known.name].cuda.is_available():
            stack.enter_context(known.under(device, stream))
    return stack


def row(array_type: type) -> Framework:
    """The framework of an array type, found through its bases (an nn.Parameter is torch's)."""
    for base in array_type.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _ROWS:
            return _ROWS[root]
    return _ROWS["other"]
