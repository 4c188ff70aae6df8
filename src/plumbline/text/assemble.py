"""Token chunks of one choice to text deltas: detokenising, stop strings and logprobs, kept in step with each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from plumbline.engine.api import TokenLogprob
from plumbline.events import Logprob, TextDelta
from plumbline.text.detokenize import Detokenizer
from plumbline.text.stop import StopChecker
from plumbline.text.tokenizer import TextTokenizer

__all__ = ["TextAssembler"]


class TextAssembler:
    """Assembles the text of one choice. It has no I/O; the road feeds it.

    A token's logprob entry is released with the text that contains its last byte, so concatenating the `raw` of the
    entries sent so far always gives a prefix of the text sent so far (LP-03, LP-07). If a stop string ends the answer
    inside a token, the entry of that token is shortened to the bytes that were sent.
    """

    __slots__ = ("_detokenizer", "_entries", "_owed", "_stop", "_tokenizer", "_wants_logprobs", "num_tokens")

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        hidden_ids: frozenset[int] = frozenset(),
        logprobs: bool = False,
    ) -> None:
        hidden = (tokenizer.special_ids if skip_special_tokens else frozenset()) | hidden_ids
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer.table, hidden)
        self._stop = StopChecker(stop, include=include_stop)
        self._wants_logprobs = logprobs
        self._entries: deque[Logprob] = deque()
        self._owed = 0
        """Bytes of sent text that no released entry covers yet."""
        self.num_tokens = 0
        """Tokens taken, up to and including the one that completed a stop string."""

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stop.matched

    def push(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> TextDelta | None:
        """Take new tokens; returns what can be sent. After a stop match further tokens are not taken."""
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._stop.matched is not None:
                break
            self.num_tokens += 1
            if self._wants_logprobs and logprobs is not None:
                self._remember(logprobs[index])
            piece = self._detokenizer.push(token_id)
            if piece:
                text += self._stop.push(piece)
        return self._delta(text, final=self._stop.matched is not None)

    def finish(self) -> TextDelta | None:
        """No more tokens: release what was held back."""
        if self._stop.matched is not None:
            return None
        text = self._stop.push(self._detokenizer.flush())
        if self._stop.matched is None:
            text += self._stop.flush()
        return self._delta(text, final=True)

    def _remember(self, entry: TokenLogprob) -> None:
        raw = self._detokenizer.bytes_of(entry.token_id)
        if not raw:
            return  # A control token has no part in the text, and so none in its logprobs.
        tokenizer = self._tokenizer
        self._entries.append(
            Logprob(
                token=raw.decode("utf-8", "replace"),
                token_id=entry.token_id,
                raw=raw,
                logprob=entry.logprob,
                top=tuple(
                    (token_id, tokenizer.token_text(token_id), tokenizer.table[token_id], value)
                    for token_id, value in entry.top
                ),
            )
        )

    def _delta(self, text: str, *, final: bool) -> TextDelta | None:
        if not self._wants_logprobs:
            return TextDelta(text) if text else None
        self._owed += len(text.encode())
        released: list[Logprob] = []
        while self._entries and len(self._entries[0].raw) <= self._owed:
            entry = self._entries.popleft()
            self._owed -= len(entry.raw)
            released.append(entry)
        if final:
            if self._entries and self._owed > 0 and self._stop.matched is not None:
                raw = self._entries[0].raw[: self._owed]
                released.append(
                    msgspec.structs.replace(self._entries[0], raw=raw, token=raw.decode("utf-8", "replace"))
                )
            elif self._stop.matched is None:
                released.extend(self._entries)  # Bytes that never became valid text end as U+FFFD.
            self._entries.clear()
        return TextDelta(text, tuple(released)) if text or released else None
