"""Kernels compiled on demand, run: asked for by name, chosen within the context, and from the cache again."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch")

import gpu  # noqa: E402
from nvcc import why_not  # noqa: E402

import cutlass_py  # noqa: E402
from cutlass_py import _core, explain, get_kernels  # noqa: E402
from cutlass_py.compiling import cache  # noqa: E402

WHY_NOT = why_not()
pytestmark = [pytest.mark.gpu, pytest.mark.sm90, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """No test finds what another compiled, or what the user's cache holds."""
    monkeypatch.setenv("CUTLASS_PY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("CUTLASS_PY_JIT", "1")


def unbuilt(**wanted) -> cutlass_py.Kernel:
    """The first declared 16-bit kernel of these metadata that is not there yet, and whose results are exact."""
    found = get_kernels(
        compiled=False,
        where=lambda m: (
            m.operands["a"].dtype in ("bf16", "f16")
            and m.fused.activation in ("identity", "relu")
            and all(getattr(m, key) == value for key, value in wanted.items())
        ),
    )
    kernel = next((k for k in found if not k.compiled), None)
    if kernel is None:
        pytest.skip("every declared kernel is in the built set")
    return kernel


def check(a: torch.Tensor, b: torch.Tensor, d_dtype: str, *, relu: bool = False, **keywords) -> None:
    """gemm into a poisoned output, exactly, and nothing beside it."""
    out = gpu.guarded((a.shape[0], b.shape[1]), d_dtype)
    activation = "relu" if relu else None
    assert cutlass_py.gemm(a, b, out=out.view, activation=activation, **keywords) is out.view
    wanted = gpu.expected(a, b)
    gpu.assert_exact(out.view, wanted.clamp_min(0) if relu else wanted)
    out.check()


def operands(m: int, n: int, k: int, dtype: str, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    return gpu.laid_out(gpu.integers((m, k), dtype), layout[0]), gpu.laid_out(gpu.integers((k, n), dtype), layout[1])


@pytest.mark.parametrize("family", ["sm80_gemm", "sm90_gemm"])
def test_a_kernel_asked_for_by_name(family):
    kernel = unbuilt(family=family)
    a, b = operands(520, 264, 136, kernel.config.a, kernel.config.layout)
    relu = kernel.metadata.fused.activation == "relu"
    check(a, b, kernel.config.d, relu=relu, kernel=kernel)
    assert kernel.compiled and kernel in get_kernels() and kernel.name in _core.kernel_facts()
    assert [path.name.startswith(f"{kernel.name}-") for path in cache.entries()] == [True]
    check(a, b, kernel.config.d, relu=relu, kernel=kernel.name)
    assert len(cache.entries()) == 1


@pytest.mark.parametrize(
    "design",
    ["128x64x256_1x1x1_coopsteadyswap", "256x128x128_1x2x1_coopsteady", "256x96x128_1x2x1_coopsteady",
     "128x128x128_2x1x1_coopsteady", "128x96x128_1x1x1_pingpongsteady", "128x32x256_1x1x1_pingpongsteadyswap"],
)  # fmt: skip
def test_promoted_sums_that_pause_nowhere(design):
    """One to 21 tiles of k: by_parts takes eight, four or two at once; several tiles of D for each multiprocessor."""
    kernel = f"sm90_gemm_e4m3_e4m3_f32_bf16_tn_{design}_linear"
    depths = 16, 128, 144, 384, 512, 528, 640, 1024, 1152, 1536, 1920, 2688
    for m, n, k in [*((264, 520, k) for k in depths), (4096, 4096, 656)]:
        check(*operands(m, n, k, "e4m3", "tn"), "bf16", kernel=kernel)
    a, b = operands(520, 264, 1 << 14, "e4m3", "tn")
    gpu.assert_same_bits([cutlass_py.gemm(a, b, kernel=kernel) for _ in range(20)])


def test_the_best_kernel_within_the_context():
    for (dtype, layout), m in product(product(("f16", "bf16"), ("nn", "nt", "tt", "tn")), (2048, 512, 128, 8)):
        a, b = operands(m, 1024, 256, dtype, layout)
        with cutlass_py.jit():
            chosen = explain(a, b).chosen
        if chosen.route.direct and not chosen.route.kernel.compiled:
            break
    else:
        pytest.skip("the best kernel of every problem tried is in the built set")
    check(a, b, dtype)
    assert not chosen.route.kernel.compiled and cache.entries() == []
    with cutlass_py.jit():
        check(a, b, dtype)
    assert chosen.route.kernel.compiled and len(cache.entries()) == 1
