"""Taking arrays over DLPack: what exporters may say, what is refused, and that all of it is given back once."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import ml_dtypes  # noqa: F401  (registers its types' names with NumPy)
import numpy as np
import pytest
from exporters import RAISE_BY_FILENO, READ_ONLY, Exporter, LegacyExporter, RaisingExporter, capsule_name, exchanging
from helpers import CPU_FRAMEWORKS, address, to_numpy
from leaks import assert_nothing_stays

from cutlass_py import (
    GemmArguments,
    KernelMetadata,
    OperandMetadata,
    QuantizeArguments,
    gemm,
    quantize,
    register_kernel,
    view,
)
from cutlass_py.arrays import frameworks

A = np.arange(12, dtype=np.float32).reshape(3, 4)
B = np.arange(20, dtype=np.float32).reshape(4, 5) - 7
AB = A @ B
EXPORTERS = [Exporter, LegacyExporter, lambda array, **says: Exporter(array, versioned=False, **says)]
KINDS = ["versioned", "legacy", "unversioned"]


def exporter(kind, array, **says):
    return dict(zip(KINDS, EXPORTERS, strict=True))[kind](array, **says)


def refused(error, match, *exporters, call=gemm):
    """A call is refused, everything it took is given back, and the next call works."""
    with pytest.raises(error, match=match):
        call()
    for x in exporters:
        assert x.balanced, f"exported {x.exported}, released {x.deleted}"
    assert np.array_equal(gemm(Exporter(A), B), AB)


# ---------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize("kind", KINDS)
def test_each_capsule_is_released_once(kind):
    a, b, c, out = (exporter(kind, x.copy()) for x in (A, B, AB, np.zeros_like(AB)))
    assert gemm(a, b, c=c, out=out) is out
    assert np.array_equal(out.array, 2 * AB)
    for x in (a, b, c, out):
        assert x.exported == 1 and x.balanced


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_of_an_unknown_framework_is_numpy(kind):
    d = gemm(exporter(kind, A), B)
    assert type(d) is np.ndarray and np.array_equal(d, AB)


def test_what_the_exporter_is_asked():
    a, old = Exporter(A), LegacyExporter(B)
    gemm(a, old)
    assert a.requests == [{"stream": None, "max_version": a.requests[0]["max_version"]}]
    assert a.requests[0]["max_version"][0] == 1
    assert old.requests == [{"stream": None}]


@pytest.mark.parametrize("kind", KINDS)
def test_byte_offset(kind):
    a = exporter(kind, A, data=address(A), byte_offset=16, shape=(2, 4))
    assert np.array_equal(gemm(a, B), A[1:] @ B)
    assert a.balanced


@pytest.mark.parametrize("kind", KINDS)
def test_null_strides_are_row_major(kind):
    a = exporter(kind, A, strides=None)
    assert np.array_equal(gemm(a, exporter(kind, B, strides=None)), AB)
    batched = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert np.array_equal(gemm(exporter(kind, batched, strides=None), B), batched @ B)


@pytest.mark.parametrize("stride", [0, 1, -1, 3, 10**15, -(10**15)])
def test_strides_of_extent_one_mean_nothing(stride):
    row, column = A[:1], B[:, :1]
    assert np.array_equal(gemm(Exporter(row, strides=(stride, 1)), B), row @ B)
    assert np.array_equal(gemm(A, Exporter(np.ascontiguousarray(column), strides=(1, stride))), A @ column)
    one = np.array([[3.0]], np.float32)
    assert gemm(Exporter(one, strides=(stride, stride)), Exporter(one, strides=(stride, 1)))[0, 0] == 9
    batch = Exporter(A[None], strides=(stride, 4, 1))
    out = np.zeros((1, 3, 5), np.float32)
    gemm(batch, B, out=Exporter(out, strides=(stride, 5, 1)))
    assert np.array_equal(out[0], AB)


@pytest.mark.parametrize("data", [None, 8], ids=["null", "dangling"])
@pytest.mark.parametrize("shapes", [((0, 4), (4, 5)), ((3, 4), (4, 0)), ((3, 0), (0, 5))], ids=str)
def test_without_elements_no_pointer_is_followed(shapes, data):
    a, b = (
        Exporter(np.zeros(s, np.float32), **({"data": data, "strides": None} if 0 in s else {})) for s in shapes
    )  # fmt: skip
    assert np.array_equal(gemm(a, b), np.zeros((shapes[0][0], shapes[1][1])))
    assert a.balanced and b.balanced


@pytest.mark.parametrize(("name", "code"), [("bf16", 4), ("e4m3", 10), ("e5m2", 12)])
def test_type_codes_that_numpy_has_not(name, code):
    from reference import NUMPY, integers, reference

    x = integers(np.random.default_rng(0), (4, 4), name)
    bits = x.astype(NUMPY[name]).view(f"u{NUMPY[name].itemsize}")
    d = gemm(Exporter(bits, code=code), Exporter(bits, code=code), out_dtype="f32")
    assert np.array_equal(d, reference(x, x))


@pytest.mark.parametrize("device", [(1, 0), (1, 3), (3, 0)], ids=["cpu", "cpu3", "pinned"])
def test_host_memory_of_any_kind(device):
    a = Exporter(A, device=device)
    assert np.array_equal(gemm(a, B), AB) and a.balanced


def test_read_only_inputs_but_not_out():
    a = Exporter(A, flags=READ_ONLY)
    assert np.array_equal(gemm(a, B, c=Exporter(AB, flags=READ_ONLY)), 2 * AB)
    out = Exporter(np.zeros_like(AB), flags=READ_ONLY)
    refused(ValueError, "gemm: out is read-only", a, out, call=lambda: gemm(a, B, out=out))
    assert not out.array.any()


def test_read_only_numpy_out():
    out = np.zeros_like(AB)
    out.flags.writeable = False
    refused(ValueError, "out is read-only", call=lambda: gemm(A, B, out=out))


def test_a_null_deleter_is_no_obligation():
    for versioned in (True, False):
        a = Exporter(A, versioned=versioned, deleter=None)
        assert np.array_equal(gemm(a, B), AB)


def test_a_view_of_an_exporter():
    a = Exporter(A.view(np.uint32))
    assert np.array_equal(gemm(view(a, "f32"), B), AB) and a.balanced


@pytest.mark.parametrize(
    ("held", "meant"), [("bfloat16", "f16"), ("float16", "bf16"), ("float8_e4m3fn", "e5m2"), ("float8_e4m3fn", "s8")]
)
def test_a_view_says_what_the_bits_are_whatever_they_were(held, meant):
    array = np.full((3, 3), 1.5).astype(held)
    bits = array.view(f"u{array.itemsize}")
    d, expected = (gemm(view(x, meant), view(x, meant), out_dtype="f32") for x in (array, bits))
    assert np.array_equal(d, expected) and not (d == 3 * 1.5**2).all()


def test_an_exporter_that_multiplies_while_it_exports():
    class Nested(Exporter):
        def __dlpack__(self, **request):
            assert np.array_equal(gemm(A, B), AB)
            return super().__dlpack__(**request)

    a = Nested(A)
    assert np.array_equal(gemm(a, B), AB) and a.balanced


@pytest.mark.parametrize("kind", [Exporter, LegacyExporter])
def test_each_method_is_looked_up_once(kind):
    looked_up = []

    class Counted(kind):
        def __getattribute__(self, name):
            looked_up.append(name)
            return super().__getattribute__(name)

    gemm(Counted(A), B)
    asked = [name for name in looked_up if name.startswith("__dlpack")]
    assert asked == [
        "__dlpack_device__",
        *["__dlpack__"] * (2 if kind is LegacyExporter else 1),
    ]  # it knows no max_version


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


def test_an_exporter_type_made_on_the_spot_each_time():
    for _ in range(50):
        fresh = type("Fresh", (Exporter,), {})
        assert np.array_equal(gemm(fresh(A), B), AB)
        gc.collect(1)  # the young are enough, and quick


# ---------------------------------------------------------------------------------------- refused


DTYPES = "expected one of f16, bf16, f32, f64, e4m3, e5m2, s8, u8, s32, c64, c128"
SAYS = [  # whole messages
    ({"lanes": 2, "bits": 16}, TypeError, "a has 2 lanes per element; expected 1"),
    ({"lanes": 0}, TypeError, "a has 0 lanes per element; expected 1"),
    ({"code": 0}, TypeError, "a is s32; expected one of f16, bf16, f32, f64, e4m3, e5m2, s8, u8, c64, c128"),
    ({"code": 6, "bits": 8}, TypeError, f"a has dtype bool; {DTYPES}"),
    ({"code": 0, "bits": 64}, TypeError, f"a has dtype int64; {DTYPES}"),
    ({"code": 99}, TypeError, f"a has dtype DLPack type 99 of 32 bits; {DTYPES}"),
    ({"bits": 80}, TypeError, f"a has dtype float80; {DTYPES}"),
    ({"bits": 0}, TypeError, f"a has dtype float0; {DTYPES}"),
    ({"ndim": -1}, ValueError, "a has -1 dimensions; expected at most 8"),
    ({"ndim": 9, "shape": (1,) * 9, "strides": None}, ValueError, "a has 9 dimensions; expected at most 8"),
    ({"shape": (3,), "strides": (1,)}, ValueError, r"a is \(3,\) but b is \(4, 5\); inner extents must agree"),
    ({"shape": (), "strides": ()}, ValueError, r"a is \(\); expected at least 1 dimension"),
    (
        {"shape": (1, 1, 4, 3), "strides": None},
        ValueError,
        r"a is \(1, 1, 4, 3\) but b is \(4, 5\); inner extents must agree",
    ),
    (
        {"data": None},
        ValueError,
        r"a is an? exporters.\w+ without memory of its own \(a fake, distributed or wrapped tensor\)",
    ),
    ({"byte_offset": 2}, ValueError, "a starts at an address that is no multiple of its element size"),
    ({"shape": (2**31, 4)}, ValueError, r"a is \(2147483648, 4\); extents above 2147482624 are not supported"),
    ({"device": (8, 0)}, ValueError, "a is on DLPack device type 8; expected a CPU or CUDA array"),
    ({"device": (2, 0)}, ValueError, "a is on cuda:0 but b is on cpu"),
    ({"device": (13, 1)}, ValueError, "a is on cuda:1 but b is on cpu"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("says", "error", "match"), SAYS, ids=[str(says) for says, *_ in SAYS])
def test_refused(kind, says, error, match):
    a, b = exporter(kind, A, **says), exporter(kind, B)
    refused(error, f"^gemm: {match}$", a, b, call=lambda: gemm(a, b))


@pytest.mark.parametrize("major", [0, 2, 77])
def test_another_major_version(major):
    a = Exporter(A, major=major)
    refused(ValueError, f"a exports DLPack version {major}; expected 1", a, call=lambda: gemm(a, B))
    assert a.deleted == 1


@pytest.mark.parametrize("operand", ["b", "c", "out"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_later_operand_that_raises(kind, operand):
    boom = RaisingExporter(LookupError("half-way"))
    a, b, c = (exporter(kind, x) for x in (A, B, AB))
    calls = {"b": lambda: gemm(a, boom), "c": lambda: gemm(a, b, c=boom), "out": lambda: gemm(a, b, c=c, out=boom)}
    refused(LookupError, "^half-way$", a, b, c, call=calls[operand])
    assert a.exported == 1


def test_type_errors_of_the_exporter_are_its_own():
    refused(TypeError, "^not today$", call=lambda: gemm(RaisingExporter(TypeError("not today")), B))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, StopIteration])
def test_any_exception_of_the_exporter_passes_through(error):
    a = Exporter(A)
    refused(error, None, a, call=lambda: gemm(a, RaisingExporter(error())))


@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
def test_an_exporter_that_refuses_by_the_protocol(legacy, monkeypatch):
    a, sharded = Exporter(A), RaisingExporter(BufferError("is sharded\nfor reasons"))
    if legacy:

        def export(self, stream=None):
            raise BufferError(*self.error.args)

        monkeypatch.setattr(RaisingExporter, "__dlpack__", export)
    refused(
        ValueError, "b is an .*RaisingExporter that cannot be exported: is sharded$", a, call=lambda: gemm(a, sharded)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_capsule_handed_out_twice(kind):
    a = exporter(kind, A)
    capsule = a.capsule()
    a.capsule = lambda: capsule
    assert np.array_equal(gemm(a, B), AB)
    assert capsule_name(capsule).startswith("used_dltensor")
    refused(ValueError, "a handed out a DLPack capsule that was already consumed", a, call=lambda: gemm(a, B))
    assert a.deleted == 1


def test_the_same_capsule_for_both_operands():
    square = np.eye(3, dtype=np.float32)
    a = Exporter(square)
    capsule = a.capsule()
    a.capsule = lambda: capsule
    refused(ValueError, "b handed out a DLPack capsule that was already consumed", a, call=lambda: gemm(a, a))


@pytest.mark.parametrize(
    ("value", "name"), [(None, "a NoneType"), (3, "an int"), ("capsule", "a str"), (A, "a numpy.ndarray")], ids=str
)
def test_something_else_than_a_capsule(value, name):
    a = Exporter(A)
    a.capsule = lambda: value
    refused(TypeError, rf"a.__dlpack__\(\) returned {name}; expected a DLPack capsule", call=lambda: gemm(a, B))


def test_a_capsule_of_something_else():
    import datetime

    a = Exporter(A)
    a.capsule = lambda: datetime.datetime_CAPI
    refused(TypeError, "returned a PyCapsule; expected a DLPack capsule", call=lambda: gemm(a, B))


@pytest.mark.parametrize("announced", [[1, 0], None, 3, "cpu", ("cpu", 0), (1, None)], ids=repr)
def test_a_device_that_is_no_pair_of_integers(announced):
    a = Exporter(A, announced=announced)
    refused(TypeError, "a.__dlpack_device__", a, call=lambda: gemm(a, B))


def test_a_device_of_too_few_parts_does_not_crash():
    """In a process of its own: it did."""
    import subprocess

    code = """
import numpy as np, cutlass_py
class Short:
    def __dlpack_device__(self): return ()
    def __dlpack__(self, **_): return np.ones((2, 2)).__dlpack__()
try:
    cutlass_py.gemm(Short(), np.ones((2, 2)))
except (TypeError, ValueError, IndexError) as error:
    print('refused:', error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("refused:"), done.returncode


@pytest.mark.parametrize("announced", [(1, 0), (3, 0)])
def test_a_device_that_is_not_where_the_tensor_lies(announced):
    """Announced on the CPU, delivered on a GPU: its pointer must not be followed here."""
    a, b = (Exporter(x, device=(2, 0), announced=announced) for x in (A, B))
    refused(ValueError, "a .*cuda:0.*cpu|a .*cpu.*cuda:0", a, b, call=lambda: gemm(a, b))


@pytest.mark.parametrize("shape", [(-3, 4), (3, -4), (-1, 3, 4)], ids=str)
def test_negative_extents(shape):
    a = Exporter(A, shape=shape, strides=None)
    refused(ValueError, r"a is \(.*negative", a, call=lambda: gemm(a, B))


# ---------------------------------------------------------------------------------------- the exchange API


def test_a_framework_of_the_exchange_api():
    """Nothing is exported by __dlpack__, and results are its own arrays."""
    kind = exchanging()
    a, b, out = kind(A), kind(B), kind(np.zeros_like(AB))
    assert gemm(a, b, out=out) is out and np.array_equal(out.array, AB)
    d = gemm(a, b)
    assert type(d) is kind and np.array_equal(d.array, AB)
    assert not a.requests and all(x.balanced for x in kind.made)


def refuse(*_):
    return -1


def refuse_with_words(prototype, out, context, set_error):
    set_error(context, b"NotImplementedError", b"no memory here")
    return -1


@pytest.mark.parametrize("allocate", [refuse, refuse_with_words, None], ids=["silent", "loud", "absent"])
def test_a_table_that_cannot_allocate_is_a_view_of_memory(allocate):
    """cuda.core's is one. Its stream says nothing, so that its arrays are asked by __dlpack__."""
    kind = exchanging(allocate=allocate)
    a, b, out = kind(A), kind(B), kind(np.zeros_like(AB))
    d = gemm(a, b)
    assert type(d) is np.ndarray and np.array_equal(d, AB)
    assert gemm(a, b, out=out) is out and np.array_equal(out.array, AB)
    assert len(a.requests) == 2 and a.balanced and b.balanced and out.balanced
    read_only = kind(np.zeros_like(AB), flags=READ_ONLY)
    with pytest.raises(ValueError, match="out is read-only"):
        gemm(a, b, out=read_only)


def test_an_allocator_that_refuses_the_result_alone():
    kind = exchanging()
    kind.allocates = lambda shape: len(shape) == 1
    a = kind(A)
    d = gemm(a, kind(B))
    assert type(d) is np.ndarray and np.array_equal(d, AB) and not a.requests


def test_a_table_without_an_allocator_and_no_dlpack_beside_it():
    kind = exchanging(allocate=None)
    bare = type("Bare", (), {"__dlpack_c_exchange_api__": kind.__dlpack_c_exchange_api__})
    with pytest.raises(TypeError, match="a is a .*Bare; expected an array that speaks DLPack"):
        gemm(bare(), B)


def test_exchange_functions_that_fail_without_an_exception():
    """The process was aborted by them."""
    kind = exchanging(fill=refuse)
    with pytest.raises(
        ValueError, match=r"b is an exporters.*Exchanging that cannot be exported, for a reason that its"
    ):
        gemm(A, kind(B))
    kind = exchanging(adopt=refuse)
    with pytest.raises(RuntimeError, match=r"managed_tensor_to_py_object_no_sync of exporters.*Exchanging failed"):
        gemm(kind(A), kind(B))
    assert np.array_equal(gemm(A, B), AB)


def test_exchange_functions_that_fail_with_an_exception():
    kind = exchanging(fill=RAISE_BY_FILENO)

    def fileno(self):
        raise BufferError("not on Sundays\nand holidays")

    kind.fileno = fileno
    with pytest.raises(ValueError, match="a is an .*Exchanging that cannot be exported: not on Sundays$") as error:
        gemm(kind(A), B)
    assert isinstance(error.value.__cause__, BufferError)


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


# ---------------------------------------------------------------------------------------- handing over


def test_what_is_lent_is_neither_copied_nor_moved():
    """A consumer that asks for either would take the caller's memory for its own."""
    wrong = [({"copy": True}, "itself, not as a copy"), ({"dl_device": (2, 0)}, "where it lies, on cpu")]

    def run(call):
        for request, message in wrong:
            with pytest.raises(BufferError, match=message):
                call.a.__dlpack__(**request)
        with pytest.raises(ValueError, match="ambiguous"):
            call.a.__dlpack__(copy=np.array([1, 2]))
        a = np.from_dlpack(call.a, copy=False)
        np.asarray(call.d)[...] = a @ np.from_dlpack(call.b, device="cpu")

    f32 = OperandMetadata("f32")
    metadata = KernelMetadata("lender", {"a": f32, "b": f32, "d": f32}, accumulator="f32", cc=(0, 0))
    with register_kernel(metadata, run):
        assert np.array_equal(gemm(A, B, kernel="lender"), AB)


# ---------------------------------------------------------------------------------------- leaks


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_ten_thousand_calls_leak_nothing(framework):
    from helpers import make

    a, b, c = (make(framework, x, "f32") for x in (np.ones((64, 64)), np.ones((64, 64)), np.ones((64, 64))))
    keywords = {} if framework == "jax" else {"out": c}
    gemm(a, b, c=c, **keywords)
    count = 2000 if framework == "jax" else 10_000
    # A leaked 64 x 64 result would be 32 MB or more.
    assert_nothing_stays(lambda: gemm(a, b, c=c, **keywords), (a, b, c, type(a)), count=count)
    assert to_numpy(gemm(a, b)).shape == (64, 64)


@pytest.mark.parametrize("framework", CPU_FRAMEWORKS)
def test_thousands_of_results_leak_nothing(framework):
    from helpers import make

    a, b = (make(framework, np.ones((64, 64)), "bf16") for _ in range(2))
    gemm(a, b, out_dtype="f32")
    count = 2000 if framework == "jax" else 6000
    assert_nothing_stays(
        lambda: gemm(a, b, out_dtype="f32"), (a, b, "bf16", type(a)), count=count, host=4 << 20
    )  # leaked results would be 32 MB or more


def test_errors_leak_nothing():
    a, b, boom = np.ones((64, 64), np.float32), np.ones((65, 64), np.float32), RaisingExporter(LookupError())

    def call():
        for operands, keywords in (((a, b), {}), ((a, a), {"beta": 1}), ((a, boom), {}), ((a, a), {"compute": "?"})):
            with pytest.raises((ValueError, LookupError)):
                gemm(*operands, **keywords)

    assert_nothing_stays(call, (a, b, boom), count=1500)


def test_exporters_are_not_kept():
    a = Exporter(A)
    count = sys.getrefcount(a)  # the exporter itself keeps its last two exports
    for _ in range(300):
        gemm(a, B)
        with pytest.raises(ValueError, match="inner extents"):
            gemm(a, A)
    assert sys.getrefcount(a) < count + 10 and a.exported == a.deleted == 600


def test_views_are_not_kept():
    bits = np.zeros((4, 4), np.uint16)
    count = sys.getrefcount(bits)
    for _ in range(100):
        gemm(view(bits, "bf16"), view(bits, "bf16"), out=view(np.zeros((4, 4), np.uint16), "bf16"))
    gc.collect()
    assert sys.getrefcount(bits) == count
