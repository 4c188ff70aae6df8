"""Share what the drivers of all clients do: find a method, call it, and describe what it raises."""

from __future__ import annotations

import inspect
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from plumbline_conformance.sdk.calls import ClientCall
from plumbline_conformance.sdk.replay import Replay
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["Driver", "NotSent", "attribute_of", "event_place", "quiet", "raised", "sent"]

_OWN = {"extra_body", "extra_headers", "extra_query", "timeout", "self"}
"""Parameters of a client's methods that are not members of a request."""
_NEEDED = {"choices", "delta", "message"}
"""Members that every user's loop reads: a missing one is an error."""
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class NotSent(Exception):  # noqa: N818 - it is a reason, not an error
    """The client refuses to send the request."""


class Driver(Protocol):
    """Read recorded exchanges with one client as its users do."""

    name: str
    """The client and its release."""
    surfaces: frozenset[str]
    """The parts of the API that the client has methods for."""

    def read(self, exchange: Exchange, call: ClientCall) -> Iterator[tuple[str, list[Problem]]]:
        """Yield, for each claim about an answer, the last segment of its id and the problems.

        Nothing is yielded for a request that the client refuses to send.
        """

    def close(self) -> None:
        """Close its connections."""


def sent(client: Any, place: tuple[str, ...], given: dict[str, Any], replay: Replay) -> Any:
    """Call a method of a client with the arguments that it knows; enter the result of a stream helper.

    Raises:
        NotSent: it refuses the arguments and sends nothing.
    """
    method = client
    for name in place:
        method = getattr(method, name)
    known = inspect.signature(method).parameters.keys() - _OWN
    try:
        found = method(**{name: value for name, value in given.items() if name in known})
        return found.__enter__() if place[-1] == "stream" else found
    except Exception as error:
        if not replay.asked:
            raise NotSent(str(error)) from None
        raise


def attribute_of(value: Any, name: str) -> Any:
    """Read a member of the client's object; it is None if the server left it out.

    Raises:
        TypeError: users' loops fail without this member.
    """
    found = getattr(value, name, None)
    if found is None and name in _NEEDED:
        raise TypeError(f"the {name} of a {type(value).__name__} is None")
    return found


def event_place(count: int, chunks: list[Any]) -> str:
    """Return where a stream is after so many events."""
    return f"event {count}" if count < len(chunks) else "events"


def raised(error: Exception, pointer: str, wanted: str = "no error in the client") -> Problem:
    """Return the problem of an error that the client raises."""
    text = _ADDRESS.sub("0x…", str(error)).partition("\n")[0][:200]
    return Problem(
        expected=wanted, actual=f"{type(error).__name__}: {text}".rstrip(": "), pointer=pointer, rule="SDK-01"
    )


@contextmanager
def quiet(client: str) -> Iterator[None]:
    """Suppress a client's logs and warnings, which the findings already report."""
    logger, handler = logging.getLogger(client), logging.NullHandler()
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeHandler(handler)
