"""Find the models of a server with several, and estimate the memory that they take."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import torch

from plumbline.base.gguf_file import is_later_piece, title_of
from plumbline.server.loading.engines import choose_engine
from plumbline.server.loading.memory import device_bytes, weight_bytes
from plumbline.server.loading.model_files import find_files, model_name
from plumbline.server.loading.native.memory import cache_bytes, loaded_bytes, recorded_bytes
from plumbline.server.loading.native.native_model import describe_model, device_of, native_dtype
from plumbline.server.loading.planned import PlannedModel, ServerPlan
from plumbline.server.settings import Settings

__all__ = ["plan"]

_SHARE = 0.9
"""Part of a device's memory that models may take; vLLM's default for one."""


def plan(settings: Settings) -> ServerPlan:
    """Find the models of `--model` and `--model-dir`.

    Raises:
        SettingsError: a model of `--model` cannot be found.
    """
    capacity = settings.models_memory_bytes or int(device_bytes(device_of(settings.device)) * _SHARE)
    given = [_planned(settings, name, path) for name, path in settings.models]
    paths = {os.path.abspath(os.path.expanduser(path)) for _, path in settings.models}
    found = _models_of(Path(settings.model_dir).expanduser()) if settings.model_dir else []
    listed = [
        _planned(settings, title_of(path) if path.is_file() else path.name, str(path))
        for path in found
        if os.path.abspath(path) not in paths
    ]
    return ServerPlan(capacity, tuple(given), tuple(listed))


def _models_of(folder: Path) -> list[Path]:
    """Return the model folders and the GGUF files of a folder."""
    folders = [path.parent for path in folder.glob("*/config.json")]
    files = [
        path
        for path in folder.glob("*.gguf")
        if not is_later_piece(path) and not path.name.startswith("mmproj")
    ]
    return sorted([*folders, *files])


def _planned(settings: Settings, name: str, path: str) -> PlannedModel:
    own = msgspec.structs.replace(settings, models=((name, path),), model_dir="", models_memory_bytes=None)
    folder, gguf = find_files(own)
    own = msgspec.structs.replace(own, models=((model_name(folder, gguf, own), path),))
    weights, graphs = weight_bytes(folder, gguf), 0
    try:
        engine = choose_engine(own, folder, gguf).name
        if engine == "plumbline":
            model = describe_model(own, folder, gguf)
            weights = loaded_bytes(own, model, folder, native_dtype(own, model))
            graphs = recorded_bytes(own, model)
    except Exception:  # It cannot be loaded either, and the error of that is the one to report.
        engine = "plumbline"
    if engine == "plumbline" and own.kv_cache_bytes is None:
        # The only model of a server takes all that a GPU has; of several each takes as much as on a CPU.
        own = msgspec.structs.replace(own, kv_cache_bytes=cache_bytes(own, engine, gguf))
    return PlannedModel(own, _size(own, engine, weights, gguf) + graphs)


def _size(settings: Settings, engine: str, weights: int, gguf: Path | None) -> int:
    """Return the bytes that a model takes: its weights, and its KV cache at its largest."""
    if engine == "vllm" and settings.kv_cache_bytes is None and torch.cuda.is_available():
        # Its cache takes what the weights leave of this share.
        return int(device_bytes(torch.device("cuda")) * (settings.device_memory or _SHARE))
    return weights + cache_bytes(settings, engine, gguf)
