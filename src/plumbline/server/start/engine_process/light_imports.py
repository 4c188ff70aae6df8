"""Import torch without what only GPUs or other engines need, which is more than a third of the time."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import version
from types import ModuleType

__all__ = ["complete_torch", "light_imports"]

_META = "torch._meta_registrations"
"""Kernels of the meta device, which computes shapes alone. Our engine has no tensors there.

Torch imports them, and what other operations are composed of: 0.3 s and 18 MB. Modules that need them import them.
"""
_TRIED = "2.13."
"""Releases of torch whose import asks nothing of that module. It is not public, so others are imported whole."""


@contextlib.contextmanager
def light_imports() -> Iterator[None]:
    """Let imports do without the meta device, and without Triton where there is no GPU (0.1 s and 65 MB)."""
    _import_torch()
    import torch

    if torch.cuda.is_available():
        complete_torch()
    if torch.cuda.is_available() or "triton" in sys.modules or "TRITON_INTERPRET" in os.environ:
        yield
        return
    sys.modules["triton"] = None  # type: ignore[assignment]  # Python's way to make an import fail.
    try:
        yield
    finally:
        del sys.modules["triton"]


def complete_torch() -> None:
    """Import what `light_imports` has left out of torch, for an engine that may use it."""
    importlib.import_module(_META)


def _import_torch() -> None:
    if "torch" in sys.modules or not version("torch").startswith(_TRIED):
        return
    sys.modules[_META] = ModuleType(_META)  # Torch asks for the module, and for nothing in it.
    try:
        importlib.import_module("torch")
    finally:
        del sys.modules[_META]
