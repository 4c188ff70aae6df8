"""Give the memory of models that have left back to the machine."""

from __future__ import annotations

import gc
import sys

__all__ = ["release_unused"]


def release_unused() -> None:
    """Free models that nothing refers to any more, also those loaded before `start.garbage` froze what was there."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
