"""Measure what a worker process adds to work that could run in the server's own process."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.templates.workers import Rendering, TemplateWorkers, WorkerTemplate, rendering_now
from plumbline.engines.constraints.grammar import GrammarVocabulary, LarkCompiler
from plumbline.engines.constraints.lark import compile_lark, lark_tokenizer

TEMPLATE = Path(__file__).parents[2] / "tests" / "text" / "templates" / "qwen3.jinja"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    *({"role": role, "content": "hello " * 40} for _ in range(3) for role in ("user", "assistant")),
    {"role": "user", "content": "And now?"},
]


@pytest.fixture(scope="module")
def rendering() -> Iterator[Rendering]:
    """A worker that is warm."""
    with rendering_now() as found:
        yield found


@pytest.mark.parametrize("where", ["process", "worker"])
def test_render(benchmark: Any, rendering: Rendering, where: str) -> None:
    """Render a conversation of eight messages by a template of 4 KB."""
    template: Any = ChatTemplate(TEMPLATE.read_text("utf-8"))
    if where == "worker":
        template = WorkerTemplate(template.spec, template.facts, rendering)
    template.render(MESSAGES)
    benchmark(template.render, MESSAGES)


def test_start(benchmark: Any) -> None:
    """Start the workers of templates, and use one."""

    async def start() -> None:
        workers = TemplateWorkers()
        async with workers.turn("") as rendering:
            await asyncio.to_thread(rendering.facts, ChatTemplate("{{ messages }}").spec)
        await workers.close()

    benchmark.pedantic(lambda: asyncio.run(start()), rounds=10)


def grammar(number: int) -> str:
    """Return the grammar of an ordinary schema, which differs from the others in one name."""
    text = {"type": "string"}
    address = {
        "type": "object",
        "properties": {"street": text, "zip": text, "kind": {"enum": ["home", "work"]}},
        "required": ["street", "zip"],
        "additionalProperties": False,
    }
    members = {f"name{number}": text, "age": {"type": "integer"}, "tags": {"type": "array", "items": text}}
    members["address"] = address
    schema = {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }
    return f"start: %json {json.dumps(schema)}"


@pytest.mark.parametrize("where", ["process", "worker"])
def test_compile(benchmark: Any, where: str) -> None:
    """Compile the grammar of a new schema, as a request does: alone, or tried in a worker first."""
    tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>"]
    vocabulary = GrammarVocabulary(
        tokens, frozenset({256}), frozenset({256}), lambda text: list(text.encode())
    )
    numbers = itertools.count()
    if where == "process":
        tokenizer = lark_tokenizer(vocabulary)
        benchmark(lambda: compile_lark(tokenizer, grammar(next(numbers)), is_small=True).matcher())
        return
    with asyncio.Runner() as runner:
        compiler = LarkCompiler(vocabulary)
        runner.run(compiler.compile(grammar(-1)))
        benchmark(lambda: runner.run(compiler.compile(grammar(next(numbers)))))
        runner.run(compiler.close())
