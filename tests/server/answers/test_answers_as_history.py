"""Law: whatever the server answered can be sent back in the same API, and the model sees what it wrote.

The answers are of every dialect, with thinking, text and a call, whole and cut at several places.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.about import about
from support.servers.api_calls import Json
from support.servers.asgi import Server, serving
from support.speaking import speaking

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect, Utterance

TEMPLATE = """{% for m in messages %}[{{ m.role }}]{{ m.reasoning_content or '' }}|{{ m.content or '' }}|
{% for c in m.tool_calls or [] %}{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}"""
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
USER = {"role": "user", "content": "Hello."}
WHOLE = Utterance(("I will ask.", WrittenCall("get", '{"city": "Zurich", "days": 3}')), "Hm, a city.")
BARE = Utterance((WrittenCall("get", '{"city": "Zurich", "days": 3}'),), "Hm, a city.")
TOOLS = {d.name: d for d in TOOL_DIALECTS.values()}

Parts = list[str]


def thinks_in(tool: ToolDialect) -> str:
    """A dialect of thinking for the model: its own, if there is one."""
    return tool.name if tool.name in REASONING_DIALECTS else "think"


def chat(answer: Json) -> tuple[list[Any], Parts]:
    """The messages that follow, and what they have to show."""
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "cold"} for call in calls]
    shown = [message.get("reasoning_content") or "", message["content"] or ""]
    return [message, *results, USER], [*shown, *(call["function"]["arguments"] for call in calls)]


def responses(answer: Json) -> tuple[list[Any], Parts]:
    """The items that follow, and what they have to show."""
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": c["call_id"], "output": "cold"} for c in calls]
    texts = [
        part["text"]
        for item in answer["output"]
        if item["type"] != "function_call"
        for part in item.get("content") or ()
    ]
    return [*answer["output"], *results, USER], [*texts, *(call["arguments"] for call in calls)]


def messages(answer: Json) -> tuple[list[Any], Parts]:
    """The messages that follow, and what they have to show."""
    calls = [block for block in answer["content"] if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "cold"} for call in calls]
    texts = [block.get("thinking") or block.get("text") or "" for block in answer["content"]]
    user = {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}
    said = [{"role": "assistant", "content": answer["content"]}] if answer["content"] else []
    return [*said, user], [*texts, *(json.dumps(call["input"]) for call in calls)]


FUNCTION = {"type": "function", "function": {"name": "get", "parameters": PARAMETERS}}
APIS: list[tuple[str, Json, str, str, Callable[[Json], tuple[list[Any], Parts]]]] = [
    ("/v1/chat/completions", {"tools": [FUNCTION]}, "messages", "max_completion_tokens", chat),
    (
        "/v1/responses",
        {"tools": [{"type": "function", "name": "get", "parameters": PARAMETERS}], "store": False},
        "input",
        "max_output_tokens",
        responses,
    ),
    (
        "/v1/messages",
        {
            "tools": [{"name": "get", "input_schema": PARAMETERS}],
            "thinking": {"type": "adaptive"},
        },
        "messages",
        "max_tokens",
        messages,
    ),
]


def words(arguments: str) -> Iterator[str]:
    """The text of the arguments that a template has to show, whatever is missing at their end."""
    for word in ("city", "days", "Zurich"):
        if f'"{word}"' in arguments:
            yield word


async def sent_back(server: Server, api: int, limit: int | None, prompts: list[str]) -> None:
    path, fields, key, limited, follow = APIS[api]
    body = {"model": "test-model", **fields, limited: limit or 500}
    answer = await server.post(path, {**body, key: [USER]})
    assert answer.status == 200, answer.json
    items, parts = follow(answer.json)
    with about(json.dumps(items)):
        again = await server.post(path, {**body, limited: 500, key: [USER, *items]})
        assert again.status == 200, again.json
        for part in parts:
            for text in words(part) if part.startswith("{") else [part]:
                assert text in prompts[-1]


@pytest.mark.parametrize("name", sorted(TOOLS))
async def test_whatever_the_server_answered_can_be_sent_back(name: str) -> None:
    tool = TOOLS[name]
    reasoning = thinks_in(tool)
    model = build_dialect(DialectChoice(tool, REASONING_DIALECTS[reasoning]))
    bare = not (tool.sections[0].open or tool.sections[0].item_open or tool.messages)
    text = model.render(BARE if bare else WHOLE)
    prompts: list[str] = []
    spoken = speaking(text, "Done.", prompts=prompts, dialects=(name, reasoning), template=TEMPLATE)
    async with serving(spoken) as server:
        for number, limit in enumerate((None, 16, len(text) // 3, len(text) // 2)):
            with about(f"{text!r} limit {limit}"):
                await sent_back(server, (number + len(name)) % 3, limit, prompts)
