"""Put a fault into functions of modules that have been imported."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple

__all__ = ["Change", "Changed", "NotSwappable", "put", "swap"]


class Change(NamedTuple):
    """The new source of one module."""

    module: str
    path: str
    source: str
    imported: bool = False
    """Whether lines of the fault run while the module is imported."""


class NotSwappable(Exception):  # noqa: N818 - it is a reason, not an error
    """The fault is not in the body of a function, or changes which outer variables it uses."""


def put(change: Change) -> None:
    """Make this process run the new source: swap the code of functions, or let all our modules be imported again."""
    try:
        if change.imported:
            raise NotSwappable
        swap(change)
    except NotSwappable:
        for name in list(sys.modules):
            if name.partition(".")[0] == "plumbline":
                del sys.modules[name]
        sys.meta_path.insert(0, Changed(change))


def swap(change: Change) -> None:
    """Give every function of the module that exists the code of the new source.

    Names that other modules have imported are the same function objects, so they run the new code as well.

    Raises:
        NotSwappable: see the class.
    """
    old = compile(Path(change.path).read_bytes(), change.path, "exec", dont_inherit=True)
    new = compile(change.source, change.path, "exec", dont_inherit=True)
    # By the code itself: two lambdas on one line have one name, but not the same columns.
    pairs = dict(_functions(old, new))
    changed = {_place(one) for one, other in pairs.items() if one != other}
    for found in gc.get_objects():
        if type(found) is not FunctionType or found.__code__.co_filename != change.path:
            continue
        code = pairs.get(found.__code__)
        if code is None and _place(found.__code__) in changed:
            raise NotSwappable  # Made by a decorator or from other source.
        if code is not None and code != found.__code__:
            try:
                found.__code__ = code
            except ValueError:  # Another number of outer variables.
                raise NotSwappable from None


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _functions(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Yield the code of each function and of the one that takes its place."""
    if old.co_flags & inspect.CO_OPTIMIZED:
        yield old, new
    elif _own(old) != _own(new):  # A module or the body of a class has run already.
        raise NotSwappable
    inner = [[value for value in code.co_consts if isinstance(value, CodeType)] for code in (old, new)]
    if [value.co_qualname for value in inner[0]] != [value.co_qualname for value in inner[1]]:
        raise NotSwappable
    for one, other in zip(*inner, strict=True):
        yield from _functions(one, other)


def _own(code: CodeType) -> tuple[object, ...]:
    """Return what a code does, without the functions in it and without line numbers."""
    values = [repr(value) for value in code.co_consts if not isinstance(value, CodeType)]
    return code.co_code, code.co_names, values


class Changed(MetaPathFinder, Loader):
    """Load one module from other source."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def find_spec(self, fullname: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find the changed module, and no other."""
        if fullname != self._change.module:
            return None
        package = self._change.path.endswith("__init__.py")
        folders = [str(Path(self._change.path).parent)] if package else None
        return spec_from_file_location(
            fullname, self._change.path, loader=self, submodule_search_locations=folders
        )

    def exec_module(self, module: ModuleType) -> None:
        """Run the new source."""
        exec(compile(self._change.source, self._change.path, "exec", dont_inherit=True), module.__dict__)
