"""Define the messages between API servers and the hub of their claims."""

from __future__ import annotations

import msgspec

__all__ = ["Answer", "Claim", "Find", "FromHub", "Ready", "Release", "ToHub"]


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The first message of an API server: it takes requests, and others reach it at this Unix socket."""

    address: str


class Claim(msgspec.Struct, tag="claim", frozen=True):
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


ToHub = Ready | Claim | Release | Find


class Answer(msgspec.Struct, tag="answer", frozen=True):
    """The answer to the message of this number."""

    number: int
    granted: bool = False
    address: str = ""
    """Where the API server is reached that has the name, if it is another."""


FromHub = Answer
