"""Collect the generated types of the contract from the modules of its families."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from plumbline.contract import _generated

__all__ = ["TYPES"]

_NOT_FAMILIES = {"operations", "routes", "service"}

TYPES: dict[str, Any] = {
    name: getattr(module, name)
    for info in pkgutil.iter_modules(_generated.__path__)
    if info.name not in _NOT_FAMILIES
    for module in [importlib.import_module(f"{_generated.__name__}.{info.name}")]
    for name in module.__all__
}
"""Each type under the name of its schema."""
