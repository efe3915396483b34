"""DLPack exporters written in Python (ctypes), which can lie about anything, and which count what is released."""

from __future__ import annotations

import ctypes
from collections import deque
from typing import Any

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
READ_ONLY = 1
# What most of them export, and its product.
A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(20, dtype=np.float32).reshape(4, 5) - 7
AB = A @ B


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", DELETER)]
    capsule_name = b"dltensor"


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]
    capsule_name = b"dltensor_versioned"


# By index each is an object of our own: other packages set what the one by attribute takes, jax among them.
_new_capsule = ctypes.pythonapi["PyCapsule_New"]
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = ctypes.pythonapi["PyCapsule_GetPointer"]
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_name = ctypes.pythonapi["PyCapsule_GetName"]
_name.restype = ctypes.c_char_p
_name.argtypes = [ctypes.py_object]


def capsule_name(capsule: Any) -> str:
    return _name(capsule).decode()


def capsule_pointer(capsule: Any) -> int:
    """What a capsule of any name holds."""
    return _pointer(capsule, _name(capsule))


class Exporter:
    """A NumPy array handed over by DLPack. Each export lives until its deleter runs; `deleted` counts those calls.

    Keywords replace what the tensor says of itself: data, byte_offset, ndim, shape, strides (None: a null pointer),
    code, bits, lanes, device (type, id), flags, major, deleter (None: a null pointer), announced (what
    __dlpack_device__ says).
    """

    def __init__(self, array: np.ndarray, *, versioned: bool = True, **says: Any) -> None:
        self.array = array
        self.struct = DLManagedTensorVersioned if versioned else DLManagedTensor
        self.says = says
        self.device = says.get("device", (1, 0))
        self.announced = says.get("announced", self.device)
        self.exported = self.deleted = 0
        self.requests: list[dict[str, Any]] = []
        self._alive: dict[int, Any] = {}
        self._recent: deque[Any] = deque(maxlen=2)

    def __dlpack_device__(self) -> Any:
        return self.announced

    def __dlpack__(self, **request: Any) -> Any:
        self.requests.append(request)
        return self.capsule()

    def given_back(self) -> None:
        """Nothing of it is held elsewhere any more."""

    @property
    def balanced(self) -> bool:
        """Everything exported was released, once."""
        return self.exported == self.deleted and not self._alive

    def describe(self, tensor: DLTensor) -> list[Any]:
        """Fills a DLTensor; returns what has to live as long as it."""
        says, array = self.says, self.array
        shape = says.get("shape", array.shape)
        strides = says.get("strides", tuple(s // array.itemsize for s in array.strides))
        tensor.data = says.get("data", array.ctypes.data)
        tensor.device = DLDevice(*self.device)
        tensor.ndim = says.get("ndim", len(shape))
        bits, lanes = says.get("bits", array.itemsize * 8), says.get("lanes", 1)
        tensor.dtype = DLDataType(says.get("code", CODES.get(array.dtype.kind, 3)), bits, lanes)
        held = []
        for field, values in (("shape", shape), ("strides", strides)):
            if values is not None:
                held.append((ctypes.c_int64 * max(len(values), 1))(*values))
                setattr(tensor, field, held[-1])
        tensor.byte_offset = says.get("byte_offset", 0)
        return held

    def capsule(self) -> Any:
        says, array = self.says, self.array
        managed = self.struct()
        address = ctypes.addressof(managed)
        held = [array, managed, *self.describe(managed.dl_tensor)]
        if self.struct is DLManagedTensorVersioned:
            managed.major, managed.minor = says.get("major", 1), 0
            managed.flags = says.get("flags", 0)

        def delete(pointer: int) -> None:
            self.deleted += 1
            # A second call for the same tensor raises, which pytest reports. This thunk must outlive its own call.
            self._recent.append(self._alive.pop(pointer))
            if not self._alive:
                self.given_back()

        if "deleter" not in says:
            managed.deleter = DELETER(delete)
            self.exported += 1
            self._alive[address] = held
        else:
            self.kept = held  # nobody will say when it may go
        return _new_capsule(address, self.struct.capsule_name, None)


class LegacyExporter(Exporter):
    """From before DLPack 1.0: does not know max_version."""

    def __init__(self, array: np.ndarray, **says: Any) -> None:
        super().__init__(array, versioned=False, **says)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.requests.append({"stream": stream})
        return self.capsule()


class RaisingExporter(Exporter):
    """Raises where it should export."""

    def __init__(self, error: Exception) -> None:
        super().__init__(np.zeros((2, 2)))
        self.error = error

    def __dlpack__(self, **request: Any) -> Any:
        raise type(self.error)(*self.error.args)  # a new one: an exception keeps the frames it passed


# ---------------------------------------------------------------------------------------- the exchange API

_FILL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_SET_ERROR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_ALLOCATE = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, _SET_ERROR
)
_ADOPT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))


class ExchangeTable(ctypes.Structure):
    """DLPackExchangeAPI. A function that is missing is a null pointer."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", _ALLOCATE),
        ("export", ctypes.c_void_p),
        ("adopt", _ADOPT),
        ("fill", _FILL),
        ("stream", _STREAM),
    ]


# Of the Python C API: -1 with the error that the object's fileno raises. What ctypes calls back cannot set errors.
RAISE_BY_FILENO = ctypes.cast(ctypes.pythonapi.PyObject_AsFileDescriptor, _FILL)

_tables: list[Any] = []  # types are remembered by the extension, and so are their tables


def exchanging(stream: Any = None, **functions: Any) -> type[Exporter]:
    """A new type of exporters that have DLPack's C functions beside `__dlpack__`. Its arrays are NumPy's within.

    Args:
        stream: what the current stream is said to be, or a function that says so.
        functions: replacements by their name in ExchangeTable, as Python functions of its types; None leaves one out.

    The type's `made` holds the arrays that its allocator has made; `allocates` says of a shape whether it will.
    """

    class Exchanging(Exporter):
        made: list[Exporter] = []
        allocates = staticmethod(lambda shape: True)

    @_FILL
    def fill(exporter: Exchanging, tensor: Any) -> int:
        exporter.borrowed = exporter.describe(tensor.contents)
        return 0

    @_ALLOCATE
    def allocate(prototype: Any, out: Any, context: Any, set_error: Any) -> int:
        wanted = prototype.contents
        kind = next(kind for kind, code in CODES.items() if code == wanted.dtype.code)
        shape = tuple(wanted.shape[: wanted.ndim])
        if not Exchanging.allocates(shape):
            return -1
        place = (wanted.device.device_type, wanted.device.device_id)
        array = Exchanging(np.empty(shape, np.dtype(f"{kind}{wanted.dtype.bits // 8}")), device=place)
        Exchanging.made.append(array)
        out[0] = _pointer(array.capsule(), array.struct.capsule_name)
        return 0

    @_ADOPT
    def adopt(managed: int, out: Any) -> int:
        array = next(x for x in Exchanging.made if managed in x._alive)
        DLManagedTensorVersioned.from_address(managed).deleter(managed)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(array))
        out[0] = id(array)
        return 0

    @_STREAM
    def current(device_type: int, device_id: int, out: Any) -> int:
        out[0] = stream
        return 0

    given = {"allocate": allocate, "adopt": adopt, "fill": fill, "stream": stream if callable(stream) else current}
    given |= functions
    types = dict(ExchangeTable._fields_)
    table = ExchangeTable(1, 3)
    for name, function in given.items():
        if function is not None:
            setattr(table, name, function if isinstance(function, types[name]) else types[name](function))
    _tables.append(table)
    Exchanging.__dlpack_c_exchange_api__ = _new_capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)
    return Exchanging
