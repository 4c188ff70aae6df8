"""Assemble token chunks of one choice into text deltas: detokenise, find stop strings, align logprobs."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence

import msgspec

from plumbline.answer.events import Logprob, TextDelta
from plumbline.answer.text.detokenize import Detokenizer
from plumbline.answer.text.stop import AnswerRegions, AnswerStopChecker, StopChecker
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.port.engine import TokenLogprob

__all__ = ["TextAssembler"]


class _Waiting(msgspec.Struct):
    """A logprob entry with text that has not been sent yet. Positions count characters of the text."""

    entry: Logprob
    start: int
    """Complete characters before this token."""
    end: int
    """Characters that must be sent before the entry: through the one with the token's last byte."""
    pending: bytes
    """The bytes of an incomplete character that this token began with."""
    is_open: bool
    """Whether the token ends inside a character."""


class TextAssembler:
    """Assemble the text of one choice, without I/O.

    A token's logprob entry is released with the text that contains its last byte, so concatenating the `raw` of the
    entries sent so far always gives a prefix of the text sent so far (LP-03, LP-07). If a stop string ends the answer
    inside a token, the entry of that token is shortened to the bytes that were sent.

    Args:
        tokenizer: the model's tokenizer.
        stop: stop strings.
        regions: where in the output stop strings count; None for everywhere.
        include_stop: keep the stop string or stop token that ended the answer in its text.
        skip_special_tokens: leave control tokens out of the text.
        hidden_ids: further ids to leave out.
        shown_ids: control tokens to keep in any case, because a dialect reads them.
        logprobs: tokens come with logprob entries.
        min_tokens: a stop string ends the answer only if one of its characters comes from a later token than this many;
            one that is complete before is ordinary text. vLLM treats `min_tokens` in the same way.
        token_ends: fill `token_ends`.
        every_token: tokens without text have an entry too, without bytes: control tokens that are left out, the one
            that ended the answer, and those that a stop string took away (CMP-04). Entries may then come without text.
    """

    __slots__ = (
        "_complete",
        "_decode",
        "_detokenizer",
        "_every_token",
        "_include_stop",
        "_min_tokens",
        "_num_chars",
        "_plain",
        "_ready",
        "_sent",
        "_stop",
        "_tokenizer",
        "_waiting",
        "_wants_logprobs",
        "num_tokens",
        "token_ends",
    )

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        stop: tuple[str, ...] = (),
        regions: AnswerRegions | None = None,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        hidden_ids: frozenset[int] = frozenset(),
        shown_ids: frozenset[int] = frozenset(),
        logprobs: bool = False,
        min_tokens: int = 0,
        token_ends: bool = False,
        every_token: bool = False,
    ) -> None:
        if skip_special_tokens and not shown_ids:
            table, hidden = tokenizer.visible_table, hidden_ids - tokenizer.special_ids
        elif skip_special_tokens:
            table, hidden = tokenizer.table, (tokenizer.special_ids - shown_ids) | hidden_ids
        else:
            table, hidden = tokenizer.table, hidden_ids
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(table, hidden)
        self._decode = self._detokenizer.push
        self._include_stop = include_stop
        self._stop = StopChecker(stop, include=include_stop)
        if stop and regions is not None:
            self._stop = AnswerStopChecker(stop, regions, include=include_stop)
        self._min_tokens = min_tokens if stop else 0
        self._wants_logprobs = logprobs
        self._every_token = every_token
        self._plain = not stop and not logprobs
        self._waiting: deque[_Waiting] = deque()
        self._complete = 0
        """Characters that the tokens so far have completed."""
        self._ready = ""
        """Text that is past all stop strings, but ends inside a token that is not complete yet."""
        self._sent = 0
        """Characters sent so far."""
        self.token_ends: array[int] | None = array("Q") if token_ends else None
        """For each token, how many characters of the text are complete through it."""
        self._num_chars = 0
        self.num_tokens = 0
        """Tokens counted, through the one that completed a stop string."""

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._stop.matched

    @property
    def stops_in_text(self) -> bool:
        """Whether the stop string that ended the answer stood in text, and not in a call."""
        return self._stop.in_text

    def push(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob] | None = None,
        *,
        ends_with_stop_token: bool = False,
    ) -> TextDelta | None:
        """Take new tokens; returns the text that can be sent. Tokens after a stop match are ignored.

        Args:
            token_ids: the next tokens.
            logprobs: one entry per token, if they were requested.
            ends_with_stop_token: the last token ended the answer. It is counted, but like a stop string it is not part
                of the text unless `include_stop` is set (CHAT-10).
        """
        if ends_with_stop_token and not self._include_stop:
            delta = self.push(token_ids[:-1], logprobs)
            if self._stop.matched is None:
                self.num_tokens += 1
                if self.token_ends is not None:
                    self.token_ends.append(self._num_chars)
                if self._every_token and logprobs is not None:
                    # `finish` sends it.
                    self._wait(_entry(self._tokenizer, logprobs[len(token_ids) - 1], b"", ""), b"")
            return delta
        # Without stop strings and logprobs, tokens need not be decoded one by one.
        if self._plain and (self.token_ends is None or len(token_ids) < 2):
            self.num_tokens += len(token_ids)
            text = self._decode(token_ids)
            if self.token_ends is not None and token_ids:
                self._num_chars += len(text)
                self.token_ends.append(self._num_chars)
            return TextDelta(text) if text else None
        return self._watched(token_ids, logprobs)

    def _watched(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> TextDelta | None:
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._stop.matched is not None:
                break
            self.num_tokens += 1
            pending = self._detokenizer.pending if self._wants_logprobs else b""
            piece = self._detokenizer.push((token_id,))
            if self._wants_logprobs and logprobs is not None:
                self._remember(logprobs[index], piece, pending)
            if self.token_ends is not None:
                self._num_chars += len(piece)
                self.token_ends.append(self._num_chars)
            if piece:
                text += self._stop.push(piece, armed=self.num_tokens > self._min_tokens)
        if self._stop.num_late:
            self._forget_tokens(self._stop.num_late)
        return self._delta(text)

    def _forget_tokens(self, number: int) -> None:
        """Do not count the tokens that came before it was known that an earlier one completed a stop string."""
        self.num_tokens -= number
        self._stop.num_late = 0
        if self.token_ends is not None:
            del self.token_ends[-number:]

    def finish(self) -> TextDelta | None:
        """Return the remaining text, once there are no more tokens."""
        if self._stop.matched is not None:
            return None
        piece = self._detokenizer.flush()
        # Bytes of an incomplete character belong to the last token that has bytes.
        last = next((waiting for waiting in reversed(self._waiting) if waiting.entry.raw), None)
        if piece and last is not None:
            last.entry = msgspec.structs.replace(last.entry, text=last.entry.text + piece)
            for waiting in self._waiting:
                waiting.is_open = False
        text = self._stop.push(piece, armed=self.num_tokens > self._min_tokens)
        if self._stop.matched is None:
            text += self._stop.flush()
        return self._delta(text)

    def _remember(self, logprob: TokenLogprob, piece: str, pending: bytes) -> None:
        raw = self._detokenizer.bytes_of(logprob.token_id)
        # A control token is not part of the text, so it has no logprob entry where entries join to a message.
        if raw or self._every_token:
            self._wait(_entry(self._tokenizer, logprob, raw, piece), pending)

    def _wait(self, entry: Logprob, pending: bytes) -> None:
        start = self._complete
        self._complete += len(entry.text)
        is_open = bool(self._detokenizer.pending)
        self._waiting.append(_Waiting(entry, start, self._complete + is_open, pending, is_open))

    def _delta(self, text: str) -> TextDelta | None:
        """Return what can be sent of the text that the stop checker has released.

        With logprobs, a token is sent as a whole: if a stop string cut the rest of a token that was sent in part, no
        text would be left to send its entry with.
        """
        if not self._wants_logprobs:
            return TextDelta(text) if text else None
        text = self._ready + text
        reach = self._sent + len(text)
        waiting = self._waiting
        whole = 0  # The leading entries that end with a complete character.
        for index, entry in enumerate(waiting):
            if entry.end > reach:
                break
            if not entry.is_open:
                whole = index + 1
        released = [waiting.popleft().entry for _ in range(whole)]
        if self._stop.matched is not None:
            released += [
                _shortened(entry, reach - entry.start) if entry.end > reach else entry.entry
                for entry in waiting
                if entry.start < reach
            ]
            if self._every_token:
                released += [_shortened(entry, 0) for entry in waiting if entry.start >= reach]
            waiting.clear()
        elif waiting:
            reach = min(reach, waiting[0].start)
        size = reach - self._sent
        text, self._ready = text[:size], text[size:]
        self._sent = reach
        return TextDelta(text, tuple(released)) if text or (released and self._every_token) else None


def _entry(tokenizer: TextTokenizer, logprob: TokenLogprob, raw: bytes, text: str) -> Logprob:
    return Logprob(
        token=raw.decode("utf-8", "replace"),
        token_id=logprob.token_id,
        raw=raw,
        text=text,
        logprob=logprob.logprob,
        top=tuple(
            (token_id, tokenizer.token_text(token_id), tokenizer.table[token_id], value)
            for token_id, value in logprob.top
        ),
    )


def _shortened(waiting: _Waiting, length: int) -> Logprob:
    """Cut the entry of a token to its first `length` characters, if only these were sent.

    It has no bytes if those characters are only the U+FFFD of an earlier token's bytes.
    """
    entry, pending = waiting.entry, waiting.pending
    kept = max(
        size
        for size in range(len(entry.raw) + 1)
        if size == 0 or len((pending + entry.raw[:size]).decode("utf-8", "replace")) <= length
    )
    raw = entry.raw[:kept]
    return msgspec.structs.replace(
        entry, raw=raw, text=entry.text[:length], token=raw.decode("utf-8", "replace")
    )
