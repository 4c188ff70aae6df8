"""Frame the chunks and events of streamed answers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import msgspec

from plumbline._generated.events import ResponseStreamEvent
from plumbline.events import ChoiceEvent
from plumbline.protocols.chat.writer import ChatWriter
from plumbline.protocols.common.obfuscation import obfuscated
from plumbline.protocols.completions.writer import CompletionWriter
from plumbline.wire.decode import encode
from plumbline.wire.sse import frame

__all__ = ["Frames", "chunk_frames", "event_frames"]

Frames = AsyncGenerator[bytes, None]


async def chunk_frames(
    writer: ChatWriter | CompletionWriter,
    events: AsyncIterator[ChoiceEvent],
    pads: bool,
    at_end: Callable[[], Awaitable[None]] | None = None,
) -> Frames:
    """Frame chat and legacy completion chunks, which have no event names (SSE-05).

    Args:
        writer: writes the chunks.
        events: the answer.
        pads: whether deltas are padded.
        at_end: is awaited when the answer is complete, before the stream ends.
    """
    for chunk in writer.start():
        yield frame(encode(chunk))
    async for index, event in events:
        for chunk in writer.event(index, event):
            body = encode(chunk)
            yield frame(obfuscated(body) if pads else body)
    if at_end is not None:
        await at_end()
    for chunk in writer.end():
        yield frame(encode(chunk))


async def event_frames(events: AsyncIterator[ResponseStreamEvent], pads: bool) -> Frames:
    """Frame the events of a response, each under its name (SSE-04).

    Args:
        events: the events.
        pads: whether deltas are padded.
    """
    async for event in events:
        body, name = encode(event), _event_name(event)
        yield frame(obfuscated(body) if pads and name.endswith(".delta") else body, name)


def _event_name(event: msgspec.Struct) -> str:
    """Return the name of an event, which is its type (SSE-04)."""
    return str(event.__struct_config__.tag)
