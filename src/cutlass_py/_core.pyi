"""
The warm path of cutlass_py: DLPack views, canonical problems, the plan table, launches.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

from typing_extensions import CapsuleType


class CudaError(RuntimeError):
    """
    A CUDA or CUTLASS call failed: the message has the call, and the error's name and text.
    """

def current_operation() -> str:
    """The operation that errors of this thread begin with."""

def error_text(operation: str, operand: str, found: str, other: str, other_found: str, expected: str, hint: str) -> str:
    """The sentence of an ArgumentError."""

def trace(wanted: int) -> int:
    """
    Set what is told of calls (bits, instrumentation.h); returns what was told before.
    """

def has_ranges() -> bool:
    """Whether this build has NVTX."""

def clear_plans() -> None:
    """
    Forget every choice made so far: the next call of each class selects again.
    """

def kernel_facts() -> dict[str, dict[str, Any]]:
    """Loaded kernels by name, with what their C++ types say of themselves."""

def kernel_abi() -> int:
    """Version of the interface to kernel libraries (kernel.h)."""

def kernel_registers(name: str) -> int:
    """
    Registers per thread of a loaded kernel on the current device; 0 where there is no answer.
    """

def kernel_library(name: str) -> str:
    """Path of the library that a loaded kernel lies in."""

def load_library(path: str, kernel: str) -> bool:
    """
    Load a library for one of its kernels, which joins kernel_facts(); False where it holds none of that name. Loading it again does nothing.
    """

def forget_kernel(name: str) -> None:
    """
    A loaded kernel is not found any more; what has found it may go on. Another one may have its name then.
    """

def allow_jit(allowed: bool) -> bool:
    """
    Set whether this thread's calls may take kernels that are yet to be compiled; returns what held before.
    """

def described_type(value: object | None) -> str:
    """Its type with an article, for messages: 'an int'."""

def jit_allowed() -> bool:
    """Whether this thread is within `jit`."""

def allow_tuning(choices: int) -> int:
    """
    Set how many choices of a new class this thread's calls measure, 0 for none; returns what held before.
    """

def tuning_allowed() -> int:
    """
    How many choices of a new class this thread's calls measure: 0 outside of `autotuning`.
    """

def ask_batch_invariance(asked: bool) -> bool:
    """
    Set whether this thread's calls are as with batch_invariant=True; returns what held before.
    """

def batch_invariance_asked() -> bool:
    """Whether this thread is within `batch_invariant`."""

def device_count() -> int:
    """CUDA devices; 0 without a driver."""

def why_no_device() -> str:
    """Why device_count() is 0."""

def device_info(device_id: int) -> dict[str, Any]:
    """
    Name, compute capability times ten, multiprocessors and driver version of a device.
    """

def clusters_at_once(device_id: int) -> tuple[int, ...]:
    """How many clusters a device runs at once, by their size, from 0 to 8."""

def build_info() -> dict[str, str]:
    """How the package was built."""

class TensorSpecBase:
    """What TensorSpec (arguments.py) gives friendlier arguments to."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: object | None, device_id: int, alignment: int) -> None: ...

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

    def __init__(self, array: object, dtype: object | None) -> None: ...

    @property
    def array(self) -> object:
        """The array as it was given."""

    @property
    def dtype(self) -> str: ...

class Buffer:
    """Device memory that hands itself over by DLPack."""

    def __init__(self, shape: Sequence[int], dtype: object, device_id: int) -> None: ...

    def __dlpack__(self, *, stream: object | None = None, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    def read_on(self, stream: int) -> None:
        """
        What is queued on this stream until the memory is given back may read it still then. The stream has to live as long.
        """

    @property
    def dtype(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Buffer:
        """One matrix of a batch, in the same memory."""

    def __dlpack_device__(self) -> tuple[int, int]: ...

class Operand:
    """
    An array of a call, lent to a kernel for the length of its run: (batch, rows, cols), or () for a factor. Hands itself over by DLPack, without a copy. Repeats where a stride is 0.
    """

    def __dlpack__(self, *, stream: object | None = -1, max_version: object | None = None, dl_device: object | None = None, copy: object | None = None) -> object: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...

    @property
    def __array_interface__(self) -> dict[str, Any]: ...

    @property
    def address(self) -> int:
        """Of the first element. BufferError once the run is over."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def strides(self) -> tuple[int, ...]:
        """In elements."""

    @property
    def device(self) -> str: ...

def gemm(a: object | None, b: object | None, *, out: object | None = None, c: object | None = None, alpha: object | None = 1.0, beta: object | None = None, bias: object | None = None, activation: object | None = None, aux: object | None = None, gate: object | None = None, gated: object | None = None, scale_a: object | None = None, scale_b: object | None = None, scale_out: object | None = None, bias_grad: object | None = None, epilogue: object | None = None, compute: object | None = None, out_dtype: object | None = None, splits: object | None = None, deterministic: object | None = False, batch_invariant: object | None = False, kernel: object | None = None, stream: object | None = None) -> object:
    """
    D = epilogue(a @ b), by a prebuilt CUTLASS kernel (NumPy on the CPU).

    f is the activation; what has a default is optional:

        z = alpha * scale_a * scale_b * (a @ b) + beta * c + bias
        D = scale_out * f(z);  with gate: scale_out * f(gate) * z;  for a derivative f': scale_out * f'(aux) * z

    Args:
        a: (m, k), (k,) or (..., m, k). Any array that speaks DLPack, row- or column-major without a copy; or a list of
            (m, k) matrices of one dtype, of any shapes and strides.
        b: (k, n), (k,) or (..., k, n), on a's device, of a's dtype (e4m3 and e5m2 may be mixed, and so may s8 and u8). Or
            a list, as long as a's. Shapes follow numpy.matmul: batches broadcast, the axis that a vector lacks is missing
            in the result.
        out: written and returned, of the shape of the result. Strided views are fine. It may be exactly c, gate or an aux
            that is read, and otherwise shares no element with anything. A list for lists.
        c: the addend, of the shape of the result or with batch dimensions that broadcast to it, any real dtype (complex
            for complex operands). A list, or one matrix for all, for lists.
        alpha: factor of the product. A number, or an array of one element that is read when the kernel runs. With the
            number 0, here or as a scale, a and b are not read, whatever the other factors are. With a 0 in an array they
            are.
        beta: factor of c, a number or such an array; 1 by default. With the number 0, c is not read.
        bias: (n,) or (1, n), one value per column; (m, 1), one per row; batch dimensions in front broadcast. Of D's dtype
            or f32 (f64 operands: or f64; integer D: f32 or s32).
        activation: None, "identity", "relu", "leaky_relu", "gelu" (by erf), "gelu_tanh", "silu", "sigmoid", "tanh",
            "hardswish", cutlass_py.leaky_relu(slope), cutlass_py.clamp(low, high), or a derivative: "d_relu", "d_gelu",
            "d_gelu_tanh", "d_silu", "d_sigmoid". Complex operands take none. slope, low and high are rounded to the dtype
            that the epilogue is computed in.
        aux: of the shape of D, any real dtype. With a derivative it is read: the values at which the derivative is taken
            (its batch dimensions broadcast). Otherwise it is written, and receives z.
        gate: of the shape of D (batch dimensions broadcast), any real dtype. The activation applies to it, not to z.
        scale_a: factor of the rows of a: a number, an array of one element, (m,) or (..., m, 1).
        scale_b: factor of the columns of b: a number, an array of one element, (n,) or (..., 1, n). Where alpha is an
            array, a number other than 1 is refused, here and as scale_a.
            fp8 operands also take both in blocks, of any strides: a scale_a of (..., m, ceil(k / 128)), one factor for
            every row and 128 of k, and a scale_b of (..., ceil(k / 128), ceil(n / 128)), one for every 128 of k by 128
            columns, or of (..., ceil(k / 128), n). The last block of an extent may be shorter. Kernels read a scale_a
            whose columns are contiguous and start at multiples of 16 bytes; any other is packed first.
        scale_out: factor of the result: a number or an array of one element.
        gated: "silu", "gelu", "gelu_tanh", "relu" or "sigmoid": the columns of b are n gates and then n values, and D has
            n: D = scale_out * f(z of the gates) * z of the values; bias and scale_b have 2 n numbers, an aux is (m, 2 n).
            With the name of a derivative ("d_silu") z is the gradient of such a D, aux is that (m, 2 n), and D has its
            shape: the gradients of gates and values. Behind a name, "_interleaved" says that all of these have a value
            behind each gate. Beside it are no activation, gate, c, bias_grad and lists.
        bias_grad: (n,), (1, n) or (m, 1), of D's dtype, f32 or f64; written. Receives sums of f(z), f(gate) * z or
            f'(aux) * z, before scale_out, over the other axis and over the batch; of a D of 16 bits or f32 before or
            after it is rounded, as the kernel has it. They are computed in f64, and before rounding, if it is f64. The
            batch must have a single stride in every operand.
        epilogue: a call of a function under @cutlass_py.epilogue: D is what that makes of a @ b. It replaces c, alpha and
            everything up to here; on a GPU a kernel is compiled for it (docs/epilogues.md).
        compute: arithmetic: "f32" (f16, bf16, fp8: accumulation in f32; f32: exact multiplication too; c64), "tf32" and
            "3xtf32" (f32 on tensor cores, the second with f32's accuracy), "f64" (f64, c128), "s32" (integers), "f16"
            (f16 may be summed in f16), "fast" (fp8 without promotion: sums of about 14 bits). The first is the default.
        out_dtype: dtype of a new result, by default the inputs' (fp8: bf16, integers: s32). A name ("bf16"), NumPy's or
            ml_dtypes' dtype, or the framework's own. Any real dtype; c64 or c128 for complex operands.
        splits: parts of k computed side by side: None (selection decides), 1 (no split) to 32767, or "stream" (stream-K).
        deterministic: take only kernels that give the same bits on every run.
        batch_invariant: the bits of a row of D depend on that row of a, on b and on the keywords alone: not on m, on the
            batch, nor on what else is in it (docs/gemm.md, "Batch invariance"). It implies deterministic; k is cut by n
            and k alone, so that there are no splits beside it, and "fast" and "f16" sums are f32.
        kernel: run this kernel (a Kernel or its name) and no other; it must take the operands as they lie. Compiled
            first if it is declared but not there (docs/jit.md).
        stream: CUDA stream to launch on: an int, a torch or CuPy stream, or anything with `__cuda_stream__`. By
            default the framework's current stream. Where it is given, the caller orders other streams behind the launch.

    Arrays of factors and scales are f32 (f64, c64, c128 where the sum is). Complex operands take no scales, activation,
    gate, gated, aux or bias_grad. Lists take no gate, gated, aux or bias_grad, and share their bias and scales.

    Rounding: sums of integers wrap around at 32 bits. Every result is rounded once, to nearest even: to s8, u8, s32, e4m3
    and e5m2 it saturates at the largest finite value, infinities included, and NaN stays NaN in fp8 and becomes 0 in
    integers; to wider floats it overflows to infinity.

    Returns:
        `out`, or a new row-major array of a's framework on a's device; for lists a list, whose matrices share
        one allocation (with JAX, each has its own).

    Raises:
        ValueError: ranks, shapes, devices, strides, names or overlap that do not fit; a `kernel` that does not.
        TypeError: an operand that is no array, or a dtype that does not fit.
        NoKernelError: no kernel can compute this problem.
        CompileError: the kernel asked for, chosen within `jit`, or with `epilogue`, cannot be compiled.
        CudaError: a CUDA or CUTLASS call failed.
    """

def problem(a: object, b: object, **keywords: Any) -> Problem:
    """
    The canonical problem of a gemm call, which is not run. Takes TensorSpecs as well as arrays.
    """

def scratch_bytes(a: object, b: object, keywords: dict[str, Any], plan: object, sm_count: int) -> int:
    """
    Bytes of scratch that gemm takes for a call with these keywords (of `problem`) by a plan (LaunchPlan) on a device with so many multiprocessors. Takes TensorSpecs as well as arrays.
    """

def call_facts(a: object, b: object, keywords: dict[str, Any]) -> dict[str, Any]:
    """
    Operands and factors of a call with these keywords (of `problem`), as reproducer.py takes them.
    """

@overload
def measure(problem: Problem, plans: Sequence[object], rounds: int, group_ends: Sequence[int] = []) -> list[list[float]]:
    """
    Microseconds of each plan of a problem, on operands made up for it, from a cold cache: one number for each round, of which there are fewer where they take long; infinite where a plan does not run. Groups end at `group_ends`; without these their sizes are made up, too.
    """

@overload
def measure(problem: QuantizeProblem, plans: Sequence[object], rounds: int) -> list[list[float]]:
    """As above, of quantize."""

def wgmma_constants() -> list[str]:
    """Names of the constants of WgmmaEstimates, in their order."""

def wgmma_features() -> list[str]:
    """
    What the residual of WgmmaEstimates looks at, in the order of its numbers.
    """

def wgmma_most_residual() -> float:
    """The most by which that moves the logarithm of an estimate."""

class WgmmaDesign:
    """What the formula for wgmma kernels knows of one."""

    def __init__(self, *, tile: Sequence[int], cluster: Sequence[int], serial: bool, swap: bool, pingpong: bool, turns: bool, by_column: bool, left_along: bool, right_along: bool, direct: bool, unaligned: bool, size: int, d_size: int, part: int, instructions: int) -> None:
        """
        The third extent of a cluster counts slices of k. Sizes are bytes of an element, `d_size` of all that lies like D; `part` counts columns that are stored at once.
        """

    def orders(self, m: float, n: float) -> list[tuple[int, int]]:
        """
        Raster and swizzle of each order that tells the tiles of a product apart; one, of a single row or column.
        """

class WgmmaDesigns:
    """Several of them."""

    def __init__(self, each: Sequence[WgmmaDesign]) -> None: ...

class WgmmaArms:
    """
    Products (m, n, k, batch) by kernels, each in an order (raster, swizzle).
    """

    def __init__(self, products: Sequence[tuple[float, float, float, float]], designs: Sequence[WgmmaDesign], orders: Sequence[tuple[int, int]]) -> None: ...

    def __len__(self) -> int: ...

class WgmmaEstimates:
    """
    What wgmma kernels take, by constants and by how many clusters of each size run at once.
    """

    def __init__(self, constants: Sequence[float], clusters: Sequence[int], residual: Sequence[tuple[Sequence[int], Sequence[float], Sequence[float]]] = []) -> None:
        """
        `residual`: trees whose values add up to the logarithm of time over the formula's; of each the features and thresholds of its nodes, and the values of its leaves.
        """

    def best(self, product: tuple[float, float, float, float], design: WgmmaDesign) -> tuple[float, int, int]:
        """
        Microseconds of a product (m, n, k, batch) in the best order of tiles, its raster and its swizzle.
        """

    def in_order(self, product: tuple[float, float, float, float], design: WgmmaDesign, order: tuple[int, int]) -> float:
        """Microseconds of a product in one order of tiles: raster, swizzle."""

    def times(self, arms: WgmmaArms) -> list[float]:
        """Microseconds of each of WgmmaArms, by the formula alone."""

    def residuals(self, arms: WgmmaArms) -> list[float]:
        """Logarithm of what the trees make of them."""

    def features(self, arms: WgmmaArms) -> list[list[float]]:
        """What the trees look at, by wgmma_features()."""

class TiledDesign:
    """What the formula for kernels without wgmma knows of one, on some GPU."""

    def __init__(self, *, tile: Sequence[int], resident: int, stream_k: bool, size: int, d_size: int, step: float, alone: float, fill: float, join: float, fixed: float, deal: float, memory: float, sm_count: int) -> None:
        """
        Microseconds of a `step` of k of a tile and the least of it (`alone`), of a wave (`fill`), of any product (`fixed`, and `deal`); steps that it takes to `join` a tile; bytes that come from `memory` in one. Sizes as of a WgmmaDesign.
        """

    def microseconds(self, p: Problem, k: int, batch: int) -> float:
        """Of so many products as a problem's, each of this length of k."""

    def of_product(self, m: int, n: int, k: int, batch: int) -> float:
        """Microseconds of so many products of these extents."""

class GemvDesign:
    """What the formula for kernels for a few rows knows of one, on some GPU."""

    def __init__(self, *, swap: bool, packed: bool, along_k: bool, only_factor: bool, size: int, sm_count: int, memory: float, longer: float) -> None:
        """
        Elements of the matrix have `size` bytes; its lines may lie `along_k`, after it was `packed`. `only_factor`: nothing else is applied; `memory` as of a TiledDesign. It takes so many times `longer` than the formula says.
        """

    def microseconds(self, p: Problem, k: int, batch: int) -> float:
        """Of so many products as a problem's, each of this length of k."""

class Detours:
    """What surrounds a kernel, by the bytes of an element that it moves."""

    def __init__(self, *, pack_a: int, pack_b: int, turn_a: bool, turn_b: bool, pack_scales: int, finish: int, finish_sum: int, sums: int) -> None:
        """
        0 for what there is not. Copies may `turn` rows into columns; what finishes a product reads and writes `finish` bytes, and `finish_sum` of each part of k.
        """

    def microseconds(self, p: Problem, parts: int, beside: Sequence[float]) -> float:
        """
        Of a product with k in so many parts, by the constants that cost.py names.
        """

class OtherKernel:
    """A kernel that is not of the formula for wgmma alone."""

    def __init__(self, *, tile: Sequence[int], swap: bool, slices: int, access: int, size: int, d_size: int, formula: float | TiledDesign | GemvDesign | None, own: WgmmaDesign | None) -> None:
        """
        A thread loads `access` bytes at once, 0 where the kernel sees to that. `formula`: or what any product takes; None where that has to be asked for. `own`: a design of ours with a user's epilogue.
        """

def route_features() -> list[str]:
    """What a RouteResidual looks at, in the order of its numbers."""

class RouteResidual:
    """What formulas leave of whole routes."""

    def __init__(self, trees: Sequence[tuple[Sequence[int], Sequence[float], Sequence[float]]]) -> None:
        """As the `residual` of WgmmaEstimates, by route_features()."""

    def applied(self, p: Problem, kernel: WgmmaDesign | OtherKernel, parts: int, around: float, microseconds: float) -> float:
        """
        A time by the formulas, of which so much is `around` the kernel, with the residual.
        """

    @staticmethod
    def features(p: Problem, kernel: WgmmaDesign | OtherKernel, parts: int, around: float, microseconds: float) -> list[float]:
        """What the trees look at; nothing of a kernel that is only asked."""

class RouteGroup:
    """
    Kernels that reach a problem in one way, or with k in parts in another one.
    """

    def __init__(self, *, least: Detours, whole: Detours, parts: Detours | None, few_rows: bool, behind: float, model: WgmmaEstimates | None, designs: Callable[[], WgmmaDesigns] | None, others: Sequence[OtherKernel]) -> None:
        """
        `least`: by layouts and dtypes alone. `behind`: how much longer k takes as a whole than estimated. `designs()`: of those that `model` is about, asked once.
        """

class Routes:
    """The routes to problems that differ in extents alone."""

    def __init__(self, *, groups: Sequence[RouteGroup], launch: float, memory: float, sizes: Sequence[int], longer: float, gemv_memory: float, beside: Sequence[float], residual: RouteResidual, sm_count: int) -> None:
        """
        No kernel takes less than a `launch`, and bytes of A and B (`sizes` of an element) that come from `memory` in a microsecond; those for few rows are bounded by their own formula.
        """

    def find(self, p: Problem, every: bool, cuts: bool, ask: Callable[[int, int, int], float]) -> list[tuple[float, int, int, int, bool]]:
        """
        Microseconds, the places of the group and of the kernel in it (first those of `designs`), parts of k, and whether an elementwise kernel sums them: of every route, or of the first one that none is faster than. `cuts`: k may be in parts. `ask(group, kernel, parts)` is asked for the time of kernels without a formula.
        """

class Problem:
    """
    A call in canonical form: D (m, n) row-major, batch folded where it can be. Layouts: 't' row-major, 'n' column-major, 'x' no unit stride. Alignments in bytes, 16 at most. Dtypes are None, layouts and other marks empty where an operand is absent.
    """

    @property
    def operation(self) -> str:
        """Its name."""

    @property
    def m(self) -> int:
        """Rows of D."""

    @property
    def n(self) -> int:
        """Columns of D."""

    @property
    def k(self) -> int:
        """Length of the sums."""

    @property
    def batch(self) -> int:
        """Products of these extents."""

    @property
    def a(self) -> str | None:
        """Dtype of A in memory."""

    @property
    def b(self) -> str | None:
        """Dtype of B in memory."""

    @property
    def c(self) -> str | None:
        """None where C is absent or not read (beta = 0)."""

    @property
    def d(self) -> str | None:
        """Dtype of D."""

    @property
    def operand_a(self) -> str | None:
        """What kernels multiply: tf32 for f32 with compute='tf32'."""

    @property
    def operand_b(self) -> str | None:
        """As operand_a."""

    @property
    def accumulator(self) -> str | None:
        """Dtype of the sums."""

    @property
    def layout_a(self) -> str:
        """'t', 'n' or 'x'."""

    @property
    def layout_b(self) -> str:
        """'t', 'n' or 'x'."""

    @property
    def layout_c(self) -> str:
        """'t' as D lies, or 'x'; likewise of gate and aux."""

    @property
    def layout_d(self) -> str:
        """'t' or 'x'."""

    @property
    def align_a(self) -> int:
        """Of address, rows and batches."""

    @property
    def align_b(self) -> int:
        """As align_a."""

    @property
    def align_c(self) -> int:
        """As align_a."""

    @property
    def align_d(self) -> int:
        """As align_a."""

    @property
    def empty_product(self) -> bool:
        """k = 0, a factor of 0 or no elements of D: a and b are not read."""

    @property
    def transposed(self) -> bool:
        """a and b changed places because D is column-major."""

    @property
    def activation(self) -> str:
        """Its name."""

    @property
    def bias(self) -> str | None:
        """Dtype of the bias."""

    @property
    def bias_axis(self) -> str:
        """'n': one value per column of D, 'm': one per row."""

    @property
    def align_bias(self) -> int:
        """1 also where it has no unit stride."""

    @property
    def gate(self) -> str | None:
        """Dtype of the gate."""

    @property
    def layout_gate(self) -> str:
        """As layout_c."""

    @property
    def align_gate(self) -> int:
        """As align_a."""

    @property
    def aux(self) -> str | None:
        """Dtype of aux."""

    @property
    def layout_aux(self) -> str:
        """As layout_c."""

    @property
    def align_aux(self) -> int:
        """As align_a."""

    @property
    def bias_grad(self) -> str | None:
        """Dtype of the bias gradient."""

    @property
    def bias_grad_axis(self) -> str:
        """As bias_axis."""

    @property
    def scale_a(self) -> str:
        """
        's': one factor in memory, 'v': a vector, 'x': a vector without unit stride. Numbers are in alpha. In blocks, for each 128 of k: 'r' for every row (of scale_b: column), 'p' likewise where scale_a has to be packed, 'b' for every 128 columns.
        """

    @property
    def scale_b(self) -> str:
        """As scale_a, of the columns of B."""

    @property
    def block(self) -> int:
        """Columns of B that share a factor where scales are in blocks, else 0."""

    @property
    def scale_out(self) -> str:
        """'h': a number, 's': one factor in memory."""

    @property
    def device_alpha(self) -> bool:
        """alpha is an array."""

    @property
    def device_beta(self) -> bool:
        """beta is an array."""

    @property
    def plain_sum(self) -> bool:
        """Of integers: alpha is 1, nothing else scales, and no c is added."""

    @property
    def pointers(self) -> bool:
        """The operands are lists of matrices that do not lie evenly."""

    @property
    def deterministic(self) -> bool:
        """The same bits on every run are asked for."""

    @property
    def batch_invariant(self) -> bool:
        """
        A row's bits may not depend on what is beside it; `splits` is what that asks for.
        """

    @property
    def jit(self) -> bool:
        """A declared kernel may be compiled for it."""

    @property
    def splits(self) -> int:
        """Parts of k asked for; 0: none in particular, -1: stream-K."""

    @property
    def pairs(self) -> str:
        """
        'b': columns of B are gates and then as many values, 'd': those of D are.
        """

    @property
    def interleaved(self) -> bool:
        """A value lies behind each gate, and not all behind all."""

    @property
    def columns_of_b(self) -> int:
        """n, or where they are gates and values twice as many."""

    @property
    def grouped(self) -> str:
        """
        The axis that groups divide, 'm', 'n' or 'k', whose extent is that of all together; 'l': lists whose matrices differ, by extents that are usual for them.
        """

    @property
    def stacked(self) -> bool:
        """The rows of each group are the first ones of a matrix of its own."""

    @property
    def gathered(self) -> bool:
        """
        The rows of a are found by their numbers, and copied before the product.
        """

    @property
    def told(self) -> bool:
        """Where groups lie, the host knows."""

    @property
    def expected(self) -> int:
        """
        Lines of a group, to an eighth of a power of 2; 0 where the caller has not said it.
        """

    @property
    def usual(self) -> int:
        """
        Likewise of those that have any, in the mean; 0 where the host does not know them.
        """

    @property
    def kernel(self) -> int:
        """Number of the kernel asked for, -1 for none."""

    @property
    def user(self) -> int:
        """
        Number of the user's epilogue and the kinds of its operands, -1 for none.
        """

    @property
    def device(self) -> str:
        """Of all operands."""

    @property
    def device_id(self) -> int:
        """CUDA ordinal, -1 on the CPU."""

    def launches(self, splits: int) -> list[tuple[int, int]]:
        """
        What a kernel is launched for where k is cut into so many parts: (parts, length of each).
        """

    @property
    def signature(self) -> bytes:
        """
        The same for problems that differ in extents, and in how A, B and D are aligned, alone.
        """

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

class EpilogueCall:
    """A user's epilogue with its operands: what gemm's `epilogue` takes."""

    def __init__(self, program: int, values: tuple[Any, ...]) -> None: ...

    @property
    def program(self) -> int: ...

    @property
    def values(self) -> tuple[Any, ...]:
        """In the order of the program's parameters, then its outputs."""

def add_program(name: str, names: Sequence[str], roles: str, reductions: Sequence[int], firsts: Sequence[int]) -> int:
    """
    Number of a traced function: its name, those of parameters and outputs; of each 'r' (read), 'w' (a written matrix), or for reductions 'm' or 'n' (written along that axis of D) or 's' (a single value); the reduction's index in REDUCTIONS (epilogue_ir.py), -1 for none; and the first that reduces the same value, or itself.
    """

def user_class(number: int) -> tuple[int, list[tuple[str, Any, int, bool]]]:
    """
    What Problem.user stands for: the program's number; of each of its operands kind, dtype, bytes of alignment, and whether it is a matrix that lies as D does or a vector of unit stride.
    """

class Prepared:
    """
    A call whose legality and plan are settled; made by GemmArguments.plan. Calling it with arrays of the same shapes, strides, dtypes, device and alignment launches it on them.
    """

    def __init__(self, a: object, b: object, keywords: dict[str, Any], raster: int, swizzle: int) -> None: ...

    @overload
    def __call__(self, a: object | None, b: object | None, out: object | None) -> object:
        """As below, with these three alone."""

    @overload
    def __call__(self, a: object | None = None, b: object | None = None, out: object | None = None, *, c: object | None = None, bias: object | None = None, gate: object | None = None, aux: object | None = None, alpha: object | None = None, beta: object | None = None, scale_a: object | None = None, scale_b: object | None = None, scale_out: object | None = None, bias_grad: object | None = None, epilogue: object | None = None, stream: object | None = None, workspace: object | None = None) -> object:
        """
        Run it: gemm on these arrays by the plan's kernel, without choosing anew.

        Args:
            a, b, out: as in gemm. What is None, here and below, is what the plan was made with; where it was made without
                `out`, a new array is returned.
            c, bias, gate, aux, alpha, beta, scale_a, scale_b, scale_out, bias_grad: arrays in place of those that the plan was
                made with. Numbers and names stay those of the plan.
            epilogue: a call of the plan's own function (docs/epilogues.md), with all of its operands. Numbers may be others,
                arrays are like those of the plan.
            stream: as in gemm.
            workspace: Kernel.workspace_size bytes (u8) of device memory, aligned to 256 bytes, instead of the package's own
                pool. It is used on the stream of the launch; the caller orders other uses of it.

        Returns:
            As gemm.

        Raises:
            ValueError: an array whose shape, strides, device or alignment is not the plan's, one that the plan has no place
                for, overlap, an epilogue of another function, or a workspace that does not fit. The message names the operand.
            TypeError: no array, or one of another dtype.
            CudaError: a CUDA or CUTLASS call failed.
        """

    @property
    def problem(self) -> Problem:
        """What it computes."""

    def __repr__(self) -> str: ...

def set_torch_hooks(tensor_types: tuple[Any, ...], number_types: tuple[Any, ...], modes: tuple[Any, ...], function_mode: object, no_interceptors: object, forward_level: tuple[dict[str, Any], str], autocasting: object, cast: object, record_layer: object) -> None:
    """
    What of torch the fast path looks at and calls; torch/functions.py says it once.
    """

def fast_product(a: object | None, b: object | None, out: object | None, bias: object | None, rank: int) -> object:
    """
    gemm(a, b, out=out, bias=bias) of torch tensors, recorded where a gradient is asked for; or None where torch may mean something else by it, or gemm refuses it.
    """

def fast_linear(input: object | None, weight: object | None, bias: object | None, activation: object | None) -> object:
    """
    gemm(input, weight.t(), bias=bias, activation=activation) of torch tensors; or None, as fast_product.
    """

def fast_gemm(a: object | None, b: object | None, out: object | None = None, c: object | None = None, alpha: object | None = 1.0, beta: object | None = None, bias: object | None = None, activation: object | None = None, aux: object | None = None, gate: object | None = None, gated: object | None = None, scale_a: object | None = None, scale_b: object | None = None, scale_out: object | None = None, bias_grad: object | None = None, compute: object | None = None, out_dtype: object | None = None, splits: object | None = None, deterministic: object | None = False, batch_invariant: object | None = False, kernel: object | None = None, uncast: bool = True) -> object:
    """
    gemm of torch tensors, recorded if that is a layer with a gradient; or None where something has to see it, a gradient is asked of anything else, or gemm refuses it; also where autocast may have to cast what is `uncast`.
    """

def xla_gemm_handler() -> CapsuleType:
    """
    gemm as a custom call of XLA's typed FFI, for jax.ffi.register_ffi_target.
    """

def xla_stream_handler() -> CapsuleType:
    """A custom call without operands, which learns XLA's stream."""

def xla_stream(device_id: int) -> int:
    """
    The stream that xla_stream_handler has learned. IndexError if it has not run on this device.
    """

class QuantizeProblem:
    """
    A call of quantize in canonical form. Layouts: 't' columns side by side, 'n' rows side by side, 'x' neither. Alignments in bytes, 16 at most.
    """

    @property
    def operation(self) -> str:
        """Its name."""

    @property
    def rows(self) -> int:
        """Of each matrix; 1 for a vector."""

    @property
    def cols(self) -> int:
        """Of each matrix."""

    @property
    def batch(self) -> int:
        """Matrices: the product of the leading extents."""

    @property
    def x(self) -> str:
        """Dtype of x."""

    @property
    def q(self) -> str:
        """Dtype of the result."""

    @property
    def scaling(self) -> str:
        """'tensor', 'row', '1x128' or '128x128'."""

    @property
    def layout_x(self) -> str:
        """'t', 'n' or 'x'."""

    @property
    def layout_q(self) -> str:
        """'t', 'n' or 'x'."""

    @property
    def align_x(self) -> int:
        """Of address, lines and matrices."""

    @property
    def align_q(self) -> int:
        """As align_x."""

    @property
    def jit(self) -> bool:
        """A declared kernel may be compiled for it."""

    @property
    def kernel(self) -> int:
        """Number of the kernel asked for, -1 for none."""

    @property
    def user(self) -> int:
        """-1: it has no epilogue that a user could write."""

    @property
    def splits(self) -> int:
        """0: nothing is divided."""

    @property
    def deterministic(self) -> bool:
        """Every kernel gives the same bits on every run."""

    @property
    def batch_invariant(self) -> bool:
        """Every group's bits are its own."""

    @property
    def device(self) -> str:
        """Of all operands."""

    @property
    def device_id(self) -> int:
        """CUDA ordinal, -1 on the CPU."""

    def __eq__(self, arg: object, /) -> bool: ...

    def __hash__(self) -> int: ...

def quantize(x: object | None, dtype: object | None = 'e4m3', *, scaling: object | None = 'tensor', out: object | None = None, scales: object | None = None, kernel: object | None = None, stream: object | None = None) -> tuple[Any, Any]:
    """
    x in 8 bits and the scales that undo it: x is about q * scale.

    A scale is amax * (1 / limit), but 2^-126 at least: amax is the largest |x| of a group's finite elements, limit the largest
    value of q (448 for e4m3, 57344 for e5m2, 127 for s8). It is 1 where amax is 0.

    Args:
        x: (..., m, k) or (k,), of f32, bf16, f16 or f64. Any array that speaks DLPack, of any strides.
        dtype: of q: "e4m3", "e5m2", "s8", NumPy's or ml_dtypes' dtype, or the framework's own.
        scaling: what shares a scale, and so the shape of scales:
            "tensor": everything; ().
            "row": a row; (..., m, 1), of a vector (1,).
            "1x128" or "block": 128 of a row; (..., m, ceil(k / 128)), of a vector (ceil(k / 128),). As gemm's scale_a.
            "128x128": 128 rows by 128 columns; (..., ceil(m / 128), ceil(k / 128)). As gemm's scale_b.
            The last group of an extent may be smaller.
        out: written and returned as q, of x's shape. Strided views are fine. It shares no element with x or scales.
        scales: f32, written and returned likewise.
        kernel: run this kernel (a Kernel or its name) and no other.
        stream: CUDA stream to launch on, as in gemm.

    All arithmetic is f32: x is converted to it, multiplied by 1 / scale, and rounded to nearest even. Results saturate at
    limit, infinities too; NaN stays NaN in fp8 and becomes 0 in s8, which ends at -127.

    Returns:
        (q, scales): what was given, or new arrays of x's framework on x's device. New scales are row-major, but those of
        "1x128" lie as gemm's kernels read a scale_a, where the framework has such views: m runs fastest, in lines of a multiple
        of 16 bytes.

    Raises:
        ValueError: ranks, shapes, devices, names or overlap that do not fit; a `kernel` that does not.
        TypeError: an operand that is no array, or a dtype that does not fit.
        NoKernelError: no kernel can compute this problem.
        CompileError: the kernel asked for, or chosen within `jit`, cannot be compiled.
        CudaError: a CUDA call failed.
    """

def quantize_problem(x: object | None, dtype: object | None = 'e4m3', *, scaling: object | None = 'tensor', out: object | None = None, scales: object | None = None, kernel: object | None = None) -> QuantizeProblem:
    """
    The canonical problem of a quantize call, which is not run. Takes a TensorSpec as well as arrays.
    """

def xla_quantize_handler() -> CapsuleType:
    """quantize as a custom call of XLA's typed FFI, as xla_gemm_handler."""

def grouped_gemm(a: object | None, b: object | None, *, offsets: object | None = None, sizes: object | None = None, gather: object | None = None, out: object | None = None, c: object | None = None, alpha: object | None = 1.0, beta: object | None = None, bias: object | None = None, activation: object | None = None, gated: object | None = None, aux: object | None = None, scale_a: object | None = None, scale_b: object | None = None, scale_out: object | None = None, expected: object | None = None, compute: object | None = None, out_dtype: object | None = None, deterministic: object | None = False, kernel: object | None = None, stream: object | None = None) -> object:
    """
    Many products of unequal size in one launch: D = epilogue(a @ b) for each group.

    Groups divide one axis, which the ranks of a and b say:

        a (M, K), b (G, K, N) -> (M, N)       rows: those of a group are multiplied by its own b
        a (M, K), b (K, N) -> (G, M, N)       k: a product for each group, 0 (or beta * c) for an empty one
        a (G, M, K), b (K, N) -> (M, N)       columns: those of a group by its own a
        a (G, M, K), b (G, K, N) -> (G, M, N) of each matrix the first `sizes` rows

    Args:
        a, b: arrays that speak DLPack, of dtypes as in gemm.
        offsets: (G,), where each group ends, or (G + 1,), where each begins and the last one ends; without decrease. int32
            or int64. On the device they are read when the kernel runs, so that a captured graph follows new numbers: what
            is out of bounds is cut off there. In host memory they are checked.
        sizes: (G,), likewise; one of the two is given.
        gather: (M,) of int32 or int64, where groups divide rows: row i of the product is that of row gather[i] of a, which
            may have any number of rows then. They are copied before the product, into memory of the package's own. In host
            memory the numbers are checked; on the device there are zeros in place of a row that a does not have.
        out: written and returned. Lines of D that belong to no group keep what they hold.
        c, aux: as in gemm, of the shape of D.
        alpha, beta, activation, compute, out_dtype, deterministic, kernel, stream: as in gemm.
        gated: as in gemm, where groups divide rows, or with the first rows of each matrix: b has 2 N columns, and so
            have bias, scale_b and aux.
        bias: (N,), or (G, N): one row for each group. Where groups divide columns, (N,) alone.
        scale_a: a number, one element, (M,), or (G, M) where groups do not divide rows: one factor for each row of the
            product.
        scale_b: a number, one element, (N,), or (G, N) where groups do not divide columns: one for each column. fp8 also
            takes both in blocks, in any strides: they lie as the operands, with ceil(K / 128) in place of K, and of
            scale_b ceil(N / 128) or N in place of N: (M, ceil(K / 128)) and (G, ceil(K / 128), ceil(N / 128)), say. Where
            groups divide columns, each of them has a factor of its own; where they divide k, there are no blocks.
        scale_out: a number or one element.
        expected: lines of a group, about: a hint for the choice of a kernel where sizes are on the device.

    Returns:
        `out`, or a new row-major array; its lines that belong to no group are not written.

    Raises:
        ValueError: shapes, offsets, sizes or rows that do not fit; the message names the first bad entry.
        TypeError: an operand that is no array, or a dtype that does not fit.
        NoKernelError: no kernel takes groups of this problem, and the host does not know where they lie. Where it does,
            each is computed as a product of its own.
        CompileError, CudaError: as gemm.
    """

def grouped_problem(a: object | None, b: object | None, offsets: object | None, sizes: object | None, expected: object | None, keywords: dict[str, Any], gather: object | None = None) -> Problem:
    """
    The canonical problem of a grouped_gemm call with these of gemm's keywords, which is not run. Takes TensorSpecs as well as arrays.
    """

def grouped_scratch_bytes(a: object, b: object, offsets: object | None, sizes: object | None, gather: object | None, keywords: dict[str, Any], plan: object, sm_count: int) -> int:
    """As `scratch_bytes`, of a grouped_gemm call."""

def group_ends(a: object | None, b: object | None, offsets: object | None, sizes: object | None, gather: object | None, keywords: dict[str, Any]) -> list[int]:
    """
    Where the groups of a grouped_gemm call end, or how many first rows of each matrix are in use; empty where a TensorSpec tells groups apart. Waits for numbers on the device.
    """

class PreparedGroups:
    """
    A grouped_gemm call whose legality and plan are settled; made by GroupedArguments.plan. Calling it with arrays of the same problem launches it on them: wherever its groups begin, and of any leading dimension that is aligned as the plan's.
    """

    def __init__(self, a: object, b: object, groups: dict[str, Any], keywords: dict[str, Any], raster: int, swizzle: int) -> None: ...

    def __call__(self, a: object | None = None, b: object | None = None, out: object | None = None, *, offsets: object | None = None, sizes: object | None = None, gather: object | None = None, c: object | None = None, bias: object | None = None, aux: object | None = None, alpha: object | None = None, beta: object | None = None, scale_a: object | None = None, scale_b: object | None = None, scale_out: object | None = None, stream: object | None = None, workspace: object | None = None) -> object:
        """
        Run it: grouped_gemm on these arrays by the plan's kernel, without choosing anew.

        Args:
            a, b, out: as in grouped_gemm. What is None, here and below, is what the plan was made with; where it was made
                without `out`, a new array is returned.
            offsets, sizes, gather: other numbers, where the plan was made with such.
            c, bias, aux, alpha, beta, scale_a, scale_b, scale_out: arrays in place of those that the plan was made with.
                Numbers and names stay those of the plan.
            stream: as in grouped_gemm.
            workspace: Kernel.workspace_size bytes (u8) of device memory, aligned to 256 bytes, instead of the package's own
                pool, from which the rows of `gather` still are. It is used on the stream of the launch; the caller orders
                other uses of it.

        Returns:
            As grouped_gemm.

        Raises:
            ValueError: the arrays make another problem than the plan is of, or one has no place in it; overlap; a workspace
                that does not fit.
            TypeError: no array, or dtypes that do not go together.
            CudaError: a CUDA or CUTLASS call failed.
        """

    @property
    def problem(self) -> Problem:
        """What it computes."""

    def __repr__(self) -> str: ...

def xla_grouped_gemm_handler() -> CapsuleType:
    """As `xla_gemm_handler`, of grouped_gemm."""
