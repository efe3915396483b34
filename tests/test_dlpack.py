"""Taking arrays over DLPack: what exporters may say, what is refused, and that all of it is given back once."""

from __future__ import annotations

import gc
import sys

import ml_dtypes  # noqa: F401  (registers its types' names with NumPy)
import numpy as np
import pytest
from exporters import (
    AB,
    RAISE_BY_FILENO,
    READ_ONLY,
    A,
    B,
    Exporter,
    LegacyExporter,
    RaisingExporter,
    capsule_name,
    exchanging,
)
from helpers import address

from cutlass_py import KernelMetadata, OperandMetadata, gemm, register_kernel, view

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
