"""Kernels compiled on demand: what a library is made from, which compiler makes it, and the context that allows it.

The source is that of the built set, the flags too (codegen.py); only the time differs. One library holds one kernel. Of
sources that need no compiler of the host's NVRTC makes a cubin; all others, and those where it is missing, are nvcc's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache as remember
from pathlib import Path
from time import monotonic
from typing import Any

from .. import _core
from ..arrays.gpu import capabilities
from ..declaration import codegen
from ..declaration.config import KernelConfig, cc_range
from ..declaration.families import FAMILIES
from ..declaration.families import find as declared
from ..errors import CompileError
from . import cache, nvrtc, toolkit

logger = logging.getLogger("cutlass_py")  # instrumentation.py, which imports this
failed: dict[str, str] = {}  # kernels that this process could not compile or load, and why
_running: set[int] = set()  # process groups, each an nvcc and what it has started
_stopped: set[int] = set()  # those that `stop` ended
_INSTALL = "pip install 'cutlass_py[jit]'"
# As CMake compiles the built set: only cutlass_py_library is exported, and the runtime is the library's own.
_SHARED = (
    "-std=c++17",
    "-O3",
    "-shared",
    "-cudart=static",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden",
    "-Xlinker=--exclude-libs=ALL",
)


@contextmanager
def jit() -> Iterator[None]:
    """Within it, calls of this thread choose among all declared kernels and compile the one they choose.

    Outside of it `gemm` takes kernels that are there, and compiles only one that is asked for by name.

    Raises:
        CompileError: from a call within it, as Kernel.compile does.
    """
    before = _core.allow_jit(True)
    try:
        yield
    finally:
        _core.allow_jit(before)


# ---------------------------------------------------------------------------------------------------- what is compiled


@dataclass(frozen=True)
class Recipe:
    """Everything that a library is made from, but for the compiler. `entry` begins its name in the cache.

    Attributes:
        flags: nvcc's.
        nvrtc_flags: empty where NVRTC cannot compile the source.
    """

    kernel: str
    source: str
    flags: tuple[str, ...]
    include: tuple[Path, ...]
    nvrtc_flags: tuple[str, ...] = ()

    @property
    def entry(self) -> str:
        """The kernel's name and a digest of all the rest; of headers by content, so that it holds on every machine."""
        from .. import __version__

        added = [os.environ.get(name) for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]  # nvcc reads them
        flags = self.flags, self.nvrtc_flags
        parts = [self.source, flags, added, _headers(self.include), __version__, platform.machine()]
        return f"{self.kernel}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"


def source_of(config: KernelConfig) -> str:
    """The C++ source that defines a kernel: written from its declaration, or as a user brought it."""
    return config.own_source or codegen.source([config])


def covered(config: KernelConfig, cc: Collection[int]) -> list[int]:
    """Of compute capabilities, times ten, those that a kernel runs on.

    Raises:
        ValueError: it runs on none of them, though there are some.
    """
    lowest, highest = FAMILIES[config.family].cc
    found = [x for x in cc if lowest <= x <= highest]
    if cc and not found:
        asked = ", ".join(f"{x / 10:.1f}" for x in cc)
        raise ValueError(f"{config.name} runs on compute capability {cc_range(lowest, highest)}; asked for is {asked}")
    return found


def recipe(config: KernelConfig, cc: Collection[int] = ()) -> Recipe:
    """How a kernel is compiled, for the devices that are here, or for these compute capabilities, times ten.

    Raises:
        ValueError: it runs on none of them.
        CompileError: the headers are missing.
    """
    covered(config, cc)
    family = FAMILIES[config.family]
    cubin = family.cubins and not config.own_source
    entry_point = codegen.entry_point([config], package=False)
    if cubin:
        entry_point = f"#ifndef __CUDACC_RTC__\n{entry_point}#endif\n"
    source = f"{source_of(config)}\n{entry_point}"
    flags = codegen.flags(family, family.gencode_for(cc or capabilities()))
    nvrtc_flags = codegen.nvrtc_flags(family) if cubin else ()
    return Recipe(config.name, source, (*_SHARED, *flags), _include(config.name), tuple(nvrtc_flags))


_ABI = ("abi/kernel.h", "abi/dtype_number.h")
_OWN = (*_ABI, "kernels/common/descriptor.cuh")
# All that kernels are compiled from; `include/` of a source tree has other names for some of them.
_ROOMS = ("common", "cutlass2x", "cutlass3x", "freestanding", "gemv", "quantize", "sm90")
_OWN_DIRECTORIES = tuple(f"kernels/{room}" for room in _ROOMS)


def own_headers(kernel: str) -> Path:
    """The directory of this package's headers.

    Raises:
        CompileError: they are missing.
    """
    return _own_place(_include(kernel, _OWN))


def _own_place(include: tuple[Path, ...]) -> Path:
    return next(place for place in include if (place / _OWN[0]).is_file())


def _include(kernel: str, wanted: tuple[str, ...] = (*_OWN, "cutlass/version.h")) -> tuple[Path, ...]:
    """The headers that were installed with the package, else CUTLASS_PY_INCLUDE, which source trees set."""
    places = [Path(_core.__file__).parent / "include"]
    if not all((places[0] / header).is_file() for header in wanted):
        places += [Path(entry) for entry in os.environ.get("CUTLASS_PY_INCLUDE", "").split(os.pathsep) if entry]
    for header in wanted:
        if not any((place / header).is_file() for place in places):
            raise CompileError(
                f"cannot compile {kernel}: {header} is not in {', '.join(map(str, places))}. A package that is built "
                "with CUDA has it; without, or in a source tree, set CUTLASS_PY_INCLUDE"
            )
    there = [place for place in places if place.is_dir()]
    return (*there, *(place / "include" for place in there if (place / "include" / "kernel.h").is_file()))


@remember
def _headers(include: tuple[Path, ...]) -> tuple[str, str]:
    """Digests of this package's headers and of CUTLASS's, which are many files: once per process.

    The build leaves that of the copy which it installs beside it.
    """
    ours = _own_place(include)
    cutlass = _version_header(include).parent.parent
    known = cutlass / "cutlass.sha256"
    theirs = known.read_text(encoding="ascii") if known.is_file() else toolkit.digest(cutlass, *toolkit.CUTLASS_HEADERS)
    return toolkit.digest(ours, *_ABI, "kernels/wrap_device_gemm.cuh", *_OWN_DIRECTORIES), theirs


def _version_header(include: tuple[Path, ...]) -> Path:
    places = (place / "cutlass" / "version.h" for place in include)
    return next(place for place in places if place.is_file())


def cutlass_version(include: tuple[Path, ...]) -> str:
    """Of the headers, such as "4.2.1"; empty where they do not say it."""
    text = _version_header(include).read_text(encoding="utf-8")
    return ".".join(re.findall(r"define CUTLASS_(?:MAJOR|MINOR|PATCH) (\d+)", text))


# ---------------------------------------------------------------------------------------------------- compilers


def find_nvcc() -> tuple[str, str] | None:
    """Path and version of the compiler, or None."""
    try:
        nvcc = toolkit.installed_nvcc()
        if not nvcc and (root := toolkit.nvcc_wheels()):
            nvcc = str(root / "bin" / "nvcc")
    except ValueError as error:
        raise CompileError(str(error)) from None
    if not nvcc:
        return None
    found = toolkit.nvcc_version(nvcc)
    if not found:
        raise CompileError(f"{nvcc} does not say its version")
    return nvcc, ".".join(map(str, found))


@dataclass(frozen=True)
class _Nvcc:
    path: str
    version: str

    @property
    def name(self) -> str:
        return f"nvcc{self.version}"

    def compile(self, made: Recipe, source: Path, shown: str) -> tuple[bytes, str, str]:
        """The library, or how that failed; and the command with all that the compiler said."""
        library = source.with_suffix(".so")
        command = [self.path, *made.flags, *(f"-I{place}" for place in made.include), "-o", str(library), str(source)]
        if (wheels := Path(self.path).parent.parent / "lib" / "libcudart_static.a").is_file():
            command.append(f"-L{wheels.parent}")  # nvcc itself looks in lib64
        status, output = _run(command, shown)
        content = library.read_bytes() if status == 0 and library.is_file() else b""
        how = "" if content else f"nvcc failed with status {status}" if status else "nvcc wrote no library"
        return content, how, f"{' '.join(command)}\n{output}"


@dataclass(frozen=True)
class _Nvrtc:
    library: nvrtc.Nvrtc

    @property
    def name(self) -> str:
        return self.library.name

    def compile(self, made: Recipe, source: Path, shown: str) -> tuple[bytes, str, str]:
        """As _Nvcc has it; the library is a cubin."""
        places = _own_place(made.include) / "kernels" / "freestanding", *made.include
        flags = [*made.nvrtc_flags, *(f"-I{place}" for place in places)]
        began = monotonic()
        watched = _watched(shown)
        if watched:
            _line(shown, 0)
        content, output = self.library.compile(made.source, flags)
        if watched:
            _line(shown, monotonic() - began, end="\n")
        return content, "" if content else f"{self.name} failed", f"{self.name} {' '.join(flags)}\n{output}"


def _compiler(made: Recipe) -> _Nvcc | _Nvrtc | None:
    """What compiles it here, which it does in the same way every time."""
    if made.nvrtc_flags and (library := nvrtc.find()):
        return _Nvrtc(library)
    nvcc = find_nvcc()
    return _Nvcc(*nvcc) if nvcc else None


def find(made: Recipe, *, any_compiler: bool = False) -> Path | None:
    """The library in the cache. Without a compiler, or where none is to be looked for, any compiler's will do."""
    compiler = None if any_compiler else _compiler(made)
    return cache.find(f"{made.entry}-{compiler.name if compiler else '*'}")


def build(made: Recipe, *, quiet: bool = False, instead_of: Path | None = None) -> Path:
    """The library, from the cache or compiled now. Of all threads and processes one compiles it, the others wait.

    Args:
        made: of what.
        quiet: no line of progress on a terminal.
        instead_of: an entry that is of no use here, until a new one replaces it.

    Raises:
        CompileError: there is no compiler, or it failed.
    """
    compiler = _compiler(made)
    if not compiler:
        raise CompileError(f"cannot compile {made.kernel}: {_missing(made)}: {_INSTALL}")
    name = f"{made.entry}-{compiler.name}"
    useless = instead_of and instead_of.stat().st_ino

    def usable() -> Path | None:
        found = cache.find(name)
        return None if found is None or found.stat().st_ino == useless else found

    if found := usable():
        return found
    with cache.locked(name):
        return usable() or cache.store(name, _compile(made, compiler, quiet))


def _missing(made: Recipe) -> str:
    return f"{nvrtc.MISSING}; {toolkit.NVCC_MISSING}" if made.nvrtc_flags else toolkit.NVCC_MISSING


def _compile(made: Recipe, compiler: _Nvcc | _Nvrtc, quiet: bool) -> bytes:
    work = Path(tempfile.mkdtemp(prefix="cutlass_py-"))
    source, log = (work / f"{made.kernel}.{suffix}" for suffix in ("cu", "log"))
    logger.info("compiling %s", made.kernel)
    began = monotonic()
    try:
        source.write_text(made.source, encoding="utf-8")
        content, how, output = compiler.compile(made, source, "" if quiet else made.kernel)
        if not content:
            log.write_text(output, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(work)
        if isinstance(error, OSError):
            raise CompileError(f"cannot compile {made.kernel}: {error}") from None
        raise
    logger.info("%s %s in %.1f s", "compiled" if content else "failed to compile", made.kernel, monotonic() - began)
    if not content:
        lines = [line.strip() for line in output.splitlines()[1:] if line.strip()]
        errors = [line for line in lines if re.search(r"\b(error|fatal)\b(?!-)", line, re.IGNORECASE)]
        begins = "\n".join(f"  {line[:200]}" for line in (errors or lines)[:5])  # templates spell out pages of types
        failed[made.kernel] = (
            f"cannot compile {made.kernel}: {how}. The source is kept: {source}; "
            f"beside it the command and all that the compiler said. It began:\n{begins}"
        )
        raise CompileError(failed[made.kernel])
    shutil.rmtree(work)
    return content


def _run(command: list[str], shown: str) -> tuple[int, str]:
    """Status and output of a command, with a line that counts seconds where somebody watches."""
    watched = _watched(shown)
    began = monotonic()
    pipe = subprocess.PIPE  # and a session of its own: nvcc's children must end with it
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True) as process:
        _running.add(process.pid)
        try:
            while True:
                if watched:
                    _line(shown, monotonic() - began)
                try:
                    output, _ = process.communicate(timeout=1 if watched else None)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            _kill(process.pid)
            raise
        finally:
            _running.discard(process.pid)
    if process.pid in _stopped:
        _stopped.discard(process.pid)
        raise CompileError("the compilation was stopped")  # no failure: nothing is kept of it
    if watched:
        _line(shown, monotonic() - began, end="\n")
    return process.returncode, output.decode(errors="replace")


def stop() -> None:
    """Ends every compilation of this process: signals from the terminal do not reach them."""
    for group in tuple(_running):
        _stopped.add(group)
        _kill(group)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _watched(shown: str) -> bool:
    return bool(shown and sys.stderr and sys.stderr.isatty())


def _line(kernel: str, seconds: float, end: str = "") -> None:
    room = max(shutil.get_terminal_size().columns - len("cutlass_py: compiling  ... 9999 s"), 8)
    print(f"\rcutlass_py: compiling {kernel[:room]} ... {seconds:.0f} s", end=end, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------------------------------- loading


def may_compile() -> bool:
    """What CUTLASS_PY_JIT says.

    Raises:
        ValueError: neither 0 nor 1.
    """
    value = os.environ.get("CUTLASS_PY_JIT") or "1"
    if value not in ("0", "1"):
        raise ValueError(f"CUTLASS_PY_JIT is {value!r}; it must be 0 or 1")
    return value == "1"


def can_compile() -> bool:
    """Whether `load` may compile any kernel, not NVRTC's alone, and finds nvcc, if only to refuse it."""
    try:
        return may_compile() and find_nvcc() is not None
    except CompileError:
        return True


def at_hand(config: KernelConfig) -> bool:
    """Whether the cache has the kernel; any compiler's, for use where there is none."""
    try:
        return find(recipe(config), any_compiler=True) is not None
    except CompileError:  # no headers, by whose content it would be known
        return False


def obtain(made: Recipe) -> Path:
    """The library, from the cache or compiled now if CUTLASS_PY_JIT allows it.

    Raises:
        CompileError: it is not there, and forbidden; there is no compiler; or it failed.
    """
    allowed = may_compile()
    if library := find(made, any_compiler=not allowed):
        return library
    if not allowed:
        raise CompileError(
            f"kernel {made.kernel} is not in the built set, and CUTLASS_PY_JIT=0 forbids compiling it. "
            f"Prebuild it: {_prebuild(made)}"
        )
    return build(made)


def _prebuild(made: Recipe) -> str:
    if declared(made.kernel):
        return f"python -m cutlass_py cache build --kernel {made.kernel}"
    return "make the call once where it may be compiled, with the same CUTLASS_PY_CACHE_DIR"


def load(config: KernelConfig) -> dict[str, Any]:
    """Brings a kernel into this process, compiled if it must be; returns its facts.

    Raises:
        CompileError: CUTLASS_PY_JIT=0 forbids compiling it, there is no compiler, it failed, or the library does not
            load.
    """
    made = recipe(config)
    library = obtain(made)
    try:
        found = _core.load_library(str(library), config.name)
    except RuntimeError as error:  # whole, but of no use here: linked with a newer libc, say
        reason = "CUTLASS_PY_JIT=0 forbids" if not may_compile() else "" if _compiler(made) else _missing(made)
        if reason:
            raise CompileError(
                f"{error}, and it cannot be compiled again: {reason}. Remove {library} and prebuild it: "
                f"{_prebuild(made)}"
            ) from None
        found = _load_anew(made, library)
    if not found:
        failed[config.name] = f"the source of {config.name} names its kernel otherwise"
        raise CompileError(failed[config.name])
    failed.pop(config.name, None)
    return _core.kernel_facts()[config.name]


def _load_anew(made: Recipe, useless: Path) -> bool:
    library = build(made, instead_of=useless)
    try:
        return _core.load_library(str(library), made.kernel)
    except RuntimeError as error:
        failed[made.kernel] = str(error)
        raise CompileError(str(error)) from None
