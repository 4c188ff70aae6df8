"""Read and write calls in OpenAI's harmony format: each call is a message to its tool.

<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from plumbline.answer.dialects.spec.call_format import CallFormat, CallSink, Grammar, WrittenCall
from plumbline.answer.dialects.streams.cursor import Cursor, Finder, MalformedError, Steps
from plumbline.answer.dialects.streams.json_stream import json_value

__all__ = [
    "ASSISTANT",
    "CHANNEL",
    "CONSTRAIN",
    "ENDS",
    "FINAL",
    "HEADERS",
    "MARKERS",
    "MESSAGE",
    "START",
    "HarmonyCall",
    "HarmonyHeader",
    "parse_header",
    "read_arguments",
]

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
MARKERS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS)
HEADERS: Final = (START, CHANNEL)
"""The markers that begin a header. Free text before enforced calls or text must not contain them."""
ASSISTANT: Final = f"{START}assistant"
"""Begins each message of an answer but the first, which the prompt has begun."""
FINAL: Final = f"{CHANNEL}final{MESSAGE}"
"""The rest of the header of the message that is the text of the answer."""

_IN_BODY = Finder((*HEADERS, *ENDS))
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")


class HarmonyHeader(msgspec.Struct, frozen=True):
    """The channel of a message, and its recipient if it is a call."""

    channel: str
    recipient: str | None


def parse_header(header: str) -> HarmonyHeader:
    """Parse the text of a header."""
    channel = _CHANNEL_NAME.search(header)
    recipient = _RECIPIENT.search(header)
    return HarmonyHeader(
        channel.group(1) if channel is not None else "final",
        recipient.group(1) if recipient is not None else None,
    )


def read_arguments(cursor: Cursor, write: Callable[[str], None], *, cut: Callable[[], bool]) -> Steps[None]:
    """Read a body of arguments. An empty body means no arguments, unless the token limit cut it."""
    yield from cursor.space()
    char = yield from cursor.peek()
    if char == "{":
        yield from json_value(cursor, write, markers=_IN_BODY)
        return
    ended = (yield from cursor.look_for(_IN_BODY)) is not None
    if not ended and (char or cut()):
        cursor.fail("expected '{'")
    write("{}")


class HarmonyCall(CallFormat, frozen=True):
    """A call as a message to its tool, without the `<|start|>assistant` before it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts inside a call that may be control tokens."""
        return MARKERS

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the message up to its end marker."""
        header, _ = yield from cursor.collect(Finder((MESSAGE,)))
        recipient = parse_header(header).recipient
        if recipient is None:
            raise MalformedError("a message without a recipient")
        call.begin(recipient.removeprefix("functions."))
        yield from read_arguments(cursor, call.arguments, cut=lambda: False)

    def write(self, call: WrittenCall) -> str:
        """Write the message with its end."""
        return f"{self._header(call.name)}{call.arguments}<|call|>"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """Return the message without its end, which is an end of sequence."""
        return grammar.sequence([grammar.literal(self._header(name)), grammar.json(schema)])

    def _header(self, name: str) -> str:
        return f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}"
