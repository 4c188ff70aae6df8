"""Build the runner of llama.cpp's parser from the source distribution of llama-cpp-python.

Only the files that parse are compiled: the parser calls nothing else of llama.cpp if no model is loaded, so the linker
leaves the rest out.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

__all__ = ["VERSION", "command"]

VERSION = "0.3.36"
"""The release of llama-cpp-python, as in `conformance/reference_servers/servers.py`."""
HERE = Path(__file__).parent
_SOURCES = (
    "chat*",
    "peg-parser",
    "jinja/*",
    "parsers/*",
    "json*",
    "log",
    "unicode",
    "trie",
    "common",
    "reasoning-budget",
)
_INCLUDED = ("common", "include", "ggml/include", "vendor")


def command(folder: Path) -> list[str] | None:
    """Return the command of the runner, which is built at the first call; None if that fails, with the reason printed.

    Args:
        folder: for the source and the program.
    """
    program = folder / f"runner-{VERSION}"
    try:
        source = _source(folder)
        if not program.exists() or program.stat().st_mtime < (HERE / "runner.cpp").stat().st_mtime:
            _build(source, folder, program)
    except (subprocess.CalledProcessError, OSError) as error:
        reason = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        print(f"llama.cpp's parser cannot be built: {reason.strip()[-300:]}", file=sys.stderr)
        return None
    return [str(program), str(HERE / "templates.tsv"), str(source / "models" / "templates")]


def _source(folder: Path) -> Path:
    found = list(folder.glob(f"*{VERSION}/vendor/llama.cpp"))
    if not found:
        wanted = f"llama-cpp-python=={VERSION}"
        options = ("--no-deps", "--no-binary", ":all:", "--dest", str(folder), wanted)
        _run(sys.executable, "-m", "pip", "download", "--quiet", *options)
        (archive,) = folder.glob(f"llama_cpp_python-{VERSION}.tar.gz")
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
        found = list(folder.glob(f"*{VERSION}/vendor/llama.cpp"))
    return found[0]


def _build(source: Path, folder: Path, program: Path) -> None:
    print("llama.cpp: compiling its parser; this happens once and takes some minutes", file=sys.stderr)
    includes = [f"-I{source / name}" for name in _INCLUDED]
    compiler = ("g++", "-std=c++17", "-O1", f'-DVERSION="{VERSION}"', *includes)
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)
    files = [path for name in _SOURCES for path in sorted((source / "common").glob(f"{name}.cpp"))]
    for path in files:
        made = objects / f"{path.parent.name}-{path.stem}.o"
        if not made.exists():
            _run(*compiler, "-c", str(path), "-o", f"{made}.new")
            Path(f"{made}.new").rename(made)
    _run(*compiler, "-c", str(HERE / "runner.cpp"), "-o", str(folder / "runner.o"))
    parts = [str(path) for path in sorted(objects.glob("*.o"))]
    # Static and at a fixed address, so that functions that are left out do not keep the program from starting.
    options = ("-static", "-no-pie", "-Wl,--unresolved-symbols=ignore-all")
    _run("g++", "-o", str(program), str(folder / "runner.o"), *parts, *options)


def _run(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    print(command(Path(sys.argv[1])))
