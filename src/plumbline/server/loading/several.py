"""Find the models of a server with several, estimate the memory that they take, and load those of the start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import torch

from plumbline.server.loading.catalog import Catalog, Source
from plumbline.server.loading.engines import choose_engine
from plumbline.server.loading.memory import device_bytes, weight_bytes
from plumbline.server.loading.model import ServedModel, find_files, load, model_name
from plumbline.server.loading.native.memory import cache_bytes, loaded_bytes, recorded_bytes
from plumbline.server.loading.native.model import describe_model, device_of, native_dtype
from plumbline.server.settings import OptionError, Settings

__all__ = ["several"]

_SHARE = 0.9
"""Part of a device's memory that models may take; vLLM's default for one."""
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}$")
"""How the names of GGUF files end that another file begins."""


def several(settings: Settings, loading: Callable[[str], None]) -> Catalog:
    """Return the models of `--model` and `--model-dir`.

    The models of `--model` are loaded in their order as long as the memory suffices, so that a wrong one ends the
    start. The others are loaded when requests name them.

    Args:
        settings: the settings.
        loading: is called with the name of each model before it is loaded.

    Raises:
        SettingsError: a model of `--model` cannot be used, or two models have one name.
        Exception: a model that is loaded cannot be served; see `load`.
    """
    capacity = settings.models_memory_bytes or int(device_bytes(device_of(settings.device)) * _SHARE)
    given = [_source(settings, name, path) for name, path in settings.models]
    paths = {os.path.abspath(os.path.expanduser(path)) for _, path in settings.models}
    folder = Path(settings.model_dir).expanduser()
    found = _models_of(folder) if settings.model_dir else []
    listed = [
        _source(settings, path.stem if path.is_file() else path.name, str(path))
        for path in found
        if os.path.abspath(path) not in paths
    ]
    _check_names([*given, *listed], settings)
    loaded: dict[str, ServedModel] = {}
    left = capacity
    for source in given:
        name = source.names[0]
        if source.size > capacity:
            raise OptionError(
                "--models-memory-bytes",
                f"must be at least {source.size}, the estimate for '{name}', and is {capacity}: give more, a smaller "
                "--kv-cache-bytes, or a smaller model",
            )
        if source.size <= left:
            loading(name)
            loaded[name] = source.load()
            left -= source.size
    return Catalog(
        sources=(*given, *listed),
        default=given[0] if given else None,
        loaded=loaded,
        capacity=capacity,
        shows_status=True,
    )


def _models_of(folder: Path) -> list[Path]:
    """Return the model folders and the GGUF files of a folder."""
    folders = [path.parent for path in folder.glob("*/config.json")]
    files = [
        path
        for path in folder.glob("*.gguf")
        if not _LATER_PART.search(path.stem) and not path.name.startswith("mmproj")
    ]
    return sorted([*folders, *files])


def _source(settings: Settings, name: str, path: str) -> Source:
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
    return Source((own.models[0][0],), partial(load, own), _size(own, engine, weights, gguf) + graphs)


def _size(settings: Settings, engine: str, weights: int, gguf: Path | None) -> int:
    """Return the bytes that a model takes: its weights, and its KV cache at its largest."""
    if engine == "vllm" and settings.kv_cache_bytes is None and torch.cuda.is_available():
        # Its cache takes what the weights leave of this share.
        return int(device_bytes(torch.device("cuda")) * (settings.device_memory or _SHARE))
    return weights + cache_bytes(settings, engine, gguf)


def _check_names(sources: list[Source], settings: Settings) -> None:
    names = [source.names[0] for source in sources]
    for name in names:
        if names.count(name) > 1:
            option = "--model-dir" if settings.model_dir else "--model"
            raise OptionError(option, f"gives two models the name '{name}': name one with --model NAME=PATH")
