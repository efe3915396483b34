"""Kernels that users bring, from registration until nothing is left of them; and what cannot be registered."""

from __future__ import annotations

import gc
import re
import weakref

import pytest
from own_kernels import HOST, A, B, Own, fails, metadata, multiply

import cutlass_py
from cutlass_py import (
    Design,
    GemmArguments,
    OperandMetadata,
    ProviderError,
    _core,
    explain,
    get_kernels,
    register_kernel,
    register_provider,
    unregister,
)
from cutlass_py.arrays.host import host_array
from cutlass_py.compiling import compiler
from cutlass_py.dispatch.planning import plan
from cutlass_py.kernels import registry

pytestmark = pytest.mark.usefixtures("nothing_is_left")


def with_operand(name, operand, **fields):
    return metadata(operands={**metadata().operands, name: operand}, **fields)


# ---------------------------------------------------------------------------------------- found, and gone


def test_a_registered_kernel_is_listed_filtered_and_explained():
    args = GemmArguments(HOST, HOST)
    before = get_kernels(), get_kernels(args)
    with register_provider(Own(metadata(family="mine", design=Design(tile=(4, 4, 1))))) as registration:
        (kernel,) = registration.kernels
        assert get_kernels() == [*before[0], kernel] and get_kernels(args) == [*before[1], kernel]
        assert get_kernels(where=lambda m: m.design.tile == (4, 4, 1)) == [kernel]
        assert get_kernels(cc=90, where=lambda m: m.family == "mine") == []
        assert kernel.metadata.epilogue == "alpha * acc" and repr(kernel) == "<Kernel own_f64>"
        answer = explain(args)
        assert [choice.route.kernel for choice in answer.ranking][1:] == [kernel]
        assert "no estimate  own_f64" in str(answer)
        assert "own_f64: does not read c; c is given" in str(explain(GemmArguments(HOST, HOST, c=HOST)))
    assert (get_kernels(), get_kernels(args)) == before
    assert "own_f64" not in str(explain(args))


def test_what_is_unregistered_is_not_found_by_name_or_number():
    with register_kernel(metadata(), multiply) as registration:
        (kernel,) = registration.kernels
        number = registry.kernel_id("own_f64")
        asked = _core.problem(A, B, kernel="own_f64")
        assert registry.kernel_by_id(number) is kernel
        assert (cutlass_py.gemm(A, B, kernel=kernel) == A @ B).all()
    with pytest.raises(ValueError, match="no kernel is called 'own_f64'"):
        cutlass_py.gemm(A, B, kernel="own_f64")
    with pytest.raises(ValueError, match="not registered any more"):
        plan(asked)
    registration.unregister()  # once is enough
    with register_kernel(metadata(), lambda call: host_array(call.d).fill(7)):
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == 7).all()
        with pytest.raises(ValueError, match="own_f64 was unregistered; another one has its name now"):
            cutlass_py.gemm(A, B, kernel=kernel)


def test_a_kernel_that_is_gone_does_not_take_another_with_it():
    """Another one of its name, or a provider that is called so."""
    with register_kernel(metadata("mine"), multiply) as registration:
        (gone,) = registration.kernels
    with register_kernel(metadata("mine"), multiply) as again:
        with pytest.raises(ValueError, match="^unregister: kernel mine was unregistered; another one has its name now"):
            unregister(gone)
        assert again.active
        unregister(again.kernels[0])
        assert not again.active
    provider = Own()
    provider.name = "mine"
    with register_provider(provider) as other:
        with pytest.raises(ValueError, match="nothing is registered as 'mine'; there is mine"):
            unregister(gone)
        assert other.active


def test_a_plan_that_is_held_goes_on():
    with register_kernel(metadata(), multiply) as registration:
        held = registration.kernels[0].plan(GemmArguments(A, B))
    assert (held(A, B) == A @ B).all()


def test_a_kernel_of_a_provider_goes_with_it():
    with register_provider(Own()) as registration:
        with pytest.raises(ValueError, match="'own_f64' is of provider '.*', which is unregistered as a whole"):
            cutlass_py.unregister(registration.kernels[0])
        assert cutlass_py.get_kernels(where=lambda m: m.name == "own_f64")


def test_nothing_keeps_a_provider_that_is_gone():
    provider = Own(estimate=1.0)
    with register_provider(provider):
        cutlass_py.gemm(A, B)
        cutlass_py.gemm(A, B, kernel="own_f64")
    gone = weakref.ref(provider)
    del provider
    gc.collect()
    assert gone() is None


def test_a_plan_that_was_being_made_meanwhile_is_not_kept():
    """Another thread, say, unregisters a kernel while a call is choosing it."""

    def answers(call):
        host_array(call.d)[...] = 42

    def leaves(problem):
        if registered:
            registered.pop().unregister()

    registered = [register_kernel(metadata("first"), answers, estimate=lambda p: 1.0)]
    with register_kernel(metadata("second"), multiply, estimate=leaves):
        assert (cutlass_py.gemm(A, B) == 42).all() and not registered
        assert (cutlass_py.gemm(A, B) == A @ B).all()


def test_a_failed_compile_is_forgotten():
    """A better source under the same name is not refused for what the first one was."""
    compiler.failed["mine"] = "cannot compile mine"
    registry.forget_kernel("mine")
    assert "mine" not in compiler.failed


def test_taken_back_by_name():
    register_provider(Own())
    unregister("own")
    with pytest.raises(ValueError, match="nothing is registered as 'own'; there is nothing"):
        unregister("own")
    with register_kernel(metadata("single"), multiply):
        with pytest.raises(ValueError, match="there is single"):
            unregister("numpy")


def test_an_exception_ends_the_registration():
    with pytest.raises(ZeroDivisionError), register_provider(Own()):
        raise ZeroDivisionError
    assert "own_f64" not in [kernel.name for kernel in get_kernels()]


# ---------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (Own(metadata("other")), "'own' is registered already; cutlass_py.unregister('own') takes it back"),
        (type("Other", (Own,), {"name": "other"})(), "a kernel is called 'own_f64' already"),
        (type("Other", (Own,), {"name": "numpy"})(), "'numpy' is the package's own"),
        (type("Other", (Own,), {"name": "other"})(metadata("cpu_gemm_numpy")), "'cpu_gemm_numpy' already"),
        (
            type("Other", (Own,), {"name": "other"})(metadata("twice"), metadata("twice")),
            "two kernels of the same name",
        ),
    ],
)
def test_names_are_taken_once(second, reason):
    with register_provider(Own()):
        before = get_kernels()
        with pytest.raises(ValueError, match="^register_provider: .*" + re.escape(reason)):
            register_provider(second)
        assert get_kernels() == before


def test_the_name_of_a_declared_kernel_is_taken():
    declared = get_kernels(compiled=False)[0].name
    with pytest.raises(ValueError, match=f"^register_kernel: .*'{declared}' already"):
        register_kernel(metadata(declared), multiply)


@pytest.mark.parametrize(
    ("wrong", "error", "reason"),
    [
        (3, TypeError, "found int; expected a cutlass_py.Provider"),
        (Own, TypeError, "found ABCMeta"),
        (type("Nameless", (Own,), {"name": None})(), TypeError, "the name of Nameless is None"),
        (Own(3), ProviderError, "provider own: kernels: found int; expected KernelMetadata"),
        (Own(metadata("a b")), ProviderError, "a kernel is called 'a b'"),
        (Own(metadata("\u00e9")), ProviderError, "a kernel is called '\u00e9'; expected letters, digits and _"),
        (Own(metadata(api="3")), ProviderError, "own_f64: api is '3'; expected int"),
        (Own(metadata(operands={"a": OperandMetadata("f64")})), ProviderError, "own_f64 has no operand b, d"),
        (Own(metadata(dtype="f65")), ProviderError, "own_f64: a is 'f65'; expected one of f16"),
        (Own(metadata(accumulator="f65")), ProviderError, "accumulator is 'f65'"),
        (Own(metadata(operands=None)), ProviderError, "operands is None; expected a dictionary of OperandMetadata"),
        (Own(metadata(operands=dict.fromkeys("abd", 1))), ProviderError, "expected a dictionary of OperandMetadata"),
        (Own(metadata(operands=dict.fromkeys("abd", OperandMetadata("*", "*", 0)))), ProviderError, "alignment 0"),
        (Own(metadata(cc=80)), ProviderError, "own_f64: cc is 80; expected the lowest and the highest"),
        (Own(metadata(cc=(90, 80))), ProviderError, "own_f64: cc is (90, 80)"),
        (Own(metadata(operands=dict.fromkeys("abdx", OperandMetadata("*")))), ProviderError, "an operand 'x'"),
        (Own(metadata(operands=dict.fromkeys("abd", OperandMetadata("f64", "c")))), ProviderError, "has layout 'c'"),
        (Own(metadata(operands=dict.fromkeys("abd", OperandMetadata("f64", "*", 16)))), ProviderError, "of an element"),
        (Own(metadata(operands=dict.fromkeys("abd", OperandMetadata("f64", "t", 24)))), ProviderError, "alignment 24"),
        (Own(metadata(operands=dict.fromkeys("abd", OperandMetadata("f64", "t", 32)))), ProviderError, "alignment 32"),
        (Own(with_operand("d", OperandMetadata("f64", "n"))), ProviderError, "d has layout 'n'; expected 't', '*'"),
        (Own(with_operand("gate", OperandMetadata("f64", "q"))), ProviderError, "gate has layout 'q'"),
        (Own(with_operand("bias", OperandMetadata("f64", "t"))), ProviderError, "bias has layout 't'"),
        (Own(with_operand("d", OperandMetadata("tf32"))), ProviderError, "d is 'tf32'; expected one of f16"),
        (Own(with_operand("a", OperandMetadata("s32"))), ProviderError, "a is 's32'; expected one of f16"),
        (Own(with_operand("b", OperandMetadata("f32"))), ProviderError, "b is 'f32'; expected what f64 is multiplied"),
        (Own(metadata(accumulator="f32")), ProviderError, "accumulator is 'f32'; expected what f64 is summed in: f64"),
        (Own(metadata(design=None)), ProviderError, "own_f64: design is None; expected Design"),
        (Own(metadata(deterministic="yes")), ProviderError, "deterministic is 'yes'; expected bool"),
        (Own(metadata(epilogue=None)), ProviderError, "epilogue is None; expected str"),
    ],
)  # fmt: skip
def test_a_provider_that_says_nonsense_of_its_kernels(wrong, error, reason):
    with pytest.raises(error, match=re.escape(reason)):
        register_provider(wrong)


def test_a_provider_that_fails_to_say_what_its_kernels_are():
    provider = Own()
    provider.kernels = fails
    with pytest.raises(ProviderError, match="provider own: kernels raised KeyError: 'nothing in here'") as caught:
        register_provider(provider)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ((3,), TypeError, "found int; expected CudaKernel or KernelMetadata"),
        ((metadata(),), TypeError, "metadata say what `run` computes and `estimate` says; expected functions"),
        ((metadata(), multiply, "model"), TypeError, "expected functions"),
        ((metadata(), multiply, 3), TypeError, "expected functions"),
        ((metadata("a b"), multiply), ValueError, "register_kernel: a kernel is called 'a b'"),
        ((metadata(cc=(80,)), multiply), ValueError, "register_kernel: own_f64: cc is (80,); expected the lowest"),
        ((metadata(epilogue="x"), multiply), ValueError, "register_kernel: own_f64: epilogue is 'x'; expected a name"),
        (
            (with_operand("c", OperandMetadata("f32"), epilogue="linearc"), multiply),
            ValueError,
            "register_kernel: own_f64: c is 'f32'; expected d's dtype, 'f64', or a provider with its own supports",
        ),
        (
            (with_operand("bias", OperandMetadata("f64", "m"), epilogue="bias"), multiply),
            ValueError,
            "register_kernel: own_f64: bias has layout 'm'; expected 'n', as epilogue 'bias' has it",
        ),
    ],
)
def test_register_kernel_refuses(arguments, error, reason):
    kernel, run, estimate = (*arguments, None, None)[:3]
    with pytest.raises(error, match=("^" if reason.startswith("register") else "") + re.escape(reason)):
        register_kernel(kernel, run, estimate=estimate)
