"""Find how much memory models may take, and give that of models that have left back to the machine."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from plumbline.base.gguf_file import piece_paths

if TYPE_CHECKING:
    import torch  # An API server without an engine does without its hundreds of megabytes.

__all__ = ["device_bytes", "release_unused", "weight_bytes"]

_GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def device_bytes(device: torch.device) -> int:
    """Return the bytes of memory of a GPU, or of the machine or its container."""
    if device.type == "cuda":
        return int(sys.modules["torch"].cuda.get_device_properties(device).total_memory)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(_GROUP_LIMIT.read_text("ascii")))
    except (OSError, ValueError):  # There is no group, or it has no limit.
        return machine


def weight_bytes(folder: Path, gguf: Path | None) -> int:
    """Return the size of the files with a model's weights.

    A folder may have the same weights twice: releases of Mistral have `consolidated.safetensors` beside
    `model-00001-of-00003.safetensors` and so on.
    """
    weights = [*folder.glob("model*.safetensors")] or folder.glob("*.safetensors")
    if gguf is not None:
        weights = [
            piece for piece in piece_paths(gguf) if piece.is_file()
        ]  # Engines refuse one that lacks a piece.
    return sum(path.stat().st_size for path in weights)


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
