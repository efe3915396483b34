"""Writing a kernel pack (packs.py): a wheel of compiled kernels and tuned tables that installs beside the package."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ..dispatch import tuned
from ..kernels import archive, packs
from ..kernels.archive import Manifest

_METADATA = """\
Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: {count} compiled kernels for cutlass_py
Requires-Dist: cutlass_py
"""
_WHEEL = """\
Wheel-Version: 1.0
Generator: cutlass_py
Root-Is-Purelib: false
Tag: {tag}
"""


def check(
    name: str,
    version: str,
    kernels: Sequence[str],
    tables: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
) -> None:
    """What can be said before anything is compiled. Makes the directory.

    Args:
        name: of the distribution and of its package: lower-case letters, digits and _ between them.
        version: of the pack, such as "1.0" or "1.0rc1".
        kernels: names of what will be packed.
        tables, directory: as `write` takes them.

    Raises:
        ValueError: a wrong name or version, a file that is no table, two of the same kernel or of the same GPU, nothing
            to pack, or the `wheel` package is missing.
        OSError: a table cannot be read, or the directory cannot be made.
    """
    patterns = {"name": r"[a-z]([a-z0-9_]*[a-z0-9])?", "version": r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?"}
    for (what, pattern), text in zip(patterns.items(), (name, version), strict=True):
        if not re.fullmatch(pattern, text):
            raise ValueError(f"pack: {what} is {text!r}; expected {pattern}")
    if name == "cutlass_py":
        raise ValueError("pack: name is 'cutlass_py'; expected one of its own: the wheel would replace the package")
    try:
        import wheel.wheelfile  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError("pack: writing a wheel needs the package wheel: pip install 'cutlass_py[pack]'") from None
    files = [*(f"{kernel}.so" for kernel in kernels), *map(_table_name, tables)]
    if twice := [file for file in files if files.count(file) > 1]:
        raise ValueError(f"pack: there are two of {twice[0]}")
    if not files:
        raise ValueError("pack: there is nothing to pack; expected artifacts, kernels or tables")
    Path(directory).mkdir(parents=True, exist_ok=True)


def _table_name(path: str | os.PathLike[str]) -> str:
    gpu, sm_count, _ = tuned.contents(path)
    return tuned.file_name(gpu, sm_count)


def write(
    name: str,
    version: str,
    artifacts: Sequence[tuple[Manifest, bytes]],
    tables: Sequence[str | os.PathLike[str]],
    directory: str | os.PathLike[str],
) -> Path:
    """Writes a wheel for the platform that is here; returns its path.

    Args:
        name, version: as `check` takes them.
        artifacts: manifests and libraries.
        tables: files that `tune --export` wrote; one for each kind of GPU.
        directory: where the wheel goes; made where it is not there.

    Raises:
        ValueError: as `check`; a kernel that does not fit this version.
        OSError: a file cannot be read or written.
    """
    for manifest, _ in artifacts:
        archive.check_host(manifest)
    check(name, version, [manifest.kernel for manifest, _ in artifacts], tables, directory)
    from wheel.wheelfile import WheelFile

    tag = f"py3-none-{re.sub(r'[-.]', '_', sysconfig.get_platform())}"
    info = f"{name}-{version}.dist-info"
    index = json.dumps({"kernels": [asdict(manifest) for manifest, _ in artifacts]}, indent=1)
    files: dict[str, str | bytes] = {
        f"{name}/__init__.py": '"""Kernels for cutlass_py, which finds them by itself."""\n',
        **{f"{name}/{manifest.kernel}.so": library for manifest, library in artifacts},
        f"{name}/{packs.INDEX}": index,
        **{f"{name}/{_table_name(path)}": Path(path).read_bytes() for path in tables},
        f"{info}/METADATA": _METADATA.format(name=name, version=version, count=len(artifacts)),
        f"{info}/WHEEL": _WHEEL.format(tag=tag),
        f"{info}/entry_points.txt": f"[{packs.GROUP}]\n{name} = {name}\n",
        **{f"{info}/licenses/{file}": text for file, text in archive.licences().items()},
    }
    path = Path(directory) / f"{name}-{version}-{tag}.whl"
    with WheelFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    return path
