"""Server-sent events: one frame per event, LF line ends, closed by a blank line (SSE-01, SSE-02)."""

from __future__ import annotations

__all__ = ["DONE", "comment", "frame"]


def frame(data: bytes, event: str | None = None) -> bytes:
    """Frame one JSON document, which by JSON's rules holds no raw line end.

    Responses name their events (SSE-04); chat and completions do not (SSE-05);
    there is no `id:` and no `retry:` (SSE-03).
    """
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"


def comment(text: str = "keep-alive") -> bytes:
    """Frame a keep-alive: a comment, which every client skips (SSE-08)."""
    return b": " + text.encode() + b"\n\n"


DONE = frame(b"[DONE]")
"""The last frame of every stream; nothing follows it (SSE-07)."""
