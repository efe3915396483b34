"""What a Python value means as a dtype: this package's names, NumPy's, ml_dtypes' and the frameworks' own dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..declaration.dtypes import DTYPES, STORAGE
from ..errors import wrong_type

BY_NUMPY_NAME = {d.numpy: d.name for d in reversed(DTYPES.values())}


def dtype_name(value: Any, parameter: str, function: str = "gemm", expected: str = "") -> str:
    """This package's name of a dtype that an array can have.

    Args:
        value: the dtype, or its name.
        parameter, function: what it was given as.
        expected: the dtypes that the function takes there; all by default.

    Raises:
        TypeError: it is none; the message names the function and its parameter.
    """
    try:
        name = _known(value)
    except TypeError:  # it has no hash
        name = None
    if name is None:
        expected = expected or f"one of {', '.join(STORAGE)} or a framework's dtype"
        raise wrong_type(parameter, f"is {value!r}", expected, operation=function)
    return name


def dtype_index(value: Any, parameter: str, function: str, expected: str) -> int:
    """The number of that dtype, for the extension."""
    return STORAGE[dtype_name(value, parameter, function, expected)]


@cache
def _known(value: Any) -> str | None:
    if value is None:
        return None  # which is f64 to NumPy
    if isinstance(value, str) and value in STORAGE:
        return value
    text = str(value)
    if text.startswith("torch."):
        return BY_NUMPY_NAME.get(text.removeprefix("torch."))
    import ml_dtypes  # noqa: F401
    import numpy as np

    try:
        dtype = np.dtype(value)
        return BY_NUMPY_NAME.get(dtype.name) if dtype.isnative else None
    except TypeError:
        return None
