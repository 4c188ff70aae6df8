"""Stand in for the package `vllm`, which the tests import beside sending requests.

A name that no module here has is a class that can be imported, subclassed and expected as an exception. Calling it
skips the test, because what vLLM's own code returns says nothing about a server.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, NoReturn

import pytest


class _AbsentType(type):
    def __call__(cls, *arguments: Any, **named: Any) -> NoReturn:
        pytest.skip(f"calls vLLM's own code, {cls.__module__}.{cls.__qualname__}")

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__module__}.{cls.__qualname__}", name)

    def __add__(cls, other: Any) -> NoReturn:
        cls()


def absent(module: str, name: str) -> Any:
    """Return the class that stands for a name of a module."""
    # A base that is an exception, so that `pytest.raises` takes it.
    return _AbsentType(name, (Exception,), {"__module__": module})


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find every module below `vllm` that no file here has."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("vllm."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_Finder())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return absent("vllm", name)
