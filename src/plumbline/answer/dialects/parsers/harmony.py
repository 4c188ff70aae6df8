"""Parse OpenAI's harmony format (gpt-oss): an answer is a row of messages, each with a channel and maybe a recipient.

    <|channel|>analysis<|message|>Think.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>Text.<|return|>

The prompt ends with `<|start|>assistant`, so an answer begins inside a header. Messages of the channel `analysis` are
thinking. A message to `functions.NAME` is a call if the request has that tool. Everything else is text: the final
channel, commentary without a recipient (the preamble before calls), and the rest of a broken header. Source: OpenAI's
documentation of the format, and headers that gpt-oss models write in practice (recipient before or after the channel,
with or without `<|constrain|>`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.formats.harmony import (
    ASSISTANT,
    CHANNEL,
    CONSTRAIN,
    ENDS,
    HEADERS,
    MARKERS,
    MESSAGE,
    START,
    HarmonyCall,
    HarmonyHeader,
    parse_header,
    read_arguments,
)
from plumbline.answer.dialects.parsers.cursor_parser import CursorParser
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import NewId, Utterance
from plumbline.answer.dialects.streams.cursor import EndOfOutputError, Finder, MalformedError, Steps, Write

__all__ = ["HarmonyParser", "is_inside", "write_harmony"]

_BARE_CHANNEL = f"assistant{CHANNEL}"
"""The beginning of a header whose first marker is missing."""
_IN_BODY = Finder((*HEADERS, *ENDS, _BARE_CHANNEL))
_AFTER_END = Finder((*HEADERS, *ENDS, _BARE_CHANNEL, MESSAGE, CONSTRAIN))
_FIRST = Finder((START, CHANNEL, MESSAGE, "to="))
_IN_HEADER = Finder((START, CHANNEL, CONSTRAIN, MESSAGE, "to="))
_IN_TEXT = Finder((CHANNEL, CONSTRAIN, MESSAGE, "to="))
"""What goes on with a header that has words of a text: its next beginning is that of another one."""
_WORD = re.compile(r"[\w./+?!*:\u2013-]+")
_WORDS = {CHANNEL: re.compile(r"[\w?]+"), "to=": re.compile(r"[\w.-]+")}
_AFTER_HEADER = Finder(ENDS)
_ROLES = ("assistant", "user", "system", "developer", "tool", "functions.")
_CHANNELS = ("analysis", "commentary", "final")
_WORDS_OF_HEADERS = (*_ROLES, *_CHANNELS, "json", "JSON", "code", "")
_CALL = "to=functions."
_BEGINNINGS = (*MARKERS, _CALL)
_BEFORE_QUOTED = tuple(" \t\n`'\"\u201c\u2018(<[{,/")
_AFTER_QUOTED = tuple(" \t\n`'\"\u201d\u2019)>]},/.:;!?")
"""Characters at the two sides of a marker that the model writes about."""
_AGAIN = Finder((START, f"assistant{START}"))
_BROKEN = re.compile(
    r"(?:\s*(?:<\|start\|>assistant|<\|(?:start|channel|message|constrain|end|return|call)\|>"
    r"\s*(?:(?:assistant|analysis|commentary|final|json|code)\b|[\w.-]+(?=\s*<\|))?|to=[\w.-]+))*\s*"
)
"""Ends of messages and the beginning of a header that has no end."""
_BROKEN_CALL = re.compile(r"((?:\s*<\|(?:end|return|call)\|>)*)[^`{\n]{0,128}?to=functions\.([\w.-]{1,64})")
"""Ends of messages, and the beginning of a header of a call."""
_MAX_WORD = 256
_MAX_PARTS = 8
"""Parts of one header at most; a complete one has four: role, recipient, channel and content type."""
_MAX_BEGINNINGS = 4
"""Times that one header begins at most."""


class HarmonyParser(CursorParser):
    """Parse the messages of one answer.

    A marker counts only where the format has it: an end before the next message or the end of the output, a beginning
    before a header. Anywhere else the model writes about it.

    Args:
        tools: the parameters of each tool that may be called, by name (TOOL-02, TOOL-06).
        inside: generation starts inside a message of analysis.
        new_id: makes the id of a call from its name and its number in this answer.
        logprobs: the deltas carry logprobs.
        marker_ids: see `AnswerParser`.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        inside: bool,
        new_id: NewId,
        logprobs: bool = False,
        marker_ids: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(
            tools, inside=inside, new_id=new_id, logprobs=logprobs, hold=False, marker_ids=marker_ids
        )

    def _answer(self) -> Steps[None]:
        self._header_start = 0
        self._words: list[str] = []
        self._last, self._next = "", ""
        """The characters before and after the last end of a message."""
        # The prompt may have opened a message of analysis already.
        header = HarmonyHeader("analysis", None) if self._starts_inside else (yield from self._first())
        while header is not None:
            header = yield from self._body(header, self._header_start)
        self._content.flush()

    def _first(self) -> Steps[HarmonyHeader | None]:
        """Read the header that the prompt has begun. Plain text has no header: all of it is the final message."""
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
                return HarmonyHeader("final", None)
            return None
        self._unmark()
        return header

    def _through_end(self, prose: Write) -> Steps[HarmonyHeader | None]:
        """Pass on text up to where the message ends, and read the next header; None at the end of the output."""
        cursor = self._cursor
        self._last = ""

        def noted(piece: str, offset: int) -> None:
            self._last = piece[-1]
            prose(piece, offset)

        while (marker := (yield from cursor.until(_IN_BODY, noted))) is not None:
            cursor.mark(marker)
            self._prose_offset = start = cursor.offset - len(marker)
            try:
                header = yield from self._after(CHANNEL if marker == _BARE_CHANNEL else marker)
            except MalformedError as error:
                if self._ends_message(marker, error, start):
                    return HarmonyHeader("final", None)
                if self._kept_as_text(error, start, noted):
                    continue
                header = None
            self._unmark()
            self._end_thought(start + (len(marker) if marker in ENDS else 0))
            return header
        self._end_thought(cursor.offset)
        return None

    def _ends_message(self, marker: str, error: MalformedError, start: int) -> bool:
        """End a message at its end marker also where text follows without a header. Returns whether that is so."""
        if marker not in ENDS or self._is_cut(error) or not self._is_end():
            return False
        raw = self._unmark()
        text = _BROKEN.sub("", raw, count=1)
        self._note_broken(raw, start)
        self._end_thought(start + len(raw) - len(text))
        self._warn(f"a message has no header: {error}")
        self._content.write(text, start + len(raw) - len(text))
        return True

    def _is_end(self) -> bool:
        """Return whether the last end marker ends a message, and the model does not write about it.

        Prose sets a marker off by spaces, quotes or punctuation. Thinking may also end before a new line.
        """
        if self._next == "\n" and self._thought_start is not None:
            return True
        return self._last not in _BEFORE_QUOTED and self._next not in _AFTER_QUOTED

    def _after(self, marker: str) -> Steps[HarmonyHeader | None]:
        """Read the header that this marker begins, or that follows it; None at the end of the output.

        After the end of a message, a header counts even without the marker that begins it.

        Raises:
            MalformedError: no header follows.
        """
        cursor = self._cursor
        part: str | None = marker
        while part in ENDS:
            self._next = yield from cursor.peek()
            yield from cursor.space()
            if not (yield from cursor.peek()):
                return None
            part = yield from cursor.take_one(_IN_BODY if self._last in _BEFORE_QUOTED else _AFTER_END)
        self._header_start = cursor.offset - len(part or "")
        try:
            return (yield from self._header(part))
        except EndOfOutputError as error:
            if self._reason == "length":
                known = all(any(name.startswith(word) for name in _WORDS_OF_HEADERS) for word in self._words)
            else:
                known = all(word in _WORDS_OF_HEADERS for word in self._words)
            if known:
                self._warn("the output ended inside a header")
                return None
            raise MalformedError(str(error)) from error

    def _header(self, part: str | None) -> Steps[HarmonyHeader]:
        """Read a header through `<|message|>`; `part` has been read already.

        Raises:
            MalformedError: the text is not a header.
        """
        cursor = self._cursor
        first, parts = part, _HeaderParts()
        self._words = parts.words
        yield from self._repeated(part)
        num_parts = 0  # Since the header began anew.
        for number in range(_MAX_PARTS * _MAX_BEGINNINGS):
            num_parts = 0 if part == START else num_parts + 1
            if part == MESSAGE or (part is None and (yield from self._ends_early(first, parts))):
                return parts.header(first)
            if num_parts >= _MAX_PARTS:
                break
            yield from cursor.space()
            word = yield from cursor.run(_WORDS.get(part or "", _WORD), _MAX_WORD)
            if part == CHANNEL and not (yield from cursor.peek()):
                parts.words.append(word)
            if not (yield from self._is_unnamed(part, word)):
                self._check_word(part, word)
            parts.add(part, word, anew=number > 0)
            yield from cursor.space()
            part = yield from cursor.take_one(_IN_HEADER if _are_known(parts.words) else _IN_TEXT)
        raise MalformedError("this is too long for a header")

    def _repeated(self, part: str | None) -> Steps[None]:
        """Drop further beginnings of a header that has begun."""
        while part == START and (yield from self._cursor.take_one(_AGAIN)) is not None:
            continue

    def _is_unnamed(self, part: str | None, word: str) -> Steps[bool]:
        """Return whether a recipient without a name stands here: `to=<|constrain|>json`."""
        return part == "to=" and not word and (yield from self._cursor.look_for(_IN_HEADER)) is not None

    def _check_word(self, part: str | None, word: str) -> None:
        """Check what follows a part of a header.

        Raises:
            MalformedError: no header has it.
        """
        if part == START and word and not word.startswith(_ROLES):
            self._cursor.fail("expected a role")
        if not word and part not in (START, CHANNEL, CONSTRAIN):
            self._cursor.fail("expected a word of a header")

    def _ends_early(self, first: str | None, parts: _HeaderParts) -> Steps[bool]:
        """Return whether a header ends without `<|message|>`: at the end of its message, or where a body begins.

        Raises:
            MalformedError: it ends with words of a body.
        """
        cursor, channel, recipient = self._cursor, parts.channel, parts.recipient
        char = yield from cursor.peek()
        if char == "{" and recipient is not None and recipient.removeprefix("functions.") in self._tools:
            return True
        if first not in HEADERS or channel is None:
            return False
        ends = (yield from cursor.look_for(_AFTER_HEADER)) is not None
        if not ends and channel == "final" and char not in ("", "<"):
            ends = not (yield from cursor.take_ahead("json"))
        if ends and recipient is None and not _are_known(word.strip("?0123456789") for word in parts.words):
            raise MalformedError("expected the words of a header")
        return ends

    def _kept_as_text(self, error: MalformedError, start: int, prose: Write) -> bool:
        """Pass on what looked like markup as text, unless the token limit cut it. Returns whether it is text."""
        raw = self._unmark()
        begun = raw.strip()
        marked = any(marker in raw for marker in MARKERS)
        cut = self._is_cut(error)
        # Only markup, or the beginning of some, is dropped where the limit cuts it. Plain text is not.
        cut = cut and (marked or begun.startswith(_CALL) or any(m.startswith(begun) for m in _BEGINNINGS))
        if not cut:
            self._note_broken(raw, start)
        if marked:
            self._warn("the token limit cut a header" if cut else f"a marker was kept as text: {error}")
        if not cut:
            prose(raw, start)
        return not cut

    def _note_broken(self, raw: str, start: int) -> None:
        """Note a call whose header cannot be read, where a message must begin: in prose the model writes about one."""
        match = _BROKEN_CALL.match(raw)
        if match is not None and (match[1] or not start):
            self._header_start = start + match.end(1)
            self._note_place(start, failed=match[2])

    def _note_place(self, start: int, *, before: str = "", failed: str | None = None) -> None:
        """Note a call by the beginning of its header: the prompt has begun the header of the first message only."""
        start = self._header_start
        super()._note_place(start, before=ASSISTANT if start > 0 else before, failed=failed)

    def _unmark(self) -> str:
        self._prose_offset = None
        return self._cursor.unmark()

    def _body(self, header: HarmonyHeader, start: int) -> Steps[HarmonyHeader | None]:
        """Read a message's body through its end, and the next header; None at the end of the output."""
        recipient = header.recipient
        if recipient is not None and recipient != "assistant":
            name = recipient.removeprefix("functions.")
            if name in self._tools:
                return (yield from self._call(name))
            self._note_undeclared(name)
            self._note_place(start, failed=name)
            self._warn(f"a message to the unknown tool {recipient[:40]} was kept as text")
        if header.channel != "analysis":
            return (yield from self._through_end(self._content.write))
        self._thought.drop()
        self._thought_start = start
        return (yield from self._through_end(self._thought.write))

    def _call(self, name: str) -> Steps[HarmonyHeader | None]:
        """Read the arguments of a call and its end, and the next header."""
        cursor = self._cursor
        self.begin_call(name, None)
        try:
            yield from read_arguments(cursor, self.call_arguments, cut=lambda: self._reason == "length")
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


class _HeaderParts:
    """The parts of a header so far, which may have begun anew within itself.

    Attributes:
        channel: the channel.
        recipient: the recipient.
        words: all other words.
    """

    def __init__(self) -> None:
        self.channel: str | None = None
        self.recipient: str | None = None
        self.words: list[str] = []
        self._broken = HarmonyHeader("", None)
        """What the header was before it began anew."""

    def add(self, part: str | None, word: str, *, anew: bool) -> None:
        """Add a word after a part; a beginning that is `anew` is not the first one."""
        if part == CHANNEL:
            self.channel = word
        elif part == START and anew:
            self._broken = HarmonyHeader(self.channel or self._broken.channel, self.recipient)
            self.channel = self.recipient = None
        elif part == "to=":
            self.recipient = word or self.recipient
        else:
            self.words.append(word)

    def header(self, first: str | None) -> HarmonyHeader:
        """Return the header that the parts are; `first` is the marker that it began with.

        Raises:
            MalformedError: they are none.
        """
        named = "".join([word for word in self.words if word in _CHANNELS][:1])
        if not any((first, self.channel is not None, self.recipient, named, self.words == ["assistant"])):
            raise MalformedError("expected the header of a message")
        channel, recipient = self.channel, self.recipient
        if not channel or channel == "commentary":
            channel, recipient = channel or self._broken.channel, recipient or self._broken.recipient
        return HarmonyHeader(channel or named or "final", recipient)


def _are_known(words: Iterable[str]) -> bool:
    return all(word in _WORDS_OF_HEADERS for word in words)


def is_inside(token_ids: Sequence[int], added: Mapping[str, int], table: Sequence[bytes]) -> bool:
    """Whether a prompt ends inside an analysis message, by the control tokens that its template wrote.

    Args:
        token_ids: the end of the prompt.
        added: the added tokens by their text.
        table: the bytes of each token id.
    """
    message, start = added.get(MESSAGE), added.get(START)
    ends = {added[text] for text in ENDS if text in added}
    for index in range(len(token_ids) - 1, -1, -1):
        if token_ids[index] == start or token_ids[index] in ends:
            return False
        if token_ids[index] == message:
            header = b"".join(table[token_id] for token_id in token_ids[max(0, index - 32) : index])
            return parse_header(header.decode("utf-8", "replace").rpartition(START)[2]).channel == "analysis"
    return False


def write_harmony(utterance: Utterance) -> str:
    """Write an utterance as a gpt-oss model does after a prompt that ends with `<|start|>assistant`."""
    call_format = HarmonyCall()
    messages: list[str] = []
    if utterance.reasoning is not None:
        messages.append(f"{CHANNEL}analysis{MESSAGE}{utterance.reasoning}<|end|>")
    last = len(utterance.parts) - 1
    for number, part in enumerate(utterance.parts):
        if isinstance(part, WrittenCall):
            messages.append(call_format.write(part))
        else:
            channel, end = ("final", "<|return|>") if number == last else ("commentary", "<|end|>")
            messages.append(f"{CHANNEL}{channel}{MESSAGE}{part}{end}")
    return ASSISTANT.join(messages)
