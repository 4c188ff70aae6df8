"""Grammars on the engine's side: compiled once, then a matcher for every request that says which tokens may come next.

The engine knows grammars as text in llguidance's dialect of Lark and tokens as bytes; what is promised to whom and why
is decided above the port. Compiling is bounded in every way a client could abuse it, and happens in worker threads.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from numpy.typing import NDArray

__all__ = [
    "CompilersBusyError",
    "GrammarCompiler",
    "GrammarError",
    "LarkCompiler",
    "Matcher",
    "Vocabulary",
    "num_words",
]

_log = logging.getLogger("plumbline.engines")

MAX_GRAMMAR = 1024 * 1024
"""Characters of a grammar, the JSON Schemas in it included."""

_MAX_WAITING = 32
"""Grammars that are compiled or wait for it at any time."""
_BUSY = "Too many grammars and schemas are being compiled. Try again later."


class GrammarError(Exception):
    """A grammar that cannot be held; the text is fit for the client."""


class CompilersBusyError(Exception):
    """Other grammars are being compiled, so that this one has had no turn; the text is fit for the client."""


class Matcher(Protocol):
    """Where one answer stands in its grammar. One thread at a time uses it."""

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit i % 32 of word i // 32 of `row`, int32 [num_words(vocab_size)].

        Raises:
            GrammarError: the grammar needs more work for this token than is allowed, or cannot be completed from here.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Move on by a token; False if the grammar forbids it, and the matcher is of no more use."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take the last tokens back."""
        ...

    @property
    def is_done(self) -> bool:
        """The text is complete and cannot go on: an end of sequence was taken, or nothing else could come."""
        ...


class GrammarCompiler(Protocol):
    """Turns grammars into matchers."""

    async def compile(self, grammar: str) -> Matcher:
        """A fresh matcher at the start of the grammar.

        Raises:
            GrammarError: the grammar is wrong, unsupported, too large or takes too long.
            CompilersBusyError: others are being compiled, and this one had no turn.
        """
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a grammar has to know of a model's tokens.

    Attributes:
        tokens: bytes of each id, [vocab_size]; ids that mean nothing have none.
        special_ids: control tokens; no text matches them.
        eos_token_ids: each of these may end an answer where the grammar can end.
        encode: text to ids without control tokens, the way the model is used to see it.
    """

    tokens: Sequence[bytes]
    special_ids: frozenset[int]
    eos_token_ids: frozenset[int]
    encode: Callable[[str], list[int]]


def num_words(vocab_size: int) -> int:
    """The length of a mask's row: 32 tokens to a word."""
    return -(-vocab_size // 32)


class LarkCompiler:
    """Compiles with llguidance. Used from one event loop; equal grammars are compiled once, also when they fail.

    Args:
        vocabulary: the model's tokens; at least one of them has to end an answer.
        capacity: how many grammars are kept.
        timeout: seconds that a grammar may wait for a thread, and seconds that it may take there; after that its client
            is told which of the two it was. The thread is not stopped by that, but by llguidance's own limits;
            meanwhile other grammars have the other threads.

    Raises:
        ValueError: the model has no end of sequence, so that a text that may go on could never end.
    """

    def __init__(self, vocabulary: Vocabulary, *, capacity: int = 128, timeout: float = 10.0) -> None:
        if not vocabulary.eos_token_ids:
            raise ValueError("a grammar needs an end of sequence")
        self._tokenizer = _tokenizer(vocabulary)
        self._capacity = capacity
        self._timeout = timeout
        self._limits = LLParserLimits(verbose_errors=False)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="plumbline-grammar")
        self._compiled: OrderedDict[bytes, _Compilation] = OrderedDict()

    async def compile(self, grammar: str) -> Matcher:
        """See `GrammarCompiler.compile`."""
        if len(grammar) > MAX_GRAMMAR:
            raise GrammarError(f"It is too large: more than {MAX_GRAMMAR} characters.")
        key = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        compilation = self._compiled.get(key)
        if compilation is None:
            if sum(not other.future.done() for other in self._compiled.values()) >= _MAX_WAITING:
                raise CompilersBusyError(_BUSY)
            compilation = self._compiled[key] = _Compilation()
            compilation.future = self._threads.submit(self._work, compilation, grammar)
            while len(self._compiled) > self._capacity:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        compilation.waiting += 1
        try:
            compiled = await self._result(compilation)
        finally:
            compilation.waiting -= 1
            if not compilation.waiting and compilation.began is None and compilation.future.cancel():
                self._compiled.pop(key, None)  # Nobody is left who wants it.
        if isinstance(compiled, str):
            raise GrammarError(compiled)
        return _LarkMatcher(compiled.deep_copy())

    async def _result(self, compilation: _Compilation) -> LLMatcher | str:
        """Wait for a turn, and for the result; neither takes longer than `timeout`.

        Raises:
            CompilersBusyError: the turn never came.
            GrammarError: the result never came.
        """
        # One client that goes away must not take the grammar from those who wait for the same one.
        try:
            return await asyncio.wait_for(_shielded(compilation), self._timeout)
        except TimeoutError:
            if compilation.began is None:
                raise CompilersBusyError(_BUSY) from None
        try:
            left = compilation.began + self._timeout - time.monotonic()
            return await asyncio.wait_for(_shielded(compilation), max(left, 0))
        except TimeoutError:
            raise GrammarError(f"It takes more than {self._timeout:g} s to compile.") from None

    def _work(self, compilation: _Compilation, grammar: str) -> LLMatcher | str:
        compilation.began = time.monotonic()
        try:
            return self._compile(grammar)
        except GrammarError as error:
            return str(error)

    def _compile(self, grammar: str) -> LLMatcher:
        """In a worker thread, which holds the interpreter only at its ends."""
        compiled = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        _raise_if_failed(compiled)
        # The first mask finds out grammars that no text satisfies, such as a rule that needs itself.
        probe = _LarkMatcher(compiled.deep_copy())
        probe.mask_into(np.zeros(num_words(self._tokenizer.vocab_size), dtype=np.int32))
        return compiled


class _Compilation:
    """A grammar that is compiled, or waits for it.

    Attributes:
        future: the result, or why there is none: an exception would grow with everyone to whom it is raised.
        began: when a thread took it up; None until then.
        waiting: how many clients want it.
    """

    __slots__ = ("began", "future", "waiting")

    def __init__(self) -> None:
        self.future: Future[LLMatcher | str] = Future()
        self.began: float | None = None
        self.waiting = 0


def _shielded(compilation: _Compilation) -> asyncio.Future[LLMatcher | str]:
    return asyncio.shield(asyncio.wrap_future(compilation.future))


class _LarkMatcher:
    """llguidance's matcher, with its failures made loud: it answers an error with an end of sequence."""

    def __init__(self, inner: LLMatcher) -> None:
        self._inner = inner

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """See `Matcher.mask_into`."""
        # `row.ctypes.data` is the same address, at the price of a ctypes object for every mask.
        self._inner.unsafe_compute_mask_ptr(row.__array_interface__["data"][0], row.nbytes)
        _raise_if_failed(self._inner)
        if self._inner.is_stopped() and not self._inner.is_accepting():
            raise GrammarError("No text can complete it.")

    def accept(self, token_id: int) -> bool:
        """See `Matcher.accept`."""
        return bool(self._inner.consume_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        """See `Matcher.rollback`."""
        self._inner.rollback(num_tokens)

    @property
    def is_done(self) -> bool:
        """See `Matcher.is_done`."""
        return bool(self._inner.is_stopped()) and not self._inner.is_error()


class _Tokens:
    """The shape in which llguidance takes a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
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

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens of text that the grammar forces. Their bytes are exactly the text's, or the text would be lost."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        ids = self._encode(raw.decode("utf-8", "replace"))
        return ids if b"".join(self.tokens[token_id] for token_id in ids) == raw else self._greedy(raw)

    def _greedy(self, raw: bytes) -> list[int]:
        """Longest tokens first: for tokenizers that put a space before every text, and for parts of characters."""
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
                return found  # No token has this byte; what comes after it is left to the grammar.
        return found


def _tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    return LLTokenizer(
        TokenizerWrapper(_Tokens(vocabulary)),
        n_vocab=len(vocabulary.tokens),
        eos_token=sorted(vocabulary.eos_token_ids),
    )


def _raise_if_failed(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_sentence(matcher.get_error()))


def _sentence(error: str) -> str:
    """What a client can use of llguidance's message: without the grammar that we wrote and the parser's inside."""
    if error.startswith("NoExtension"):
        return "No text can satisfy it."
    if error.startswith("panic"):
        _log.error("the grammar engine failed: %s", error)
        return "It could not be compiled."
    shown = error.split("\n   1 | ")[0].split("\n<")[0]
    reason = _REGEX_REASON.search(shown)
    pattern = _REGEX_PATTERN.search(shown)
    if reason is not None and pattern is not None:
        return f"The pattern {pattern.group(1)[:200]!r} cannot be held: {reason.group(1)}."
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
