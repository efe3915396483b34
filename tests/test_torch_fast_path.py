"""Which calls of cutlass_py.torch's functions go straight to gemm on the CPU, and which something has to see."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from test_torch_functions import CALLS, near, randn, seed, under_dispatch_mode  # noqa: E402, F401 (a fixture)
from test_torch_private import DISPATCH  # noqa: E402

import cutlass_py  # noqa: E402
import cutlass_py.torch as ct  # noqa: E402
from cutlass_py import _core  # noqa: E402
from cutlass_py.torch import functions, gemm_function  # noqa: E402
from cutlass_py.torch.fast_path import TORCH_HOOKS  # noqa: E402


class Seen:
    """Counts straight calls that computed something, and recorded nothing."""

    def __init__(self, monkeypatch):
        self.straight = 0
        ways = [(gemm_function, "_gemm"), (gemm_function, "_fast_gemm")]
        ways += [(functions, "_fast_product"), (functions, "_fast_linear")]
        for module, name in ways:
            monkeypatch.setattr(module, name, self.counting(getattr(module, name)))

    def counting(self, real):
        def count(*arguments, **keywords):
            result = real(*arguments, **keywords)
            self.straight += result is not None and not result.requires_grad
            return result

        return count


@pytest.fixture
def seen(monkeypatch):
    return Seen(monkeypatch)


@pytest.mark.parametrize(("name", "shapes", "keywords"), CALLS, ids=str)
def test_calls_without_gradients_go_straight(seen, name, shapes, keywords):
    operands = [torch.nn.Parameter(randn(*shape)) for shape in shapes]
    with torch.no_grad():
        getattr(ct, name)(*operands, **keywords)
    assert seen.straight >= 1


class Plain(torch.Tensor):
    pass


def under_function_mode(f):
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return f()


def under_fake_mode(f):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return f()


SEEN = {
    "function mode": lambda f, a, b: under_function_mode(lambda: f(a, b)),
    "dispatch mode": lambda f, a, b: under_dispatch_mode(lambda: f(a, b)),
    "fake mode": lambda f, a, b: under_fake_mode(lambda: f(a, b)),
    "vmap": lambda f, a, b: torch.func.vmap(f, (None, 0))(a, b[None])[0],
    "grad": lambda f, a, b: torch.func.vjp(lambda x: f(x, b), a)[0],
    "subclass": lambda f, a, b: f(a.as_subclass(Plain), b),
    "meta": lambda f, a, b: f(a.to("meta"), b.to("meta")),
    "gradient": lambda f, a, b: f(a.requires_grad_(), b),
    "fake": lambda f, a, b: under_fake_mode(lambda: f(torch.empty(3, 4), torch.empty(4, 5))),
}


@pytest.mark.parametrize("around", [under_fake_mode, lambda f: torch.func.functionalize(lambda x: f())(randn(2))])
def test_a_result_without_memory_is_refused(around):
    a, b = randn(3, 4), randn(4, 5)
    with pytest.raises(ValueError, match="gemm: out is a .* without memory"):
        around(lambda: cutlass_py.gemm(a, b))


@pytest.mark.parametrize("way", SEEN.values(), ids=SEEN)
@pytest.mark.parametrize("name", ["mm", "matmul", "linear", "gemm"])
def test_these_calls_are_seen(seen, name, way):
    a, b = randn(3, 4), randn(4, 5)
    function = getattr(ct, name)
    d = way(function if name != "linear" else lambda x, y: function(x, y.mT), a, b)
    assert d.shape == (3, 5) and seen.straight == 0


def test_a_default_device_does_not_have_to_see_calls(seen):
    a, b = randn(3, 4), randn(4, 5)
    with torch.device("cpu"):
        ct.mm(a, b)
        assert seen.straight == 1
        under_function_mode(lambda: ct.mm(a, b))
    assert seen.straight == 1


def test_out_is_written_on_the_way_through_the_operator(seen):
    a, b, out, pre = randn(3, 4), randn(4, 5), torch.empty(3, 5), torch.empty(3, 5)
    assert under_dispatch_mode(lambda: ct.mm(a, b, out=out)) is out and seen.straight == 0
    near(out, a @ b)
    under_dispatch_mode(lambda: ct.gemm(a, b, aux=pre, activation="relu", out=out))
    near(pre, a @ b), near(out, torch.relu(a @ b))
    with pytest.raises(ValueError, match="out is .3, 4.; expected .3, 5."):
        under_dispatch_mode(lambda: ct.gemm(a, b, out=torch.empty(3, 4)))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, on first use
def test_forward_mode_is_refused():
    a, b = randn(3, 4), randn(4, 5)
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda x: ct.mm(x, b), (a,), (a,))
    for f in (
        lambda x: ct.mm(x, b).square().sum(),
        lambda x: ct.gemm(x, b, activation="gelu").sum(),
        lambda x: ct.mlp(x, b.mT, b).sum(),
    ):
        grad = torch.func.grad(f)
        for nested in (torch.func.hessian(f), torch.func.jacfwd(grad), lambda x, g=grad: torch.func.jvp(g, (x,), (x,))):
            with pytest.raises(NotImplementedError, match="forward mode"):
                nested(a)
    with torch.autograd.forward_ad.dual_level():
        dual, out = torch.autograd.forward_ad.make_dual(a, a), torch.empty(3, 5)
        for given in (None, out):
            with pytest.raises(NotImplementedError, match="forward mode"):
                ct.mm(dual, b, out=given)
            near(ct.mm(a, b, out=given), a @ b)


def test_sparse_operands_are_refused():
    with pytest.raises((NotImplementedError, RuntimeError), match="(?i)sparse|without storage|cannot be exported"):
        ct.mm(torch.eye(3).to_sparse(), torch.eye(3))


def test_inference_mode(seen):
    with torch.inference_mode():
        a, b = randn(3, 4), randn(4, 5)
        near(ct.mm(a, b), a @ b)
        near(ct.gemm(a, b, activation="relu"), torch.relu(a @ b))
        near(under_dispatch_mode(lambda: ct.mm(a, b)), a @ b)
    assert seen.straight == 2


def test_modes_of_other_threads_do_not_matter(seen):
    a, b = randn(3, 4), randn(4, 5)
    with ThreadPoolExecutor(1) as pool:
        under_dispatch_mode(lambda: pool.submit(ct.mm, a, b).result())
    assert seen.straight == 1


# ---------------------------------------------------------------------------------------------------- what is asked


def dispatch():
    """c10's two words of how this thread dispatches, as arrays/torch_private.cpp reads them."""
    return list((ctypes.c_uint64 * 2).in_dll(ctypes.CDLL("libc10.so"), DISPATCH))


def traced(f):
    torch.jit.trace(lambda x: f() or x, randn(2), check_trace=False)


def transformed(f):
    torch.func.vmap(lambda x: f() or x)(randn(2))


def autocast(f):
    with torch.autocast("cpu", torch.bfloat16):
        f()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("around", [under_dispatch_mode, under_fake_mode, transformed, traced, autocast])
def test_torch_says_what_is_active_in_a_thread(around):
    """What the fast path in C++ relies on; where it does not hold, calls are dearer or not seen."""

    def answers():
        return [bool(question()) for question in (*TORCH_HOOKS["modes"], TORCH_HOOKS["autocasting"])]

    found = []
    around(lambda: found.append((answers(), dispatch())))
    assert not any(answers()) and found and any(found[0][0])
    assert dispatch() == [0, 0] and found[0][1] != [0, 0]


@pytest.fixture
def asked():
    """How often each question about dispatch has been asked."""
    counts = {"modes": 0, "autocasting": 0}

    def counting(name, real):
        def question():
            counts[name] += 1
            return real()

        return question

    counted = {
        "modes": tuple(counting("modes", real) for real in TORCH_HOOKS["modes"]),
        "autocasting": counting("autocasting", TORCH_HOOKS["autocasting"]),
    }
    layers = {"cast": functions._cast_layer, "record_layer": functions.layer}
    _core.set_torch_hooks(**(TORCH_HOOKS | layers | counted))
    yield counts
    _core.set_torch_hooks(**TORCH_HOOKS, **layers)


def test_a_thread_is_asked_once_for_each_way_to_dispatch(asked):
    a, b = randn(3, 4), randn(4, 5)
    every = {"modes": len(TORCH_HOOKS["modes"]), "autocasting": 1}

    def calls():
        for _ in range(3):
            ct.mm(a, b)
        assert asked == {"modes": 0, "autocasting": 0}, "a thread begins without any"
        with torch.inference_mode():
            for _ in range(3):
                ct.mm(a, b)
            assert asked == every
            under_dispatch_mode(lambda: ct.mm(a, b))
            assert asked["modes"] > every["modes"]
            assert asked["autocasting"] == every["autocasting"], "not asked where a mode has to see the call"

    with ThreadPoolExecutor(1) as pool:  # of this thread others may have asked already
        pool.submit(calls).result()


WITHOUT_C10 = """
import sys
import numpy as np
from cutlass_py import _core

counts = {"modes": 0, "autocasting": 0}

def asked(name):
    def question():
        counts[name] += 1
        return False
    return question

_core.set_torch_hooks(
    tensor_types=(np.ndarray,), number_types=(), modes=(asked("modes"), asked("modes")), function_mode=lambda: False,
    no_interceptors=print, forward_level=({"level": -1}, "level"), autocasting=asked("autocasting"), cast=print,
    record_layer=print,
)
a, b = np.ones((3, 4)), np.ones((4, 5))
for _ in range(3):
    assert (_core.fast_product(a, b, None, None, 2) == 4).all()
print("torch" in sys.modules, counts)
"""


def test_a_thread_is_asked_at_every_call_where_c10_does_not_say():
    """In a process without torch, whose tensors are NumPy's."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_C10], capture_output=True, text=True)
    assert done.stdout == "False {'modes': 6, 'autocasting': 3}\n", done.stderr


def test_a_way_that_was_seen_is_asked_about_again(seen):
    a, b = randn(3, 4), randn(4, 5)
    for _ in range(2):
        under_dispatch_mode(lambda: ct.mm(a, b))
        assert seen.straight == 0
    ct.mm(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert ct.mm(a, b).dtype == ct.mm(a, b).dtype == torch.bfloat16
    assert ct.mm(a, b).dtype == torch.float32


# ---------------------------------------------------------------------------------------------------- and besides


@pytest.mark.parametrize("grad", [False, True])
def test_nothing_holds_on_to_operands(grad):
    import gc

    a, b, bias, out = randn(3, 4), randn(4, 5).requires_grad_(grad), randn(5), torch.empty(3, 5)

    def calls():
        for _ in range(50):
            ct.gemm(a, b, bias=bias, activation="gelu").sum()
            ct.linear(a, b.mT, bias)
            ct.mm(a, a.mT, out=torch.empty(3, 3))
            with pytest.raises(RuntimeError):
                ct.mm(a, b, out=out.double())
        gc.collect()
        return [sys.getrefcount(x) for x in (a, b, bias, out)]

    assert calls() == calls()


def test_flops_are_counted():
    from torch.utils.flop_counter import FlopCounterMode

    a, b = randn(3, 4).requires_grad_(), randn(2, 4, 5).requires_grad_()
    with FlopCounterMode(display=False) as counter:
        ct.matmul(a, b).sum().backward()
    assert counter.get_total_flops() == 3 * 2 * (2 * 3 * 4 * 5)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, cutlass_py; print('torch' in sys.modules); import cutlass_py.torch as t; print(t.mm.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\ncutlass_py.torch.functions\n", done.stderr
