"""Build the chat requests that scenarios start from."""

from __future__ import annotations

from plumbline_conformance.suite.scenario import Target

__all__ = ["JSON", "chat", "user"]

JSON = {"content-type": "application/json"}
"""The headers for a body that a scenario encodes itself."""


def chat(target: Target, **fields: object) -> dict[str, object]:
    """Return a valid short chat request, with these fields added or replaced."""
    return {"model": target.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **fields}


def user(text: str) -> list[dict[str, object]]:
    """Return a conversation of one user message."""
    return [{"role": "user", "content": text}]
