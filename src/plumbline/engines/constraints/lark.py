"""Compile Lark grammars with llguidance, and match tokens against them. Imports nothing heavier than NumPy.

The server's process and the workers that try grammars before it (`trial.py`) share this module.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from numpy.typing import NDArray

from plumbline.engines.constraints.digit_runs import DigitRunMatcher, DigitTokens

__all__ = [
    "CompiledGrammar",
    "GrammarError",
    "GrammarVocabulary",
    "LarkMatcher",
    "compile_lark",
    "deep_stacks",
    "lark_tokenizer",
    "num_words",
]

_EMPTY = "No text can satisfy it."
_log = logging.getLogger("plumbline.engines")

_STACK = 128 * 1024 * 1024
"""Bytes of stack of a thread that compiles; only the used part costs memory. With the usual 8 MB a chain of 3,000
rules ended the process."""
SMALL_SYMBOLS = 1_000
"""Symbols of a grammar whose masks cannot take long: the items of a row are at most as many, and llguidance compares
each with all others. With 900 items a mask took 0.2 s, with 8,000 it took 23 s."""
_MOST_SYMBOLS = 60_000
"""A choice of 400 tools with ten parameters each has 50,000."""
_LONG = 256
_LONGEST = 262_144
"""Bytes of forced texts whose tokens are kept: encoding 4,000 digits takes 4 ms."""
_RECENT = 8
"""How many of them."""
_FREE_SECONDS = 0.001
"""CPU time of one mask or token that does not count; those of ordinary schemas take 0.01 to 0.1 ms."""
_MOST_SECONDS = 2.0
"""CPU time of all masks and tokens of an answer beyond `_FREE_SECONDS` each."""
_SLOW_SECONDS = 0.001
"""CPU time of a mask or token after which the next mask also counts as slow: they grow with the text."""


class GrammarError(Exception):
    """The grammar cannot be enforced; the text can be shown to the client."""


@dataclass(frozen=True, slots=True)
class GrammarVocabulary:
    """The tokens of a model, as grammars need them.

    Attributes:
        tokens: bytes of each id, [vocab_size]; empty for unused ids.
        special_ids: control tokens, which match no text.
        eos_token_ids: may end an answer where the grammar may end.
        encode: encodes text without control tokens, as the model sees it in training.
    """

    tokens: Sequence[bytes]
    special_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    encode: Callable[[str], list[int]]


class CompiledGrammar(NamedTuple):
    """A compiled grammar, from which each answer gets a matcher of its own."""

    inner: LLMatcher
    first_mask: NDArray[np.int32]
    is_small: bool
    """Whether it has so few symbols that no mask can take long."""
    digits: DigitTokens | None = None
    """The digits of the vocabulary, if the grammar has JSON, whose numbers must end."""

    def matcher(self) -> LarkMatcher | DigitRunMatcher:
        """Return a new matcher at the start of the grammar."""
        found = LarkMatcher(
            self.inner.deep_copy(), self.is_small, _Work(), len(self.first_mask), self.first_mask
        )
        return found if self.digits is None else DigitRunMatcher(found, self.digits)


def num_words(vocab_size: int) -> int:
    """Return the length of a mask row in words of 32 tokens."""
    return -(-vocab_size // 32)


def compile_lark(tokenizer: LLTokenizer, grammar: str, *, is_small: bool) -> CompiledGrammar:
    """Compile a grammar; llguidance releases the interpreter lock while it works.

    Args:
        tokenizer: the model's tokens.
        grammar: the text.
        is_small: whether to refuse a grammar with more than `SMALL_SYMBOLS`.

    Raises:
        GrammarError: the grammar is wrong, unsupported or too large.
    """
    inner = LLMatcher(tokenizer, grammar, log_level=0, limits=_limits(is_small=is_small))
    _raise_if_failed(inner)
    # The first mask fails for grammars that no text satisfies, such as a rule that needs itself.
    row = np.zeros(num_words(tokenizer.vocab_size), dtype=np.int32)
    _mask_into(inner.deep_copy(), row)
    return CompiledGrammar(inner, row, is_small)


def _limits(*, is_small: bool) -> LLParserLimits:
    """Return the limits of a grammar; an object with 500 optional members needs 2,000 items in a row."""
    return LLParserLimits(
        max_items_in_row=2_000,
        step_max_items=10_000,
        step_lexer_fuel=100_000,
        max_lexer_states=50_000,
        max_grammar_size=SMALL_SYMBOLS if is_small else _MOST_SYMBOLS,
        verbose_errors=False,
    )


_stack_size = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Give threads that start inside a deep stack: a thread takes its size from the process when it starts."""
    with _stack_size:
        usual = threading.stack_size(_STACK)
        try:
            yield
        finally:
            threading.stack_size(usual)


class _Work:
    """The CPU time that an answer's matcher and its copies have taken, beyond what is free."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0


class LarkMatcher:
    """Wrap llguidance's matcher: raise its errors, which it reports as an end of sequence only, and bound its work.

    See `plumbline.engines.constraints.grammar.Matcher`.
    """

    def __init__(
        self, inner: LLMatcher, is_small: bool, work: _Work, words: int, known: NDArray[np.int32] | None
    ) -> None:
        self._inner = inner
        self._words = words
        self._is_small = is_small
        self._work = work
        self._known = known
        """The next mask, if it has been computed."""
        self._failure: str | None = None
        """Why the next mask could not be computed."""
        self._was_slow = False
        self._begun = False
        """Whether a token has been taken."""

    @property
    def may_be_slow(self) -> bool:
        """Whether masks and tokens may take long from here."""
        return self._was_slow or not self._is_small

    def prepare(self) -> None:
        """Compute the next mask, which `mask_into` then copies. No other method may be called meanwhile."""
        if self._known is not None or self._failure is not None:
            return
        row = np.empty(self._words, dtype=np.int32)
        try:
            self._compute(row)
            self._known = row
        except GrammarError as error:
            self._failure = str(error)

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Write the next mask."""
        if self._failure is not None:
            raise GrammarError(self._failure)
        if self._known is not None:
            row[:] = self._known
        else:
            self._compute(row)

    def accept(self, token_id: int) -> bool:
        """Advance by a token."""
        self._known = self._failure = None
        self._begun = True
        began = time.thread_time()
        accepted = bool(self._inner.consume_token(token_id))
        self._was_slow = self._count(time.thread_time() - began)
        return accepted

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        self._known = self._failure = None
        self._inner.rollback(num_tokens)

    def copy(self) -> LarkMatcher:
        """Return a matcher in the same state; the automaton is shared, so that this takes some microseconds."""
        found = LarkMatcher(self._inner.deep_copy(), self._is_small, self._work, self._words, self._known)
        found._failure, found._was_slow = self._failure, self._was_slow
        found._begun = self._begun
        return found

    @property
    def is_done(self) -> bool:
        """Whether the text is complete."""
        return bool(self._inner.is_stopped()) and not self._inner.is_error()

    def _compute(self, row: NDArray[np.int32]) -> None:
        if self._work.seconds > _MOST_SECONDS:
            raise GrammarError(f"It takes more than {_MOST_SECONDS:g} s of CPU time for one answer.")
        # Thread time, not wall time: waiting for the interpreter lock is not work.
        began = time.thread_time()
        try:
            _mask_into(self._inner, row)
        except GrammarError as error:
            if not self._begun or str(error) != _EMPTY:
                raise
            raise GrammarError(
                "Parts of it exclude each other, so that this text cannot be completed."
            ) from None
        finally:
            self._was_slow = self._count(time.thread_time() - began) or self._was_slow

    def _count(self, seconds: float) -> bool:
        """Count the time of one mask or token; returns whether it was slow."""
        if seconds > _FREE_SECONDS:
            self._work.seconds += seconds - _FREE_SECONDS
        return seconds > _SLOW_SECONDS


def _mask_into(inner: LLMatcher, row: NDArray[np.int32]) -> None:
    # `row.ctypes.data` gives the same address but creates a ctypes object for every mask.
    inner.unsafe_compute_mask_ptr(row.__array_interface__["data"][0], row.nbytes)
    _raise_if_failed(inner)
    if inner.is_stopped() and not inner.is_accepting():
        raise GrammarError("No text can complete it.")


class _Tokens:
    """Present a vocabulary as the tokenizer object that llguidance expects."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self.eos_token_id = min(vocabulary.eos_token_ids)
        self.bos_token_id = None
        self._encode = vocabulary.encode
        self._ids = {
            token: token_id
            for token_id, token in enumerate(self.tokens)
            if token and token_id not in vocabulary.special_ids
        }
        self._longest = max(map(len, self._ids), default=1)
        self._recent: deque[tuple[bytes, list[int], list[int]]] = deque(maxlen=_RECENT)
        """Long texts with their tokens, and where each token ends."""

    def __call__(self, text: str | bytes) -> list[int]:
        """Return tokens for text that the grammar forces. Their bytes must be exactly the bytes of the text."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        if not _LONG <= len(raw) <= _LONGEST:
            return self._tokens(raw)
        if (rest := self._rest(raw)) is not None:
            return rest
        ids = self._tokens(raw)
        self._recent.append((raw, ids, [0, *accumulate(len(self.tokens[token_id]) for token_id in ids)]))
        return ids

    def _rest(self, raw: bytes) -> list[int] | None:
        """Return the tokens of a text that is left of a recent one: it is asked for again after each of its tokens."""
        for whole, ids, ends in tuple(self._recent):
            if whole.endswith(raw):
                begin = len(whole) - len(raw)
                place = bisect_left(ends, begin)
                if place < len(ends) and ends[place] == begin:
                    return ids[place:]
        return None

    def _tokens(self, raw: bytes) -> list[int]:
        ids = self._encode(raw.decode("utf-8", "replace"))
        return ids if b"".join(self.tokens[token_id] for token_id in ids) == raw else self._greedy(raw)

    def _greedy(self, raw: bytes) -> list[int]:
        """Encode with the longest tokens first, where the tokenizer adds a space or the text splits a character."""
        found: list[int] = []
        position = 0
        while position < len(raw):
            for size in range(min(self._longest, len(raw) - position), 0, -1):
                token_id = self._ids.get(raw[position : position + size])
                if token_id is not None:
                    found.append(token_id)
                    position += size
                    break
            else:
                return found  # No token has this byte; the grammar handles what follows.
        return found


def lark_tokenizer(vocabulary: GrammarVocabulary) -> LLTokenizer:
    """Return the tokens of a model, as llguidance takes them."""
    return LLTokenizer(
        TokenizerWrapper(_Tokens(vocabulary)),
        n_vocab=len(vocabulary.tokens),
        eos_token=sorted(vocabulary.eos_token_ids),
    )


def _raise_if_failed(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_sentence(matcher.get_error()))


def _sentence(error: str) -> str:
    """Return the part of llguidance's message that helps a client, without parser internals."""
    if error.startswith("NoExtension"):
        return _EMPTY
    if error.startswith("panic"):
        _log.error("the grammar engine failed: %s", error)
        return "It could not be compiled."
    if "oneOf constraints are not supported" in error:
        return "The branches of a 'oneOf' may overlap, which cannot be enforced; use 'anyOf'."
    if "are not disjoint" in error and "patternProperty" in error:
        return "Regexes of 'patternProperties' may match the same name, which cannot be enforced."
    shown = error.split("\n   1 | ")[0].split("\n<")[0]
    reason = _REGEX_REASON.search(shown)
    pattern = _REGEX_PATTERN.search(shown)
    if reason is not None and pattern is not None:
        return f"The regex {pattern.group(1)[:200]!r} cannot be enforced: {reason.group(1)}."
    keywords = _KEYWORDS.search(shown)
    if keywords is not None:
        names = keywords.group(1).replace('"', "'")
        return f"Unsupported keywords: {names}."
    first = _PLACE.sub("", shown.splitlines()[0] if shown else "unknown error").split(" Enable ")[0]
    return f"{first[:300].rstrip('.')}."


_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?|; following special tokens .*")
_REGEX_REASON = re.compile(r"error: (.*)")
_REGEX_PATTERN = re.compile(r"regex parse error:\n\s*(.*)\n")
_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
