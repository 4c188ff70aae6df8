"""Give a handler the HTTP request around its decoded body."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from litestar import Request

from .error_forms import is_messages, is_model_list
from .errors import ApiError

__all__ = [
    "BESIDE",
    "CLIENT_NAMED",
    "ERROR",
    "FACTS",
    "SHARE",
    "SKIPPED_TOOLS",
    "TRACE",
    "UNENFORCED",
    "Call",
    "KeyShare",
    "Trace",
    "authorization",
    "new_request_id",
    "note_error",
    "note_skipped",
    "place_list",
]

T = TypeVar("T")

BESIDE = "beside"
"""Key of the request's state: `LargeBodies.run` for its client, and the bytes of its body."""
CLIENT_NAMED = "client_named"
"""Key of the request's state: whether the client chose the request id."""
FACTS = "facts"
"""Key of the request's state: see `Call.facts`."""
ERROR = "error"
"""The fact that is the code of the answer's error."""
UNENFORCED = "unenforced"
"""The fact that is the value of the header `x-plumbline-unenforced`."""
SKIPPED_TOOLS = "skipped_tools"
"""The fact that has the names of the header `x-plumbline-skipped-tools`."""
SHARE = "share"
"""Key of the request's state: see `Call.share`."""
TRACE = "trace"
"""Key of the request's state: see `Call.trace`."""


class Trace(Protocol):
    """Takes what is observed of a request, for the operator's traces."""

    def answered(self, model: str, record: Any) -> None:
        """Take an answer that has ended: what `server/observe/answer_record.py` keeps of it."""


class KeyShare(Protocol):
    """What a request has of the limits of its key, until it ends."""

    def keep(self) -> Callable[[], None]:
        """Keep it beyond the request; return the function that gives it back."""


@dataclass(slots=True)
class Call:
    """One request: its id, headers and API key, and whether the client is still connected."""

    request_id: str
    """The `x-request-id` of the answer; the client may have chosen it, and may repeat it."""
    work_id: str
    """Begins with `request_id`, and is unique among the requests in flight."""
    headers: Mapping[str, str]
    api_key: str | None
    _receive: Callable[[], Awaitable[Any]]
    peer: str = ""
    """The address that the request came from, without a port; empty where it has no address, as on a Unix socket."""
    arrived: float = field(default_factory=time.perf_counter)
    """When the request arrived, by `time.perf_counter`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the log says about the answer: its model and its tokens, or the code of its error."""
    share: KeyShare | None = None
    """What it has of the limits of its key; None for a request that has none."""
    trace: Trace | None = None
    """The trace that the request belongs to, where the operator asks for traces."""
    beside: tuple[Callable[[int, Callable[[], Any]], Awaitable[Any]], int] | None = None
    """See `BESIDE`; None reads at once."""

    @classmethod
    def of(cls, request: Request[Any, Any, Any]) -> Call:
        """Describe a Litestar request. Use the `request_id` in its state, if the server has put one there."""
        headers = request.headers
        scheme, _, key = (authorization(headers, request.url.path) or "").partition(" ")
        state = request.scope["state"]
        request_id = state.get("request_id") or new_request_id()
        return cls(
            request_id=request_id,
            work_id=f"{request_id}-{uuid.uuid4().hex[:12]}" if state.get(CLIENT_NAMED) else request_id,
            headers=headers,
            api_key=key.strip() or None if scheme.lower() == "bearer" else None,
            _receive=request.receive,
            peer=request.client.host if request.client is not None else "",
            facts=state.setdefault(FACTS, {}),
            share=state.get(SHARE),
            trace=state.get(TRACE),
            beside=state.get(BESIDE),
        )

    async def read(self, function: Callable[[], T], more: int = 0) -> T:
        """Return what a function reads from the request: at once, or beside the event loop if it reads much.

        Args:
            function: uses nothing that belongs to the event loop.
            more: bytes that it reads beside the body, such as those of a stored conversation.
        """
        if self.beside is None:
            return function()
        run, size = self.beside
        found: T = await run(size + more, function)
        return found

    async def disconnected(self) -> None:
        """Return when the client has disconnected (HTTP-11).

        No ASGI server cancels a handler that has not begun to answer, so the handler waits for this while it works.
        The body has been read before: the next message is the disconnect.
        """
        while (await self._receive())["type"] != "http.disconnect":
            pass


def authorization(headers: Mapping[str, str], path: str) -> str | None:
    """Return the header `Authorization`; where Anthropic's clients ask, the key of `x-api-key` in its form."""
    key = headers.get("x-api-key") if is_messages(path) or is_model_list(path) else None
    return f"Bearer {key}" if key else headers.get("authorization")


def note_error(state: MutableMapping[str, Any], error: ApiError) -> None:
    """Note the code of an error that is the answer in the state of the request, for logs and counts."""
    state.setdefault(FACTS, {})[ERROR] = error.code or error.type


_MOST_SKIPPED = 16
"""Tools of a request that are left out; for each the request is read once more."""


def note_skipped(facts: MutableMapping[str, Any], name: str) -> bool:
    """Note the name of a tool that the request wants to be left out because it cannot be offered.

    Returns:
        Whether it may be left out; False if too many are already.
    """
    skipped: list[str] = facts.setdefault(SKIPPED_TOOLS, [])
    skipped.append(name)
    return len(skipped) <= _MOST_SKIPPED


_MOST_PLACES = 16
"""Places in a header; the rest is counted, because proxies limit the size of headers."""
_LONGEST_PLACE = 120


def place_list(places: Collection[str]) -> str:
    """Return places of a schema, or names, as the value of a header or of a log line.

    Each is percent-encoded, as JSON pointers are in URIs (RFC 6901, section 6), and cut to 120 characters.

    >>> place_list(["#/properties/a, b/format", "get_weather#"])
    '#/properties/a%2C%20b/format, get_weather#'
    """
    shown = [
        quote(place, safe="#/~$!&'()*+;=:@?-._[]")[:_LONGEST_PLACE] for place in list(places)[:_MOST_PLACES]
    ]
    if len(places) > _MOST_PLACES:
        shown.append(f"and {len(places) - _MOST_PLACES} more")
    return ", ".join(shown)


def fact_headers(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of an answer that facts are shown by; over a WebSocket its first event has them."""
    names = ((UNENFORCED, "x-plumbline-unenforced"), (SKIPPED_TOOLS, "x-plumbline-skipped-tools"))
    return {name: place_list(facts[key]) for key, name in names if key in facts}


_names: list[str] = []
"""Random names of 32 hexadecimal digits that nothing has yet."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_names.clear)  # They are the names of the process that was forked.


def new_request_id() -> str:
    """Return a fresh value for the `x-request-id` header (HTTP-03).

    The system is asked for many at once: each call lets another thread have the interpreter, and a server that refuses
    hundreds of requests a second would wait for its engine as often.
    """
    if not _names:
        digits = os.urandom(4096).hex()
        _names.extend(digits[start : start + 32] for start in range(0, len(digits), 32))
    return f"req_{_names.pop()}"
