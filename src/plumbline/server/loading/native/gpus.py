"""Say which models our engine leaves to another one on the GPUs of this machine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import torch

from plumbline.server.loading.memory import device_bytes
from plumbline.server.loading.native.memory import DEVICE_SHARE, loaded_bytes
from plumbline.server.loading.native.native_model import NativeModel, device_of, native_dtype
from plumbline.server.settings import OPTIONS, Settings
from plumbline_conformance.console.sizes import size_text

__all__ = ["Beyond", "beyond_one_gpu", "num_gpus"]

_log = logging.getLogger("plumbline.engines")


class Beyond(NamedTuple):
    """Why a model should not run on one GPU, which is what our engine uses."""

    reason: str
    fits: bool
    """Whether it can."""


def num_gpus(settings: Settings) -> int:
    """Return how many GPUs a model may use: those of the machine, or the one that `--device` names."""
    if device_of(settings.device).type != "cuda":
        return 0
    return torch.cuda.device_count() if settings.device in ("auto", "cuda") else 1


def beyond_one_gpu(settings: Settings, model: NativeModel, folder: Path) -> Beyond | None:
    """Return why another engine should run a model, or None if ours should.

    Args:
        settings: of the model; with an option that only our engine has, it should.
        model: that our engine supports.
        folder: of its weights.
    """
    count = num_gpus(settings)
    if count == 0 or _has_own_option(settings):
        return None
    if torch.version.hip is not None:
        _log.warning(
            "our kernels compile for AMD GPUs, and have not been tested on any: --engine vllm runs there"
        )
    device = device_of(settings.device)
    weights = loaded_bytes(settings, model, folder, native_dtype(settings, model))
    there = int(device_bytes(device) * (settings.device_memory or DEVICE_SHARE))
    if weights > there:
        sizes = f"its weights take {size_text(weights)}, and a GPU has {size_text(there)} for a model"
        return Beyond(sizes, fits=False)
    if count > 1:
        return Beyond(f"this machine has {count} GPUs, and ours runs a model on one", fits=True)
    return None


def _has_own_option(settings: Settings) -> bool:
    """Return whether an option is given that our engine has and vLLM has not."""
    given = (option for option in OPTIONS if getattr(settings, option.field) != option.default)
    return any("plumbline" in each.about.engines and "vllm" not in each.about.engines for each in given)
