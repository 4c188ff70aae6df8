"""`enable_response_messages`: the prompt and the output of a response as text and as tokens, as in vLLM."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.models import TOKENIZER
from support.servers.asgi import serving
from support.speaking import speaking

PATH = "/v1/responses"
BODY = {"model": "test-model", "input": "hello", "enable_response_messages": True}
TEXT = "<think>\nHm.\n</think>\n\nHello world."


def ask(folder: Path, prompts: list[str] | None = None, **more: Any) -> Any:
    """Return the response, the last event of a stream, or the error."""

    async def run() -> Any:
        async with serving(speaking(TEXT, prompts=prompts), store=str(folder / "s.db")) as server:
            reply = await server.request("POST", PATH, {**BODY, **more})
            if not more.get("stream"):
                if reply.status == 200 and reply.json["store"]:
                    again = await server.request("GET", f"{PATH}/{reply.json['id']}")
                    assert again.json == reply.json
                return reply.json
            return [event.json for event in reply.events if event.data != "[DONE]"][-1]["response"]

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_they_are_what_the_model_read_and_wrote(tmp_path: Path, stream: bool) -> None:
    prompts: list[str] = []
    answer = ask(tmp_path, prompts, stream=stream)
    (read,), (written,) = answer["input_messages"], answer["output_messages"]
    assert read["type"] == written["type"] == "raw_message_tokens"
    assert [read["message"]] == prompts
    assert len(read["tokens"]) == answer["usage"]["input_tokens"]
    assert len(written["tokens"]) == answer["usage"]["output_tokens"]
    assert written["message"].startswith(TEXT)
    for one in (read, written):
        assert TOKENIZER.decode(one["tokens"]) == one["message"]


def test_they_are_absent_where_nobody_asks(tmp_path: Path) -> None:
    answer = ask(tmp_path, enable_response_messages=False)
    assert "input_messages" not in answer
    assert "output_messages" not in answer


def test_a_response_in_the_background_has_none(tmp_path: Path) -> None:
    assert ask(tmp_path, background=True)["error"]["param"] == "enable_response_messages"
