"""A proxy that changes nothing, records everything and judges what passes."""

from plumbline_conformance.watch.run import run_watch

__all__ = ["run_watch"]
