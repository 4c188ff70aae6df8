"""Laws of damaged schemas and grammars: each is enforced or refused with a sentence, within bounds.

- No grammar ends this process, and none that ends its worker is taken.
- Another client's grammar is compiled right afterwards.
- A few tokens of what is taken can be drawn.
- This process grows by no more than a grammar may take.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from structured_output.corpus import CASES
from structured_output.generated import sample

from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.structured_output.grammar.gbnf import to_lark
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import (
    CompilersBusyError,
    GrammarError,
    LarkCompiler,
    Matcher,
    num_words,
)
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.engines import vocabulary

from .damage import damaged, damaged_json, explore

_SIZE = 1024
_MOST_MEGABYTES = 600
_NEIGHBOUR_SECONDS = 10.0
"""For a grammar of another client beside one that takes all that it may; on a loaded machine."""
_STEPS = 6

_SCHEMAS: list[Any] = [case[1] for case in CASES if isinstance(case[1], dict)]
_SCHEMAS += [sample(seed)[0] for seed in range(40)]
_SCHEMAS += [
    {"const": -(2**63) + 1},
    {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1, "multipleOf": 1000},
    {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "integer"}]}}, "$ref": "#/$defs/a"},
]
_LARK = [
    b'start: e "!"\ne: e e e | e e | "a"',
    b"start: /(a|b)*a(a|b){9}/ | TEXT\nTEXT: /[^x]{1,40}/ & ~/.*yes.*/",
    b'start: %json {"type": "integer", "minimum": -9223372036854775, "multipleOf": 97}',
    b'%llguidance {"no_forcing": true}\nstart: a{2,9} b?\na[lazy]: "x" | <[7]>\nb: %lark { start: /b/ }',
    b"start: "
    + b" | ".join(b'r%d "x"' % n for n in range(9))
    + b"".join(b'\nr%d: "a"' % n for n in range(9)),
]
_GBNF = [
    b'root ::= ("a" | [b-y] x?){1,9}\nx ::= "\\u00e9" | root',
    b'root ::= item+\nitem ::= "- " [^\\n]* "\\n"',
]


@cache
def _tokenizer() -> TextTokenizer:
    return TextTokenizer.from_folder(MODEL_DIR)


@cache
def _compiler() -> LarkCompiler:
    return LarkCompiler(vocabulary(_tokenizer(), frozenset({1015, 1017}), _SIZE), capacity=4)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _walk(matcher: Matcher) -> None:
    row = np.zeros(num_words(_SIZE), dtype=np.int32)
    with contextlib.suppress(GrammarError):
        for step in range(_STEPS):
            if matcher.is_done:
                return
            matcher.mask_into(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if not matcher.accept(int(allowed[step * 7 % len(allowed)])):
                return


async def _tried(grammar: str) -> None:
    compiler = _compiler()
    task = asyncio.create_task(compiler.compile(grammar, "hostile"))
    began = time.monotonic()
    await compiler.compile(f"start: /[a-d]/\n// {began}", "neighbour")
    assert time.monotonic() - began < _NEIGHBOUR_SECONDS
    reason = "It is refused."
    try:
        _walk(await task)
    except (GrammarError, CompilersBusyError) as error:
        reason = str(error)
    assert 5 < len(reason) < 1000


def _take(built: GrammarBuilder, expression: str) -> None:
    before = _megabytes()
    _loop().run_until_complete(_tried(built.build(expression)))
    assert _megabytes() - before < _MOST_MEGABYTES


def _megabytes() -> float:
    status = Path("/proc/self/status")
    lines = status.read_text("utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _builder() -> GrammarBuilder:
    return GrammarBuilder(_tokenizer().added, _tokenizer().special_ids)


def _schema(data: bytes) -> None:
    built = _builder()
    try:
        schema = msgspec.json.decode(data)  # As the server does: it refuses halves of surrogate pairs.
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    if not isinstance(schema, dict | bool):
        return  # Readers refuse it.
    try:
        expression = built.json(schema)
    except ConstraintError:
        return
    _take(built, expression)


def _lark(data: bytes) -> None:
    built = _builder()
    try:
        expression = built.lark(data.decode("utf-8", "replace"))
    except ConstraintError:
        return
    _take(built, expression)


def _gbnf(data: bytes) -> None:
    built = _builder()
    try:
        expression = built.lark(to_lark(data.decode("utf-8", "replace")))
    except ConstraintError:
        return
    _take(built, expression)


@pytest.mark.sampled
def test_schemas() -> None:
    explore("schemas", damaged_json(_SCHEMAS), _schema)


@pytest.mark.sampled
def test_lark_grammars() -> None:
    explore("lark", damaged(_LARK), _lark)


@pytest.mark.sampled
def test_gbnf_grammars() -> None:
    explore("gbnf", damaged(_GBNF), _gbnf)
