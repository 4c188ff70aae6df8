"""Define the messages between an engine's process and the processes that use it."""

from __future__ import annotations

from typing import Literal

import msgspec

from plumbline.port.engine import EngineInfo, EngineStats, GenerateRequest, MediaPrompt, TokenChunk

__all__ = [
    "Abort",
    "AbortNamed",
    "Arrived",
    "Arriving",
    "CheckGrammar",
    "Checked",
    "Chunks",
    "Expand",
    "Expanded",
    "FromHost",
    "Generate",
    "Hello",
    "LoadAdapter",
    "Refused",
    "Room",
    "Statistics",
    "ToHost",
    "UnloadAdapter",
    "Unread",
]


class Generate(msgspec.Struct, tag="g", array_like=True, frozen=True):
    """Continue a sequence; its chunks come under `stream`, which this connection has not used before."""

    stream: int
    request: GenerateRequest


class Abort(msgspec.Struct, tag="a", array_like=True, frozen=True):
    """End a stream that is no longer read, and free what it holds. No chunk needs to follow."""

    stream: int


class AbortNamed(msgspec.Struct, tag="n", array_like=True, frozen=True):
    """End a stream with a last chunk of reason `abort`."""

    stream: int


class Unread(msgspec.Struct, tag="u", array_like=True, frozen=True):
    """Pause or resume sending the chunks of a stream: its reader lags far behind, or has caught up."""

    stream: int
    far_behind: bool


class CheckGrammar(msgspec.Struct, tag="c", array_like=True, frozen=True):
    """Compile a grammar; the answer is `Checked` or `Refused` under `stream`."""

    stream: int
    grammar: str
    client: str


class Expand(msgspec.Struct, tag="e", array_like=True, frozen=True):
    """Expand a prompt with files; the answer is `Expanded` or `Refused` under `stream`."""

    stream: int
    prompt: MediaPrompt


class LoadAdapter(msgspec.Struct, tag="l", array_like=True, frozen=True):
    """Load an adapter; the answer is `Checked` or `Refused` under `stream`."""

    stream: int
    name: str
    folder: str


class UnloadAdapter(msgspec.Struct, tag="m", array_like=True, frozen=True):
    """Unload an adapter; the answer is `Checked` under `stream`, once no request uses it."""

    stream: int
    name: str


class Arriving(msgspec.Struct, tag="i", array_like=True, frozen=True):
    """A request of a client is being prepared."""

    number: int
    client: str


class Arrived(msgspec.Struct, tag="j", array_like=True, frozen=True):
    """The request of an `Arriving` is prepared, or will not come."""

    number: int


ToHost = (
    Generate
    | Abort
    | AbortNamed
    | Unread
    | CheckGrammar
    | Expand
    | LoadAdapter
    | UnloadAdapter
    | Arriving
    | Arrived
)


class Hello(msgspec.Struct, tag="h", array_like=True, frozen=True):
    """The first message of the host."""

    info: EngineInfo
    user: int = 0
    """The number of this connection."""
    process: int = 0
    """The number of the engine's process (`history.py`)."""


class Chunks(msgspec.Struct, tag="k", array_like=True, frozen=True):
    """Chunks of any streams in the order in which the engine made them."""

    items: list[tuple[int, TokenChunk]]


class Checked(msgspec.Struct, tag="o", array_like=True, frozen=True):
    """The grammar is fine, or the adapter is loaded or unloaded."""

    stream: int


class Expanded(msgspec.Struct, tag="x", array_like=True, frozen=True):
    """The tokens of a prompt with files."""

    stream: int
    token_ids: list[int]


class Refused(msgspec.Struct, tag="r", array_like=True, frozen=True):
    """The engine refused the request, grammar or adapter of this stream with one of the errors of the port."""

    stream: int
    kind: Literal["refused", "full", "closed"]
    message: str
    param: str | None = None
    retry_after: int = 1
    code: str | None = None


class Room(msgspec.Struct, array_like=True, frozen=True):
    """How many more requests of a client there is room for, and how the one after them would be refused."""

    count: int
    message: str
    retry_after: int


class Statistics(msgspec.Struct, tag="s", array_like=True, frozen=True):
    """The engine's counters, sent a few times a second, and where room is short."""

    stats: EngineStats
    rooms: dict[str, Room] = {}
    """Of clients that have less than others."""
    others: Room | None = None
    """Of all other clients; None if there is plenty."""
    arrivals: int = 0
    """The number of the latest `Arriving` that is counted here."""


FromHost = Hello | Chunks | Checked | Expanded | Refused | Statistics
