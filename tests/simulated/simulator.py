"""The simulated GPU's other end: what tests queue, let run, let fail and look for there; frameworks with arrays on it.

Frameworks are types of DLPack exporters (exporters.py). Their arrays are NumPy's within, said to lie on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import exporters
import numpy as np

from cutlass_py import _core
from cutlass_py.declaration.config import SCHEDULES, GemmConfig
from cutlass_py.declaration.families import find, named

LIBRARY = str(Path(_core.__file__).parent / "libcutlass_py_kernels.so")
_WORK = ctypes.CFUNCTYPE(None)
_lib: Any = None
_queued: list[Any] = []  # what is called back has to live until then
_lent: list[Streamless] = []  # and so have the arrays whose deleters are


def is_here() -> bool:
    """Whether this is the package on the simulated GPU; its kernels are declared then, before any is asked for."""
    global _lib
    if not _core.device_count() or _core.device_info(0)["name"] != "Simulated GPU":
        return False
    _lib = ctypes.CDLL(LIBRARY)
    _lib.simulated_stream.restype, _lib.simulated_wrong.restype = ctypes.c_void_p, ctypes.c_char_p
    _lib.simulated_gelu.restype = ctypes.c_float
    for name in named("core"):
        if isinstance(config := find(name), GemmConfig):  # others are the kernels themselves
            _declare(config)
    return True


def _declare(c: Any) -> None:
    dtypes = (c.a, c.b, c.accumulator, c.d, c.d)
    if c.d in ("c64", "c128"):
        return  # products are of real numbers here
    schedule = SCHEDULES[c.schedule]
    align = c.align or 1
    numbers = [
        c.api,
        *c.tile,
        *c.cluster,
        align,
        align,
        c.align_d,
        c.align_d,
        c.takes_lists,
        schedule.stream_k,
        schedule.block,
    ]
    _lib.simulated_declare(
        c.name.encode(),
        (c.layout + "t").encode(),
        (ctypes.c_char_p * 5)(*(x.encode() for x in dtypes)),
        (ctypes.c_int * len(numbers))(*map(int, numbers)),
    )


def exported(name: str, kind: Any) -> Any:
    """A ctypes structure that the kernel library exports."""
    return kind.in_dll(_lib, name)


def gelu(x: float) -> float:
    """As kernels with results of 16 bits compute it."""
    return float(_lib.simulated_gelu(ctypes.c_float(x)))


# ---------------------------------------------------------------------------------------------------- the device


def stream() -> int:
    """A new stream."""
    return int(_lib.simulated_stream())


def queue(stream: int, work: Callable[[], object]) -> None:
    """Work of a framework's own."""
    _queued.append(_WORK(work))
    _lib.simulated_queue(ctypes.c_void_p(stream), _queued[-1])


def late(work: Callable[[], object]) -> None:
    """What the kernel in front of the next one does last, when that one waits for it."""
    _queued.append(_WORK(work))
    _lib.simulated_late(_queued[-1])


def wait(waiter: int, signaler: int) -> None:
    _lib.simulated_wait(ctypes.c_void_p(waiter), ctypes.c_void_p(signaler))


def run(seed: int = 0) -> None:
    """Everything that is queued: the first stream that can (0), the last one that can (1), or any by chance."""
    _lib.simulated_run(seed)


def alive() -> int:
    """Pieces of memory that are allocated, as far as the work has got."""
    return int(_lib.simulated_alive())


def wrong() -> str:
    """What must not happen and did; empty otherwise."""
    return str(_lib.simulated_wrong().decode())


def forget() -> None:
    _lib.simulated_forget()
    _lib.simulated_late(None)
    _queued.clear()
    _lent.clear()


@contextmanager
def failing(after: int) -> Iterator[Callable[[], bool]]:
    """One call to CUDA fails, after so many that do not. Gives a function that says whether it came to that."""
    _lib.simulated_fail(ctypes.c_long(after))
    try:
        yield lambda: bool(_lib.simulated_failed())
    finally:
        _lib.simulated_fail(ctypes.c_long(-1))


@contextmanager
def full_queues() -> Iterator[None]:
    """Whatever is queued waits for work that needs the interpreter."""
    hook = _WORK(lambda: None)
    _lib.simulated_hook(hook)
    try:
        yield
    finally:
        _lib.simulated_hook(None)


@contextmanager
def capture(stream: int) -> Iterator[None]:
    """What is queued on the stream is kept, for `replay`."""
    _lib.simulated_capture(ctypes.c_void_p(stream))
    try:
        yield
    finally:
        _lib.simulated_captured(ctypes.c_void_p(stream))


def replay(stream: int) -> None:
    _lib.simulated_replay(ctypes.c_void_p(stream))


# ---------------------------------------------------------------------------------------------------- frameworks


def streamed(stream: int, device: int = 0) -> Callable[[np.ndarray], exporters.Exporter]:
    """A framework with a current stream, as torch and CuPy are: an array that goes leaves its memory to later work."""

    class Streamed(exporters.exchanging(stream=stream)):  # type: ignore[misc]
        def __del__(self) -> None:
            queue(stream, partial(id, self.array))

    return lambda array: Streamed(array, device=(2, device))


class Streamless(exporters.Exporter):
    """An array of a framework that names no stream, as JAX: it is ready once `ready` has come so far as it is now.

    Where the framework has `dropped` it, its memory is somebody else's as soon as it is given back.
    """

    def __init__(self, array: np.ndarray, ready: int, dropped: bool = False) -> None:
        super().__init__(array, device=(2, 0))
        self.ready, self.dropped = ready, dropped

    def __dlpack__(self, *, stream: int, **request: Any) -> Any:
        wait(stream, self.ready)
        _lent.append(self)
        return super().__dlpack__(stream=stream, **request)

    def given_back(self) -> None:
        if self.dropped:
            self.array.fill(85)


def read(buffer: Any, stream: int, on: int | None = None) -> np.ndarray:
    """What `stream`, or `on` that follows it, finds in a Buffer when it comes to that. The Buffer may go at once."""
    capsule = buffer.__dlpack__(stream=stream, max_version=(1, 0))
    managed = exporters.DLManagedTensorVersioned.from_address(exporters._pointer(capsule, b"dltensor_versioned"))
    tensor = managed.dl_tensor
    kind = {0: "i", 1: "u", 2: "f"}[tensor.dtype.code]
    found = np.zeros(tuple(tensor.shape[: tensor.ndim]), f"{kind}{tensor.dtype.bits // 8}")
    address = tensor.data
    if on:
        wait(on, stream)
    queue(on or stream, lambda: ctypes.memmove(found.ctypes.data, address, found.nbytes))
    return found
