"""What cutlass_py.jax queues on a device: XLA's custom call with every step that a plan may have.

JAX's CPU makes the calls. `register` is for good, but no other test here uses JAX.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import Any

import numpy as np
import pytest
import simulator

jax = pytest.importorskip("jax")
import xla_on_host  # noqa: E402

import cutlass_py.jax as cj  # noqa: E402
from cutlass_py import GemmArguments, TensorSpec  # noqa: E402
from cutlass_py.dispatch import planning  # noqa: E402

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="compiles with g++")


@pytest.fixture(scope="module", autouse=True)
def custom_call(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The device has come so far when XLA reads a result, and takes scratch back."""
    if simulator.is_here():
        xla_on_host.register(xla_on_host.build(tmp_path_factory.mktemp("xla")), after=simulator.run)


M, N, K = 48, 32, 256
SUMS, AUX = jax.ShapeDtypeStruct((N,), "float32"), jax.ShapeDtypeStruct((M, N), "bfloat16")
# What a plan does beside its kernel, and keywords for which it does. b lies by columns, and by rows to be packed.
STEPS: dict[str, dict[str, Any]] = {
    "": {},
    "packs b": {"compute": "tf32", "splits": 1},
    "sums D": {"bias_grad": SUMS},
    "composed": {"bias_grad": SUMS, "aux": AUX, "activation": "relu"},
    "splits k by 2": {"splits": 2},
}


def values(*shape: int, seed: int, dtype: str) -> Any:
    return jax.numpy.asarray(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_of_a_plan_is_taken(step: str) -> None:
    keywords, dtype = STEPS[step], "float32" if step == "packs b" else "bfloat16"
    a, b = values(M, K, seed=1, dtype=dtype), values(K, N, seed=2, dtype=dtype)
    lie = TensorSpec(a.shape, dtype), TensorSpec(b.shape, dtype, None if step == "packs b" else (1, K))
    specs = {x: TensorSpec(y.shape, y.dtype.name) for x, y in keywords.items() if isinstance(y, jax.ShapeDtypeStruct)}
    assert planning.plan(GemmArguments(*lie, **{**keywords, **specs}).problem).steps == ([step] if step else [])
    layout, right = ("tt", b) if step == "packs b" else ("tn", b.T)
    found = jax.jit(partial(cj.gemm, layout=layout, **keywords))(a, right)
    z = np.asarray(a, "f4") @ np.asarray(b, "f4")
    y = np.maximum(z, 0) if "activation" in keywords else z
    expected = [y, *([z] if "aux" in keywords else []), *([y.sum(0)] if "bias_grad" in keywords else [])]
    for x, want in zip(found if len(expected) > 1 else [found], expected, strict=True):
        np.testing.assert_array_equal(np.asarray(x, "f4"), want)
