"""What this server does where peers answer the same request in different ways (docs/reference/compatibility.md)."""

from __future__ import annotations

from typing import Any

import pytest
from support.bodies import BODIES
from support.models import TOKENIZER, answer_with, scripted, scripted_info, served, tiny_engine
from support.servers.asgi import serving
from support.speaking import speaking

from plumbline.port.engine import GenerateRequest

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
USER = {"role": "user", "content": "hi"}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("f", "g")
]


class Watching:
    """Answer "ok" and keep the prompts."""

    def __init__(self) -> None:
        self.prompts: list[str] = []
        self.model = served(scripted(self._answer))

    def _answer(self, request: GenerateRequest) -> Any:
        self.prompts.append(TOKENIZER.decode(request.prompt_token_ids))
        return answer_with("ok")(request)


async def test_a_final_message_of_the_assistant_is_a_whole_turn() -> None:
    """Its turn is ended and another begins, unless the request continues it."""
    watching = Watching()
    async with serving(watching.model) as server:
        for fields in ({}, {"continue_final_message": True}):
            body = {**BODIES[CHAT], "messages": [USER, {"role": "assistant", "content": "Once"}], **fields}
            assert (await server.post(CHAT, body)).status == 200
    whole, continued = watching.prompts
    assert whole.startswith(continued)
    assert continued.endswith("Once")
    assert whole.count("assistant") == continued.count("assistant") + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_a_turn_is_no_matched_stop(stream: bool) -> None:
    """`matched_stop` and `stop_reason` are a stop of the request, and null at the model's own end."""
    async with serving(served(scripted(answer_with("one two three")))) as server:
        for stop, expected in ((None, None), (" two", " two")):
            answer = await server.post(CHAT, {**BODIES[CHAT], "stop": stop, "stream": stream})
            choices = (
                [choice for event in answer.events[:-1] for choice in event.json["choices"]]
                if stream
                else answer.json["choices"]
            )
            assert (choices[-1]["finish_reason"], choices[-1].get("matched_stop")) == ("stop", expected)


async def test_a_named_tool_choice_leaves_the_prompt_as_it_is() -> None:
    """All tools stay in the prompt, so its cached prefix serves further turns; the call is constrained instead."""
    prompts = []
    for choice in ("auto", {"type": "function", "function": {"name": "g"}}):
        model = speaking('<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>', grammars=True)
        async with serving(model) as server:
            body = {"model": "test-model", "messages": [USER], "tools": TOOLS, "tool_choice": choice}
            answer = await server.post(CHAT, body)
            assert answer.status == 200, answer.body
            assert [c["function"]["name"] for c in answer.json["choices"][0]["message"]["tool_calls"]] == [
                "g"
            ]
            prompts.append(answer.json["usage"]["prompt_tokens"])
    assert prompts[0] == prompts[1]


async def test_no_answer_streams_unless_it_is_asked_to() -> None:
    async with serving(served(scripted(answer_with("ok")))) as server:
        for path in BODIES:
            if path in (CHAT, RESPONSES, "/v1/completions"):
                answer = await server.post(path, BODIES[path])
                assert answer.header("content-type") == "application/json"


async def test_instructions_and_a_leading_system_message_are_both_read() -> None:
    """R-06: neither takes the other's place."""
    watching = Watching()
    async with serving(watching.model) as server:
        items = [{"role": "system", "content": "Be kind."}, USER]
        body = {"model": "test-model", "instructions": "Be brief.", "input": items}
        assert (await server.post(RESPONSES, body)).status == 200
    (prompt,) = watching.prompts
    assert prompt.index("Be brief.") < prompt.index("Be kind.") < prompt.index("hi")


async def test_ids_are_those_of_the_official_server_by_form() -> None:
    async with serving(served(scripted(answer_with("ok")))) as server:
        headers = {"x-request-id": "mine"}
        response = (await server.post(RESPONSES, BODIES[RESPONSES], headers=headers)).json["id"]
        chat = (await server.post(CHAT, BODIES[CHAT], headers=headers)).json["id"]
    assert response.startswith("resp_")
    assert chat.startswith("chatcmpl-")
    assert "mine" not in response


@pytest.mark.parametrize("stream", [False, True])
async def test_facts_about_the_server_are_not_in_its_answers(stream: bool) -> None:
    """`system_fingerprint` changes with the weights; the name is in `model`, and the stop in `matched_stop`."""
    async with serving(served(scripted(answer_with("one two")))) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], "stop": " two", "stream": stream})
    objects = [event.json for event in answer.events[:-1]] if stream else [answer.json]
    for found in objects:
        assert {"sglext", "metadata", "weight_version", "model_name"}.isdisjoint(found)
        assert found["system_fingerprint"].startswith("fp_")
        assert all("stop_str" not in choice for choice in found["choices"])


async def test_headers_that_route_or_label_are_not_read() -> None:
    """One process has one engine, and a proxy routes by what docs/guides/scale-out.md names."""
    headers = {
        "x-data-parallel-rank": "1",
        "x-smg-routing-key": "k",
        "x-customized-labels": '{"a": "b"}',
        "x-trace-level": "layer",
    }
    async with serving(served(scripted(answer_with("ok")))) as server:
        plain = await server.post(CHAT, BODIES[CHAT])
        labelled = await server.post(CHAT, BODIES[CHAT], headers=headers)
    assert labelled.status == 200
    assert labelled.json["choices"] == plain.json["choices"]
    assert set(labelled.json) == set(plain.json)


@pytest.mark.parametrize("header", ["x-api-key", "x-admin-key"])
async def test_a_key_in_another_header_is_none(header: str) -> None:
    """HTTP-06: the official clients send it as a bearer token."""
    async with serving(served(scripted()), api_keys=("one",)) as server:
        answer = await server.post(CHAT, BODIES[CHAT], headers={header: "one"})
    assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


async def test_several_choices_at_temperature_zero_are_equal() -> None:
    async with serving(served(tiny_engine())) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], "n": 3, "temperature": 0, "max_tokens": 8})
    texts = [choice["message"]["content"] for choice in answer.json["choices"]]
    assert len(texts) == 3
    assert len(set(texts)) == 1


async def test_a_call_without_text_has_no_content() -> None:
    """CHAT-05: `content` is null, not an empty text, where the model has called only."""
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    async with serving(speaking(call)) as server:
        answer = await server.post(CHAT, {**BODIES[CHAT], "tools": TOOLS})
    message = answer.json["choices"][0]["message"]
    assert [made["function"]["name"] for made in message["tool_calls"]] == ["f"]
    assert message["content"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_beyond_the_context_is_refused(stream: bool) -> None:
    """ERR-06: the whole prompt, before the engine sees it; the message has the limit."""
    model = served(scripted(info=scripted_info(max_model_len=64)))
    async with serving(model) as server:
        messages = [{"role": "user", "content": "word " * 200}]
        answer = await server.post(CHAT, {**BODIES[CHAT], "messages": messages, "stream": stream})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert "64 tokens" in answer.error["message"]


async def test_streams_have_no_path_of_their_own() -> None:
    """POST of this path changes the metadata of a stored completion with that id."""
    async with serving(served(scripted())) as server:
        answer = await server.post(f"{CHAT}/stream", BODIES[CHAT])
    assert (answer.status, answer.error["param"]) == (400, "metadata")
