"""The PEP 517 backend: scikit-build-core, plus three things that only this package knows.

It asks pip for CUTLASS, DLPack and nvcc where they are missing (toolchain.py), marks a CPU-only build with a local
version, and keeps one build directory per configuration, in which a second build finds everything done.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import scikit_build_core
import toolchain
from scikit_build_core import build as skbuild
from scikit_build_core.build import build_sdist, get_requires_for_build_sdist

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "dynamic_metadata",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

Settings = dict[str, Any]
_local_version = ""  # set by _prepare; a source distribution has none


def dynamic_metadata(settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, str]:
    """The version, for scikit-build-core: a CPU-only wheel must not pass for the full one."""
    return {"version": settings["version"] + _local_version}


@contextmanager
def _explained() -> Iterator[None]:
    """Ends with the message alone: the traceback of a wrong option helps nobody."""
    try:
        yield
    except toolchain.BuildError as error:
        raise SystemExit(f"error: {error}") from None


def _prepare(config_settings: Settings | None, build: bool) -> Settings:
    """Settles the options. CMake gets every one explicitly, so that none survives in its cache from another build."""
    global _local_version
    with _explained():
        options = toolchain.Options.read(config_settings)
        reason = toolchain.without_cuda(options)
        nvcc = "" if reason or not build else toolchain.find_nvcc(copy=True)
    _local_version = "+cpu" if reason else ""
    build_dir = f"build/{sysconfig.get_config_var('SOABI')}-{'cpu' if reason else 'cuda'}"
    settings = {"build-dir": build_dir, **(config_settings or {})}
    settings |= {f"cmake.define.{name}": value for name, value in asdict(options).items()}
    templated = "{" in settings["build-dir"]  # what it becomes, scikit-build-core alone knows
    if build and (templated or not _keep_cache(Path(settings["build-dir"]), nvcc)):
        settings["cmake.fresh"] = "true"
    return settings


def _keep_cache(build_dir: Path, nvcc: str | None) -> bool:
    """Lets CMake's cache and the object files outlive an isolated environment.

    scikit-build-core clears both when its own path has changed, as it does in every isolated build. Nothing here
    depends on that path: what came from wheels was copied to build/deps. Another nvcc is a good reason to start afresh.
    """
    info, stamp = build_dir / ".skbuild-info.json", build_dir / ".nvcc"
    version = f"{nvcc} {toolchain.toolkit.nvcc_version(nvcc)}" if nvcc else "none"
    if not info.is_file() or not stamp.is_file() or stamp.read_text() != version:
        build_dir.mkdir(parents=True, exist_ok=True)
        stamp.write_text(version)
        return False
    try:
        known = json.loads(info.read_text())
        known["skbuild_path"] = str(Path(scikit_build_core.__file__).resolve().parent)
        info.write_text(json.dumps(known))
    except (ValueError, TypeError):  # torn by an interrupted build
        return False
    return True


def _parts(config_settings: Settings | None) -> list[str]:
    with _explained():
        return toolchain.requirements(toolchain.Options.read(config_settings))


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    return [*skbuild.get_requires_for_build_wheel(config_settings), *_parts(config_settings)]


def get_requires_for_build_editable(config_settings: Settings | None = None) -> list[str]:
    return [*skbuild.get_requires_for_build_editable(config_settings), *_parts(config_settings)]


def prepare_metadata_for_build_wheel(directory: str, config_settings: Settings | None = None) -> str:
    return skbuild.prepare_metadata_for_build_wheel(directory, _prepare(config_settings, build=False))


def prepare_metadata_for_build_editable(directory: str, config_settings: Settings | None = None) -> str:
    return skbuild.prepare_metadata_for_build_editable(directory, _prepare(config_settings, build=False))


def build_wheel(directory: str, config_settings: Settings | None = None, metadata: str | None = None) -> str:
    return skbuild.build_wheel(directory, _prepare(config_settings, build=True), metadata)


def build_editable(directory: str, config_settings: Settings | None = None, metadata: str | None = None) -> str:
    return skbuild.build_editable(directory, _prepare(config_settings, build=True), metadata)
