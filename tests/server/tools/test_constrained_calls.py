# ruff: noqa: E501 - a table reads best with one case a line
"""Constrained calls of the pocket model at temperature 1, over HTTP: all valid, unless the token limit cuts them."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from pathlib import Path
from typing import Any, Literal

import jsonschema_rs
import msgspec
import pytest
from support.judges import fold_chunks, fold_response
from support.laws import EXPLORED, FIRST_SEED
from support.servers.asgi import Answer, Server, serving
from support.servers.pocket import pocket_settings

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.served_model import load
from plumbline.server.settings import Settings

MODEL = "plumbline-pocket"
RUNS = max(4, EXPLORED // 160)
"""Answers of each kind, in turn over both APIs and modes; 125 in `nox -s properties`."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TIMER = {"type": "object", "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 90}, "label": {"enum": ["tea", "egg"]}}, "required": ["minutes", "label"], "additionalProperties": False}  # fmt: skip
SCHEMAS = {"get_weather": WEATHER, "set_timer": TIMER}
LARK = 'start: line ("; " line)?\nline: /[a-z ]{1,20}/ "!"'
QUESTIONS = [
    "What is the weather in Paris?",
    "Set a timer for 5 minutes.",
    "Hello!",
    "Count from 1 to 5.",
    "Tell me the time in Tokyo",
]


class Kind(msgspec.Struct, frozen=True):
    """A request, independent of the API."""

    strict: bool | None = None
    """Whether the two functions are strict; None sends no functions."""
    choice: Literal["auto", "required", "named", "allowed", "none"] = "auto"
    custom: dict[str, str] | None = None
    """The grammar of a custom tool."""
    schema: bool = False
    """The text must match the schema of the timer."""
    thinks: bool = False
    parallel: bool = True


KINDS = {
    "required": Kind(strict=False, choice="required"),
    "required, thinking": Kind(strict=True, choice="required", thinks=True),
    "named": Kind(strict=False, choice="named"),
    "allowed": Kind(strict=True, choice="allowed", parallel=False),
    "strict": Kind(strict=True),
    "none": Kind(strict=False, choice="none"),
    "custom, regex": Kind(choice="required", custom={"syntax": "regex", "definition": '[a-z ]{1,20}"!'}),
    "custom, Lark": Kind(choice="required", custom={"syntax": "lark", "definition": LARK}),
    "schema": Kind(schema=True),
    "schema, thinking": Kind(schema=True, thinks=True),
}


class Reply(msgspec.Struct):
    """An answer, independent of the API."""

    cut: bool
    """The token limit ended it."""
    wants_results: bool
    """The finish reason asks the client to run the calls."""
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = []
    """Name, and arguments or input."""


def functions(kind: Kind, *, flat: bool) -> list[dict[str, Any]]:
    """Return the tools; Responses writes them `flat`."""
    found: list[dict[str, Any]] = []
    if kind.strict is not None:
        for name, schema in SCHEMAS.items():
            function = {"name": name, "description": name, "parameters": schema, "strict": kind.strict}
            found.append({"type": "function", **(function if flat else {"function": function})})
    if kind.custom is not None:
        grammar = {"type": "grammar", **(kind.custom if flat else {"grammar": kind.custom})}
        custom = {"name": "note", "format": grammar}
        found.append({"type": "custom", **(custom if flat else {"custom": custom})})
    return found


def tool_choice(kind: Kind, *, flat: bool) -> Any:
    if kind.choice not in ("named", "allowed"):
        return kind.choice
    name = {"name": "set_timer"}
    timer = {"type": "function", **(name if flat else {"function": name})}
    if kind.choice == "named":
        return timer
    allowed = {"mode": "required", "tools": [timer]}
    return {"type": "allowed_tools", **(allowed if flat else {"allowed_tools": allowed})}


def request_body(kind: Kind, question: str, seed: int, *, flat: bool, stream: bool) -> dict[str, Any]:
    """Return the request body."""
    body: dict[str, Any] = {"model": MODEL, "temperature": 1, "stream": stream}
    tools = functions(kind, flat=flat)
    if tools:
        body |= {"tools": tools, "tool_choice": tool_choice(kind, flat=flat)}
        body |= {"parallel_tool_calls": kind.parallel}
    schema = {"name": "s", "schema": TIMER, "strict": True}
    effort = "high" if kind.thinks else "none"
    if flat:
        body |= {"input": question, "max_output_tokens": 250, "seed": seed, "reasoning": {"effort": effort}}
        return body | ({"text": {"format": {"type": "json_schema", **schema}}} if kind.schema else {})
    body |= {"messages": [{"role": "user", "content": question}], "max_tokens": 250, "seed": seed}
    body |= {"reasoning_effort": effort}
    return body | ({"response_format": {"type": "json_schema", "json_schema": schema}} if kind.schema else {})


def chat_reply(answer: Answer, *, stream: bool) -> Reply:
    if stream:
        chunks = [event.json for event in answer.events if event.data != "[DONE]"]
        (choice,) = fold_chunks(chunks, n=1, usage=False, logprobs=False)["choices"]
    else:
        (choice,) = answer.json["choices"]
    message, reason = choice["message"], choice["finish_reason"]
    calls: list[tuple[str, str]] = []
    for call in message.get("tool_calls") or ():
        called = call[call["type"]]
        calls.append((called["name"], called["arguments" if call["type"] == "function" else "input"]))
    content, thought = message.get("content") or "", message.get("reasoning_content") or ""
    return Reply(reason == "length", reason == "tool_calls", content, thought, calls)


def responses_reply(answer: Answer, *, stream: bool) -> Reply:
    if stream:
        final = fold_response([event.json for event in answer.events if event.data != "[DONE]"])
    else:
        final = answer.json
    found = Reply(final["status"] == "incomplete", False)
    for item in final["output"]:
        match item["type"]:
            case "message":
                found.content += "".join(part["text"] for part in item["content"])
            case "reasoning":
                found.reasoning += "".join(part["text"] for part in item["content"])
            case "function_call":
                found.calls.append((item["name"], item["arguments"]))
            case "custom_tool_call":
                found.calls.append((item["name"], item["input"]))
    found.wants_results = bool(found.calls) and not found.cut
    return found


def check(kind: Kind, reply: Reply) -> None:
    """Check an answer against the constraints of its kind."""
    assert "<tool_call>" not in reply.content, reply
    # Amid its text the marker is text, which a model may write that is kept from calling; at the beginning it leaked.
    marker = reply.content.find("<think>")
    assert marker < 0 or (kind.choice == "none" and reply.content[:marker].strip()), reply
    if kind.choice == "none":
        assert not reply.calls, "TOOL-03"
    if reply.cut:
        return
    assert reply.wants_results == bool(reply.calls), "CHAT-05"
    for name, arguments in reply.calls:
        if name in SCHEMAS:
            assert jsonschema_rs.is_valid(SCHEMAS[name], json.loads(arguments)), reply
        elif kind.custom is not None and kind.custom["syntax"] == "lark":
            assert re.fullmatch("[a-z ]{1,20}!(; [a-z ]{1,20}!)?", arguments), reply
        else:
            assert re.fullmatch('[a-z ]{1,20}"!', arguments), reply
    if kind.choice in ("required", "named", "allowed"):
        assert reply.calls, "TOOL-04"
        assert not reply.content
    if kind.choice in ("named", "allowed"):
        assert [name for name, _ in reply.calls] == ["set_timer"], "TOOL-05, TOOL-06, TOOL-07"
    if kind.schema:
        assert jsonschema_rs.is_valid(TIMER, json.loads(reply.content)), reply
    if not kind.thinks and (kind.schema or kind.choice not in ("auto", "none")):
        assert not reply.reasoning, "the prompt has ended the thinking, and what follows is constrained"


@pytest.mark.sampled
@pytest.mark.parametrize("name", KINDS)
def test_answers_match_their_constraints(name: str) -> None:
    """SO-01, SO-02, TOOL-01 to TOOL-07, TOOL-14: in chat and Responses, whole and streamed."""
    kind = KINDS[name]

    async def scenario(server: Server, number: int) -> Reply:
        flat, stream = bool(number & 1), bool(number & 2)
        question = QUESTIONS[number // 4 % len(QUESTIONS)]
        path = "/v1/responses" if flat else "/v1/chat/completions"
        answer = await server.post(
            path, request_body(kind, question, FIRST_SEED + number, flat=flat, stream=stream)
        )
        assert answer.status == 200, answer.body
        reply = (responses_reply if flat else chat_reply)(answer, stream=stream)
        check(kind, reply)
        return reply

    async def main() -> None:
        async with serving(load(pocket_settings())) as server:
            gate = asyncio.Semaphore(8)

            async def one(number: int) -> Reply:
                async with gate:
                    return await scenario(server, number)

            replies = await asyncio.gather(*(one(number) for number in range(RUNS)))
            # The model ends constrained answers: few reach the token limit, where nothing is guaranteed.
            assert sum(reply.cut for reply in replies) <= 1 + RUNS // 25
            if kind.thinks:
                assert any(reply.reasoning for reply in replies)

    asyncio.run(main())


@pytest.mark.parametrize(("template", "number"), [("mistral_v3", 1), ("mistral_v7", 0), ("llama4", 1)])
def test_constrained_calls_are_those_of_the_template(template: str, number: int, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    source = Path(__file__).parents[2] / "text" / "templates" / f"{template}.jinja"
    shutil.copy(source, folder / "chat_template.jinja")
    served = load(Settings(models=(("", str(folder)),)))
    tool = served.dialect.choice.tool
    assert tool is not None
    assert tool.sections[0] == TOOL_DIALECTS[tool.name].sections[number]

    async def main() -> None:
        async with serving(served) as server:
            body = request_body(KINDS["allowed"], "What is the weather in Rome?", 1, flat=False, stream=False)
            del body["reasoning_effort"]  # These templates have no switch for it.
            answer = await server.post("/v1/chat/completions", body | {"model": "model"})
            assert answer.status == 200, answer.body
            check(KINDS["allowed"], chat_reply(answer, stream=False))

    asyncio.run(main())


def test_a_template_for_tools_alone_chooses_the_dialect(tmp_path: Path) -> None:
    """Some models have two templates, and only the one named `tool_use` has the markup of calls."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL_DIR, folder)
    templates = Path(__file__).parents[2] / "text" / "templates"
    (folder / "additional_chat_templates").mkdir()
    shutil.copy(templates / "hermes3.jinja", folder / "additional_chat_templates" / "tool_use.jinja")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    )
    served = load(Settings(models=(("", str(folder)),)))
    assert served.dialect.choice.tool == TOOL_DIALECTS["hermes"]


@pytest.mark.parametrize(
    ("options", "begun"),
    [
        ({"allowed_token_ids": [5, 6, 7]}, ""),
        ({"ignore_eos": True}, ""),
        ({}, "<think>Hm <"),
        ({}, "<think>Hm</thi"),
    ],
)
def test_forbidding_calls_adds_no_constraint(options: dict[str, Any], begun: str) -> None:
    """TOOL-03: options that work with free text work with `none`."""

    async def main() -> None:
        async with serving(load(pocket_settings())) as server:
            body = request_body(KINDS["none"], "What is the weather in Paris?", 1, flat=False, stream=False)
            body |= {"max_tokens": 40, **options}
            if begun:
                del body["reasoning_effort"]
                body["messages"].append({"role": "assistant", "content": begun})
                body |= {"continue_final_message": True, "add_generation_prompt": False}
            answer = await server.post("/v1/chat/completions", body)
            assert answer.status == 200, answer.body
            if "ignore_eos" in options:
                assert answer.json["choices"][0]["finish_reason"] == "length"
                assert answer.json["usage"]["completion_tokens"] == 40

    asyncio.run(main())


def test_responses_stream_a_custom_call() -> None:
    """TOOL-14: the deltas join to the input of the item, and the call can be sent back."""

    async def main() -> None:
        async with serving(load(pocket_settings())) as server:
            tool = {
                "type": "custom",
                "name": "note",
                "format": {"type": "grammar", "syntax": "regex", "definition": '[a-c]{3}"!'},
            }
            body = {"model": MODEL, "input": "Write a note.", "tools": [tool], "tool_choice": {"type": "custom", "name": "note"}, "max_output_tokens": 200, "stream": True}  # fmt: skip
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
