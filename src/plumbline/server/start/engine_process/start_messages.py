"""Define what the processes of an engine and of its keeper write to each other, one message of JSON per line.

The keeper writes one `EngineStart`, and keeps its end of the pipe open for as long as it lives. The engine's process
writes reports.
"""

from __future__ import annotations

import msgspec

from plumbline.port.engine import EngineInfo
from plumbline.server.loading.planned import ServerPlan
from plumbline.server.settings import Settings

__all__ = ["Cleared", "EngineReady", "EngineStart", "Failed", "Loading", "ModelsPlanned", "Report"]


class EngineStart(msgspec.Struct, frozen=True, kw_only=True):
    """What to load. It comes on standard input: other users can see arguments and environments."""

    settings: Settings
    folder: str = ""
    """Of the model; if it is empty, the process plans the models of the settings, and ends."""
    gguf: str | None = None
    """Its file, if it is one."""
    name: str = ""
    """Of the model."""
    private: str = ""
    """The folder that the engine's process shares with its keeper."""
    number: int = 1
    """Of the process."""
    quarantined: tuple[bytes, ...] = ()
    """Digests of what is refused."""
    suspects: tuple[bytes, ...] = ()
    """Digests of what is reported when it has been computed to its end."""


class Loading(msgspec.Struct, tag="loading", frozen=True):
    """A step of the start; see `plumbline.port.progress.LoadProgress`."""

    stage: str
    done: int
    total: int


class EngineReady(msgspec.Struct, tag="ready", frozen=True):
    """The engine takes requests."""

    info: EngineInfo
    reason: str
    """Why this engine was chosen."""


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """Why the process ends."""

    text: str
    option: str | None = None
    """The option whose value cannot be used."""
    explains_itself: bool = False
    """Whether the text is a whole explanation, as of settings that cannot be used."""


class Cleared(msgspec.Struct, tag="cleared", frozen=True):
    """A suspect was computed to its end."""

    digest: bytes


class ModelsPlanned(msgspec.Struct, tag="planned", frozen=True):
    """The models of the settings."""

    plan: ServerPlan


Report = Loading | EngineReady | Failed | Cleared | ModelsPlanned
