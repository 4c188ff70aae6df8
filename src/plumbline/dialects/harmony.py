"""OpenAI's harmony format (gpt-oss): an answer is a row of messages, each with a channel and perhaps a recipient.

    <|channel|>analysis<|message|>Think.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>Text.<|return|>

The prompt ends with `<|start|>assistant`, so an answer begins inside of a header. Analysis is the thinking. A message
to `functions.NAME` is a call if the request has that tool. Everything else is text: the final channel, commentary
without a recipient (the preamble before calls), and whatever a broken header leaves. Source: OpenAI's harmony format
documentation; the header forms that gpt-oss models write in practice (recipient before or after the channel, with or
without `<|constrain|>`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from plumbline.dialects.api import Call, CallSink, Grammar, Utterance
from plumbline.dialects.cursor import Cursor, EndOfOutputError, Finder, MalformedError, Steps
from plumbline.dialects.json_text import json_value
from plumbline.dialects.parser import DialectParser

__all__ = ["HarmonyForm", "HarmonyParser", "Header", "is_inside", "write_harmony"]

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)

_IN_HEADER = Finder((_MESSAGE, *_ENDS))
_IN_BODY = Finder((_START, _CHANNEL, *_ENDS))
_HEADER_START = Finder((_START, _CHANNEL, "to="))
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_HEADER = 512


class Header(msgspec.Struct, frozen=True):
    """What a message's header says."""

    channel: str
    recipient: str | None


def _parsed(header: str) -> Header:
    channel = _CHANNEL_NAME.search(header)
    recipient = _RECIPIENT.search(header)
    return Header(
        channel.group(1) if channel is not None else "final",
        recipient.group(1) if recipient is not None else None,
    )


class HarmonyParser(DialectParser):
    """Reads the messages of one answer."""

    def _answer(self) -> Steps[None]:
        cursor = self._cursor
        if self._starts_inside:
            # The prompt has opened a message of analysis already.
            if not (yield from self._body(Header("analysis", None), 0)):
                self._content.flush()
                return
        elif not (yield from self._begins_with_header()):
            yield from self._body(Header("final", None), 0)
        while True:
            start = cursor.offset
            header = yield from self._header()
            if header is None or not (yield from self._body(header, start)):
                break
        self._content.flush()

    def _begins_with_header(self) -> Steps[bool]:
        """Whether the answer goes on with the header that the prompt has begun; else it is plain text."""
        yield from self._cursor.space()
        if (yield from self._cursor.look_for(_HEADER_START)) is not None:
            return True
        return not (yield from self._cursor.peek())

    def _header(self) -> Steps[Header | None]:
        """Read a header through `<|message|>`; None at the end of the output, which leaves nothing of it."""
        parts: list[str] = []
        size = 0

        def write(piece: str, offset: int) -> None:
            nonlocal size
            size += len(piece)
            if size <= _MAX_HEADER:
                parts.append(piece)

        while True:
            marker = yield from self._cursor.until(_IN_HEADER, write)
            text = "".join(parts)
            if marker == _MESSAGE:
                if size > _MAX_HEADER:
                    self._warn("a header is too long to be one")
                return _parsed(text)
            if marker is None:
                if text.strip():
                    self._warn("the output ended inside of a header")
                return None
            # A message that ended before it began: the next header follows.
            parts.clear()
            size = 0

    def _body(self, header: Header, start: int) -> Steps[bool]:
        """Read a message's body through its end. Returns whether more may follow."""
        cursor = self._cursor
        recipient = header.recipient
        if recipient is not None and recipient != "assistant":
            name = recipient.removeprefix("functions.")
            if name in self._tools:
                return (yield from self._call(name))
            self._warn(f"a message to {recipient[:40]}, which is no tool of this request, was kept as text")
        if header.channel == "analysis":
            thought = self._thought
            thought.drop()
            self._thought_start = start
            marker = yield from cursor.until(_IN_BODY, thought.write)
            self._end_thought(cursor.offset)
        else:
            marker = yield from cursor.until(_IN_BODY, self._content.write)
        if marker in (_START, _CHANNEL):
            cursor.pos -= len(marker or "")
        return marker is not None

    def _call(self, name: str) -> Steps[bool]:
        """Read the arguments of a call, and its end."""
        cursor = self._cursor
        self.begin_call(name, None)
        try:
            yield from _arguments(cursor, self.call_arguments, cut=lambda: self._reason == "length")
        except MalformedError as error:
            self._end_call(complete=False)
            self._warn(f"a call of {name} broke off: {error}")
            if not isinstance(error, EndOfOutputError):
                self._content.write(error.rest, cursor.offset - len(error.rest))
        else:
            self._end_call(complete=True)
            yield from cursor.space()
        marker = yield from cursor.until(_IN_BODY, self._content.write)
        self._content.drop()
        if marker in (_START, _CHANNEL):
            cursor.pos -= len(marker or "")
        return marker is not None


class HarmonyForm(msgspec.Struct, frozen=True):
    """A call as a message to its tool, without the `<|start|>assistant` before it."""

    markers: tuple[str, ...] = _MARKERS

    def read(self, cursor: Cursor, call: CallSink) -> Steps[None]:
        """Read the message up to its end marker."""
        header, _ = yield from cursor.collect(Finder((_MESSAGE,)))
        recipient = _parsed(header).recipient
        if recipient is None:
            raise MalformedError("a message without a recipient")
        call.begin(recipient.removeprefix("functions."))
        yield from _arguments(cursor, call.arguments, cut=lambda: False)

    def write(self, call: Call) -> str:
        """The message with its end."""
        return f"{self._header(call.name)}{call.arguments}<|call|>"

    def grammar(self, grammar: Grammar, name: str, schema: Mapping[str, Any]) -> str:
        """The message without its end, which is an end of sequence."""
        return grammar.sequence([grammar.literal(self._header(name)), grammar.json(schema)])

    def _header(self, name: str) -> str:
        return f"{_CHANNEL}commentary to=functions.{name} {_CONSTRAIN}json{_MESSAGE}"


def is_inside(token_ids: Sequence[int], added: Mapping[str, int], table: Sequence[bytes]) -> bool:
    """Whether a prompt ends inside of an analysis message, decided by the control tokens that its template wrote.

    Args:
        token_ids: the end of the prompt.
        added: the added tokens by their text.
        table: the bytes of each token id.
    """
    message, start = added.get(_MESSAGE), added.get(_START)
    ends = {added[text] for text in _ENDS if text in added}
    for index in range(len(token_ids) - 1, -1, -1):
        if token_ids[index] == start or token_ids[index] in ends:
            return False
        if token_ids[index] == message:
            header = b"".join(table[token_id] for token_id in token_ids[max(0, index - 32) : index])
            return _parsed(header.decode("utf-8", "replace").rpartition(_START)[2]).channel == "analysis"
    return False


def write_harmony(utterance: Utterance) -> str:
    """What a gpt-oss model writes to say this, after a prompt that ends with `<|start|>assistant`."""
    form = HarmonyForm()
    messages: list[str] = []
    if utterance.reasoning is not None:
        messages.append(f"{_CHANNEL}analysis{_MESSAGE}{utterance.reasoning}<|end|>")
    last = len(utterance.parts) - 1
    for number, part in enumerate(utterance.parts):
        if isinstance(part, Call):
            messages.append(form.write(part))
        else:
            channel, end = ("final", "<|return|>") if number == last else ("commentary", "<|end|>")
            messages.append(f"{_CHANNEL}{channel}{_MESSAGE}{part}{end}")
    return f"{_START}assistant".join(messages)


def _arguments(cursor: Cursor, write: Callable[[str], None], *, cut: Callable[[], bool]) -> Steps[None]:
    """Read a body of arguments. One that is empty stands for none, unless the token limit cut it."""
    yield from cursor.space()
    char = yield from cursor.peek()
    if char == "{":
        yield from json_value(cursor, write)
        return
    ended = (yield from cursor.look_for(_IN_BODY)) is not None
    if not ended and (char or cut()):
        cursor.fail("expected '{'")
    write("{}")
