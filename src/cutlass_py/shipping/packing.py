"""Writing a kernel pack (packs.py): a wheel of compiled kernels and tuned tables that installs beside the package."""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from ..choice import tuned
from . import archive, packs
from .archive import Manifest

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


def check(name: str, version: str) -> None:
    """What can be said before anything is compiled.

    Args:
        name: of the distribution and of its package: lower-case letters, digits and _.
        version: of the pack, such as "1.0".

    Raises:
        ValueError: a wrong name or version, or the `wheel` package is missing.
    """
    for what, text, pattern in (("name", name, r"[a-z][a-z0-9_]*"), ("version", version, r"\d+(\.\d+)*([a-z]+\d+)?")):
        if not re.fullmatch(pattern, text):
            raise ValueError(f"pack: {what} is {text!r}; expected {pattern}")
    try:
        import wheel.wheelfile  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError("pack: writing a wheel needs the package wheel: pip install 'cutlass_py[pack]'") from None


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
        ValueError: as `check`; two of the same kernel or of the same GPU, a kernel that does not fit this version, or
            nothing to pack.
        OSError: a file cannot be read or written.
    """
    check(name, version)
    files = {f"{name}/{file}": content for file, content in _contents(artifacts, tables).items()}
    tag = f"py3-none-{re.sub(r'[-.]', '_', sysconfig.get_platform())}"
    info = f"{name}-{version}.dist-info"
    files |= {
        f"{info}/METADATA": _METADATA.format(name=name, version=version, count=len(artifacts)),
        f"{info}/WHEEL": _WHEEL.format(tag=tag),
        f"{info}/entry_points.txt": f"[{packs.GROUP}]\n{name} = {name}\n",
        **{f"{info}/licenses/{file}": text for file, text in archive.licences().items()},
    }
    return _wheel(Path(directory) / f"{name}-{version}-{tag}.whl", files)


def _contents(
    artifacts: Sequence[tuple[Manifest, bytes]], tables: Iterable[str | os.PathLike[str]]
) -> dict[str, str | bytes]:
    """The files of the package by name."""
    files: dict[str, str | bytes] = {"__init__.py": '"""Kernels for cutlass_py, which finds them by itself."""\n'}
    for manifest, library in artifacts:
        archive.check_host(manifest)
        _put(files, f"{manifest.kernel}.so", library)
    files[packs.INDEX] = json.dumps({"kernels": [asdict(manifest) for manifest, _ in artifacts]}, indent=1)
    for path in tables:
        gpu, sm_count, _ = tuned.contents(path)
        _put(files, tuned.file_name(gpu, sm_count), Path(path).read_bytes())
    if len(files) == 2:
        raise ValueError("pack: there is nothing to pack; expected artifacts, kernels or tables")
    return files


def _put(files: dict[str, str | bytes], name: str, content: bytes) -> None:
    if name in files:
        raise ValueError(f"pack: there are two of {name}")
    files[name] = content


def _wheel(path: Path, files: dict[str, str | bytes]) -> Path:
    from wheel.wheelfile import WheelFile

    path.parent.mkdir(parents=True, exist_ok=True)
    with WheelFile(path, "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)
    return path
