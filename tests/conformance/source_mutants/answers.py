"""Compare the answers of a server to the wide set of requests with those of the unchanged server."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from plumbline_conformance.client.http import Conversation, conversations
from plumbline_conformance.suite.scenario import Target
from plumbline_conformance.transcript.exchange import Exchange
from source_mutants.wide import SESSIONS

__all__ = ["UNSTEADY", "Answer", "Answers", "answers", "first_change", "steady"]

_VOLATILE = (
    (rb"\b((?:chatcmpl|cmpl|resp|msg|rs|fc|ctc|conv|call|req|toolu|cmp)[-_])[A-Za-z0-9_-]{8,}", rb"\1ID"),
    (rb'"(created|created_at|completed_at|expires_at)": ?[0-9.]+', rb'"\1":T'),
    (rb'"(obfuscation|encrypted_content|signature)": ?"[^"]*"', rb'"\1":"X"'),
    (rb"[0-9a-f]{32,}", rb"HEX"),
)
_HEADERS = ("content-type", "allow", "cache-control", "www-authenticate")

Answer = tuple[str, int, tuple[str, ...], bytes]
"""The name, status, headers and normalised body of an exchange."""
Answers = dict[str, list[Answer]]
"""By session, its answers."""
UNSTEADY = -1
"""The status of an answer that the unchanged server gives in two ways."""


def steady(one: Answers, other: Answers) -> Answers:
    """Return the answers of the unchanged server, with those marked that are not the same twice."""
    return {
        name: [
            answer if answer == twin else (answer[0], UNSTEADY, (), b"")
            for answer, twin in zip(found, other[name], strict=False)
        ]
        for name, found in one.items()
    }


async def answers(target: Target, sessions: Collection[str], patience: float) -> Answers:
    """Return the answers to all requests of these sessions."""
    found: Answers = {}
    async with conversations(target, patience) as begin:
        for name in sessions:
            async with begin() as conversation:
                found[name] = await _answered(conversation, name, None)
    return found


async def first_change(target: Target, sessions: Sequence[str], good: Answers, patience: float) -> str | None:
    """Return the name of the first request of these sessions that is answered in another way."""
    async with conversations(target, patience) as begin:
        for name in sessions:
            async with begin() as conversation:
                found = await _answered(conversation, name, good[name])
            if len(found) != len(good[name]) or _differs(found[-1], good[name][len(found) - 1]):
                return f"{name}, {found[-1][0] if found else 'nothing'}"
    return None


async def _answered(conversation: Conversation, session: str, good: Sequence[Answer] | None) -> list[Answer]:
    """Return the answers of a session; with those of the unchanged server, up to the first change."""
    found: list[Answer] = []
    steps = SESSIONS[session]()
    request = next(steps, None)
    while request is not None:
        exchange = await conversation.send(request)
        found.append(_normalised(request.name, exchange))
        if good is not None and (len(found) > len(good) or _differs(found[-1], good[len(found) - 1])):
            break
        try:
            request = steps.send(exchange)
        except StopIteration:
            break
    return found


def _differs(answer: Answer, expected: Answer) -> bool:
    return expected[1] != UNSTEADY and answer != expected


def _normalised(name: str, exchange: Exchange) -> Answer:
    headers = tuple(sorted(f"{key}: {value}" for key, value in exchange.headers if key in _HEADERS))
    names = tuple(sorted({key for key, _ in exchange.headers} - {"date"}))
    body = _without_volatile(exchange.body)
    if b'"index":1' in body and body.startswith(b"data:"):
        body = b"\n\n".join(sorted(body.split(b"\n\n")))  # Choices take turns as they please.
    return _without_volatile(name.encode()).decode(), exchange.status, (*headers, *names), body


def _without_volatile(text: bytes) -> bytes:
    """Replace ids, times and random texts."""
    for pattern, new in _VOLATILE:
        text = re.sub(pattern, new, text)
    return text
