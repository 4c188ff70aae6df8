"""Set up Python's garbage collector for a server."""

from __future__ import annotations

import atexit
import gc

__all__ = ["THRESHOLDS", "make_collections_rare"]

THRESHOLDS = (10_000, 10, 10)
"""New objects until each generation is collected. Python's own are 700, 10 and 10. A full collection among the objects
of hundreds of streams takes milliseconds, and no event is sent meanwhile. A million objects are about 100 MB.
"""


def make_collections_rare() -> None:
    """Exclude loaded objects from Python's garbage collection, and collect new objects less often."""
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # Otherwise nanobind reports leaks at the end of the process.
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
