"""Run a script where the parsers of other servers can be imported.

    python conformance/reference_parsers/environment.py [--install] SCRIPT [ARGUMENT ...]

Other servers need different releases of packages that we use, so the script runs in the environment of the reference
server vLLM, with SGLang in a folder next to it. `--install` creates both; without it the script runs with what exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".nox"
PINS = Path(__file__).parent / "pins/sglang.txt"
sys.path.insert(0, str(ROOT / "conformance/reference_servers"))

from environments import Environment, MissingServer  # noqa: E402
from servers import PEERS  # noqa: E402


def run(arguments: Sequence[str], *, install: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a script; returns its exit status and standard output."""
    return subprocess.run(
        command(arguments, install=install), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )


def command(arguments: Sequence[str], *, install: bool = False) -> list[str]:
    """Return the command that runs a script there."""
    sglang = HOME / ".parsers-sglang"
    python = HOME / ".peer-vllm/bin/python"
    if install:
        try:
            environment = Environment("vllm", PEERS["vllm"], HOME)
            _install(environment, sglang)
        except MissingServer as error:
            print(f"not everything can be installed: {error}", file=sys.stderr)
    paths = os.pathsep.join([str(ROOT / "src"), *([str(sglang)] if sglang.is_dir() else [])])
    interpreter = str(python) if python.exists() else sys.executable
    return ["env", f"PYTHONPATH={paths}", "HF_HUB_OFFLINE=1", interpreter, *arguments]


def _install(environment: Environment, folder: Path) -> None:
    stamp = folder / "installed.txt"
    pins = PINS.read_text("utf-8")
    if stamp.is_file() and stamp.read_text("utf-8") == pins:
        return
    environment.run(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"),
        *("--target", str(folder), "-r", str(PINS)),
        PYTHONPATH="",
    )
    stamp.write_text(pins, "utf-8")


if __name__ == "__main__":
    install = sys.argv[1:2] == ["--install"]
    done = run(sys.argv[2 if install else 1 :], install=install)
    print(done.stdout, end="")
    sys.exit(done.returncode)
