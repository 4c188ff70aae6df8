"""Frame the chunks and events of streamed answers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable

import msgspec

from plumbline.events import ChoiceEvent
from plumbline.protocols.chat.writer import ChatWriter
from plumbline.protocols.common.obfuscation import obfuscated
from plumbline.protocols.completions.writer import CompletionWriter
from plumbline.protocols.responses.writer import ResponsesWriter
from plumbline.wire.decode import encode
from plumbline.wire.errors import ApiError
from plumbline.wire.sse import frame

__all__ = ["Frames", "chunk_frames", "response_frames"]

Frames = AsyncGenerator[bytes, None]


async def chunk_frames(
    writer: ChatWriter | CompletionWriter, events: AsyncIterator[ChoiceEvent], pads: bool
) -> Frames:
    """Frame chat and legacy completion chunks, which have no event names (SSE-05)."""
    for chunk in writer.start():
        yield frame(encode(chunk))
    async for index, event in events:
        for chunk in writer.event(index, event):
            body = encode(chunk)
            yield frame(obfuscated(body) if pads else body)
    for chunk in writer.end():
        yield frame(encode(chunk))


async def response_frames(
    writer: ResponsesWriter,
    events: AsyncIterator[ChoiceEvent],
    midway: Callable[[Exception], ApiError],
    pads: bool,
) -> Frames:
    """Frame a Responses stream as named events (SSE-04) that always end with a terminal one (ERR-10).

    Args:
        writer: writes the events.
        events: the answer.
        midway: turns a failure into the error of the terminal event.
        pads: whether deltas are padded.
    """
    for out in writer.start():
        yield frame(encode(out), _event_name(out))
    try:
        async for _, event in events:
            for out in writer.event(event):
                body, name = encode(out), _event_name(out)
                yield frame(obfuscated(body) if pads and name.endswith(".delta") else body, name)
    except Exception as error:
        for out in writer.fail(midway(error)):
            yield frame(encode(out), _event_name(out))


def _event_name(event: msgspec.Struct) -> str:
    """Return the name of an event, which is its type (SSE-04)."""
    return str(event.__struct_config__.tag)
