"""Behind `python -m cutlass_py cache build`: which kernels problems want, compiled ahead of time, several at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from time import monotonic

from ..arrays.gpu import gpu_with
from ..compiling import compiler
from ..dispatch.candidates import rank
from ..errors import CompileError, NoKernelError
from ..kernels.kernel import CutlassKernel
from ..kernels.operation import Arguments, describe, operation_of
from ..support.terminal import progress


@dataclass(frozen=True)
class Outcome:
    """What became of one kernel. `state`: "built in" (with the package), "cached", "compiled" or "failed"."""

    kernel: str
    state: str
    seconds: float = 0.0
    library: str | None = None
    error: str | None = None


def best(args: Arguments, cc: Collection[int] = ()) -> list[CutlassKernel]:
    """The best of all declared kernels by the model; none where no kernel is needed.

    Args:
        args: the problem.
        cc: for each of these compute capabilities, times ten, instead of the problem's device.

    Raises:
        NoKernelError: no declared kernel fits.
    """
    if operation_of(args.problem).without_kernel(args.problem):
        return []
    found = []
    for gpu in map(gpu_with, cc) if cc else [None]:
        ranked = (choice.route.kernel for choice in rank(args.problem, compiled=False, gpu=gpu))
        kernel = next((kernel for kernel in ranked if isinstance(kernel, CutlassKernel)), None)
        if kernel is None:
            raise NoKernelError(f"no declared kernel fits {describe(args.problem)}" + (f", for {gpu}" if gpu else ""))
        found.append(kernel)
    return list(dict.fromkeys(found))


def build(
    kernels: Sequence[CutlassKernel], jobs: int, report: Callable[[str], None], cc: Collection[int] = ()
) -> list[Outcome]:
    """Compiles what is neither built in nor cached, at most `jobs` at once. A failure does not stop the others.

    With `cc`, as a machine with GPUs of these compute capabilities, times ten, would.
    """
    with ThreadPoolExecutor(jobs) as pool, progress("compiling", len(kernels)) as advance:
        pending = [pool.submit(_build, kernel, cc) for kernel in kernels]
        try:
            for done in as_completed(pending):
                outcome = done.result()
                took = f" in {outcome.seconds:.0f} s" if outcome.seconds else ""
                report(f"{outcome.kernel}  {outcome.error or outcome.state + took}")
                advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            compiler.stop()
            raise
    return [done.result() for done in pending]


def _build(kernel: CutlassKernel, cc: Collection[int]) -> Outcome:
    if kernel.compiled:
        return Outcome(kernel.name, "built in")
    began = monotonic()
    try:
        made = compiler.recipe(kernel.config, cc)
        if found := compiler.find(made):
            return Outcome(kernel.name, "cached", library=str(found))
        library = compiler.build(made, quiet=True)
    except (CompileError, OSError, ValueError) as error:
        return Outcome(kernel.name, "failed", monotonic() - began, error=str(error))
    return Outcome(kernel.name, "compiled", monotonic() - began, str(library))
