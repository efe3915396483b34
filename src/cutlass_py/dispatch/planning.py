"""`plan`: how a class of problems is computed. The extension asks once for each class that it meets."""

from __future__ import annotations

import logging

from .. import _core
from ..arrays.gpu import gpu_of
from ..errors import NoKernelError, wrong_value
from ..kernels.kernel import CutlassKernel, Kernel, PythonKernel
from ..kernels.operation import Problem, describe, operation_of
from ..kernels.registry import kernel_by_id
from .candidates import Choice, Route, best, choice_of
from .launch_plan import LaunchPlan, launch_plan_of
from .rejections import nothing_fits

logger = logging.getLogger("cutlass_py")


def plan(p: Problem, *, provided: bool = True) -> LaunchPlan:
    """How a problem is computed: the plan of the best kernel, or of the one asked for.

    Args:
        provided: whether the kernel may be one written in Python.

    Raises:
        ValueError: the kernel asked for does not fit.
        ProviderError: the provider of the kernel asked for failed to answer.
        NoKernelError: no kernel fits.
        CompileError: the kernel asked for, or the best one within `jit`, cannot be compiled.
    """
    choice = _chosen(p, provided)
    made = launch_plan_of(choice, p) if choice else LaunchPlan(each=bool(operation_of(p).divided(p)))
    log_plan(p, made, choice)
    return made


def log_plan(p: Problem, plan: LaunchPlan, choice: Choice | None) -> None:
    """Says in the log how a class of problems is computed."""
    if logger.isEnabledFor(logging.INFO):
        time = f"; {choice.time}" if choice and choice.time else ""
        logger.info("plan of %s: %s%s", describe(p), plan, time)


def _chosen(p: Problem, provided: bool) -> Choice | None:
    """The choice; None where no kernel is needed, and for what is divided into problems of their own."""
    operation = operation_of(p)
    forced = _forced(kernel_by_id(p.kernel), p, provided) if p.kernel >= 0 else None
    if operation.without_kernel(p):
        return None  # even where a kernel was asked for: it would read operands that are not there
    if forced:
        return forced
    if (choices := _core.tuning_allowed()) and p.user < 0:
        from .autotune import tune_once  # which nothing else of a first call needs

        tune_once(p, choices)
    choice = best(p, provided=provided)
    if choice or operation.divided(p):
        return choice
    raise NoKernelError(nothing_fits(p), _core.current_operation())


def _forced(kernel: Kernel, p: Problem, provided: bool) -> Choice:
    gpu = gpu_of(p)
    kernel = kernel.with_epilogue(p)
    if not isinstance(kernel, PythonKernel):
        way = kernel.way(p, gpu)
    elif provided:
        way = kernel.answer(p, gpu)  # or fails: who names a kernel hears of it
    else:
        way = "is written in Python, which there is none of inside of a compiled computation"
    if isinstance(way, str) or way.detours:
        reason = way if isinstance(way, str) else way.detours[0]
        raise wrong_value("kernel", f"{kernel.name} does not fit {describe(p)}: {reason}")
    if not isinstance(kernel, CutlassKernel) or gpu is None:
        return Choice(Route(kernel, way), 0.0)
    return choice_of(operation_of(p).forced(kernel, way, p, gpu), p, gpu)
