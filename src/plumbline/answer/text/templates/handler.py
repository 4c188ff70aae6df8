"""Render and parse chat templates in a worker (`workers.py`). It imports no more than that takes, to start quickly."""

from __future__ import annotations

import pickle
from functools import lru_cache

import msgspec

from plumbline.answer.text.templates.template import ChatTemplate, TemplateError, TemplateSpec, read_facts
from plumbline.base.workers.process import Handler

__all__ = ["ERROR", "TEXT", "handler"]

TEXT, ERROR = b"T", b"E"
"""The first byte of an answer."""


def handler(_: bytes) -> Handler:
    """Return what a worker runs: it renders a conversation, or returns the facts of a template."""
    made = lru_cache(maxsize=8)(ChatTemplate.from_spec)

    def handle(payload: bytes) -> bytes:
        # The server wrote it. What comes back from here is never unpickled.
        spec, messages, options = pickle.loads(payload)  # noqa: S301
        try:
            if messages is None:
                return TEXT + msgspec.json.encode(read_facts(TemplateSpec(*spec)))
            return TEXT + made(TemplateSpec(*spec)).render(messages, **options).encode(
                "utf-8", "surrogatepass"
            )
        except TemplateError as error:
            return ERROR + str(error)[:4096].encode("utf-8", "replace")

    return handle
