"""Measure what a worker process adds to work that could run in the server's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.text.templates.template import ChatTemplate
from plumbline.text.templates.workers import Rendering, TemplateWorkers, WorkerTemplate, rendering_now

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
