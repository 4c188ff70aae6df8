# ruff: noqa: E501 - a table reads best with one case a line
"""Promised calls with the pocket model at temperature 1, over HTTP: never an invalid form, but where tokens ran out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from support.asgi import Server, serving

from plumbline.dialects.registry import TOOL_DIALECTS
from plumbline.server.loading import load
from plumbline.server.settings import Settings, pocket_model

RUNS = int(os.environ.get("PLUMBLINE_RUNS", "3"))
"""How often each kind is tried; `nox -s properties` tries 125 times, 1,000 in all."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TIMER = {"type": "object", "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 90}, "label": {"enum": ["tea", "egg"]}}, "required": ["minutes", "label"], "additionalProperties": False}  # fmt: skip
SCHEMAS = {"get_weather": WEATHER, "set_timer": TIMER}


def tools(*, strict: bool) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": name, "description": name, "parameters": schema, "strict": strict},
        }
        for name, schema in SCHEMAS.items()
    ]


NOTE = {"type": "custom", "custom": {"name": "note", "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": '[a-z ]{1,20}"!'}}}}  # fmt: skip
ONLY_TIMER = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "set_timer"}}]}}  # fmt: skip
NAMED = {"type": "function", "function": {"name": "set_timer"}}
FORM = {"type": "json_schema", "json_schema": {"name": "s", "schema": TIMER, "strict": True}}

KINDS: dict[str, dict[str, Any]] = {
    "required": {"tools": tools(strict=False), "tool_choice": "required"},
    "required, thinking": {
        "tools": tools(strict=True),
        "tool_choice": "required",
        "reasoning_effort": "high",
    },
    "named": {"tools": tools(strict=False), "tool_choice": NAMED},
    "allowed": {"tools": tools(strict=True), "tool_choice": ONLY_TIMER, "parallel_tool_calls": False},
    "strict": {"tools": tools(strict=True)},
    "custom": {"tools": [NOTE], "tool_choice": "required"},
    "schema": {"response_format": FORM},
    "schema, thinking": {"response_format": FORM, "reasoning_effort": "high"},
}


def check(kind: str, choice: dict[str, Any]) -> None:
    """What is promised of a finished answer of this kind."""
    message, reason = choice["message"], choice["finish_reason"]
    calls = message.get("tool_calls") or []
    names = [call["function"]["name"] for call in calls if call["type"] == "function"]
    if reason == "length":
        return
    for call in calls:
        if call["type"] == "function":
            arguments = json.loads(call["function"]["arguments"])
            assert jsonschema_rs.is_valid(SCHEMAS[call["function"]["name"]], arguments), call
    if kind.startswith("schema"):
        assert reason == "stop"
        assert jsonschema_rs.is_valid(TIMER, json.loads(message["content"])), message
    elif kind == "strict":
        assert reason == ("tool_calls" if calls else "stop")
    else:
        assert reason == "tool_calls"
        assert calls
        assert message["content"] is None
    if kind in ("named", "allowed"):
        assert names == ["set_timer"]
    if kind == "custom":
        assert all(call["custom"]["input"].endswith('"!') for call in calls)


@pytest.mark.parametrize("kind", KINDS)
def test_a_promised_form_is_never_broken(kind: str) -> None:
    async def scenario(server: Server, seed: int) -> None:
        question = [
            "What is the weather in Paris?",
            "Set a timer for 5 minutes.",
            "Hello!",
            "Count from 1 to 5.",
        ][seed % 4]
        body = {
            "model": "plumbline-pocket",
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 250,
            "temperature": 1,
            "seed": seed,
            **KINDS[kind],
        }
        answer = await server.post("/v1/chat/completions", body)
        assert answer.status == 200, answer.body
        check(kind, answer.json["choices"][0])

    async def main() -> None:
        async with serving(load(Settings(model=""))) as server:
            gate = asyncio.Semaphore(8)

            async def one(seed: int) -> None:
                async with gate:
                    await scenario(server, seed)

            await asyncio.gather(*(one(seed) for seed in range(RUNS)))

    asyncio.run(main())


@pytest.mark.parametrize(("template", "number"), [("mistral_v3", 1), ("mistral_v7", 0), ("llama4", 1)])
def test_a_served_model_promises_what_its_template_writes(template: str, number: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(pocket_model(), folder)
    source = Path(__file__).parent.parent / "text" / "templates" / f"{template}.jinja"
    shutil.copy(source, folder / "chat_template.jinja")
    served = load(Settings(model=str(folder)))
    assert served.speech is not None
    tool = served.speech.chosen.tool
    assert tool is not None
    assert tool.sections[0] == TOOL_DIALECTS[tool.name].sections[number]

    async def main() -> None:
        async with serving(served) as server:
            body = {
                "model": "model",
                "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
                "max_tokens": 250,
                "temperature": 1,
                "seed": 1,
                **KINDS["allowed"],
            }
            answer = await server.post("/v1/chat/completions", body)
            assert answer.status == 200, answer.body
            check("allowed", answer.json["choices"][0])

    asyncio.run(main())


def test_responses_stream_a_custom_call() -> None:
    """TOOL-14: the input comes as it is, its deltas join to it, and the item says what it is."""

    async def main() -> None:
        async with serving(load(Settings(model=""))) as server:
            tool = {
                "type": "custom",
                "name": "note",
                "format": {"type": "grammar", "syntax": "regex", "definition": '[a-c]{3}"!'},
            }
            body = {"model": "plumbline-pocket", "input": "Write a note.", "tools": [tool], "tool_choice": {"type": "custom", "name": "note"}, "max_output_tokens": 200, "stream": True}  # fmt: skip
            answer = await server.post("/v1/responses", body)
            events = [event.json for event in answer.events if event.data != "[DONE]"]
            deltas = "".join(
                e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"
            )
            (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
            item = events[-1]["response"]["output"][-1]
            assert deltas == done["input"] == item["input"]
            assert item["type"] == "custom_tool_call"
            assert item["status"] == "completed"
            assert len(deltas) == 5
            # The round trip: the call and its output go back into the conversation.
            body |= {
                "input": [{"role": "user", "content": "Write a note."}, {k: item[k] for k in ("type", "call_id", "name", "input")}, {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}],
                "tool_choice": "auto",
                "stream": False,
            }  # fmt: skip
            assert (await server.post("/v1/responses", body)).status == 200

    asyncio.run(main())
