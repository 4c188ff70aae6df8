"""Ask a server which model it lists first."""

from __future__ import annotations

import asyncio

import msgspec

from plumbline_conformance.client.http import sender
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.suite.scenario import Request, Target

__all__ = ["named", "with_model"]

_PATIENCE = 60.0
"""Seconds; a server that loads its model when it is first asked still lists it."""


def with_model(target: Target) -> Target:
    """Return the target with a model: its own, or else the first that the server lists.

    Raises:
        UnusableInput: no model is given, and the server lists none.
    """
    return target if target.model else asyncio.run(named(target))


async def named(target: Target) -> Target:
    """Return the target with a model; see `with_model`."""
    if target.model:
        return target
    async with sender(target, _PATIENCE) as send:
        answer = await send(Request(path="/models", method="GET"))
    match answer.json:
        case {"data": [{"id": str(name)}, *_]} if name:
            return msgspec.structs.replace(target, model=name)
    if not answer.status:
        why = answer.error or "no answer"
        raise UnusableInput(
            f"URL {redacted_url(target.base_url)} does not answer (GET /models: {why}). "
            "Start the server, or give another address; a server without /models needs --model."
        )
    why = f"HTTP {answer.status}"
    raise UnusableInput(
        f"URL {redacted_url(target.base_url)} lists no models (GET /models: {why}). Give one with --model."
    )
