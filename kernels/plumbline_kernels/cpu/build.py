"""Compile the C++ kernels for this machine, and keep the result in the user's cache.

Run as a program, it does so before a start needs them; it imports no torch.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from plumbline_kernels.cpu.layout import HEADER

__all__ = ["CompileError", "build", "build_ahead"]

_SOURCES = Path(__file__).parent
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
"""Without hidden symbols, libraries for different processors in one process would share the variables of threads, whose
sizes differ."""
_SECONDS = 600
"""Compiling takes 3 to 20 seconds of CPU, and minutes on a busy machine; a compiler that takes this long hangs."""


_lock = threading.Lock()
_uncached: dict[str, Path] = {}
"""What this process has compiled without a cache."""


class CompileError(Exception):
    """The kernels could not be compiled; the message has the reason and the next step."""


def build(*flags: str) -> Path:
    """Return the compiled kernels, from the cache if the machine, compiler and sources are the same.

    Args:
        flags: further options of the compiler; tests compile for older processors with them.

    Raises:
        CompileError: there is no C++ compiler, or it failed.
        OSError: there is no folder for temporary files, or no space.
    """
    wanted = os.environ.get("CXX") or "c++"
    compiler = shutil.which(wanted)
    if compiler is None:
        raise CompileError(f"no C++ compiler '{wanted}' was found; install one, e.g. the package g++")
    flags = (*_FLAGS, _native_flag(), *flags)
    name = f"plumbline-cpu-{_key(compiler, flags)}.so"
    with _lock:
        return _cached(compiler, flags, name)


def build_ahead() -> None:
    """Begin to compile in a thread, so that a start has more to do than to wait; `build` waits for the rest.

    An error is raised by `build`, which tries again.
    """

    def compile_quietly() -> None:
        with suppress(CompileError, OSError):
            build()

    threading.Thread(target=compile_quietly, name="compiler", daemon=True).start()


def _cached(compiler: str, flags: tuple[str, ...], name: str) -> Path:
    folder = _folder()
    # A cache on a disk that is read-only by now, as in a container, may have the result.
    if folder is not None and (folder / name).exists():
        return folder / name
    if folder is not None and os.access(folder, os.W_OK):
        _compile(compiler, flags, folder / name)
        return folder / name
    if name not in _uncached or not _uncached[name].exists():
        path = Path(tempfile.mkdtemp(prefix="plumbline-")) / name
        atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
        _compile(compiler, flags, path)
        _uncached[name] = path
    return _uncached[name]


def _native_flag() -> str:
    return "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"


def _folder() -> Path | None:
    """Return the folder of the cache; None if others than this user can write it, because code is loaded from it."""
    try:
        base = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(base) if base else Path.home() / ".cache") / "plumbline"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home.
        return None
    return folder if status.st_uid == os.getuid() and not status.st_mode & 0o022 else None


def _key(compiler: str, flags: tuple[str, ...]) -> str:
    """Hash what the compiled code depends on: sources, flags, compiler, and the processor that `native` names."""
    digest = hashlib.sha256(HEADER.encode())
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
    """Compile to a temporary file first: several processes and threads may do so at the same time."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(descriptor)
    temporary = Path(name)
    try:
        with tempfile.TemporaryDirectory(prefix="plumbline-") as folder:
            (Path(folder) / "layout.h").write_text(HEADER, encoding="utf-8")
            _run_compiler([compiler, *flags, f"-I{folder}", "-o", name, str(_SOURCES / "program.cpp")])
        temporary.chmod(0o700)  # The linker makes a new file, which follows the umask.
        with temporary.open("rb") as file:
            os.fsync(file)  # Otherwise a machine that loses power may keep the name without the content.
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _run_compiler(command: list[str]) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"the compiler {command[0]} did not run: {error}") from error
    if result.returncode != 0:
        first = next((line for line in result.stderr.splitlines() if "error" in line), result.stderr[:200])
        raise CompileError(f"the compiler {command[0]} failed: {first}")


if __name__ == "__main__":
    build()
