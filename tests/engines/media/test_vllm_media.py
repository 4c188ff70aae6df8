"""Laws of the processed files that vLLM's engine keeps.

- a prompt that is kept is processed once, however often it is used;
- kept files and tensors stay within the bound;
- what is kept is what processing again would give, and its users cannot change it;
- a request arrives when it is made, and not when its prompt was processed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from plumbline.engines.vllm.media import MediaRenderer, num_bytes
from plumbline.port.engine import MediaItem, MediaPrompt


@dataclass
class Params:
    max_total_tokens: int | None = 1


class Renderer:
    """Stand in for vLLM's renderer: one array for all images, and a count of calls."""

    default_cmpl_tok_params = Params()

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def render_cmpl_async(self, prompts: list[Any], params: Params, **_: Any) -> list[dict[str, Any]]:
        [prompt] = prompts
        width = prompt["multi_modal_data"]["image"][0].width
        self.calls.append(width)
        images = [np.zeros(width * 100, np.uint8)]
        return [{"prompt_token_ids": [width] * 3, "mm_kwargs": {"image": images}, "arrival_time": 1.0}]


def prompt_of(width: int) -> MediaPrompt:
    file = BytesIO()
    Image.new("RGB", (width, 1)).save(file, "PNG")
    return MediaPrompt((1,), (MediaItem(media_type="image/png", data=file.getvalue()),))


def size_of(width: int) -> int:
    return len(prompt_of(width).items[0].data) + width * 100


@given(widths=st.lists(st.integers(1, 12), max_size=20), room=st.integers(0, 4000))
def test_prompts_are_processed_once_while_they_are_kept(widths: list[int], room: int) -> None:
    async def scenario() -> None:
        source = Renderer()
        renderer = MediaRenderer(source, max_bytes=room)
        kept: list[int] = []
        for width in widths:
            before = len(source.calls)
            found = await renderer.render(prompt_of(width))
            assert found["prompt_token_ids"] == [width] * 3
            assert "arrival_time" not in found
            assert (len(source.calls) == before) == (width in kept)
            found["cache_salt"] = "of one request"
            if width in kept or size_of(width) <= room:
                kept = [*(each for each in kept if each != width), width]
            while sum(map(size_of, kept)) > room:
                kept.pop(0)
        for width in kept:
            assert "cache_salt" not in await renderer.render(prompt_of(width))

    asyncio.run(scenario())


def test_bytes_are_counted_in_nested_values() -> None:
    @dataclass
    class Element:
        data: Any

    value = {"a": [np.zeros(3, np.float32), Element(np.zeros(5, np.uint8))], "b": ("text", 7, None)}

    assert num_bytes(value) == 17
