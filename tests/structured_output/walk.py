"""Walks through grammars with the pocket model's tokens, as the engine would: a mask, a token, a mask …"""

from __future__ import annotations

import asyncio
import atexit
import json
import random
from collections.abc import Callable, Coroutine, Sequence
from functools import cache, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame, ModelDialect, ThinkingState
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect
from plumbline.answer.structured_output.constraints import refused_keyword
from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import GrammarError, LarkCompiler, Matcher, num_words
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.engines import vocabulary

T = TypeVar("T")

ENDS = frozenset({1015, 1017})
SIZE = 1024


@cache
def tokenizer() -> TextTokenizer:
    """The pocket model's."""
    return TextTokenizer.from_folder(MODEL_DIR)


@cache
def compiler() -> LarkCompiler:
    """Compiles for the pocket model's tokens."""
    return LarkCompiler(vocabulary(tokenizer(), ENDS, SIZE), capacity=64)


def builder() -> GrammarBuilder:
    """A builder for the pocket model's tokens."""
    return GrammarBuilder(tokenizer().added, tokenizer().special_ids)


@lru_cache(maxsize=512)
def model_dialect(tool: ToolDialect | None, reasoning: ReasoningDialect | None = None) -> ModelDialect:
    """The dialect of a model with the pocket model's tokens and these dialects."""
    return build_dialect(DialectChoice(tool, reasoning), tokenizer())


def thinking(*, inside: bool = False, ended: bool = False) -> ThinkingState:
    """Where an answer starts."""
    return "inside" if inside else "after" if ended else "before"


def frame(*, inside: bool = False, ended: bool = False) -> AnswerFrame:
    """The frame of an answer that starts there."""
    return AnswerFrame(thinking=thinking(inside=inside, ended=ended))


_loop = asyncio.new_event_loop()
atexit.register(_loop.close)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the event loop of these tests, which keeps its threads: starting them costs most.

    `asyncio.Runner` would set and restore a signal handler each time, which takes a quarter as long again.
    """
    return _loop.run_until_complete(coroutine)


def matcher(grammar: str) -> Matcher:
    """A matcher at the start of a grammar."""
    return run(compiler().compile(grammar))


def grammar_of(schema: Any) -> str | None:
    """The grammar of a schema; None if it is refused, by us or by the grammar engine."""
    return grammar_and_notes(schema)[0]


def grammar_and_notes(schema: Any, *, relaxed: bool = False) -> tuple[str | None, list[str]]:
    """The grammar of a schema, or None, and the places of keywords that it does not enforce."""
    return grammar_notes_and_reason(schema, relaxed=relaxed)[:2]


def grammar_notes_and_reason(
    schema: Any, *, relaxed: bool = False, given_up: Sequence[str] = ()
) -> tuple[str | None, list[str], str]:
    """The grammar of a schema and the places that it does not enforce, or None and the reason of the refusal."""
    built = builder()
    built.given_up = given_up
    try:
        with built.relaxing(relaxed):
            grammar = built.build(built.json(schema))
        matcher(grammar)
    except (ConstraintError, GrammarError) as error:
        refused = [name for name in (refused_keyword(str(error)), "not") if name and name not in given_up]
        if relaxed and refused:
            return grammar_notes_and_reason(schema, relaxed=True, given_up=[*given_up, refused[0]])
        return None, [], str(error)
    return grammar, list(built.notes), ""


def accepts(grammar: str, text: str, *, cut: int = 0) -> bool:
    """Return whether the grammar accepts the tokens of the text and may end there."""
    found = matcher(grammar)
    ids = tokenizer().encode_generated(text[:cut]) + tokenizer().encode_generated(text[cut:])
    for token in ids:
        if not found.accept(token):
            return False
    return found.is_done or found.accept(min(ENDS))


def as_json_text(value: Any, *, spaces: bool = False) -> str:
    """Return a document in one of the two layouts that grammars allow."""
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": ") if spaces else (",", ":"))


def sampled(
    grammar: str, seed: int, *, limit: int = 60, most: int = 600, hints: Sequence[str] = ()
) -> str | None:
    """A text of the grammar, every token drawn uniformly from the allowed; None if it does not end.

    After `limit` tokens an end is taken where there is one, then one of the hints that goes through as a whole,
    then quotes and brackets before other tokens.
    """
    return sampled_from(matcher(grammar), seed, limit=limit, most=most, hints=hints)


def sampled_from(
    found: Matcher, seed: int, *, limit: int = 60, most: int = 600, hints: Sequence[str] = ()
) -> str | None:
    """As `sampled`, with a matcher at the start of the grammar."""
    draw = random.Random(seed)
    row = np.zeros(num_words(SIZE), dtype=np.int32)
    ids: list[int] = []
    while len(ids) < most and not found.is_done:
        found.mask_into(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        assert len(allowed), "a mask without a token"
        if len(ids) >= limit:
            ends = of_kind(allowed, is_end)
            hinted = (
                [] if len(ends) else next((tokens for hint in hints if (tokens := _taken(found, hint))), [])
            )
            if hinted:
                ids += hinted
                continue
            kinds = (ends, of_kind(allowed, is_closing), of_kind(allowed, is_no_number), allowed)
            allowed = next(tokens for tokens in kinds if len(tokens))
        token = int(draw.choice(allowed))
        assert found.accept(token)
        ids.append(token)
    if not found.is_done:
        return None
    return tokenizer().decode([token for token in ids if token not in ENDS])


def _taken(found: Matcher, text: str) -> list[int]:
    """Take the whole text, or nothing of it."""
    row = np.zeros(num_words(SIZE), dtype=np.int32)
    tokens = tokenizer().encode_generated(text)
    for count, token in enumerate(tokens):
        found.mask_into(row)
        if not row.view(np.uint32)[token // 32] >> (token % 32) & 1:
            found.rollback(count)
            return []
        assert found.accept(token)
    return tokens


def is_end(token: int) -> bool:
    """The token ends the answer."""
    return token in ENDS


def is_no_number(token: int) -> bool:
    """The token does more than make a number longer."""
    return bool(tokenizer().table[token].strip(b"0123456789"))


def is_closing(token: int) -> bool:
    """The token ends a string, an object or an array and begins nothing."""
    text = tokenizer().table[token]
    return bool(text) and not text.strip(b'"}]')


def of_kind(allowed: npt.NDArray[np.int64], kind: Callable[[int], bool]) -> npt.NDArray[np.int64]:
    """The tokens of a kind among those that are allowed."""
    return allowed[_all_of(kind)[allowed]]


@cache
def _all_of(kind: Callable[[int], bool]) -> npt.NDArray[np.bool_]:
    """For every token whether it is of a kind."""
    return np.fromiter((kind(token) for token in range(SIZE)), dtype=np.bool_)
