"""Try a grammar in a worker, which it may end, before the server compiles it.

`plumbline.base.workers` starts the process. It imports llguidance and NumPy, and nothing of the models.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
from llguidance import LLTokenizer

from plumbline.engines.constraints.lark import (
    CompiledGrammar,
    GrammarError,
    GrammarVocabulary,
    compile_lark,
    deep_stacks,
    lark_tokenizer,
)

__all__ = ["MOST_BYTES", "GrammarVerdict", "TrialSetup", "make"]

MOST_BYTES = 128 * 1024 * 1024
"""Bytes of a compiled grammar, which stay in the server's memory as long as it is used."""
_STEPS = 8
"""Tokens of a walk through the grammar."""


class TrialSetup(msgspec.Struct, frozen=True, array_like=True):
    """The vocabulary; see `GrammarVocabulary`. Texts that a grammar forces are cut into the longest tokens instead."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_token_ids: list[int]


class GrammarVerdict(msgspec.Struct, frozen=True):
    """What is known of a grammar.

    Attributes:
        error: why it cannot be enforced; None if it can.
        is_small: see `CompiledGrammar`.
        size: bytes of memory that it took.
    """

    error: str | None = None
    is_small: bool = False
    size: int = 0


def make(data: bytes) -> Callable[[bytes], bytes]:
    """Return a handler that takes a grammar and returns a `GrammarVerdict`."""
    setup = msgspec.msgpack.decode(data, type=TrialSetup)
    tokenizer = lark_tokenizer(
        GrammarVocabulary(
            setup.tokens, frozenset(setup.special_ids), frozenset(setup.eos_token_ids), _no_tokens
        )
    )
    _verdict(tokenizer, 'start: "a"')  # What llguidance makes once is in every worker then.
    thread = ThreadPoolExecutor(max_workers=1)  # It starts with the first grammar of each worker.

    def handle(payload: bytes) -> bytes:
        grammar = payload.decode("utf-8", "surrogatepass")
        with deep_stacks():
            verdict = thread.submit(_verdict, tokenizer, grammar).result()
        return msgspec.msgpack.encode(verdict)

    return handle


def _no_tokens(text: str) -> list[int]:
    return []


def _verdict(tokenizer: LLTokenizer, grammar: str) -> GrammarVerdict:
    before = _resident()
    try:
        is_small, compiled = _compiled(tokenizer, grammar)
        _walk(compiled)
    except GrammarError as error:
        return GrammarVerdict(error=str(error))
    size = max(_resident() - before, 0)
    if size > MOST_BYTES:
        return GrammarVerdict(error=f"It needs more than {MOST_BYTES >> 20} MiB of memory.")
    return GrammarVerdict(is_small=is_small, size=size)


def _compiled(tokenizer: LLTokenizer, grammar: str) -> tuple[bool, CompiledGrammar]:
    try:
        return True, compile_lark(tokenizer, grammar, is_small=True)
    except GrammarError:
        return False, compile_lark(tokenizer, grammar, is_small=False)


def _walk(compiled: CompiledGrammar) -> None:
    """Take some tokens: a grammar may fail, or end the process, behind its first token only."""
    matcher = compiled.matcher()
    row = compiled.first_mask.copy()
    for _ in range(_STEPS):
        words = row.nonzero()[0]
        if not len(words):
            return
        word = int(words[len(words) // 2])
        bits = int(row.view(np.uint32)[word])
        if not matcher.accept(word * 32 + (bits & -bits).bit_length() - 1):
            raise GrammarError("It needs more work for a token than is allowed.")
        if matcher.is_done:
            return
        try:
            matcher.mask_into(row)
        except GrammarError:
            return  # It ends the answers that come to this place, and no others.


def _resident() -> int:
    """Return the bytes of memory of this process."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
