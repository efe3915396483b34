"""DTensor on two processes (gloo, CPU): tensor-parallel layers, and every sharding of the operands of gemm."""

from __future__ import annotations

import itertools
import os
import socket

import pytest

torch = pytest.importorskip("torch")

# gloo and fork servers, from torch's own code
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]


def tensor_parallel_mlp(mesh, device="cpu", dtype=torch.float32):
    """Column- and row-parallel layers give what one process gives, gradients included."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    import cutlass_py.torch as ct

    for activation in (None, "gelu"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(ct.Linear(8, 16, activation=activation), ct.Linear(16, 8)).to(device, dtype)
        x = torch.randn(3, 4, 8, device=device, dtype=dtype, requires_grad=True)
        whole = [model(x), *torch.autograd.grad(model(x).square().sum(), (x, *model.parameters()))]
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        y = model(x)
        gradients = torch.autograd.grad(y.square().sum(), (x, *model.parameters()))
        parts = [y, gradients[0], *(gradient.full_tensor() for gradient in gradients[1:])]
        tolerance = {"rtol": 5e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(parts, whole, **tolerance)


def every_sharding(mesh):
    """Whatever the shardings of the operands, the values are those of one process."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    import cutlass_py.torch as ct

    torch.manual_seed(0)
    shapes = {"a": (2, 4, 6), "b": (6, 8), "bias": (8,), "c": (4, 8), "gate": (2, 4, 8), "aux": (2, 4, 8)}
    shapes |= {"scale_a": (4,), "scale_b": (8,), "alpha": (1,)}
    values = {name: torch.randn(shape) for name, shape in shapes.items()}
    seen = set()
    for names, options in [
        (("bias",), {}),
        (("bias",), {"activation": "silu"}),
        (("c", "gate"), {"activation": "gelu", "beta": 0.5}),
        (("aux",), {"activation": "d_gelu"}),
        (("scale_a", "scale_b", "alpha"), {}),
    ]:
        expected = ct.gemm(values["a"], values["b"], **{name: values[name] for name in names}, **options)
        for a, b in itertools.product(range(-1, 3), range(-1, 2)):
            rest = -1 if a == b else 0
            placement = {"a": a, "b": b} | {name: rest for name in names if name != "alpha"}
            given = {
                name: distribute_tensor(values[name], mesh, [Shard(dim) if dim >= 0 else Replicate()])
                for name, dim in (dict.fromkeys(names, -1) | placement).items()
            }
            d = ct.gemm(given.pop("a"), given.pop("b"), **given, **options)
            torch.testing.assert_close(d.full_tensor(), expected)
            seen.add((d.placements[0], options.get("activation")))
    assert {Shard(0), Shard(1), Shard(2), Partial()} <= {placement for placement, _ in seen}
    assert (Partial(), "silu") not in seen and (Partial(), "d_gelu") in seen


def quantized_parts(mesh):
    """Every sharding of what is quantized gives the codes and scales of the whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import cutlass_py.torch as ct

    torch.manual_seed(0)
    x = torch.randn(2, 256, 384)
    for scaling, kept in (("tensor", ()), ("row", (0, 1)), ("1x128", (0, 1)), ("128x128", (0,))):
        wanted = ct.quantize(x, "s8", scaling=scaling)
        for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
            found = ct.quantize(distribute_tensor(x, mesh, [placement]), "s8", scaling=scaling)
            for part, whole in zip(found, wanted, strict=True):
                torch.testing.assert_close(part.full_tensor(), whole, rtol=0, atol=0)
            if placement in [Replicate(), *map(Shard, kept)]:
                assert [part.placements[0] for part in found] == [placement] * 2


def work(rank: int, port: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    tensor_parallel_mlp(mesh)
    every_sharding(mesh)
    quantized_parts(mesh)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    # Without Python's own end, at which gloo's threads abort a process now and then: they still hold tensors, whose
    # destructors want the interpreter (pytorch/pytorch#179291). What fails above reaches the test as ever.
    os._exit(0)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_two_processes():
    torch.multiprocessing.spawn(work, (free_port(),), nprocs=2)


def test_importing_does_not_import_distributed_tensors():
    import subprocess
    import sys

    code = "import sys, cutlass_py.torch; print('torch.distributed.tensor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
