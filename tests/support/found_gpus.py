"""Let the server find GPUs where there are none."""

from __future__ import annotations

import pytest
import torch

from plumbline.server.loading import engines
from plumbline.server.loading.native import gpus as native_gpus
from plumbline.server.loading.native import memory as native_memory
from plumbline.server.loading.native import native_loader, native_model

__all__ = ["find_a_gpu"]


def find_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
    memory: int = 80 << 30,
    count: int = 1,
    capability: tuple[int, int] = (9, 0),
) -> None:
    """Let `--device auto` find GPUs with so many bytes of memory each."""
    for module in (engines, native_loader, native_gpus, native_memory, native_model):
        monkeypatch.setattr(module, "device_of", lambda _: torch.device("cuda", 0))
    for user in (native_gpus, native_memory):
        monkeypatch.setattr(user, "device_bytes", lambda _: memory)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (memory, memory))
