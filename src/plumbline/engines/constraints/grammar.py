"""Compile grammars for every engine: each first in a process that may die, then in this one.

A grammar is text in llguidance's dialect of Lark, compiled once and cached; each request gets a matcher that computes
which tokens may come next. Which answers need a grammar is decided above the port.

llguidance is native code that meets strangers' input: a grammar may end its process, or compile for minutes. So a
worker tries it first (`trial.py`), within bounds of CPU time and memory. What the worker survived is compiled again in
a thread of this process, which is then bounded as well. A compiled grammar cannot be sent from one to the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import cached_property
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from plumbline.base.workers.pool import Bounds, LentWorker, WorkerError, WorkerPool, WorkersBusyError
from plumbline.engines.constraints.digit_runs import DigitTokens, digit_tokens
from plumbline.engines.constraints.lark import (
    CompiledGrammar,
    GrammarError,
    GrammarVocabulary,
    compile_lark,
    deep_stacks,
    lark_tokenizer,
    num_words,
)
from plumbline.engines.constraints.trial import GrammarVerdict, TrialSetup

__all__ = [
    "CompiledGrammar",
    "CompilersBusyError",
    "GrammarCompiler",
    "GrammarError",
    "GrammarVocabulary",
    "LarkCompiler",
    "Matcher",
    "num_words",
]

MAX_GRAMMAR = 1024 * 1024
"""Characters of a grammar, the JSON Schemas in it included."""

_MAX_RULES = 10_000
"""Rules of a grammar. llguidance follows rules that refer to each other recursively, about 4 KB of stack for each."""
BOUNDS = Bounds(cpu_seconds=2.0, seconds=20.0, memory=1024 * 1024 * 1024, result=4096)
"""Of the trial of a grammar. Grammars of programs compile within 10 ms."""
_TRIALS = 2
"""Grammars that are tried at a time, and as many that take long."""
_MOST_CACHED = 64 * 1024 * 1024
"""Bytes of the compiled grammars that are cached."""
_BUSY = "Too many grammars and schemas are being compiled. Try again later."

_log = logging.getLogger("plumbline.engines")


class CompilersBusyError(Exception):
    """Too many grammars wait to be compiled; the text can be shown to the client."""


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
    def may_be_slow(self) -> bool:
        """Whether masks and tokens may take so long from here that no step should wait for them; see `prepare`."""
        ...

    def prepare(self) -> None:
        """Compute the next mask, in any thread; `mask_into` then copies it, or raises what went wrong."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the text is complete: an end of sequence was accepted, or nothing else may come."""
        ...


class GrammarCompiler(Protocol):
    """Compile grammars into matchers."""

    @property
    def vocabulary(self) -> GrammarVocabulary:
        """The tokens that the matchers choose from."""
        ...

    async def compile(self, grammar: str, client: str = "") -> Matcher:
        """Return a new matcher at the start of the grammar.

        Args:
            grammar: the text.
            client: whose request has it; clients take turns.

        Raises:
            GrammarError: the grammar is wrong, unsupported, too large or takes too long.
            CompilersBusyError: too many grammars wait to be compiled.
        """
        ...

    async def close(self) -> None:
        """End the processes that try grammars. Idempotent; a later `compile` starts them again."""
        ...


class LarkCompiler:
    """Compile grammars with llguidance, each once, failures included. One event loop may use it.

    Args:
        vocabulary: the model's tokens; at least one must be an end of sequence.
        capacity: how many compiled grammars are cached, within `_MOST_CACHED` bytes.
        waiting: how many grammars may wait to be tried; one client may have half of them.
        patience: seconds that a grammar may wait for its turn, and for the end of its trial.

    Raises:
        ValueError: the model has no end of sequence, so that a text that may go on could never end.
    """

    def __init__(
        self, vocabulary: GrammarVocabulary, *, capacity: int = 128, waiting: int = 64, patience: float = 30.0
    ) -> None:
        if not vocabulary.eos_token_ids:
            raise ValueError("a grammar needs an end of sequence")
        self.vocabulary = vocabulary
        self._capacity = capacity
        self._waiting = waiting
        self._patience = patience
        self._building = threading.Lock()
        self._threads = ThreadPoolExecutor(
            max_workers=2 * _TRIALS, thread_name_prefix="plumbline-grammar"
        )  # None waits for another.
        self._compiled: OrderedDict[bytes, _Compilation] = OrderedDict()

    async def compile(self, grammar: str, client: str = "") -> Matcher:
        """See `GrammarCompiler.compile`."""
        if len(grammar) > MAX_GRAMMAR:
            raise GrammarError(f"It is too large: more than {MAX_GRAMMAR} characters.")
        if sum(1 for _ in _RULE.finditer(grammar)) > _MAX_RULES:
            raise GrammarError(f"It is too large: more than {_MAX_RULES} rules.")
        text = grammar.encode("utf-8", "surrogatepass")
        key = hashlib.sha256(text).digest()
        compilation = self._compiled.get(key)
        if compilation is None:
            task = asyncio.create_task(self._try_and_compile(grammar, text, client))
            compilation = self._compiled[key] = _Compilation(task)
        self._compiled.move_to_end(key)
        compilation.waiting += 1
        try:
            # A client that disconnects must not cancel the grammar for others that wait for the same one.
            result = await asyncio.shield(compilation.task)
        except CompilersBusyError as error:
            raise CompilersBusyError(str(error)) from None  # Each `raise` of one adds to its traceback.
        finally:
            compilation.waiting -= 1
            if not compilation.waiting and not compilation.has_result:
                compilation.task.cancel()  # All clients that waited for it have gone, or it failed for lack of room.
                if self._compiled.get(key) is compilation:
                    del self._compiled[key]
        self._forget()
        if isinstance(result, str):
            raise GrammarError(result)
        return result.grammar.matcher()

    def compile_now(self, grammar: str) -> CompiledGrammar:
        """Compile a grammar and wait for it without a limit of time; for one that `compile` has taken elsewhere.

        Raises:
            GrammarError: the grammar is wrong or unsupported.
        """
        with deep_stacks():
            return self._threads.submit(self._compile_here, grammar, is_small=False).result()

    async def close(self) -> None:
        """See `GrammarCompiler.close`."""
        if "_trials" in self.__dict__:
            await self._trials.close()

    # These are made for the first grammar: with 262,000 tokens they take a second and 100 MB, and most servers never
    # get a grammar.

    @cached_property
    def _trials(self) -> WorkerPool:
        found = self.vocabulary
        setup = TrialSetup(list(found.tokens), sorted(found.special_ids), sorted(found.eos_token_ids))
        return WorkerPool(
            "plumbline.engines.constraints.trial:make",
            msgspec.msgpack.encode(setup),
            bounds=BOUNDS,
            processes=_TRIALS,
            waiting=self._waiting,
            niceness=5,
        )

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        return lark_tokenizer(self.vocabulary)

    @cached_property
    def _digits(self) -> DigitTokens:
        return digit_tokens(self.vocabulary.tokens, num_words(len(self.vocabulary.tokens)))

    async def _try_and_compile(self, grammar: str, text: bytes, client: str) -> _Compiled | str:
        """Return the compiled grammar, or the reason why it cannot be.

        Not an exception: the result is kept, and each `raise` of one adds to its traceback.

        Raises:
            CompilersBusyError: no worker became free or ready in time, or none could be started.
        """
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._patience):
                    worker = await stack.enter_async_context(self._trials.worker(client))
                    verdict = await _tried(worker, text)
                # In its turn, because it takes as long here.
                return verdict.error or await self._compiled_here(grammar, verdict)
        except WorkersBusyError:
            raise CompilersBusyError(_BUSY) from None
        except TimeoutError:
            raise CompilersBusyError(
                f"The grammar or schema could not be compiled within {self._patience:g} seconds: the machine is busy. "
                "Try again later."
            ) from None
        except WorkerError as error:
            raise CompilersBusyError(f"Grammars cannot be compiled now: {error}.") from error

    async def _compiled_here(self, grammar: str, verdict: GrammarVerdict) -> _Compiled | str:
        try:
            return _Compiled(await self._compile(grammar, is_small=verdict.is_small), verdict.size)
        except GrammarError as error:
            return str(error)

    async def _compile(self, grammar: str, *, is_small: bool) -> CompiledGrammar:
        with deep_stacks():
            future = self._threads.submit(self._compile_here, grammar, is_small=is_small)
        return await asyncio.wrap_future(future)

    def _compile_here(self, grammar: str, *, is_small: bool) -> CompiledGrammar:
        with self._building:  # By one thread alone.
            tokenizer, digits = self._tokenizer, self._digits
        compiled = compile_lark(tokenizer, grammar, is_small=is_small)
        return compiled._replace(digits=digits) if "%json" in grammar else compiled

    def _forget(self) -> None:
        """Drop the grammars that were used longest ago, as far as there are too many or they are too large."""
        results = [each.task.result() for each in self._compiled.values() if each.has_result]
        size = sum(result.size for result in results if isinstance(result, _Compiled))
        while len(self._compiled) > self._capacity or (size > _MOST_CACHED and len(self._compiled) > 1):
            key = next((key for key, each in self._compiled.items() if each.has_result), None)
            if key is None:
                return
            result = self._compiled.pop(key).task.result()
            size -= result.size if isinstance(result, _Compiled) else 0


class _Compiled(NamedTuple):
    grammar: CompiledGrammar
    size: int
    """Bytes that it took in the worker."""


class _Compilation:
    """A grammar that has been compiled, or is being compiled.

    Attributes:
        task: returns the grammar or the reason of the failure.
        waiting: how many clients wait for it.
    """

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[_Compiled | str]) -> None:
        self.task = task
        self.waiting = 0

    @property
    def has_result(self) -> bool:
        """Whether it need not be compiled again."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


async def _tried(worker: LentWorker, text: bytes) -> GrammarVerdict:
    """Return what a worker finds out about a grammar; that it ends the worker is one such result."""
    try:
        return msgspec.msgpack.decode(await worker.call(text), type=GrammarVerdict)
    except WorkerError as error:
        match error.reason:
            case "time":
                reason = f"It takes more than {BOUNDS.cpu_seconds:g} s to compile."
            case "memory":
                reason = "It needs too much memory to compile."
            case _:
                reason = "The grammar engine failed while it compiled it."
                _log.warning("a grammar ended its process: %s", error)
        return GrammarVerdict(error=reason)


_RULE = re.compile(r"^\s*[?!]?\w+[^:\n]{0,80}:", re.MULTILINE)
