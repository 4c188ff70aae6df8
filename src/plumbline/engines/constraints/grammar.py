"""Compile grammars and match tokens against them, for every engine.

A grammar is text in llguidance's dialect of Lark, compiled once and cached; each request gets a matcher that computes
which tokens may come next. Which answers need a grammar is decided above the port. Compiling runs in worker threads and
is bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from numpy.typing import NDArray

__all__ = [
    "CompiledGrammar",
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

_MAX_RULES = 10_000
"""Rules of a grammar. llguidance follows rules that refer to each other recursively, about 4 KB of stack for each."""
_STACK = 128 * 1024 * 1024
"""Bytes of stack of a compiler thread; only the used part costs memory. With the usual 8 MB a chain of 3,000
rules ended the process."""
_MAX_WAITING = 32
"""Grammars that may be compiled or wait to be compiled at a time."""
_BUSY = "Too many grammars and schemas are being compiled. Try again later."


class GrammarError(Exception):
    """The grammar cannot be enforced; the text can be shown to the client."""


class CompilersBusyError(Exception):
    """All compiler threads are busy with other grammars; the text can be shown to the client."""


class Matcher(Protocol):
    """The state of one answer in its grammar. Only one thread at a time may use it."""

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """Write the mask of the tokens that may come next into `row`, int32 [num_words(vocab_size)].

        Bit i % 32 of word i // 32 is set if token i is allowed.

        Raises:
            GrammarError: the grammar needs more work for this token than is allowed, or cannot be completed from here.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Advance by a token; returns False if the grammar forbids it, and the matcher is then unusable."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        ...

    def copy(self) -> Matcher:
        """Return a matcher in the same state that advances apart from this one."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the text is complete: an end of sequence was accepted, or nothing else may come."""
        ...


class GrammarCompiler(Protocol):
    """Compile grammars into matchers."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens that the matchers choose from."""
        ...

    async def compile(self, grammar: str) -> Matcher:
        """Return a new matcher at the start of the grammar.

        Raises:
            GrammarError: the grammar is wrong, unsupported, too large or takes too long.
            CompilersBusyError: other grammars occupied all threads until the timeout.
        """
        ...


@dataclass(frozen=True, slots=True)
class Vocabulary:
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


def num_words(vocab_size: int) -> int:
    """Return the length of a mask row in words of 32 tokens."""
    return -(-vocab_size // 32)


class LarkCompiler:
    """Compile grammars with llguidance, each once, failures included. One event loop may use it.

    Args:
        vocabulary: the model's tokens; at least one must be an end of sequence.
        capacity: how many compiled grammars are cached.
        timeout: seconds that a grammar may wait for a thread, and seconds that it may compile. The error names which of
            the two passed. A thread that is compiling goes on until llguidance's own limits stop it.

    Raises:
        ValueError: the model has no end of sequence, so that a text that may go on could never end.
    """

    def __init__(self, vocabulary: Vocabulary, *, capacity: int = 128, timeout: float = 10.0) -> None:
        if not vocabulary.eos_token_ids:
            raise ValueError("a grammar needs an end of sequence")
        self.vocabulary = vocabulary
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
        if sum(1 for _ in _RULE.finditer(grammar)) > _MAX_RULES:
            raise GrammarError(f"It is too large: more than {_MAX_RULES} rules.")
        key = hashlib.sha256(grammar.encode("utf-8", "surrogatepass")).digest()
        compilation = self._compiled.get(key)
        if compilation is None:
            if sum(not other.future.done() for other in self._compiled.values()) >= _MAX_WAITING:
                raise CompilersBusyError(_BUSY)
            compilation = self._compiled[key] = _Compilation()
            with _deep_stacks():
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
                self._compiled.pop(key, None)  # All clients that waited for it have gone.
        if isinstance(compiled, str):
            raise GrammarError(compiled)
        return _LarkMatcher(compiled.deep_copy())

    def compile_now(self, grammar: str) -> CompiledGrammar:
        """Compile a grammar and wait for it without a limit of time; for one that `compile` has taken elsewhere.

        Raises:
            GrammarError: the grammar is wrong or unsupported.
        """
        with _deep_stacks():
            future = self._threads.submit(self._compile, grammar)
        return CompiledGrammar(future.result())

    async def _result(self, compilation: _Compilation) -> LLMatcher | str:
        """Wait for a thread and then for the result, each at most `timeout` seconds.

        Raises:
            CompilersBusyError: no thread became free.
            GrammarError: compiling took too long.
        """
        if compilation.future.done():  # Of a grammar that is kept, at once.
            return compilation.future.result()
        # A client that disconnects must not cancel the grammar for others that wait for the same one.
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
        """Compile in a worker thread; llguidance releases the interpreter lock while it works."""
        compiled = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        _raise_if_failed(compiled)
        # The first mask fails for grammars that no text satisfies, such as a rule that needs itself.
        probe = _LarkMatcher(compiled.deep_copy())
        probe.mask_into(np.zeros(num_words(self._tokenizer.vocab_size), dtype=np.int32))
        return compiled


_stack_size = threading.Lock()


@contextmanager
def _deep_stacks() -> Iterator[None]:
    """Give threads that start inside a deep stack: a thread takes its size from the process when it starts."""
    with _stack_size:
        usual = threading.stack_size(_STACK)
        try:
            yield
        finally:
            threading.stack_size(usual)


class _Compilation:
    """A grammar that is being compiled or waits to be.

    Attributes:
        future: the matcher or the reason of the failure. Not an exception: each `raise` of one adds to its traceback.
        began: when a thread started to compile; None until then.
        waiting: how many clients wait for it.
    """

    __slots__ = ("began", "future", "waiting")

    def __init__(self) -> None:
        self.future: Future[LLMatcher | str] = Future()
        self.began: float | None = None
        self.waiting = 0


def _shielded(compilation: _Compilation) -> asyncio.Future[LLMatcher | str]:
    return asyncio.shield(asyncio.wrap_future(compilation.future))


class CompiledGrammar:
    """A compiled grammar, from which each answer gets a matcher of its own."""

    def __init__(self, compiled: LLMatcher) -> None:
        self._compiled = compiled

    def matcher(self) -> Matcher:
        """Return a new matcher at the start of the grammar."""
        return _LarkMatcher(self._compiled.deep_copy())


class _LarkMatcher:
    """Wrap llguidance's matcher and raise its errors, which it reports as an end of sequence only."""

    def __init__(self, inner: LLMatcher) -> None:
        self._inner = inner

    def mask_into(self, row: NDArray[np.int32]) -> None:
        """See `Matcher.mask_into`."""
        # `row.ctypes.data` gives the same address but creates a ctypes object for every mask.
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

    def copy(self) -> Matcher:
        """See `Matcher.copy`; the automaton is shared, so that this takes some microseconds."""
        return _LarkMatcher(self._inner.deep_copy())

    @property
    def is_done(self) -> bool:
        """See `Matcher.is_done`."""
        return bool(self._inner.is_stopped()) and not self._inner.is_error()


class _Tokens:
    """Present a vocabulary as the tokenizer object that llguidance expects."""

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
        """Return tokens for text that the grammar forces. Their bytes must be exactly the bytes of the text."""
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
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
    """Return the part of llguidance's message that helps a client, without parser internals."""
    if error.startswith("NoExtension"):
        return "No text can satisfy it."
    if error.startswith("panic"):
        _log.error("the grammar engine failed: %s", error)
        return "It could not be compiled."
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


_RULE = re.compile(r"^\s*[?!]?\w+[^:\n]{0,80}:", re.MULTILINE)
_PLACE = re.compile(r"^(at )?\d+\(\d+\): (failed to compile JSON schema: )?|; following special tokens .*")
_REGEX_REASON = re.compile(r"error: (.*)")
_REGEX_PATTERN = re.compile(r"regex parse error:\n\s*(.*)\n")
_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
