"""Define the plan of a server with several models, which another process makes (`plan.py`)."""

from __future__ import annotations

import msgspec

from plumbline.server.settings import Settings

__all__ = ["PlannedModel", "ServerPlan"]


class PlannedModel(msgspec.Struct, frozen=True):
    """A model that the server may load."""

    settings: Settings
    """With this model alone, by its name."""
    size: int
    """Bytes of memory that it takes."""

    @property
    def name(self) -> str:
        """The name that requests use."""
        return self.settings.models[0][0]


class ServerPlan(msgspec.Struct, frozen=True):
    """The models of a server, and the memory that they take."""

    capacity: int
    """Bytes that all loaded models may take."""
    given: tuple[PlannedModel, ...]
    """Of `--model`."""
    listed: tuple[PlannedModel, ...]
    """Of `--model-dir`."""
