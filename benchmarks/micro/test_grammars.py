"""Measure what trying a grammar in a worker adds to compiling it, for ordinary schemas and a warm pool."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from plumbline.answer.structured_output.grammar.builder import GrammarBuilder
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.engines.constraints.grammar import LarkCompiler
from plumbline.engines.constraints.lark import compile_lark, lark_tokenizer
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.engines import vocabulary

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from structured_output.generated import sample

COUNT = 100


def _grammars() -> tuple[list[str], LarkCompiler, Any]:
    tokenizer = TextTokenizer.from_folder(MODEL_DIR)
    tokens = vocabulary(tokenizer, frozenset({1015, 1017}), 1024)
    found = []
    for seed in range(COUNT):
        builder = GrammarBuilder(tokenizer.added, tokenizer.special_ids)
        found.append(builder.build(builder.json(sample(seed)[0])))
    return found, LarkCompiler(tokens, capacity=8), lark_tokenizer(tokens)


def test_compiling_a_new_schema(benchmark: Any) -> None:
    """`ms_added` is the median of what a new grammar takes beyond compiling it alone."""
    grammars, compiler, tokenizer = _grammars()
    loop = asyncio.new_event_loop()
    began = time.perf_counter()
    loop.run_until_complete(compiler.compile('start: "warm"'))
    started = time.perf_counter() - began
    alone, all_of_it = [], []
    for grammar in grammars:
        began = time.perf_counter()
        compile_lark(tokenizer, grammar, is_small=False)
        between = time.perf_counter()
        loop.run_until_complete(compiler.compile(grammar))
        alone.append(between - began)
        all_of_it.append(time.perf_counter() - between)
    numbers = itertools.count()

    def one() -> None:
        number = next(numbers)
        loop.run_until_complete(compiler.compile(f"{grammars[number % COUNT]}// {number}\n"))

    benchmark(one)
    added = [both - one for one, both in zip(alone, all_of_it, strict=True)]
    benchmark.extra_info["ms_first"] = started * 1e3
    benchmark.extra_info["ms_alone"] = statistics.median(alone) * 1e3
    benchmark.extra_info["ms_added"] = statistics.median(added) * 1e3
    benchmark.extra_info["ms_added_p90"] = statistics.quantiles(added, n=10)[8] * 1e3
    loop.run_until_complete(compiler.close())
    loop.close()
