"""A response format beside tools, with a random model at temperature 1: an answer is either, and valid."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from support.models import TOKENIZER, served, tiny_engine
from support.servers.asgi import serving

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose

FORMAT = {
    "type": "object",
    "properties": {"name": {"enum": ["now", "off"]}},
    "required": ["name"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
BODY: dict[str, Any] = {
    "model": "test-model",
    "messages": [{"role": "user", "content": "hello"}],
    "temperature": 1,
    "max_tokens": 150,
    "parallel_tool_calls": False,
    "tools": [{"type": "function", "function": {"name": "now", "parameters": PARAMETERS, "strict": True}}],
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": FORMAT, "strict": True},
    },
}


@pytest.mark.parametrize("dialect", ["llama3_json", "hermes"])
def test_answers_and_calls_both_match_their_schema(dialect: str) -> None:
    """SO-01, TOOL-01; the documents of the format begin like Llama's calls."""

    async def main() -> None:
        model = build_dialect(choose("", tool=dialect, reasoning="none"), TOKENIZER)
        kinds: set[str] = set()
        async with serving(msgspec.structs.replace(served(tiny_engine()), dialect=model)) as server:
            for seed in range(16):
                reply = await server.post("/v1/chat/completions", {**BODY, "seed": seed})
                assert reply.status == 200, reply.body
                choice = reply.json["choices"][0]
                kinds.add(choice["finish_reason"])
                if choice["finish_reason"] == "stop":
                    assert jsonschema_rs.is_valid(FORMAT, json.loads(choice["message"]["content"]))
                elif choice["finish_reason"] == "tool_calls":
                    (call,) = choice["message"]["tool_calls"]
                    assert jsonschema_rs.is_valid(PARAMETERS, json.loads(call["function"]["arguments"]))
                    assert not choice["message"].get("content")
                else:
                    continue
                streamed = await server.post("/v1/chat/completions", {**BODY, "seed": seed, "stream": True})
                chunks = [event.json for event in streamed.events if event.data != "[DONE]"]
                deltas = [one["choices"][0]["delta"] for one in chunks if one["choices"]]
                text = "".join(delta.get("content") or "" for delta in deltas)
                assert text == (choice["message"].get("content") or "")
                if seed >= 4 and {"stop", "tool_calls"} <= kinds:
                    break
        assert {"stop", "tool_calls"} <= kinds

    asyncio.run(main())
