"""The table of operands and keywords, which C++ is generated from."""

from __future__ import annotations

import re

import pytest

from cutlass_py import _core
from cutlass_py.declaration.operands import KEYWORDS, OPERANDS, SHAPES


def test_the_signature_of_gemm_is_that_of_the_table():
    signature, _, defaults = _core.gemm.__nb_signature__[0]
    assert re.findall(r"(\w+): [^,]+? = ", signature) == list(KEYWORDS["gemm"])
    assert list(defaults) == list(KEYWORDS["gemm"].values())


@pytest.mark.parametrize("operation", OPERANDS)
def test_rows_refer_to_what_is_there(operation):
    rows = {x.name: x for x in OPERANDS[operation]}
    assert len(rows) == len(OPERANDS[operation])
    for x in rows.values():
        assert x.shape in SHAPES and x.lists in ("list", "shared", "never")
        assert x.written in ("never", "always", "unless_derivative")
        assert not x.mirror or rows[x.mirror].mirror == x.name
    assert set(rows) - set(KEYWORDS[operation]) == {"a", "b"}
