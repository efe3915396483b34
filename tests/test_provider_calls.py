"""What kernels that users bring are called with, on the CPU: compiled, lent operands, the prepared call, the stream."""

from __future__ import annotations

import gc
import sys
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import ml_dtypes  # noqa: F401
import numpy as np
import pytest
from own_kernels import A, B, Own, fails, metadata, multiply

import cutlass_py
from cutlass_py import GemmArguments, ProviderError, Status, register_kernel, register_provider
from cutlass_py.arrays import frameworks
from cutlass_py.arrays.host import host_array
from cutlass_py.declaration.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("nothing_is_left")

# ---------------------------------------------------------------------------------------- compiled


def test_compile_asks_the_provider():
    compiled = []
    provider = Own(estimate=1.0)
    with register_provider(provider) as registration:
        (kernel,) = registration.kernels
        kernel.compile()  # nothing, by default
        provider.compile = compiled.append
        artifact = kernel.compile(GemmArguments(A, B))
        assert compiled == [kernel.metadata] and artifact.kernel == "own_f64" and kernel.compiled
        cutlass_py.gemm(A, B)
        assert len(compiled) == 1 and kernel.workspace_size(GemmArguments(A, B)) == 0
        with pytest.raises(ValueError, match="compile: kernel own_f64 does not fit"):
            kernel.compile(GemmArguments(A, B, bias=np.ones(5)))
        provider.compile = fails
        with pytest.raises(ProviderError, match="provider own, kernel own_f64: compile raised KeyError") as caught:
            kernel.compile()
        assert isinstance(caught.value.__cause__, KeyError)


# ---------------------------------------------------------------------------------------- run


def test_operands_are_handed_over_without_a_copy():
    seen = []

    def look(call):
        a, b, d = (np.from_dlpack(x) for x in (call.a, call.b, call.d))
        seen.append((call, a.ctypes.data, a.shape, b.strides, call.b.strides, d.flags.writeable))
        assert call.a.address == a.ctypes.data and call.a.device == "cpu" and call.a.dtype == "f64"
        assert call.a.__dlpack_device__() == (1, 0) and call.stream is None and call.c is None
        d[...] = a @ b

    wide = np.arange(40.0).reshape(4, 10)[:, ::2]
    with register_kernel(metadata(), look):
        assert (cutlass_py.gemm(A, wide, kernel="own_f64") == A @ wide).all()
    call, address, shape, strides, elements, writeable = seen[0]
    assert address == A.ctypes.data and shape == (1, 3, 4) and writeable
    assert strides[1:] == wide.strides and elements[1:] == (10, 2)
    for lend in (call.a.__dlpack__, lambda: call.a.address, lambda: call.a.__array_interface__):
        with pytest.raises(BufferError, match="lent to a kernel for the length of its run"):
            lend()


def test_a_column_major_result_arrives_transposed_and_a_batch_in_one_piece():
    shapes = []

    def look(call):
        shapes.append((call.a.shape, call.b.shape, call.d.shape, call.a.strides[0]))
        multiply(call)

    with register_kernel(metadata(), look):
        out = np.empty((5, 3)).T
        assert (cutlass_py.gemm(A, B, out=out, kernel="own_f64") == A @ B).all()
        batch = np.arange(40.0).reshape(2, 4, 5)
        assert (cutlass_py.gemm(A, batch, kernel="own_f64") == A @ batch).all()
    assert shapes == [((1, 5, 4), (1, 4, 3), (1, 5, 3), 0), ((2, 3, 4), (2, 4, 5), (2, 3, 5), 0)]


def test_every_operand_of_the_formula_arrives():
    seen = []

    def look(call):
        seen.append(call)
        assert call.alpha.shape == () and call.scale_a.strides[2] == 0 and call.bias.strides == (0, 0, 1)
        assert call.bias_grad.shape == (1, 1, 5) and call.activation == "gelu" and call.problem.n == 5
        host_array(call.d)[...], host_array(call.aux)[...], host_array(call.bias_grad)[...] = 1, 2, 3

    every = Own(metadata(dtype="*", accumulator="*"), run=look, supports=lambda p: Status())
    x, aux, grad = A.astype("f4"), np.zeros((3, 5), "f4"), np.zeros(5, "f4")
    with register_provider(every):
        d = cutlass_py.gemm(
            x, B.astype("f4"), c=aux.copy(), beta=0.5, alpha=np.ones(1, "f4"), bias=np.ones(5, "f4"), activation="gelu",
            aux=aux, scale_a=np.ones(3, "f4"), scale_out=2.0, bias_grad=grad, kernel="own_f64",
        )  # fmt: skip
    assert (d == 1).all() and (aux == 2).all() and (grad == 3).all()
    assert seen[0].scale_out == 2.0 and seen[0].beta == 0.5 and seen[0].gate is None and seen[0].scale_b is None


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "e4m3", "s8", "u8", "c64", "c128"])
def test_numpy_reads_every_dtype(dtype):
    name, seen = DTYPES[dtype].numpy, []

    def look(call):
        assert np.asarray(call.a).view(name).dtype.name == name  # as docs/providers.md has it
        seen.append((host_array(call.a).dtype.name, host_array(call.b).copy()))

    x = np.arange(6).reshape(2, 3).astype(name)
    every = Own(metadata(dtype="*", accumulator="*"), run=look, supports=lambda p: Status())
    with register_provider(every):
        cutlass_py.gemm(x, x[:, ::-1].T, kernel="own_f64")
        cutlass_py.gemm(x[:, :0], x[:, :0].T, kernel="own_f64")
    assert seen[0][0] == name and (seen[0][1] == x[:, ::-1].T).all() and seen[1][1].shape == (1, 0, 2)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_take_what_is_lent(framework):
    pytest.importorskip(framework)
    import jax
    import torch

    def product(call):
        if framework == "torch":
            a, b, d = (torch.from_dlpack(x) for x in (call.a, call.b, call.d))
            torch.matmul(a, b, out=d)
        else:
            with jax.enable_x64(True):
                a, b = (jax.numpy.array(host_array(x)) for x in (call.a, call.b))
                host_array(call.d)[...] = a @ b

    with register_kernel(metadata(), product):
        assert (cutlass_py.gemm(A, B, kernel="own_f64") == A @ B).all()
        x = torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
        assert torch.equal(cutlass_py.gemm(x, x.mT, kernel="own_f64"), x @ x.mT)


def test_bf16_goes_to_torch():
    torch = pytest.importorskip("torch")

    def product(call):
        assert torch.from_dlpack(call.a).dtype == torch.bfloat16
        torch.matmul(*(torch.from_dlpack(x) for x in (call.a, call.b)), out=torch.from_dlpack(call.d))

    x = np.ones((4, 4), "bfloat16")
    with register_kernel(metadata(dtype="bf16", accumulator="f32"), product):
        assert (cutlass_py.gemm(x, x, kernel="own_f64") == 4).all()


def test_a_prepared_call_and_a_run():
    with register_kernel(metadata(), multiply) as registration:
        (kernel,) = registration.kernels
        args = GemmArguments(A, B, alpha=2.0)
        prepared = kernel.plan(args)
        assert (kernel.run(args, kernel.compile(args)) == 2 * A @ B).all() and kernel.workspace_size(args) == 0
        assert (prepared(A + 1, B) == 2 * (A + 1) @ B).all()
    assert (prepared(A, B) == 2 * A @ B).all()  # it keeps what it was made with


def test_a_plan_and_what_runs_it_are_collected_together():
    def product(call):
        multiply(call)

    with register_kernel(metadata(), product) as registration:
        product.plan = registration.kernels[0].plan(GemmArguments(A, B))
    assert (product.plan() == A @ B).all()
    gone = weakref.ref(product)
    del product, registration
    gc.collect()
    assert gone() is None


def test_the_stream_of_a_call_becomes_the_current_one_of_imported_frameworks(monkeypatch):
    entered = []

    @contextmanager
    def under(device, stream):
        entered.append((device, stream))
        yield
        entered.append("left")

    here = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True))
    absent = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    rows = {
        name: frameworks.Framework(name, lambda *_: None, under=under)
        for name in ("there", "without_cuda", "not_imported")
    }
    monkeypatch.setattr(frameworks, "_ROWS", rows)
    monkeypatch.setitem(sys.modules, "there", here)
    monkeypatch.setitem(sys.modules, "without_cuda", absent)
    with frameworks.launching_on(2, 77):
        assert entered == [(2, 77)]
    assert entered == [(2, 77), "left"]
