"""What `--lenient` changes of a server, and what it does not.

- A request with a form is answered in both modes as the request that the form becomes; `x-plumbline-lenient` names it.
- Without the option it is a 400 that ends with the hint; with it, no error has the hint.
- A request without forms has the same answer with the option, and no header.
- A WebSocket takes the same forms.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.bodies import BODIES
from support.models import scripted, served, tiny_engine
from support.servers.asgi import Answer, serving
from support.servers.live import live
from websockets.sync.client import connect

from plumbline.contract.wire.lenient.forms import FORMS
from plumbline.contract.wire.lenient.stage import HINT
from plumbline.server.settings import Settings

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "compatibility-fields.md").read_text("utf-8")
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES = "/v1/messages"
USER = {"role": "user", "content": "hello"}
PART = {"type": "input_text", "text": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
TAG = {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a"]}
WAV = {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [*messages, USER], "max_completion_tokens": 20, **fields}


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gateway_flat_input": (RESPONSES, {"input": [PART]}),
    "gateway_bare_reasoning": (
        RESPONSES,
        {"input": [{"type": "reasoning"}, {"type": "message", "role": "user", "content": "hi"}]},
    ),
    "transformers_nested_tools": (RESPONSES, {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    "sglang_null_content": (CHAT, chat({"role": "user", "content": None})),
    "sglang_object_arguments": (
        CHAT,
        chat(
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ),
    ),
    "tabbyapi_empty_stops": (COMPLETIONS, {"stop": ["", "zzz"]}),
    "vllm_many_stops": (CHAT, chat(stop=["z1", "z2", "z3", "z4", "lo"])),
    "vllm_echo": (CHAT, chat(response_prefix="so ", echo=True, logprobs=True, top_logprobs=0)),
    "vllm_null_members": (CHAT, chat({"role": "user", "content": "hi", "name": None})),
    "transformers_generation_config": (CHAT, {"generation_config": '{"max_new_tokens": 3}'}),
}
"""Requests that the model of these tests answers."""
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # This engine has no grammars and hears nothing: the form is accepted, what it becomes is refused by name.
    "sglang_structural_tag": (
        CHAT,
        chat(response_format={"type": "structural_tag", **TAG}),
        "structural_tag",
    ),
    "vllm_audio_url": (CHAT, chat({"role": "user", "content": [WAV]}), "messages[0].content[0].type"),
}


async def answer(path: str, changes: dict[str, Any], **settings: Any) -> Answer:
    async with serving(served(scripted()), **settings) as server:
        return await server.post(path, {**BODIES[path], **changes})


def text(path: str, found: Answer) -> str:
    """Return the text of an answer in either mode."""
    if found.body.startswith(b"{"):
        if path == RESPONSES:
            return str(found.json["output"][-1]["content"][0]["text"])
        if path == MESSAGES:
            return str(found.json["content"][0]["text"])
        choice = found.json["choices"][0]
        return str(choice["message"]["content"] if path == CHAT else choice["text"])
    events = [event.json for event in found.events if event.data != "[DONE]"]
    if path == RESPONSES:
        return "".join(event.get("delta", "") for event in events)
    if path == MESSAGES:
        return "".join(event.get("delta", {}).get("text", "") for event in events)
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(c["delta"].get("content") or "" if path == CHAT else c["text"] for c in choices)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_form_is_answered_and_named(name: str, stream: bool) -> None:
    path, changes = REQUESTS[name]
    found = await answer(path, {**changes, "stream": stream}, lenient=True)

    assert found.status == 200
    assert found.header("x-plumbline-lenient") == name
    assert found.header("x-plumbline-ignored") is None
    whole = await answer(path, changes, lenient=True)
    assert text(path, found) == text(path, whole) != ""
    match name:
        case "vllm_many_stops":
            assert text(path, found) == "You said: hel"
        case "vllm_echo":
            assert text(path, found).startswith("so ")
            if not stream:
                (choice,) = found.json["choices"]
                new = "".join(entry["token"] for entry in choice["logprobs"]["content"])
                assert "so " + new == choice["message"]["content"]
                assert all(entry["top_logprobs"] == [] for entry in choice["logprobs"]["content"])
        case "transformers_generation_config" if not stream:
            assert found.json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("name", [*REQUESTS, *REFUSED])
async def test_without_the_option_the_error_ends_with_the_hint(name: str) -> None:
    path, changes = REQUESTS[name] if name in REQUESTS else REFUSED[name][:2]
    found = await answer(path, changes)

    assert found.header("x-plumbline-lenient") is None
    if name == "transformers_generation_config":
        assert (found.status, found.header("x-plumbline-ignored")) == (200, "generation_config")
        found = await answer(path, changes, strict=True)
    assert found.status == 400
    assert found.error["message"].endswith(f". {HINT}")


@pytest.mark.parametrize("name", REFUSED)
async def test_what_a_form_becomes_may_still_be_refused_by_name(name: str) -> None:
    path, changes, param = REFUSED[name]
    found = await answer(path, changes, lenient=True)

    assert (found.status, found.error["param"]) == (400, param)
    assert HINT not in found.error["message"]
    assert found.header("x-plumbline-lenient") == name


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_valid_request_has_the_same_answer(path: str, stream: bool) -> None:
    changes = {"stream": True} if stream and path in (CHAT, COMPLETIONS, MESSAGES, RESPONSES) else {}
    lenient, plain = await answer(path, changes, lenient=True), await answer(path, changes)

    assert lenient.status == plain.status == 200
    assert lenient.header("x-plumbline-lenient") is None
    if path.startswith("/v1"):
        assert text(path, lenient) == text(path, plain)


async def test_a_mistake_beside_a_form_has_no_hint() -> None:
    found = await answer(CHAT, {**chat({"role": "user", "content": None}), "temperature": 9})

    assert found.status == 400
    assert HINT not in found.error["message"]


async def test_unknown_fields_of_a_body_with_forms_are_named_once() -> None:
    tools = [{"type": "function", "function": {"name": "f", "mood": 1}}]
    found = await answer(RESPONSES, {"tools": tools, "made_up": 1}, lenient=True)

    assert found.status == 200
    assert found.header("x-plumbline-lenient") == "transformers_nested_tools"
    assert found.header("x-plumbline-ignored") == "tools[0].mood, made_up"


@pytest.mark.parametrize("lenient", [False, True])
def test_a_web_socket_takes_the_same_forms(lenient: bool) -> None:
    request = {"type": "response.create", "input": [PART], "max_output_tokens": 16, "stop": ["", "zzz"]}
    with (
        live(lambda: served(tiny_engine()), Settings(lenient=lenient)) as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses") as socket,
    ):
        socket.send(json.dumps(request))
        event = json.loads(socket.recv(timeout=20))

    if lenient:
        assert event["type"] == "response.created"
    else:
        assert (event["type"], event["status"]) == ("error", 400)
        assert event["error"]["message"].endswith(HINT)


def test_the_page_lists_every_form_and_no_other() -> None:
    section = PAGE.split("## Forms of other servers\n")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    known = {form.__name__ for forms in FORMS.values() for form in forms} | {"vllm_many_stops"}

    assert len(listed) == len(set(listed))
    assert set(listed) == known
    assert set(REQUESTS) | set(REFUSED) == known
