"""What an epilogue may call, beside + - * / ** abs() and comparisons: see cutlass_py.epilogues.functions."""

from .epilogues.functions import *  # noqa: F403
from .epilogues.functions import __all__ as __all__
