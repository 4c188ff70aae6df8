"""Record in a mapped file what an engine is computing; the record survives the end of its process.

    slot:  user (4 bytes) | state (4) | stream (8) | digest (16)

The host writes a slot for each request of its users, and the engine marks those that it is computing. A mark is one
write into memory, when a request begins to run and when it stops: a step costs nothing more.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

import msgspec

from plumbline.engines.remote.messages import CheckGrammar, Expand, Generate, LoadAdapter
from plumbline.port.engine import GenerateRequest, MediaPrompt, RefusedRequestError

__all__ = ["JournalEntry", "Question", "RequestJournal", "Suspicion", "create", "digest", "read"]

_SLOT = struct.Struct("<IIQ16s")
_SLOTS = 16_384
"""Requests that are recorded; further ones are not, and no engine computes as many."""
_STATE = struct.Struct("<I")
_STATE_AT = 4
_WAITS, _WORKS = 1, 2
_SAMPLE = 64 * 1024
"""Bytes of a file that are hashed at its beginning and at its end; all of a video would take long."""
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


Question = Generate | CheckGrammar | Expand | LoadAdapter
"""What an engine might die of."""
QUARANTINED = "request_quarantined"
"""The code of the error of a request that an engine has died of."""


class JournalEntry(NamedTuple):
    """A request that an engine was computing."""

    user: int
    """The number of the connection."""
    stream: int
    digest: bytes


def digest(message: Question) -> bytes:
    """Return a hash of what is computed, without ids, seeds and clients; it is the same in every process."""
    match message:
        case Generate(_, request):
            found: object = _request_facts(request)
        case Expand(_, prompt):
            found = _media_facts(prompt)
        case CheckGrammar(_, grammar):
            found = grammar
        case LoadAdapter(_, name, folder):
            found = name, folder
    return hashlib.blake2b(_encode((type(message).__name__, found)), digest_size=16).digest()


def _request_facts(request: GenerateRequest) -> object:
    bias = sorted(request.sampling.logit_bias.items())  # The encoder sorts mappings with names only.
    sampling = msgspec.structs.replace(request.sampling, seed=None, logit_bias={})
    files = None if request.media is None else _media_facts(request.media)
    return request.prompt_token_ids, sampling, bias, request.adapter, files


def _media_facts(prompt: MediaPrompt) -> object:
    files = [
        (item.media_type, len(item.data), item.data[:_SAMPLE], item.data[-_SAMPLE:]) for item in prompt.items
    ]
    return prompt.token_ids, files


def create(path: Path) -> None:
    """Create an empty journal, or empty one that is there. Its blocks are taken at once: the disk may fill up later."""
    path.write_bytes(bytes(_SLOTS * _SLOT.size))


def read(path: Path) -> list[JournalEntry]:
    """Return what was being computed when the process that wrote the journal ended."""
    return [
        JournalEntry(user, stream, hashed)
        for user, state, stream, hashed in _SLOT.iter_unpack(path.read_bytes())
        if state == _WORKS
    ]


class Suspicion:
    """Write down what an engine computes, and refuse what its processes have died of.

    Args:
        path: the file of the journal, which exists.
        quarantined: digests of what two processes were computing when they ended.
        suspects: digests of what the last ones were computing.
        cleared: called with the digest of a suspect that was computed to its end.
    """

    def __init__(
        self,
        path: Path,
        quarantined: Collection[bytes],
        suspects: Collection[bytes],
        cleared: Callable[[bytes], None],
    ) -> None:
        self.journal = RequestJournal(path)
        self._quarantined = frozenset(quarantined)
        self._suspects = set(suspects)
        self._cleared = cleared

    def enter(self, name: str, user: int, message: Question) -> RefusedRequestError | None:
        """Write a question down, or return why it is refused."""
        hashed = digest(message)
        if hashed in self._quarantined:
            return RefusedRequestError(
                "The engine ended twice while it computed this request, so the server does not compute it again within "
                "an hour. Change the request, or report its `x-request-id` to the operator.",
                code=QUARANTINED,
            )
        # Only requests wait for their turn; the rest begins at once.
        self.journal.enter(
            name, JournalEntry(user, message.stream, hashed), works=not isinstance(message, Generate)
        )
        return None

    def clear(self, name: str) -> None:
        """Note that a request has been computed to its end."""
        hashed = self.journal.digest_of(name)
        if hashed in self._suspects:
            self._suspects.discard(hashed)
            self._cleared(hashed)

    def leave(self, name: str) -> None:
        """Strike a question out; unknown names are ignored."""
        self.journal.leave(name)


class RequestJournal:
    """Write the journal of an engine's process. The event loop enters requests, and any thread marks them.

    Args:
        path: the file, which exists.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._free = list(range(_SLOTS - 1, -1, -1))
        self._slots: dict[str, int] = {}

    def enter(self, name: str, entry: JournalEntry, *, works: bool = False) -> None:
        """Write down a request, under a name that `mark` and `leave` use."""
        if self._free and name not in self._slots:
            slot = self._slots[name] = self._free.pop()
            _SLOT.pack_into(
                self._map,
                slot * _SLOT.size,
                entry.user,
                _WORKS if works else _WAITS,
                entry.stream,
                entry.digest,
            )

    def mark(self, name: str, works: bool) -> None:
        """Note that the engine begins to compute a request, or that it stops; unknown names are ignored."""
        slot = self._slots.get(name)
        if slot is not None:
            _STATE.pack_into(self._map, slot * _SLOT.size + _STATE_AT, _WORKS if works else _WAITS)

    def digest_of(self, name: str) -> bytes:
        """Return the digest of a request; nothing for an unknown name."""
        slot = self._slots.get(name)
        return b"" if slot is None else bytes(_SLOT.unpack_from(self._map, slot * _SLOT.size)[3])

    def leave(self, name: str) -> None:
        """Clear the slot of a request; unknown names are ignored."""
        slot = self._slots.pop(name, None)
        if slot is not None:
            _STATE.pack_into(self._map, slot * _SLOT.size + _STATE_AT, 0)
            self._free.append(slot)
