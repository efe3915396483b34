"""The table of operands and keywords, which C++ is generated from."""

from __future__ import annotations

import inspect
import re

import pytest

from cutlass_py import GemmArguments, TensorSpec, _core
from cutlass_py.declaration.families import FAMILIES
from cutlass_py.declaration.operands import KEYWORDS, OPERANDS, SHAPES
from cutlass_py.kernels.operation import operation_named


def test_the_signature_of_gemm_is_that_of_the_table():
    signature, _, defaults = _core.gemm.__nb_signature__[0]
    assert re.findall(r"(\w+): [^,]+? = ", signature) == list(KEYWORDS["gemm"])
    assert list(defaults) == list(KEYWORDS["gemm"].values())


def test_the_arguments_of_gemm_are_those_of_the_table():
    """But for what `run` takes; a and b stand in front."""
    parameters = inspect.signature(GemmArguments).parameters
    table = {name: value for name, value in KEYWORDS["gemm"].items() if name not in ("kernel", "stream")}
    assert {name: x.default for name, x in list(parameters.items())[2:]} == table
    spec = TensorSpec((16, 16), "bf16")
    assert GemmArguments(spec, spec).keywords == table and list(GemmArguments(spec, spec).keywords) == list(table)


def test_operations_are_called_as_their_rooms():
    names = {family.operation for family in FAMILIES.values()}
    assert names == set(OPERANDS) == {operation_named(name).name for name in names}


@pytest.mark.parametrize("operation", OPERANDS)
def test_rows_refer_to_what_is_there(operation):
    rows = {x.name: x for x in OPERANDS[operation]}
    assert len(rows) == len(OPERANDS[operation])
    for x in rows.values():
        assert x.shape in SHAPES and x.lists in ("list", "shared", "never")
        assert x.written in ("never", "always", "unless_derivative")
        assert not x.mirror or rows[x.mirror].mirror == x.name
    parameters = inspect.signature(operation_named(operation).arguments).parameters.values()
    assert set(rows) - set(KEYWORDS[operation]) == {x.name for x in parameters if x.default is x.empty}
