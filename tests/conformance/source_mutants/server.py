"""Serve the pocket model with one changed module, or note which lines run.

    python server.py PLAN PORT STORE

PLAN is a JSON file: `{"module": …, "path": …, "source": …}`, or `{"lines": FILE}` for the lines that run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

KEY_MODEL = "plumbline-pocket"


class _Changed(MetaPathFinder, Loader):
    """Load one module from other source."""

    def __init__(self, module: str, path: str, source: str) -> None:
        self._module, self._path, self._source = module, path, source

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        package = self._path.endswith("__init__.py")
        folders = [str(Path(self._path).parent)] if package else None
        return importlib.util.spec_from_file_location(
            fullname, self._path, loader=self, submodule_search_locations=folders
        )

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._source, self._path, "exec"), module.__dict__)


def _note_lines(file: str, package: str) -> None:
    """Write the lines of the package that have run, every second: a signal ends the process at once."""
    seen: dict[str, set[int]] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(package):
            return None
        lines = seen.setdefault(name[len(package) :], set())

        def local(frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return local

        return local(frame, event, None)

    def write() -> None:
        while True:
            time.sleep(1)
            found = {name: sorted(lines.copy()) for name, lines in seen.copy().items()}
            Path(f"{file}.new").write_text(json.dumps(found), "utf-8")
            Path(f"{file}.new").replace(file)

    threading.Thread(target=write, daemon=True).start()
    threading.settrace(trace)
    sys.settrace(trace)


def main() -> int:
    """Serve until the process is told to end."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    plan = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    if "lines" in plan:
        _note_lines(plan["lines"], plan["package"])
    else:
        sys.meta_path.insert(0, _Changed(plan["module"], plan["path"], plan["source"]))
    from plumbline.cli import main as plumbline

    options = ("--served-model-name", KEY_MODEL, "--port", sys.argv[2], "--store", sys.argv[3])
    return plumbline(["serve", *options])


if __name__ == "__main__":
    sys.exit(main())
