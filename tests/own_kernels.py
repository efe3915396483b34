"""What the tests bring as kernels of users' own, and what they are called with."""

from __future__ import annotations

import numpy as np

from cutlass_py import KernelMetadata, OperandMetadata, Provider, TensorSpec
from cutlass_py.arrays.host import host_array
from cutlass_py.kernels.metadata import CPU

HOST = TensorSpec((8, 8), "f64", device="cpu")
A, B = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)


def metadata(name="own_f64", dtype="f64", cc=CPU, **fields) -> KernelMetadata:
    operands = {x: OperandMetadata(dtype) for x in ("a", "b", "d")}
    return KernelMetadata(name, fields.pop("operands", operands), fields.pop("accumulator", "f64"), cc=cc, **fields)


def multiply(call) -> None:
    host_array(call.d)[...] = call.alpha * (host_array(call.a) @ host_array(call.b))


def fails(*_):
    raise KeyError("nothing in here")


class Own(Provider):
    """Answers what it is given to answer; what raises is a function that does."""

    name = "own"

    def __init__(self, *found, run=multiply, supports=None, estimate=None):
        self.found, self.given = found or (metadata(),), {"run": run, "supports": supports, "estimate": estimate}
        self.calls = 0

    def kernels(self):
        return self.found

    def run(self, kernel, call):
        self.calls += 1
        return self.given["run"](call)

    def supports(self, kernel, problem):
        answer = self.given["supports"]
        return answer(problem) if answer else super().supports(kernel, problem)

    def estimate(self, kernel, problem):
        answer = self.given["estimate"]
        return answer(problem) if callable(answer) else answer
