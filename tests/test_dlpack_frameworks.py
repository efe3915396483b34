"""Arrays of torch, JAX, cuda.core and CuPy as operands: those that gemm cannot read are refused and named."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from exporters import AB, A, B, Exporter

from cutlass_py import GemmArguments, QuantizeArguments, gemm, quantize, view
from cutlass_py.arrays import frameworks

# ---------------------------------------------------------------------------------------- torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


NO_MEMORY = "without memory of its own"


def test_fake_tensors(torch):
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(3, 4)
    a = Exporter(A)
    with pytest.raises(ValueError, match=f"b is a torch._subclasses.fake_tensor.FakeTensor {NO_MEMORY}"):
        gemm(a, fake.T)
    assert a.balanced


def test_functional_tensors(torch):
    with pytest.raises(ValueError, match=NO_MEMORY):
        torch.func.functionalize(lambda x: gemm(x, x))(torch.ones(3, 3))


@pytest.mark.filterwarnings("ignore")
def test_distributed_tensors(torch, tmp_path):
    distributed = pytest.importorskip("torch.distributed")
    if not (distributed.is_available() and distributed.is_gloo_available()):
        pytest.skip("torch was built without gloo")
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        x = DTensor.from_local(torch.ones(3, 3), init_device_mesh("cpu", (1,)), [Replicate()])
        with pytest.raises(ValueError, match=f"a is a torch.distributed.tensor.DTensor {NO_MEMORY}"):
            gemm(x, torch.ones(3, 3))
        assert (gemm(x.to_local(), torch.ones(3, 3)) == 3).all()
    finally:
        distributed.destroy_process_group()


UNREADABLE = {
    "meta": lambda t: t.ones(3, 3, device="meta"),
    "sparse": lambda t: t.eye(3).to_sparse(),
    "quantized": lambda t: t.quantize_per_tensor(t.ones(3, 3), 1.0, 0, t.qint8),
    "nested": lambda t: t.nested.nested_tensor([t.ones(3, 3)] * 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_tensors_that_cannot_be_exported_are_named(torch, kind):
    x = kind(torch)
    with pytest.raises((ValueError, TypeError), match=r"gemm: b ") as error:
        gemm(torch.ones(3, 3), x)
    assert "frame #" not in str(error.value), "torch's C++ frames are no help to anybody"


def test_gradients_are_refused_unless_they_are_off(torch):
    x, y = torch.nn.Parameter(torch.ones(3, 4)), torch.ones(4, 5)
    with pytest.raises(ValueError, match=r"a requires a gradient.*torch.no_grad\(\) or pass a.detach\(\)"):
        gemm(x, y)
    with pytest.raises(ValueError, match="out requires a gradient"):
        gemm(x.detach(), y, out=torch.ones(3, 5, requires_grad=True))
    with pytest.raises(ValueError, match="c requires a gradient"):
        gemm(x.detach(), y, c=torch.ones(3, 5, requires_grad=True))
    with torch.no_grad():
        d = gemm(x, y)
    assert type(d) is torch.Tensor and not d.requires_grad and (d == 4).all()
    assert (gemm(x.detach(), y) == 4).all()
    with torch.inference_mode():
        assert (gemm(x * 1, y) == 4).all()


def test_gradients_in_a_view(torch):
    x = torch.ones(3, 3, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(ValueError, match="a requires a gradient"):
        gemm(view(x, "bf16"), torch.ones(3, 3, dtype=torch.bfloat16))


def test_gradients_of_a_subclass_are_those_that_it_names(torch):
    class Property(torch.Tensor):
        asked = 0

        @property
        def requires_grad(self):
            Property.asked += 1
            return True

    class Attribute(torch.Tensor):
        requires_grad = False  # what the tensor itself holds comes before it

    x = torch.ones(3, 3)
    with pytest.raises(ValueError, match="b requires a gradient"):
        gemm(x, x.as_subclass(Property))
    assert Property.asked
    y = x.as_subclass(Attribute)
    assert (gemm(x, y).as_subclass(torch.Tensor) == 3).all()
    y.__dict__["requires_grad"] = True
    with pytest.raises(ValueError, match="b requires a gradient"):
        gemm(x, y)


def test_gradients_of_a_subclass_that_looks_attributes_up_itself(torch):
    class First(torch.Tensor):
        def __getattribute__(self, name):
            return True if name == "requires_grad" else super().__getattribute__(name)

    class Last(torch.Tensor):
        @property
        def requires_grad(self):
            raise AttributeError("not here")

        def __getattr__(self, name):
            return name == "requires_grad"

    x = torch.ones(3, 3)
    for kind in (First, Last):
        with pytest.raises(ValueError, match="b requires a gradient"):
            gemm(x, x.as_subclass(kind))


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (3, 1), (1, 1)], ids=str)
def test_lazily_negated_views_are_refused(torch, shape):
    z = torch.full(shape, 1 + 2j, dtype=torch.complex64)
    x = z.conj().imag
    assert x.is_neg()
    y = torch.ones(shape[1], 2)
    with pytest.raises(ValueError, match=r"a is a lazily negated or conjugated view; pass a.resolve_neg\(\)"):
        gemm(x, y)
    assert (gemm(x.resolve_neg(), y) == -2 * shape[1]).all()
    assert (gemm(z.real, y) == shape[1]).all() and (gemm(z.imag, y) == 2 * shape[1]).all()


def test_negated_views_with_a_unit_stride_are_refused_wherever_they_are_given(torch):
    x = torch.ones(4, 4)
    negated = torch._neg_view(x)
    assert negated.is_neg() and negated.stride() == (4, 1)
    strided = torch.ones(4, 8, dtype=torch.complex64).conj().imag.as_strided((4, 4), (4, 1))
    assert strided.is_neg()
    plan = GemmArguments(x, x).plan()
    scales, codes = torch._neg_view(torch.ones(())), torch._neg_view(torch.empty(4, 4, dtype=torch.int8))
    for call, name in (
        (lambda: gemm(negated, x), "a"), (lambda: gemm(x, strided), "b"), (lambda: gemm(x, x, out=negated), "out"),
        (lambda: gemm(x, x, bias=negated[0]), "bias"), (lambda: gemm([x, negated], [x, x]), r"a\[1\]"),
        (lambda: plan(x, negated), "b"), (lambda: plan(x, x, out=negated), "out"),
        (lambda: GemmArguments(strided, x), "a"), (lambda: quantize(negated), "x"),
        (lambda: quantize(x, "s8", out=codes), "out"), (lambda: quantize(x, scales=scales), "scales"),
        (lambda: QuantizeArguments(strided), "x"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f": {name} is a lazily negated or conjugated view; pass {name}.res"):
            call()
    assert (x == 1).all() and (plan(x, x) == 4).all() and (gemm(negated.resolve_neg(), x) == -4).all()


def test_a_factor_without_dimensions_is_looked_at_as_well(torch):
    alpha = torch.tensor(1 + 2j).conj().imag
    assert alpha.is_neg() and alpha.dim() == 0
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match=r"alpha is a lazily negated or conjugated view; pass alpha.resolve_neg\(\)"):
        gemm(x, x, alpha=alpha)
    assert (gemm(x, x, alpha=alpha.resolve_neg()) == -4).all()


def test_conjugated_views_are_refused(torch):
    x = torch.full((3, 3), 1 + 2j, dtype=torch.complex64)
    assert (gemm(x, x) == x @ x).all()
    for z in (x.conj(), x.mH, torch._neg_view(x)):
        with pytest.raises(ValueError, match=r"a is a lazily negated or conjugated view; pass a.resolve_neg\(\)"):
            gemm(z, x)
    with pytest.raises(ValueError, match="out is a lazily negated or conjugated view"):
        gemm(x, x, out=x.conj())


def test_subclasses_of_tensors_are_tensors(torch):
    class Mine(torch.Tensor):
        pass

    x = torch.ones(3, 3).as_subclass(Mine)
    d = gemm(x, torch.ones(3, 3), out=x.clone())
    assert type(d) is Mine and (d == 3).all()
    assert isinstance(gemm(x, x), torch.Tensor)


def test_vmap_and_grad_are_refused(torch):
    x = torch.ones(2, 3, 3)
    for transform in (torch.vmap(lambda y: gemm(y, y)), torch.func.grad(lambda y: gemm(y, y).sum())):
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            transform(x)


# ---------------------------------------------------------------------------------------- JAX


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def test_jax_arrays_are_no_out(jax):
    x = jax.numpy.ones((3, 3))
    with pytest.raises(TypeError, match="out is a JAX array, which is immutable; use the returned array instead"):
        gemm(x, x, out=x)


def test_tracers_are_refused_by_name(jax):
    x = jax.numpy.ones((3, 3))
    with pytest.raises(TypeError, match="a is a JAX .*Tracer, .* call cutlass_py.jax.gemm"):
        jax.jit(lambda y: gemm(y, x))(x)


def test_deleted_arrays_are_refused(jax):
    x = jax.numpy.ones((3, 3)) + 0
    x.delete()
    with pytest.raises((ValueError, RuntimeError), match="deleted"):
        gemm(x, jax.numpy.ones((3, 3)))


def test_a_shape_is_no_array(jax):
    with pytest.raises(TypeError, match="a is a jax.*ShapeDtypeStruct; expected an array that speaks DLPack"):
        gemm(jax.ShapeDtypeStruct((3, 3), np.float32), jax.numpy.ones((3, 3)))


# ---------------------------------------------------------------------------------------- cuda.core


@pytest.fixture
def strided_memory_view():
    return pytest.importorskip("cuda.core.utils").StridedMemoryView


def test_views_of_cuda_core(strided_memory_view):
    def seen(x):
        return strided_memory_view.from_any_interface(x, stream_ptr=-1)

    d = gemm(seen(A), seen(B))
    assert type(d) is np.ndarray and np.array_equal(d, AB)
    assert np.array_equal(gemm(A[::2], seen(B[:, ::-1])), A[::2] @ B[:, ::-1])
    out = np.zeros_like(AB)
    view_of_out = seen(out)
    assert gemm(seen(A), B, c=seen(AB), out=view_of_out) is view_of_out and np.array_equal(out, 2 * AB)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        gemm(seen(A), B, out=seen(out))


def test_views_of_cuda_core_name_no_bf16(strided_memory_view, torch):
    x = torch.ones(4, 4, dtype=torch.bfloat16)
    bf16 = strided_memory_view.from_any_interface(x, stream_ptr=-1)
    with pytest.raises(ValueError, match="a is a.*StridedMemoryView that cannot be exported: .*bfloat16"):
        gemm(bf16, x)
    bits = strided_memory_view.from_any_interface(x.view(torch.uint16), stream_ptr=-1)
    assert (gemm(view(bits, "bf16"), x, out_dtype="f32") == 4).all()


# ---------------------------------------------------------------------------------------- CuPy


def test_the_current_stream_of_cupy_is_asked_of_a_function_bound_once(monkeypatch):
    local = threading.local()
    cuda = ModuleType("cupy.cuda")
    cuda.get_current_stream = lambda device: SimpleNamespace(ptr=local.first + device)
    monkeypatch.setitem(sys.modules, "cupy", ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    current_stream = frameworks.row(type("ndarray", (), {"__module__": "cupy"})).current_stream()
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)  # whoever imports it now fails

    def on_a_thread(first):
        local.first = first
        return [current_stream(device) for device in (0, 3)]

    for first in (100, 200):
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(on_a_thread, first).result() == [first, first + 3]
