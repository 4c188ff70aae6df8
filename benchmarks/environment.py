"""Describe the machine and package versions of a benchmark run."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "plumbline",
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "litestar",
    "uvicorn",
    "uvloop",
    "msgspec",
)


def environment() -> dict[str, Any]:
    """Return processor, cores, load, Python, packages and commit."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "system": platform.system(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
