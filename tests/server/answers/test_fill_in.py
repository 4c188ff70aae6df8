"""`suffix` makes a model fill in the middle, if its tokenizer has the tokens (CMP-07).

Laws:
    1. For each family, the prompt has both sides in the family's order, and ends where the model goes on.
    2. Without such tokens, beside `echo` and beside token ids `suffix` is refused by name.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.models import byte_level, scripted, served
from support.servers.asgi import serving

from plumbline.answer.text.fill_in import _FAMILIES
from plumbline.answer.text.render import Renderer

BODY = {"model": "test-model", "prompt": "left", "suffix": "right", "max_tokens": 3}


@pytest.mark.parametrize("family", _FAMILIES, ids=lambda family: family[0])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_is_that_of_the_family(
    family: tuple[str, str, str | None, bool], stream: bool
) -> None:
    before, after, middle, right_first = family
    tokenizer = byte_level([{"content": text} for text in (before, after, middle) if text])
    prompts: list[list[int]] = []

    def script(request: Any) -> Any:
        prompts.append(list(request.prompt_token_ids))
        return iter(())

    async with serving(served(scripted(script), renderer=Renderer(tokenizer, None))) as server:
        answer = await server.post("/v1/completions", {**BODY, "stream": stream})

    assert answer.status == 200, answer.body
    sides = [before + "left", after + "right"]
    text = "".join(reversed(sides) if right_first else sides) + (middle or "")
    assert tokenizer.decode(prompts[0]) == text
    assert tokenizer.added[before] in prompts[0]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_suffix_that_cannot_be_honoured_is_refused(stream: bool) -> None:
    able = Renderer(byte_level([{"content": text} for text in _FAMILIES[0][:3] if text]), None)
    async with serving(served(scripted())) as server:
        plain = await server.post("/v1/completions", {**BODY, "stream": stream})
    async with serving(served(scripted(), renderer=able)) as server:
        refused = [
            await server.post("/v1/completions", {**BODY, **fields, "stream": stream})
            for fields in ({"echo": True}, {"prompt": [1, 2]})
        ]

    assert [(a.status, a.error["param"]) for a in (plain, *refused)] == [(400, "suffix")] * 3
