"""Law of base64 in requests: with white space, as MIME folds it, or without padding it is the same file."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

pytest.importorskip("PIL", reason="Pillow is not installed")

from hypothesis import given, settings
from hypothesis import strategies as st
from support.eyes import Eyes, chat
from support.laws import EXPLORED
from support.servers.asgi import serving
from support.weights.vision import picture

_BLANKS = st.lists(st.tuples(st.integers(0, 120), st.sampled_from(("\n", "\r\n", " ", "\t"))), max_size=4)


@settings(max_examples=EXPLORED or 12)
@given(
    st.integers(1, 9).map(lambda side: picture(side, 3)),
    st.booleans(),
    _BLANKS,
    st.sampled_from(("data:image/png;base64,", "data:image/png; base64,")),
)
def test_folded_or_unpadded_base64_is_the_same_file(
    file: bytes, is_padded: bool, blanks: list[tuple[int, str]], head: str
) -> None:
    text = base64.b64encode(file).decode()
    if not is_padded:
        text = text.rstrip("=")
    for place, blank in blanks:
        text = text[:place] + blank + text[place:]
    source = {"type": "base64", "media_type": "image/png", "data": text}
    content = [{"type": "input_image", "image_url": head + text}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat({"type": "image_url", "image_url": {"url": head + text}}),
        "/v1/responses": {"model": "test-model", "input": [{"role": "user", "content": content}]},
        "/v1/messages": chat({"type": "image", "source": source}, max_tokens=9),
    }

    async def scenario() -> None:
        eyes = Eyes()
        async with serving(eyes.model) as server:
            for path, body in bodies.items():
                answer = await server.post(path, body)
                assert answer.status == 200, answer.body
                assert eyes.files == [file]

    asyncio.run(scenario())
