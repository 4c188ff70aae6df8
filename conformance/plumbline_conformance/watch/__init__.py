"""Proxy live traffic unchanged, record it and check it."""

from plumbline_conformance.watch.watching import run_watch

__all__ = ["run_watch"]
