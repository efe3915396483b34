"""What the tests bring as kernels of users' own."""

from __future__ import annotations

from cutlass_py import KernelMetadata, OperandMetadata
from cutlass_py.host import host_array
from cutlass_py.metadata import CPU


def metadata(name="own_f64", dtype="f64", cc=CPU, **fields) -> KernelMetadata:
    operands = {x: OperandMetadata(dtype) for x in ("a", "b", "d")}
    return KernelMetadata(name, fields.pop("operands", operands), fields.pop("accumulator", "f64"), cc=cc, **fields)


def multiply(call) -> None:
    host_array(call.d)[...] = call.alpha * (host_array(call.a) @ host_array(call.b))


def fails(*_):
    raise KeyError("nothing in here")
