"""Compile the C++ kernels for this machine, and keep the result in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["CompileError", "build"]

_SOURCES = Path(__file__).parent
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
_SECONDS = 120
"""Compiling takes two seconds; a compiler that takes this long hangs."""


class CompileError(Exception):
    """The kernels could not be compiled; the message has the reason and the next step."""


def build(*flags: str) -> Path:
    """Return the compiled kernels, from the cache if the machine, compiler and sources are the same.

    Args:
        flags: further options of the compiler; tests compile for older processors with them.

    Raises:
        CompileError: there is no C++ compiler, or it failed.
    """
    name = os.environ.get("CXX") or "c++"
    compiler = shutil.which(name)
    if compiler is None:
        raise CompileError(f"no C++ compiler '{name}' was found; install one, e.g. the package g++")
    flags = (*_FLAGS, _native_flag(), *flags)
    target = _folder() / f"plumbline-cpu-{_key(compiler, flags)}.so"
    if not target.exists():
        _compile(compiler, flags, target)
    return target


def _native_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _folder() -> Path:
    """Return a folder that only this user can write: code is loaded from it."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "plumbline"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="plumbline-"))


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Hash what the compiled code depends on: sources, flags, compiler, and the processor that `native` names."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.glob("*.[hc]*")):
        digest.update(path.read_bytes())
    stat = Path(compiler).resolve().stat()
    parts = (*flags, compiler, str(stat.st_mtime_ns), str(stat.st_size), platform.machine(), _processor())
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    """Return the features of the processor as Linux lists them, or its name elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def _compile(compiler: str, flags: tuple[str, ...], target: Path) -> None:
    """Compile to a temporary file first: several processes may do so at the same time."""
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so") as file:
        command = [compiler, *flags, "-o", file.name, str(_SOURCES / "program.cpp")]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"the compiler {compiler} did not run: {error}") from error
        if result.returncode != 0:
            first = next(
                (line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200]
            )
            raise CompileError(f"the compiler {compiler} failed: {first}")
        temporary = target.with_suffix(f".{os.getpid()}")
        shutil.copyfile(file.name, temporary)
        temporary.replace(target)
