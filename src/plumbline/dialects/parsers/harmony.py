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

from plumbline.dialects.parsers.marker_parser import MarkerParser
from plumbline.dialects.spec.dialect import Call, CallSink, Grammar, Utterance
from plumbline.dialects.streams.cursor import Cursor, EndOfOutputError, Finder, MalformedError, Steps, Write
from plumbline.dialects.streams.json_stream import json_value

__all__ = ["HEADERS", "HarmonyFormat", "HarmonyParser", "Header", "is_inside", "write_harmony"]

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_MARKERS = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, *_ENDS)

HEADERS = (_START, _CHANNEL)
"""What headers begin with: free text before promised calls or text must have none of its own."""

_IN_BODY = Finder((*HEADERS, *_ENDS))
_FIRST = Finder((_START, _CHANNEL, _MESSAGE, "to="))
_IN_HEADER = Finder((_CHANNEL, _CONSTRAIN, _MESSAGE, "to="))
_WORD = re.compile(r"[\w./+\u2013-]+")
_WORDS = {_CHANNEL: re.compile(r"\w+"), "to=": re.compile(r"[\w.-]+")}
_ROLES = ("assistant", "user", "system", "developer", "tool", "functions.")
_CHANNELS = ("analysis", "commentary", "final")
_CALL = "to=functions."
_BEGINNINGS = (*_MARKERS, _CALL)
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_MAX_WORD = 256
_MAX_PARTS = 8
"""Of a header: role, recipient, channel and content type are four."""


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


class HarmonyParser(MarkerParser):
    """Reads the messages of one answer.

    A marker means something where the format has it: an end before the next message or the end of the output, a
    beginning before a header. Anywhere else it is a text that somebody writes about.
    """

    def _answer(self) -> Steps[None]:
        self._header_start = 0
        # The prompt may have opened a message of analysis already.
        header = Header("analysis", None) if self._starts_inside else (yield from self._first())
        while header is not None:
            header = yield from self._body(header, self._header_start)
        self._content.flush()

    def _first(self) -> Steps[Header | None]:
        """The header that the prompt has begun; plain text has none and is all of the final message."""
        cursor = self._cursor
        cursor.mark()
        self._prose_offset = start = cursor.offset
        try:
            yield from cursor.space()
            marker = yield from cursor.take_one(_FIRST)
            if marker is None:
                cursor.fail("expected a header")
            header = yield from self._header(marker)
        except MalformedError as error:
            if self._kept_as_text(error, start, self._content.write):
                return Header("final", None)
            return None
        self._unmark()
        return header

    def _through_end(self, prose: Write) -> Steps[Header | None]:
        """Pass on text up to where the message ends, and read the next header; None at the end of the output."""
        cursor = self._cursor
        while (marker := (yield from cursor.until(_IN_BODY, prose))) is not None:
            cursor.mark(marker)
            self._prose_offset = start = cursor.offset - len(marker)
            try:
                header = yield from self._after(marker)
            except MalformedError as error:
                if self._kept_as_text(error, start, prose):
                    continue
                header = None
            self._unmark()
            self._end_thought(start + (len(marker) if marker in _ENDS else 0))
            return header
        self._end_thought(cursor.offset)
        return None

    def _after(self, marker: str) -> Steps[Header | None]:
        """The header that this marker begins, or that follows it; None at the end of the output.

        A message that has ended may be followed by a header that the model forgot to begin.

        Raises:
            MalformedError: neither follows.
        """
        cursor = self._cursor
        part: str | None = marker
        while part in _ENDS:
            yield from cursor.space()
            if not (yield from cursor.peek()):
                return None
            part = yield from cursor.take_one(_IN_BODY)
        self._header_start = cursor.offset - len(part or "")
        try:
            return (yield from self._header(part))
        except EndOfOutputError:
            if marker in _ENDS and part is not None:
                self._warn("the output ended inside of a header")
                return None
            raise

    def _header(self, part: str | None) -> Steps[Header]:
        """Read a header, of which this part has been read, through `<|message|>`.

        Raises:
            MalformedError: this is none.
        """
        cursor = self._cursor
        channel = recipient = None
        first, words = part, []
        for _ in range(_MAX_PARTS):
            if part == _MESSAGE:
                break
            yield from cursor.space()
            word = yield from cursor.run(_WORDS.get(part or "", _WORD), _MAX_WORD)
            if part == _START and not word.startswith(_ROLES):
                cursor.fail("expected a role")
            if not word and part not in (_CHANNEL, _CONSTRAIN):
                cursor.fail("expected a word of a header")
            if part == _CHANNEL:
                channel = word
            elif part == "to=":
                recipient = word
            else:
                words.append(word)
            yield from cursor.space()
            part = yield from cursor.take_one(_IN_HEADER)
        else:
            raise MalformedError("this is too long for a header")
        named = [word for word in words if word in _CHANNELS]
        if first is None and channel is recipient is None and not named and words != ["assistant"]:
            raise MalformedError("expected the header of a message")
        return Header(channel or "".join(named[:1]) or "final", recipient)

    def _kept_as_text(self, error: MalformedError, start: int, prose: Write) -> bool:
        """What looked like markup is text, unless the token limit cut it. Returns whether it is."""
        raw = self._unmark()
        begun = raw.strip()
        marked = any(marker in raw for marker in _MARKERS)
        cut = isinstance(error, EndOfOutputError) and self._reason == "length"
        # Of plain text that is cut, nothing is lost: it has to be markup, or the beginning of some.
        cut = cut and (marked or begun.startswith(_CALL) or any(m.startswith(begun) for m in _BEGINNINGS))
        if marked:
            self._warn("the token limit cut a header" if cut else f"a marker was kept as text: {error}")
        if not cut:
            prose(raw, start)
        return not cut

    def _unmark(self) -> str:
        self._prose_offset = None
        return self._cursor.unmark()

    def _body(self, header: Header, start: int) -> Steps[Header | None]:
        """Read a message's body through its end, and the next header; None at the end of the output."""
        recipient = header.recipient
        if recipient is not None and recipient != "assistant":
            name = recipient.removeprefix("functions.")
            if name in self._tools:
                return (yield from self._call(name))
            self._warn(f"a message to {recipient[:40]}, which is no tool of this request, was kept as text")
        if header.channel != "analysis":
            return (yield from self._through_end(self._content.write))
        self._thought.drop()
        self._thought_start = start
        return (yield from self._through_end(self._thought.write))

    def _call(self, name: str) -> Steps[Header | None]:
        """Read the arguments of a call and its end, and the next header."""
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
        header = yield from self._through_end(self._content.write)
        self._content.drop()
        return header


class HarmonyFormat(msgspec.Struct, frozen=True):
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
    form = HarmonyFormat()
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
