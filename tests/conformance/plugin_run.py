"""Run pytest with the plugin, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["pytest_run"]


def pytest_run(folder: Path, *options: str) -> tuple[int, str]:
    """Run pytest in an empty folder, with the plugin as its entry point would load it."""
    command = [sys.executable, "-m", "pytest", "-p", "plumbline_conformance.pytest_plugin", "-rA", *options]
    found = subprocess.run(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "NO_COLOR": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout + found.stderr
