"""List the models that a server may load."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from plumbline.server.loading.served_model import ServedModel

__all__ = ["Catalog", "ModelSource", "only"]

UNBOUNDED = 2**63 - 1
"""Bytes; no sum of models reaches them."""


class ModelSource(msgspec.Struct, frozen=True):
    """A model that the server may load."""

    names: tuple[str, ...]
    """Ids that requests may use; the first is the one in answers (MOD-04)."""
    load: Callable[[], ServedModel]
    """Loads the model; runs in a thread. Its errors are those of `loading.served_model.load`."""
    size: int = 0
    """Bytes of memory that the model takes."""


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a server, and those that are loaded at its start."""

    sources: tuple[ModelSource, ...]
    default: ModelSource | None
    """The model of requests that name none; None if such requests are refused."""
    loaded: dict[str, ServedModel] = {}
    """By the first name of their sources. Each is used once; when it is loaded again, its source is."""
    capacity: int = UNBOUNDED
    """Bytes of memory that all loaded models may take."""
    shows_status: bool = False
    """Whether the list of models says which are loaded."""


def only(model: ServedModel, load: Callable[[], ServedModel] | None = None) -> Catalog:
    """Return the catalog of a server with one model.

    Args:
        model: the model, whose engine is not started.
        load: loads it again after it was unloaded; by default its engine is started again.
    """
    source = ModelSource(model.names, load or (lambda: model))
    return Catalog(sources=(source,), default=source, loaded={model.names[0]: model})
