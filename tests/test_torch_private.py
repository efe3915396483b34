"""torch's private names: which versions have them, that they stand in one file, and what happens without them."""

from __future__ import annotations

import ast
import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import cutlass_py  # noqa: E402
from cutlass_py.arrays import torch_private  # noqa: E402

PACKAGE = Path(cutlass_py.__file__).parent
PRIVATE = Path(torch_private.__file__)
VERSION = ".".join(torch.__version__.split(".")[:2])
SOURCES = Path(__file__).resolve().parent.parent / "src" / "cpp"
BOTH = ("2.11", "2.13")
# Every name, with the versions of torch that are known to have it.
VERSIONS = {
    "_C._AutoDispatchBelowAutograd": BOTH,
    "_C._after_autograd_keyset": BOTH,
    "_C._any_requires_grad": BOTH,
    "_C._are_functorch_transforms_active": BOTH,
    "_C._functorch.is_functorch_wrapped_tensor": BOTH,
    "_C._functorch.is_legacy_batchedtensor": BOTH,
    "_C._functorch.peek_interpreter_stack": BOTH,
    "_C._get_function_stack_at": BOTH,
    "_C._increment_version": BOTH,
    "_C._is_alias_of": BOTH,
    "_C._is_any_autocast_enabled": BOTH,
    "_C._is_torch_function_mode_enabled": BOTH,
    "_C._is_tracing": BOTH,
    "_C._len_torch_dispatch_stack": BOTH,
    "_C._len_torch_function_stack": BOTH,
    "_C._will_engine_execute_node": BOTH,
    "_functorch.utils.enable_single_level_autograd_function": BOTH,
    "_int_mm": BOTH,
    "_scaled_mm": BOTH,
    "Tensor._has_symbolic_sizes_strides": BOTH,
    "Tensor._is_zerotensor": BOTH,
    "autograd.forward_ad._current_level": BOTH,
    "autograd.forward_ad._set_fwd_grad_enabled": BOTH,
    "compiler._is_exporting_flag": BOTH,
    "nn.modules.module._has_any_global_hook": BOTH,
    "utils._device.DeviceContext": BOTH,
}
# The extension's names: how a thread dispatches, and what a tensor is asked.
DISPATCH = "_ZN3c104impl26raw_local_dispatch_key_setE"
MANGLED = {
    DISPATCH: ("libc10.so", BOTH),
    "_ZN2at6native6is_negERKNS_6TensorE": ("libtorch_cpu.so", BOTH),
    "_ZN2at6native7is_conjERKNS_6TensorE": ("libtorch_cpu.so", BOTH),
}


def test_the_table_has_every_name():
    assert set(re.findall(r'_find\(\s*"([^"]+)"', PRIVATE.read_text())) == set(VERSIONS)


@pytest.mark.parametrize("name", VERSIONS)
def test_versions_have_the_name(name):
    missing = object()
    found = torch_private._find(name, missing) is not missing
    assert found or VERSION not in VERSIONS[name], f"torch {VERSION} has lost torch.{name}"


@pytest.mark.parametrize("name", MANGLED)
def test_versions_have_the_mangled_name(name):
    library, versions = MANGLED[name]
    assert hasattr(ctypes.CDLL(library), name) or VERSION not in versions, f"torch {VERSION} has lost {name}"


def test_whether_a_tensor_is_lazy_is_asked_of_it_or_of_python():
    """Of the tensor where the object of Python has it: a type that hides it is asked by its methods."""
    asked = []

    class Open(torch.Tensor):
        def is_neg(self):
            asked.append(type(self))
            return super().is_neg()

    class Hidden(Open):
        _cdata = None

    x = torch.ones(2, 2)
    negated = torch._neg_view(x)
    assert negated.is_neg() and negated.is_contiguous()
    for kind in (torch.Tensor, Open, Hidden):
        del asked[:]
        assert (cutlass_py.gemm(x.as_subclass(kind), x) == 2).all()
        assert asked == [kind] * (kind is Hidden)
        with pytest.raises(ValueError, match="a is a lazily negated or conjugated view"):
            cutlass_py.gemm(negated.as_subclass(kind), x)


def test_modules_keep_their_hooks_where_they_are_looked_for():
    module = torch.nn.ReLU()
    assert not torch_private.has_hooks(module)
    assert all(hasattr(module, hooks) for hooks in torch_private._HOOKS)
    module.register_forward_hook(lambda *_: None)
    assert torch_private.has_hooks(module)


def test_functions_have_an_apply_without_questions():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    assert torch_private.unchecked_apply(Twice) != Twice.apply, "torch.autograd.Function has no base with an apply"
    x = torch.ones(2, requires_grad=True)
    torch_private.unchecked_apply(Twice)(x).sum().backward()
    assert x.grad.tolist() == [2, 2]


# ---------------------------------------------------------------------------------------------------- in one file


def private_names(source: str) -> set[str]:
    """Dotted names below torch, and imports from it, of which a part is private."""
    tree = ast.parse(source)
    found: set[str] = set()
    modules = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "torch":
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names if alias.name.split(".")[0] == "torch"]
            found |= set(paths)
            modules |= {alias.asname: alias.name for alias in node.names if alias.asname and alias.name in paths}
    found |= set(modules.values())
    for node in ast.walk(tree):
        parts, at = [], node
        while isinstance(at, ast.Attribute):
            parts.insert(0, at.attr)
            at = at.value
        if parts and isinstance(at, ast.Name) and at.id in modules:
            found.add(".".join([modules[at.id], *parts]))
    return {name for name in found if re.search(r"\._(?!_)", name)}


# Underscored attributes that are no torch's: of named tuples, and of classes in the same file.
OWN = {"_field_defaults", "_fields", "_replace", "_asdict", "_gradients"}


def private_attributes(source: str) -> set[str]:
    """Attributes of a tensor, a module or a context that are private."""
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return {
        x.attr
        for x in attributes
        if re.match(r"_(?!_)", x.attr)
        and x.attr not in OWN
        and not (isinstance(x.value, ast.Name) and x.value.id in ("self", "cls"))
    }


def test_no_other_file_has_private_names_of_torch():
    found = {path: private_names(path.read_text()) for path in PACKAGE.rglob("*.py") if path != PRIVATE}
    assert {path.name: names for path, names in found.items() if names} == {}
    assert private_names(PRIVATE.read_text()) >= {"torch.utils._device", "torch.compiler._is_exporting_flag"}
    found = {path: private_attributes(path.read_text()) for path in (PACKAGE / "torch").glob("*.py")}
    assert {path.name: names for path, names in found.items() if names} == {}


def test_no_other_source_has_a_mangled_name():
    found = {path.name: re.findall(r"\b_Z\w+", path.read_text()) for path in SOURCES.rglob("*.*") if path.is_file()}
    assert {name: names for name, names in found.items() if names} == {"torch_private.cpp": list(MANGLED)}


# ---------------------------------------------------------------------------------------------------- without them

WITHOUT = """
import importlib, os, sys, types
import torch, torch.utils._device

class Without:
    def __init__(self, real, path):
        self.real, self.path = real, path
    def __getattr__(self, name):
        first, _, rest = self.path.partition(".")
        if name != first:
            return getattr(self.real, name)
        if not rest:
            raise AttributeError(name)
        return Without(getattr(self.real, name), rest)

def load(path, file, name):
    private = types.ModuleType(name)
    private.__package__ = name.rpartition(".")[0]
    sys.modules["torch"] = Without(torch, path)
    exec(compile(open(file).read(), file, "exec"), vars(private))
    sys.modules["torch"] = torch
    sys.modules[name] = private
    setattr(importlib.import_module(private.__package__), name.rpartition(".")[2], private)

torch.testing.assert_close(torch.ones(1), torch.ones(1))  # imports more of torch, once for all
file, name, *paths = sys.argv[1:]
for path in paths:
    if os.fork() == 0:  # torch is imported once, this package once for each
        load(path, file, name)
        break
    if os.wait()[1]:
        print(path)
else:
    sys.exit()

import cutlass_py.torch as ct

torch.manual_seed(0)
near = torch.testing.assert_close

def leaves(*shapes):
    return [torch.randn(*shape, dtype=torch.float64).requires_grad_() for shape in shapes]

def agree(ours, theirs, *operands):
    d, e = ours(*operands), theirs(*operands)
    near(d, e)
    for x, y in zip(*(torch.autograd.grad(r.square().sum(), operands) for r in (d, e))):
        near(x, y)

a, b, bias, w, v, u = leaves((3, 4), (4, 5), (5,), (5, 4), (2, 5), (2,))
agree(ct.mm, torch.mm, a, b)
agree(ct.linear, torch.nn.functional.linear, a, w, bias)
agree(lambda a, b, c: ct.gemm(a, b, bias=c, activation="silu"),
      lambda a, b, c: torch.nn.functional.silu(a @ b + c), a, b, bias)
agree(lambda a, b: ct.gemm(a, b, alpha=2, activation="gelu_tanh"),
      lambda a, b: torch.nn.functional.gelu(2 * (a @ b), approximate="tanh"), a, b)
agree(ct.mlp, lambda x, w, v, c, u: torch.nn.functional.linear(
    torch.nn.functional.gelu(torch.nn.functional.linear(x, w, c)), v, u), a, w, v, bias, u)
model = ct.Sequential(ct.Linear(4, 6), torch.nn.ReLU(), ct.Linear(6, 2)).double()
near(model(a), torch.nn.Sequential(*model)(a))
with torch.no_grad():
    out = torch.empty(3, 5, dtype=torch.float64)
    before = out._version
    assert ct.mm(a, b, out=out) is out and out._version > before
    near(out, a @ b)
    ct.mm(a, b, out=(small := torch.empty(0, dtype=torch.float64)))
    near(small, a @ b)
    c = torch.complex(a, a)
    near(ct.mm(c, c.t().conj()), c @ c.t().conj())
with torch.autocast("cpu", torch.bfloat16):
    assert ct.mm(a.float(), b.float()).dtype == torch.bfloat16
with torch.device("cpu"):
    agree(ct.mm, torch.mm, a, b)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="imports torch once for all")
def test_results_are_right_without_any_of_them():
    """By a torch that lacks one name, seen by this file alone: torch itself needs them."""
    names = sorted(VERSIONS.keys() - {"_int_mm", "_scaled_mm"})
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT, str(PRIVATE), torch_private.__name__, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
