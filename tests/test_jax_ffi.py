"""cutlass_py.jax on the way to CUDA, without a GPU: XLA's ABI, what is lowered, how the handler reads XLA's frames."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

import cutlass_py
from cutlass_py import _core
from cutlass_py.declaration.families import named
from cutlass_py.dispatch.launch_plan import LaunchPlan

jax = pytest.importorskip("jax")

import xla_on_host  # noqa: E402

import cutlass_py.jax as cj  # noqa: E402

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="compiles with g++")


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    return xla_on_host.build(tmp_path_factory.mktemp("xla"))


# ------------------------------------------------------------------------------------------------ the ABI


@needs_compiler
def test_structs_are_those_of_the_installed_jaxlib_and_metadata_is_the_oldest(library):
    """The structs are compared as the library compiles."""
    found = (ctypes.c_int32 * 4)(-1, -1, -1, -1)
    xla_on_host.load(library).metadata(found)
    assert list(found) == [0, 1, 1, 0]  # API 0.1; may be recorded into a command buffer; no error


# ------------------------------------------------------------------------------------------------ lowering


@pytest.fixture
def declared(built, monkeypatch):
    """As if the core sets were built. No library says then how much scratch its kernels take: 4096 bytes here."""
    built(named("core") | named("core", "quantize"))
    monkeypatch.setattr(_core, "scratch_bytes", lambda a, b, keywords, plan, sm_count: 4096 if plan.scratch else 0)


def lowered(call, *arrays, platform: str = "cuda", **options) -> str:
    return jax.jit(call, **options).trace(*arrays).lower(lowering_platforms=(platform,)).as_text()


def attributes(text: str) -> dict[str, str]:
    (found,) = re.findall(r"mhlo.backend_config = \{(.*?)\}, operand_layouts", text)
    return {name: value for name, value in re.findall(r"(\w+) = (\"[^\"]*\"|\S+)", found)}


def struct(*shape, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_the_choice_of_gemm_is_in_the_lowered_text(declared):
    x, w = struct(2048, 4096), struct(14336, 4096)
    text = lowered(lambda x, w: cj.gemm(x, w, layout="tn"), x, w)
    found = attributes(text)
    a, b = cutlass_py.TensorSpec((2048, 4096), "bf16"), cutlass_py.TensorSpec((4096, 14336), "bf16", [1, 4096])
    choice = cutlass_py.explain(a, b).chosen
    assert found["kernel"] == f'"{choice.route.kernel.name}"'
    assert (found["raster"], found["swizzle"], found["splits"]) == (str(choice.raster), str(choice.swizzle), "1")
    assert '"(2048, 14336, 4096) tn: bf16 @ bf16 -> bf16 on cuda:0"' in text
    assert "transpose" not in text and "operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<[1, 0]>" in text
    assert "tensor<0xui8>" in text  # no scratch


def test_packing_and_scratch_are_in_the_lowered_text(declared):
    text = lowered(lambda a, b: cj.gemm(a, b, splits="stream"), struct(256, 8192), struct(8192, 256))
    assert attributes(text)["pack_b"] == '"n"'
    text = lowered(
        lambda a, b: cj.gemm(a, b, alpha=0.5, splits=4, out_dtype="f32"), struct(128, 8192), struct(8192, 128)
    )
    assert attributes(text)["splits"] == "4" and attributes(text)["scratch"] == '"f32"'
    assert f"tensor<{4096 + 256}xui8>" in text


def test_a_plan_is_in_the_lowered_text_as_a_whole(declared):
    """But for lists and kernels written in Python, which no call of XLA has."""
    found = attributes(lowered(cj.gemm, struct(64, 128), struct(128, 32)))
    assert {field.name for field in fields(LaunchPlan)} - set(found) == {"each", "provided"}


def test_operands_and_results_by_name(declared):
    def call(a, b, c, bias, scale):
        return cj.gemm(
            a, b, c=c, bias=bias, beta=0.5, alpha=2.0, scale_out=scale, activation=cutlass_py.clamp(-1, 6),
            aux=struct(64, 32), bias_grad=struct(32, dtype="float32"),
        )  # fmt: skip

    text = lowered(call, struct(64, 96), struct(96, 32), struct(64, 32), struct(32), struct(dtype="float32"))
    found = attributes(text)
    assert found["operands"] == '"a b c bias scale_out"' and found["results"] == '"out aux bias_grad scratch"'
    assert "alpha = dense<[2.000000e+00, 0.000000e+00]>" in text and "beta = dense<[5.000000e-01" in text
    assert 'activation = "clamp", activation_parameters = dense<[-1.000000e+00, 6.000000e+00]> : tensor<2xf64>' in text


def test_vectors_and_batches(declared):
    text = lowered(jax.vmap(cj.gemm, in_axes=(0, None)), struct(3, 64, 96), struct(96, 32))
    assert "(tensor<3x64x96xbf16>, tensor<96x32xbf16>) -> (tensor<3x64x32xbf16>" in text
    assert "(192, 32, 96)" in text  # the batch folds into the rows
    assert "(1, 1, 96)" in lowered(cj.gemm, struct(96), struct(96))


@pytest.mark.parametrize(
    "c, keywords, alias",
    [
        (struct(64, 32), {}, True),
        (struct(64, 32, dtype="float32"), {}, False),
        (struct(64, 32), {"beta": 0}, False),
        (struct(64, 32), {"out_dtype": "f32"}, False),
    ],
)
def test_c_and_the_result_share_memory_where_they_are_alike(declared, c, keywords, alias):
    text = lowered(lambda a, b, c: cj.gemm(a, b, c=c, **keywords), struct(64, 96), struct(96, 32), c)
    assert ("output_tuple_indices = [0], operand_index = 2" in text) == alias


@pytest.mark.parametrize("activation, heeded", [(None, True), ("relu", True), ("silu", False)])
def test_the_forward_pass_runs_the_kernel_asked_for_unless_it_writes_z(declared, activation, heeded):
    x, w = cutlass_py.TensorSpec((64, 96), "bf16"), cutlass_py.TensorSpec((96, 32), "bf16", [1, 96])
    args = cutlass_py.GemmArguments(x, w, activation=activation)
    kernel = next(kernel for kernel in cutlass_py.get_kernels() if kernel.supports(args))
    call = partial(cj.gemm, layout="tn", activation=activation, kernel=kernel)
    text = lowered(jax.value_and_grad(lambda x, w: call(x, w).astype("f4").sum()), struct(64, 96), struct(32, 96))
    assert (f'kernel = "{kernel.name}"' in text) == heeded


def test_the_gradient_runs_gemm_alone(declared):
    x, w, bias = struct(64, 96), struct(32, 96), struct(32)
    step = jax.grad(lambda *y: cj.gemm(*y[:2], layout="tn", bias=y[2], activation="silu").astype("f4").sum(), (0, 1, 2))
    text = lowered(step, x, w, bias)
    assert text.count("custom_call @cutlass_py_gemm") == 3 and "dot_general" not in text
    layouts = re.findall(r'[{,] ?layout = "(\w\w)"', text)
    assert sorted(layouts) == ["nt", "tn", "tt"]  # a.T and w.T are layouts, not copies
    assert "transpose" not in text


def test_export_for_cuda(declared):
    exported = jax.export.export(
        jax.jit(cj.gemm), platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("cutlass_py_gemm")],
    )(struct(64, 96), struct(96, 32))  # fmt: skip
    assert "custom_call @cutlass_py_gemm" in exported.mlir_module() and "dot_general" in exported.mlir_module()


def test_other_platforms_have_xlas_operations(declared):
    for platform in ("cpu", "tpu", "rocm"):
        assert "custom_call @cutlass_py_gemm" not in lowered(cj.gemm, struct(64, 96), struct(96, 32), platform=platform)


@pytest.mark.parametrize(
    "scaling, groups", [("tensor", ""), ("row", "2x64x1x"), ("block", "2x64x3x"), ("128x128", "2x1x3x")]
)
@pytest.mark.parametrize("q, theirs", [("e4m3", "f8E4M3FN"), ("s8", "i8")])
def test_quantize_is_one_call(declared, scaling, groups, q, theirs):
    text = lowered(partial(cj.quantize, dtype=q, scaling=scaling), struct(2, 64, 300))
    found, name = attributes(text), "1x128" if scaling == "block" else scaling
    assert found["kernel"] == f'"quantize_bf16_{q}_{name}"' and found["scaling"] == f'"{name}"'
    assert found["operands"] == '"x"' and found["results"] == '"out scales"'
    assert f'"quantize (2, 64, 300): bf16 -> {q} by {name} on cuda:0"' in text
    assert f"(tensor<2x64x300xbf16>) -> (tensor<2x64x300x{theirs}>, tensor<{groups}f32>)" in text
    assert "@cutlass_py_quantize" in text and "stablehlo.maximum" not in text


def test_quantize_under_transformations_is_one_call(declared):
    x = struct(3, 64, 300)
    for scaling in ("tensor", "row", "block", "128x128"):
        call = partial(cj.quantize, scaling=scaling)
        gradient = jax.grad(lambda t, call=call: jax.jit(call)(t)[0].astype("float32").sum())
        for transformed in (jax.vmap(call), jax.jit(lambda t, call=call: call(t * 2)), gradient, jax.checkpoint(call)):
            assert lowered(transformed, x).count("custom_call @cutlass_py_quantize") == 1
    assert "quantize (3, 19200): bf16 -> e4m3 by row" in lowered(jax.vmap(cj.quantize), x)  # a scale of each


def test_quantize_elsewhere_and_without_a_kernel_is_xlas_operations(declared, built):
    x = struct(64, 300)
    both = jax.export.export(
        jax.jit(cj.quantize), platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("cutlass_py_quantize")],
    )(x).mlir_module()  # fmt: skip
    assert "custom_call @cutlass_py_quantize" in both and "stablehlo.maximum" in both
    nothing = lowered(partial(cj.quantize, scaling="row"), struct(0, 300))  # not even a scale
    for text in (lowered(cj.quantize, x, platform="cpu"), nothing):
        assert "custom_call @cutlass_py_quantize" not in text
    built([])
    assert "custom_call @cutlass_py_quantize" not in lowered(lambda t: cj.quantize(t), x)


def test_a_kernel_may_be_asked_for(declared):
    kernel = next(k for k in cutlass_py.get_kernels() if k.name.startswith("sm90_lean_bf16_bf16_f32_bf16_tn"))
    text = lowered(lambda a, b: cj.gemm(a, b, layout="tn", kernel=kernel), struct(64, 96), struct(32, 96))
    assert attributes(text)["kernel"] == f'"{kernel.name}"'
    with pytest.raises(ValueError, match="does not fit"):
        lowered(lambda a, b: cj.gemm(a, b, kernel=kernel), struct(64, 96), struct(96, 32))


def test_without_a_kernel_lowering_says_so(built):
    built([])
    with pytest.raises(cutlass_py.NoKernelError, match="none of .* compiled kernels fits"):
        lowered(cj.gemm, struct(64, 96), struct(96, 32))


def test_scratch_of_a_plan():
    a = cutlass_py.TensorSpec((0, 8), "f32", device="cpu")
    args = cutlass_py.GemmArguments(a, cutlass_py.TensorSpec((8, 4), "f32", device="cpu"))
    assert _core.scratch_bytes(args.a, args.b, args.keywords, LaunchPlan(), 132) == 0
    with pytest.raises(RuntimeError, match="kernel no_such is not loaded"):
        _core.scratch_bytes(args.a, args.b, args.keywords, LaunchPlan("no_such"), 132)


# ------------------------------------------------------------------------------------------------ the handler

ON_HOST = """
import sys
from pathlib import Path
import numpy as np, jax, jax.numpy as jnp
import xla_on_host, cutlass_py.jax as cj
from cutlass_py import _core
from cutlass_py.dispatch import planning
from cutlass_py.dispatch.launch_plan import LaunchPlan
from cutlass_py.jax import device

jax.config.update("jax_enable_x64", True)
xla_on_host.register(Path(sys.argv[1]))
planning.plan = lambda problem, provided: LaunchPlan("some_kernel", pack_b="t", scratch="f32", splits=2)
_core.scratch_bytes = _core.grouped_scratch_bytes = lambda *arguments: 512

def message(call, *arrays):
    try:
        jax.block_until_ready(jax.jit(call)(*arrays))
    except Exception as error:
        return str(error)
    return "nothing"

# Every dtype gets as far as the device, which is absent.
for name in ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "complex64", "complex128", "float8_e4m3fn",
             "float8_e5m2"):
    a = jnp.ones((4, 8), name)
    c = None if name in ("int8", "uint8") else jnp.ones((4, 4), name)
    found = message(lambda a, b: cj.gemm(a, b, layout="tn", c=c), a, a)
    assert "INTERNAL: gemm: " in found and _core.why_no_device() in found, (name, found)
one = jnp.ones((4, 8))
everything = lambda a, b, s: cj.gemm(a, b, layout="tn", bias=s[None].repeat(4), activation="gelu", scale_a=s, beta=None,
    alpha=s, aux=jax.ShapeDtypeStruct((4, 4), "float32"), bias_grad=jax.ShapeDtypeStruct((4,), "float64"))
assert _core.why_no_device() in message(everything, one, one, jnp.ones(()))
sizes = jnp.ones(2, "int32")
for call in (cj.ragged_dot, jax.grad(lambda *arrays: cj.ragged_dot(*arrays).sum(), (0, 1))):
    found = message(call, one, jnp.ones((2, 8, 4)), sizes)
    assert "INTERNAL: grouped_gemm: " in found and _core.why_no_device() in found, found
# No elements: nothing is asked of the device.
empty = jax.jit(cj.gemm)(jnp.ones((0, 8)), one.T)
assert empty.shape == (0, 4)
# Frames that do not fit.
plan = device._plan
def changed(**changes):
    device._plan = lambda *given: (plan(*given)[0] | changes, plan(*given)[1])
changed(format=1)
assert "INVALID_ARGUMENT: gemm: the call was lowered in format 1" in message(lambda a, b: cj.gemm(a, b) + 1, one, one.T)
changed(layout="tn")
assert "inner extents must agree" in message(lambda a, b: cj.gemm(a, b) + 2, one, one.T)
changed(swizzle="x")
assert "attribute swizzle of the call" in message(lambda a, b: cj.gemm(a, b) + 3, one, one.T)
# The stage before execution asks for the device, without a look at buffers.
device._plan = plan
capsule = jax.ffi.pycapsule(xla_on_host.load(Path(sys.argv[1])).initialize_on_host)
jax.ffi.register_ffi_target("initialize_alone", capsule, platform="cpu")
device.TARGET = "initialize_alone"
assert _core.why_no_device() in message(lambda a, b: cj.gemm(a, b) + 4, one, one.T)
print("done")
"""


@needs_compiler
@pytest.mark.skipif(_core.device_count() > 0, reason="a GPU would be given addresses of the host")
def test_the_handler_reads_xlas_frames(library):
    check_in_a_process(ON_HOST, library)


def check_in_a_process(code, library):
    code = f"import sys; sys.path.insert(0, {str(xla_on_host.HERE)!r})\n{code}"
    found = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    assert found.stdout == "done\n", found.stderr


STREAM = """
import sys
from pathlib import Path
import jax
import xla_on_host
from cutlass_py import _core
from cutlass_py.arrays import xla_stream

jax.config.update("jax_num_cpu_devices", 2)
library = xla_on_host.load(Path(sys.argv[1]), _core.xla_stream_handler(), 0x5700)
xla_stream.register("cpu", jax.ffi.pycapsule(library.on_host))
first, second = jax.devices()
try:
    _core.xla_stream(second.local_hardware_id)
except IndexError:
    assert xla_stream.of(second) == 0x5700
traced = jax.jit(lambda x: x + xla_stream.of(first))
assert traced(1) == 0x5701
library.set_handler(0, 0, None)  # is not asked again
assert xla_stream.of(first) == 0x5700
print("done")
"""


@needs_compiler
def test_xla_tells_its_stream(library):
    check_in_a_process(STREAM, library)


def test_stream_k_of_a_batch_goes_one_by_one(declared):
    text = lowered(jax.vmap(lambda a, b: cj.gemm(a, b, splits="stream")), struct(3, 512, 512), struct(3, 512, 512))
    assert "streamk" in attributes(text)["kernel"]


def test_the_gradient_beside_a_kernel_that_was_asked_for(declared):
    name = "sm90_gemm_bf16_bf16_f32_bf16_tn_128x128x64_1x2x1_pingpong_bias_silu"

    def loss(a, w, bias):
        d = cj.gemm(a, w, layout="tn", bias=bias, activation="silu", kernel=name)
        return d.astype("float32").sum()

    assert name not in lowered(jax.grad(loss), struct(512, 512), struct(512, 512), struct(512))


def test_handlers_of_no_operation_are_refused():
    with pytest.raises(TypeError, match="register: handler is no operation; expected gemm or grouped_gemm or quantize"):
        cj.register("cpu", handler=None)
