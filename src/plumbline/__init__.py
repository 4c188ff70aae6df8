"""Plumbline: one contract, a server built from it, and an engine behind it."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("plumbline-llm")
except PackageNotFoundError:  # The source tree is on the path without having been installed.
    __version__ = "0.0.0"
