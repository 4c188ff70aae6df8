"""Define the messages between API servers and the hub of their claims."""

from __future__ import annotations

import msgspec

__all__ = [
    "Enter",
    "Find",
    "FromHub",
    "HubAnswer",
    "Leave",
    "LimitVerdict",
    "NameClaim",
    "Release",
    "ServerReady",
    "Take",
    "ToHub",
]


class ServerReady(msgspec.Struct, tag="ready", frozen=True):
    """The first message of an API server: it takes requests, and others reach it at this Unix socket."""

    address: str


class NameClaim(msgspec.Struct, tag="claim", frozen=True):
    """Claim a name."""

    number: int
    name: str


class Release(msgspec.Struct, tag="release", frozen=True):
    """Give up a name."""

    name: str


class Find(msgspec.Struct, tag="find", frozen=True):
    """Ask who has claimed a name."""

    number: int
    name: str


class Enter(msgspec.Struct, tag="enter", frozen=True):
    """Admit a request of the key with this digest."""

    number: int
    key: bytes


class Leave(msgspec.Struct, tag="leave", frozen=True):
    """End the request of an `Enter`, if it was admitted."""

    number: int


class Take(msgspec.Struct, tag="take", frozen=True):
    """Take tokens from the budget of a key."""

    key: bytes
    amount: int


ToHub = ServerReady | NameClaim | Release | Find | Enter | Leave | Take


class LimitVerdict(msgspec.Struct, frozen=True):
    """Whether a request of a key is admitted."""

    refusal: str = ""
    """The message of the 429; empty if the request is admitted."""
    retry_after: int = 0
    """Seconds until another try may be admitted."""
    headers: dict[str, str] = {}
    """What is left of the budgets, as the headers of the answer have it."""


class HubAnswer(msgspec.Struct, tag="answer", frozen=True):
    """The answer to the message of this number."""

    number: int
    granted: bool = False
    address: str = ""
    """Where the API server is reached that has the name, if it is another."""
    verdict: LimitVerdict | None = None


FromHub = HubAnswer
