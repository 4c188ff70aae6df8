"""Frame the chunks and events of streamed answers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence

import msgspec
from msgspec import UNSET

from plumbline.answer.events import ChoiceEvent
from plumbline.contract._generated.chat import CreateChatCompletionStreamResponse
from plumbline.contract._generated.completions import CreateCompletionStreamResponse
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.messages import MessageStreamEvent
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.sse import frame
from plumbline.server.protocols.chat.writer import ChatChunks
from plumbline.server.protocols.common.obfuscation import obfuscated
from plumbline.server.protocols.completions.writer import CompletionChunks

__all__ = ["Frames", "chunk_frames", "event_frames"]

Frames = AsyncGenerator[bytes, None]
_Chunk = CreateChatCompletionStreamResponse | CreateCompletionStreamResponse


async def chunk_frames(
    writer: ChatChunks | CompletionChunks,
    events: AsyncIterator[ChoiceEvent],
    pads: bool,
    *,
    compact: bool = False,
) -> Frames:
    """Frame chat and legacy completion chunks, which have no event names (SSE-05).

    Args:
        writer: writes the chunks.
        events: the answer.
        pads: whether deltas are padded.
        compact: whether the last delta of a choice carries its finish reason, as vLLM's does.
    """
    for chunk in writer.start():
        yield frame(encode(chunk))
    held = _HeldChunks() if compact else None
    try:
        async for index, event in events:
            chunks: Sequence[_Chunk] = writer.event(index, event)
            for chunk in chunks if held is None else held.exchange(chunks):
                body = encode(chunk)
                yield frame(obfuscated(body) if pads else body)
    except Exception:
        # An error event follows; the text before it must not be lost.
        for chunk in held.rest() if held is not None else ():
            yield frame(encode(chunk))
        raise
    for chunk in writer.end():
        yield frame(encode(chunk))


class _HeldChunks:
    """Hold the newest chunk of each choice back until the next one, which may be its finish reason."""

    def __init__(self) -> None:
        self._held: dict[int, _Chunk] = {}

    def exchange(self, chunks: Sequence[_Chunk]) -> Iterator[_Chunk]:
        """Take chunks, and return those that can be sent now."""
        for chunk in chunks:
            (choice,) = chunk.choices
            earlier = self._held.pop(choice.index, None)
            if earlier is not None:
                # The usage so far is counted when a chunk is sent, so that it never decreases.
                earlier.usage = chunk.usage
            if choice.finish_reason is None:
                if earlier is not None:
                    yield earlier
                self._held[choice.index] = chunk
            elif earlier is None or _has_role(earlier):
                yield from (chunk,) if earlier is None else (earlier, chunk)
            else:
                yield _joined(earlier, chunk)

    def rest(self) -> Iterator[_Chunk]:
        """Return what is held."""
        yield from self._held.values()


def _has_role(chunk: _Chunk) -> bool:
    """Return whether a chunk is the first of a chat choice, which is never merged (CS-02)."""
    return isinstance(chunk, CreateChatCompletionStreamResponse) and chunk.choices[0].delta.role is not UNSET


def _joined(chunk: _Chunk, last: _Chunk) -> _Chunk:
    """Merge the finishing chunk of a choice into its last delta."""
    (choice,), (end,) = chunk.choices, last.choices
    choice.finish_reason = end.finish_reason
    choice.stop_reason, choice.matched_stop = end.stop_reason, end.matched_stop
    if choice.token_ids and end.token_ids:
        choice.token_ids = [*choice.token_ids, *end.token_ids]
    else:
        choice.token_ids = choice.token_ids or end.token_ids
    return chunk


async def event_frames(
    events: AsyncIterator[ResponseStreamEvent | MessageStreamEvent], pads: bool = False
) -> Frames:
    """Frame the events of a response or of a message, each under its name (SSE-04).

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
