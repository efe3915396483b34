"""
The warm path of cutlass_py: DLPack views, canonical problems, the plan table, launches.
"""

from collections.abc import Sequence
from typing import Any


class CudaError(RuntimeError):
    pass

def gemm(a: object | None, b: object | None, *, out: object | None = None, c: object | None = None, alpha: object | None = 1.0, beta: object | None = None, compute: object | None = None, out_dtype: object | None = None, kernel: object | None = None, stream: object | None = None) -> object:
    """
    D = alpha * (a @ b) + beta * c, by a prebuilt CUTLASS kernel (NumPy on the CPU).

    Args:
        a: (m, k) or (batch, m, k). Any array that speaks DLPack, row- or column-major without a copy.
        b: (k, n) or (batch, k, n), of a's dtype and on a's device. Batch extents agree or are 1.
        out: (m, n) or (batch, m, n), written and returned. Strided views are fine; it may be c itself, and otherwise
            shares no element with the inputs.
        c: the addend, of the shape of the result (a 2-D c is added to every batch), any float dtype.
        alpha: factor of the product. With 0, a and b are not read.
        beta: factor of c, 1 by default. With 0, c is not read.
        compute: arithmetic: "f32" (the default: accumulation in f32; for f32 inputs exact multiplication too), "tf32"
            (f32 inputs on tensor cores), "f64" (f64 inputs).
        out_dtype: dtype of a new result, by default the inputs' (fp8: bf16). A name ("bf16"), NumPy's or
            ml_dtypes' dtype, or the framework's own.
        kernel: run this kernel (a Kernel or its name) and no other; it must take the operands as they lie. Compiled
            first if it is declared but not there (docs/jit.md).
        stream: CUDA stream to launch on: an int, a torch or CuPy stream, or anything with __cuda_stream__. By
            default the framework's current stream. With it, ordering other streams behind the launch is the caller's.

    Returns:
        `out`, or a new row-major array of a's framework on a's device.

    Raises:
        ValueError: ranks, shapes, devices, strides or overlap that do not fit; a `kernel` that does not.
        TypeError: an operand that is no array, or a dtype that does not fit.
        NoKernelError: no kernel can compute this problem.
        CompileError: the kernel asked for, or chosen within `jit`, cannot be compiled.
        CudaError: a CUDA or CUTLASS call failed.
    """

def problem(a: object | None, b: object | None, *, out: object | None = None, c: object | None = None, alpha: object | None = 1.0, beta: object | None = None, compute: object | None = None, out_dtype: object | None = None, kernel: object | None = None) -> Problem:
    """
    The canonical problem of a gemm call, which is not run. Takes TensorSpecs as well as arrays.
    """

def clear_plans() -> None:
    """
    Forget every choice made so far: the next call of each class selects again.
    """

def kernel_facts() -> dict[str, dict[str, Any]]:
    """Loaded kernels by name, with what their C++ types say of themselves."""

def load_library(path: str) -> None:
    """
    Load a kernel library: its kernels join kernel_facts(). Loading it again does nothing.
    """

def allow_jit(allowed: bool) -> bool:
    """
    Set whether this thread's calls may take kernels that are yet to be compiled; returns what held before.
    """

def device_count() -> int:
    """CUDA devices; 0 without a driver."""

def why_no_device() -> str:
    """Why device_count() is 0."""

def device_info(device_id: int) -> dict[str, Any]:
    """
    Name, compute capability times ten, multiprocessors and driver version of a device.
    """

def build_info() -> dict[str, str]:
    """How the package was built."""

class Problem:
    """
    A call in canonical form: D (m, n) row-major, batch folded where it can be. Layouts: 't' row-major, 'n' column-major, 'x' no unit stride. Alignments in bytes, 16 at most.
    """

    @property
    def m(self) -> int: ...

    @property
    def n(self) -> int: ...

    @property
    def k(self) -> int: ...

    @property
    def batch(self) -> int: ...

    @property
    def a(self) -> str | None: ...

    @property
    def b(self) -> str | None: ...

    @property
    def c(self) -> str | None:
        """None where C is absent or not read (beta = 0)."""

    @property
    def d(self) -> str | None: ...

    @property
    def compute(self) -> str | None:
        """Dtype of the kernel's operands."""

    @property
    def accumulator(self) -> str | None: ...

    @property
    def layout_a(self) -> str: ...

    @property
    def layout_b(self) -> str: ...

    @property
    def layout_c(self) -> str: ...

    @property
    def layout_d(self) -> str: ...

    @property
    def align_a(self) -> int: ...

    @property
    def align_b(self) -> int: ...

    @property
    def align_c(self) -> int: ...

    @property
    def align_d(self) -> int: ...

    @property
    def empty_product(self) -> bool:
        """k = 0 or alpha = 0: a and b are not read."""

    @property
    def transposed(self) -> bool:
        """a and b changed places because D is column-major."""

    @property
    def kernel(self) -> int:
        """Number of the kernel asked for, -1 for none."""

    @property
    def jit(self) -> bool:
        """Whether selection may take kernels that are yet to be compiled."""

    @property
    def device(self) -> str: ...

    @property
    def device_id(self) -> int:
        """CUDA ordinal, -1 on the CPU."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class TensorSpecBase:
    """What TensorSpec (arguments.py) gives friendlier arguments to."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: object, device_id: int, alignment: int) -> None: ...

    @property
    def shape(self) -> list[int]: ...

    @property
    def strides(self) -> list[int]:
        """In elements."""

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    @property
    def alignment(self) -> int:
        """Of the first element, in bytes."""

class TypedView:
    """
    An array of bytes or integers read as another dtype; made by cutlass_py.view.
    """

    def __init__(self, array: object, dtype: object) -> None: ...

    @property
    def array(self) -> object:
        """The array as it was given."""

    @property
    def dtype(self) -> str: ...

class Buffer:
    """Device memory that hands itself over by DLPack."""

    def __init__(self, shape: Sequence[int], dtype: object, device_id: int) -> None: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    @property
    def dtype(self) -> str: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...
