"""Frame server-sent events: LF line ends, a blank line after each event (SSE-01, SSE-02)."""

from __future__ import annotations

__all__ = ["DONE", "comment", "frame"]


def frame(data: bytes, event: str | None = None) -> bytes:
    """Frame one JSON document, which never contains an unescaped line end.

    Responses name their events (SSE-04), chat and legacy completions do not (SSE-05). There is no `id:` and no `retry:`
    (SSE-03).
    """
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str = "keep-alive") -> bytes:
    """Frame a keep-alive comment, which every client skips (SSE-08)."""
    return b": " + text.encode() + b"\n\n"


DONE = frame(b"[DONE]")
"""The last frame of every stream; nothing follows it (SSE-07)."""
