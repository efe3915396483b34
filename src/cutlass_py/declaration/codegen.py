"""The C++ of kernels and of the libraries that hold them, and what compilers are told: functions of the declaration.

The same text whether it is compiled with the package or on demand. Standard library and the tables only.
"""

from __future__ import annotations

from collections.abc import Sequence

from .config import Family, KernelConfig
from .families import FAMILIES


def source(configs: Sequence[KernelConfig]) -> str:
    """A whole translation unit with kernels of one family, or of some that are compiled alike."""
    family = FAMILIES[configs[0].family]
    return family.write(family, list(configs))


_ENTRY_POINT = """\
// The table of contents of a kernel library, which cutlass_py_library returns.
#include "abi/kernel.h"
#include "kernels/common/error_string.h"

extern "C" {{
{declarations}extern const CutlassPyElementwise cutlass_py_elementwise;
const CutlassPyKernel* cutlass_py_load_cubin(const void* cubin, size_t size);
int cutlass_py_clusters_at_once(int32_t size, int32_t device, int32_t* clusters);
}}

static const CutlassPyKernel* const kernels[] = {{
{entries}    nullptr,
}};

extern "C" __attribute__((visibility("default"))) const CutlassPyLibrary* cutlass_py_library() {{
  static const CutlassPyLibrary library = {{
      CUTLASS_PY_ABI,
      {count},
      kernels,
      {elementwise},
      &cutlass_py::error_string,
      {load_cubin},
      {clusters_at_once},
  }};
  return &library;
}}
"""


def entry_point(configs: Sequence[KernelConfig], *, package: bool) -> str:
    """The function that every kernel library exports, over kernels that are compiled beside it.

    Args:
        configs: the kernels.
        package: whether it is the package's own library, which has the elementwise kernels, loads cubins and counts
            clusters.
    """
    return _ENTRY_POINT.format(
        declarations="".join(f"extern const CutlassPyKernel cutlass_py_{c.name};\n" for c in configs),
        entries="".join(f"    &cutlass_py_{c.name},\n" for c in configs),
        count=len(configs),
        elementwise="&cutlass_py_elementwise" if package else "nullptr",
        load_cubin="&cutlass_py_load_cubin" if package else "nullptr",
        clusters_at_once="&cutlass_py_clusters_at_once" if package else "nullptr",
    )


_FLAGS = (
    "-DNDEBUG",  # in every build type: with assertions ptxas serialises wgmma (message C7510)
    "--expt-relaxed-constexpr",  # CUTLASS calls constexpr std functions on the device
    "-Xfatbin=-compress-all",  # a fifth of the size, at no cost
)
_OVERLAP = "-DCUTLASS_ENABLE_GDC_FOR_SM90=1"  # CUTLASS 4.2 does not compile stream-K with it


def flags(family: Family, gencode: tuple[str, ...]) -> list[str]:
    """What nvcc is told about the kernels of a family, whoever starts it."""
    overlap = [_OVERLAP] if family.overlaps else []
    return [*_FLAGS, *overlap, *(f"-gencode={entry}" for entry in gencode)]


def nvrtc_flags(family: Family) -> list[str]:
    """What NVRTC is told, but for where headers are. It knows no functions of the host: all are the device's."""
    return ["-std=c++17", f"-arch=sm_{family.arch}", "-DNDEBUG", "-default-device"]
