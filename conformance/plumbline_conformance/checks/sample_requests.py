"""Bodies of chat requests that scenarios build on."""

from __future__ import annotations

from plumbline_conformance.suite.model import Target

__all__ = ["JSON", "chat", "user"]

JSON = {"content-type": "application/json"}
"""The header of a body that a scenario writes itself."""


def chat(target: Target, **fields: object) -> dict[str, object]:
    """A request that is right but for what a test makes wrong."""
    return {"model": target.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}


def user(text: str) -> list[dict[str, object]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]
