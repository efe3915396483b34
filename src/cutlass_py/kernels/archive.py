"""Artifact files: one compiled kernel and all that another process or machine has to know of it, in one zip.

manifest.json says what the library beside it is. Nothing is loaded before both are whole and fit this machine.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .. import _core
from ..arrays.gpu import capabilities, device
from ..compiling import cache
from ..declaration import families
from ..declaration.config import GemmConfig, KernelConfig
from ..declaration.families import FAMILIES
from ..support.files import replace

_FORMAT = 1
_MANIFEST, _LIBRARY = "manifest.json", "library.so"
_DAMAGE = (KeyError, ValueError, EOFError, NotImplementedError, RuntimeError)  # as zipfile and json meet it


@dataclass(frozen=True)
class Manifest:
    """What a kernel library is.

    Attributes:
        kernel: the name of its one kernel.
        config: the fields of its KernelConfig.
        codes: what it holds machine code for, as nvcc names it, such as ("sm_80", "sm_90", "compute_80").
        machine: the processor of its host code, such as "x86_64".
        abi: CUTLASS_PY_ABI (kernel.h).
        version, cutlass, nvcc: of this package, of CUTLASS and of the compiler ("nvrtc13.0" where that is NVRTC); told,
            and not compared.
        facts: what the kernel says of itself, as in `_core.kernel_facts`; likewise.
        sha256: digest of the library.
    """

    kernel: str
    config: dict[str, Any]
    codes: tuple[str, ...]
    machine: str
    abi: int
    version: str
    cutlass: str
    nvcc: str
    facts: dict[str, Any]
    sha256: str
    format: int = _FORMAT

    @staticmethod
    def read(value: Any) -> Manifest:
        """A manifest from JSON.

        Raises:
            ValueError: it is none, or one of another format.
        """
        if not isinstance(value, dict) or value.get("format") != _FORMAT:
            found = value.get("format") if isinstance(value, dict) else None
            raise ValueError(f"the manifest has format {found}; expected {_FORMAT}")
        kinds = {"config": dict, "facts": dict, "codes": list, "abi": int, "format": int}
        for field in fields(Manifest):
            if not isinstance(value.get(field.name), kinds.get(field.name, str)):
                raise ValueError(f"the manifest's {field.name} is {value.get(field.name)!r}")
        # They become the name of a file.
        patterns = {"kernel": r"\w+", "nvcc": r"(nvrtc)?[\d.]+", "sha256": r"[0-9a-f]{64}"}
        for name, pattern in patterns.items():
            if not re.fullmatch(pattern, value[name]):
                raise ValueError(f"the manifest's {name} is {value[name]!r}")
        known = {field.name: value[field.name] for field in fields(Manifest)}
        return Manifest(**known | {"codes": tuple(map(str, value["codes"]))})


# ---------------------------------------------------------------------------------------------------- what fits here


def config_of(manifest: Manifest) -> KernelConfig:
    """The declaration of a kernel, which need not be one of this version's.

    Raises:
        ValueError: this version does not know such kernels.
    """
    try:
        values: dict[str, Any] = {key: tuple(x) if isinstance(x, list) else x for key, x in manifest.config.items()}
        family = FAMILIES.get(values.get("family", ""))
        config = (family.config if family else GemmConfig)(**values)
        if unknown := _unknown(config):
            reason = f"it does not know {', '.join(unknown)}"
        elif config.name != manifest.kernel:
            reason = f"there it is called {config.name}"
        elif config != (known := families.find(config.name) or config):
            reason = f"here it is {known}"
        else:
            return known
    except (TypeError, AttributeError, KeyError) as error:
        reason = str(error)
    raise ValueError(f"{manifest.kernel}: made by cutlass_py {manifest.version}; not a kernel of this one: {reason}")


def _unknown(config: KernelConfig) -> list[str]:
    """What a declaration names and the tables of this version do not have."""
    return [name for name, known in ((config.family, FAMILIES), *config.names) if name not in known]


def check_host(manifest: Manifest) -> None:
    """Whether this package can call the library.

    Raises:
        ValueError: what was found and what was expected.
    """
    here = platform.machine()
    if manifest.abi != _core.kernel_abi():
        raise ValueError(
            f"{manifest.kernel}: has kernel ABI {manifest.abi} (cutlass_py {manifest.version}); "
            f"expected {_core.kernel_abi()}"
        )
    if manifest.machine != here:
        raise ValueError(f"{manifest.kernel}: compiled for {manifest.machine}; expected {here}")
    config_of(manifest)


def device_error(manifest: Manifest) -> str | None:
    """Why the GPUs that are here do not run the library; without a GPU, every library is as good.

    Each GPU for which the kernel would be chosen has to run it, and one at least has to be there.
    """
    here = sorted({device(ordinal).cc for ordinal in range(_core.device_count())})
    lowest, highest = FAMILIES[manifest.config["family"]].cc
    able = [cc for cc in here if lowest <= cc <= highest]
    if not here or (able and all(runs_on(manifest.codes, cc) for cc in able)):
        return None
    found = ", ".join(f"{cc / 10:.1f}" for cc in here)
    return (
        f"{manifest.kernel}: holds machine code for {', '.join(manifest.codes)}; the GPU here has compute capability "
        f"{found}"
    )


def runs_on(codes: Iterable[str], cc: int) -> bool:
    """Whether a device of this compute capability runs one of these codes.

    Machine code runs on its own generation where that is no older, PTX on whatever is no older, and code that is named
    with a letter on that very capability.
    """
    for code in codes:
        if not (parts := re.fullmatch(r"(sm|compute)_(\d+)([a-z]?)", code)):
            continue
        kind, built, exact = parts[1], int(parts[2]), parts[3]
        if cc == built or (not exact and cc > built and (kind == "compute" or cc // 10 == built // 10)):
            return True
    return False


# ---------------------------------------------------------------------------------------------------- writing


def of_kernel(config: KernelConfig, cc: Collection[int] = ()) -> tuple[Manifest, bytes]:
    """A kernel's library - as it was loaded, from the cache, or compiled now - and what it is.

    Args:
        config: the kernel.
        cc: compute capabilities, times ten, that it is compiled for beside those of the devices here.

    Raises:
        ValueError: it was registered in this process or fuses a function of it, which no other could name; or it runs
            on none of these, or was loaded without code for them.
        CompileError: it is not there and cannot be compiled.
    """
    from .. import __version__
    from ..compiling import compiler
    from .registry import add

    if known := joined.get(config.name):
        codes = known[0].codes
        if lacking := [x for x in cc if not runs_on(codes, x)]:
            found = f"{config.name}: was loaded as machine code for {', '.join(codes)}"
            raise ValueError(f"{found}; asked for is {', '.join(f'{x / 10:.1f}' for x in lacking)}")
        return known[0], _library(*known)
    if unknown := [config.name] if config.own_source else _unknown(config):
        raise ValueError(f"{config.name}: not to be saved: {', '.join(unknown)} is known to this process alone")
    compiler.covered(config, cc)
    here = capabilities() if _core.device_count() else ()  # the library is loaded below
    made = compiler.recipe(config, {*cc, *here} if cc else ())
    path = compiler.obtain(made)
    if not _core.load_library(str(path), config.name):
        raise ValueError(f"{path} holds no kernel {config.name}")
    add(config)
    library = path.read_bytes()[: -cache.DIGEST]
    manifest = Manifest(
        kernel=config.name,
        config=asdict(config),
        codes=tuple(codes_of(made.flags)),
        machine=platform.machine(),
        abi=_core.kernel_abi(),
        version=__version__,
        cutlass=compiler.cutlass_version(made.include),
        nvcc=path.stem.rpartition("-")[2].removeprefix("nvcc"),
        facts=_core.kernel_facts()[config.name],
        sha256=_digest(library),
    )
    return manifest, library


def codes_of(flags: Iterable[str]) -> list[str]:
    """What -gencode flags name as code."""
    found = (re.search(r"-gencode=.*code=\[?([\w,]+)", flag) for flag in flags)
    return [code for match in found if match for code in match[1].split(",")]


def write(path: str | os.PathLike[str], manifest: Manifest, library: bytes) -> None:
    """Writes an artifact file; one of that name is replaced when the new one is whole.

    Raises:
        OSError: it cannot be written.
    """
    import io
    import json
    import zipfile

    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(_MANIFEST, json.dumps(asdict(manifest), indent=1))
        file.writestr(_LIBRARY, library)
        for name, text in licences().items():
            file.writestr(f"licenses/{name}", text)
    target = Path(path)
    replace(target, content.getvalue())


def licences() -> dict[str, str]:
    """Licences of what is compiled into kernels, by file name."""
    places = sorted((Path(_core.__file__).parent / "licenses").glob("CUTLASS*"))
    return {path.name: path.read_text(encoding="utf-8") for path in places}


# ---------------------------------------------------------------------------------------------------- reading


def read(path: str | os.PathLike[str]) -> tuple[Manifest, bytes]:
    """What an artifact file holds.

    Raises:
        ValueError: it is no artifact, or damaged; the message names the file.
        OSError: it cannot be read.
    """
    import io
    import json
    import lzma
    import zipfile
    import zlib

    name = os.fspath(path)
    content = io.BytesIO(Path(path).read_bytes())
    try:
        with zipfile.ZipFile(content) as file:
            manifest = Manifest.read(json.loads(file.read(_MANIFEST)))
            library = file.read(_LIBRARY)
    except (*_DAMAGE, zipfile.BadZipFile, zlib.error, lzma.LZMAError) as error:
        raise ValueError(f"{name} is no artifact, or a damaged one: {error}") from None
    if _digest(library) != manifest.sha256:
        raise ValueError(f"{name} is damaged: the library's digest is not the manifest's")
    return manifest, library


def load(manifest: Manifest, library: bytes) -> Path:
    """Brings a library into this process, where it fits; returns where it was unpacked: in the cache (docs/jit.md).

    Raises:
        ValueError: it does not fit this package, this processor or the GPU here.
        RuntimeError: the loader refuses it.
        OSError: it cannot be unpacked anywhere.
    """
    check_host(manifest)
    if error := device_error(manifest):
        raise ValueError(error)
    compiler = manifest.nvcc if manifest.nvcc.startswith("nvrtc") else f"nvcc{manifest.nvcc}"
    name = f"{manifest.kernel}-{manifest.sha256[:32]}-{compiler}"
    path = cache.find(name)
    if not path:
        with cache.locked(name):
            path = cache.find(name) or cache.store(name, library)
    join(manifest, path)
    return path


def check_whole(manifest: Manifest, library: Path) -> None:
    """Whether a file is the library of a manifest: a torn one would end the process as it is loaded.

    Raises:
        ValueError: it is not.
        OSError: it cannot be read.
    """
    if _digest(library.read_bytes()) != manifest.sha256:
        raise ValueError(f"{library} is damaged: its digest is not the manifest's")


def join(manifest: Manifest, library: Path) -> None:
    """Loads a library that fits; its kernel can be found from now on.

    Raises:
        ValueError: it does not hold that kernel.
        RuntimeError: the loader refuses it.
    """
    if not _core.load_library(str(library), manifest.kernel):
        raise ValueError(f"{library} holds no kernel {manifest.kernel}")
    if not families.find(manifest.kernel):
        families.added[manifest.kernel] = config_of(manifest)
    joined[manifest.kernel] = manifest, library


joined: dict[str, tuple[Manifest, Path]] = {}  # what came from artifacts and packs, and the files it was loaded from


def forget(kernel: str) -> bool:
    """Takes back what came from an artifact or a pack under this name; whether something did.

    A kernel that had been there before, of the built set or compiled here, stays: it is what runs.
    """
    from .registry import forget_kernel

    if not (found := joined.pop(kernel, None)):
        return False
    if kernel in _core.kernel_facts() and _core.kernel_library(kernel) == str(found[1]):
        forget_kernel(kernel)
    return True


def _library(manifest: Manifest, path: Path) -> bytes:
    """The library in a file, which entries of the cache have more behind."""
    content = path.read_bytes()
    for library in (content, content[: -cache.DIGEST]):
        if _digest(library) == manifest.sha256:
            return library
    raise ValueError(f"{manifest.kernel}: {path} has changed since it was loaded")


def _digest(library: bytes) -> str:
    from hashlib import sha256

    return sha256(library).hexdigest()
