"""Describe the server for the page: its models and engines, its memory, and its latest requests."""

from __future__ import annotations

import platform
from typing import Any

import msgspec

from plumbline import __version__
from plumbline.engines.remote.memory import MemoryUse
from plumbline.port.engine import Engine, EngineInfo
from plumbline.server.models import Models
from plumbline.server.observe.recent import RecentRequest, RecentRequests
from plumbline.server.settings import Settings
from plumbline.server.settings.keys import Key

__all__ = ["Status", "status_of"]


class EngineFacts(msgspec.Struct, kw_only=True):
    """The engine of a loaded model."""

    name: str
    why: str
    """Why this engine runs the model."""
    runs_on: str
    """The device and the kind of numbers; empty if the engine does not tell."""
    context: int
    """Tokens of prompt and answer together."""
    vocabulary: int
    modalities: list[str]
    """The kinds of files that prompts may have."""
    cache_tokens: int
    """Tokens that the paged cache holds; 0 for an engine without one."""
    cache_bytes: int


class ModelFacts(msgspec.Struct, kw_only=True):
    """A model that is loaded."""

    names: list[str]
    weight_bytes: int
    tool_calls: str
    """How its tool calls and its thinking are read."""
    engine: EngineFacts


class Status(msgspec.Struct, kw_only=True):
    """The state of the server, as far as `/metrics` does not show it."""

    version: str
    python: str
    processes: int
    """How many processes answer clients; memory and requests are those of one of them."""
    oversees: bool
    """Whether the key sees the work of all keys: `/metrics`, the memory and the latest requests."""
    memory_bytes: int | None
    """Of this process and those of its engines; None where the system does not tell."""
    device_memory: tuple[int, int] | None
    """Used and total bytes of the accelerator; None on a CPU."""
    stores: bool
    """Whether responses are kept, so that `previous_response_id` works."""
    models: list[ModelFacts]
    requests: list[RecentRequest]


def status_of(
    models: Models[Any], settings: Settings, recent: RecentRequests | None, stores: bool, key: Key
) -> Status:
    """Return the state of the server, as far as requests with a key may see it.

    Args:
        models: the models.
        settings: the settings.
        recent: the latest requests of all keys; None for a key that sees only its own work.
        stores: whether responses are kept.
        key: the key.
    """
    stats = [engine.stats() for engine in models.engines]
    own = MemoryUse()
    own.measure()
    return Status(
        version=__version__,
        python=platform.python_version(),
        processes=settings.api_servers,
        oversees=recent is not None,
        memory_bytes=None
        if recent is None
        else own.resident + sum(each.memory_bytes for each in stats) or None,
        device_memory=None
        if recent is None
        else next((each.device_memory for each in stats if each.device_memory), own.device),
        stores=stores,
        models=[
            ModelFacts(
                names=list(filter(key.may_use, model.names)),
                weight_bytes=model.weight_bytes,
                tool_calls=model.dialect.choice.describe(),
                engine=_engine(model.engine, model.engine_reason),
            )
            for model in models.served
            if any(map(key.may_use, model.names))
        ],
        requests=[] if recent is None else recent.latest(),
    )


def _engine(engine: Engine, why: str) -> EngineFacts:
    info: EngineInfo = engine.info
    return EngineFacts(
        name=info.name,
        why=why,
        runs_on=info.runs_on,
        context=info.max_model_len,
        vocabulary=info.vocab_size,
        modalities=sorted(info.modalities),
        cache_tokens=info.num_blocks * info.block_size,
        cache_bytes=info.cache_bytes,
    )
