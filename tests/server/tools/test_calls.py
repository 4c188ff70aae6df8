"""Reasoning and calls over every API and in both modes: the same answer for any output of the model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.models import TOKENIZER
from support.servers.asgi import serving
from support.speaking import speaking

from plumbline.server.loading.served_model import ServedModel

TOOL = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOLS = [{"type": "function", "function": TOOL}]
RESPONSE_TOOLS = [{"type": "function", **TOOL}]

pieces = st.sampled_from(
    (
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ", "word", "é€", '{"name": "f"', "}"),
        '{"name": "f", "arguments": {"a": "b"}}',
        '{"name": "g", "arguments": {}}',
        '<tool_call>\n{"name": "f", "argu',
    )
)
_whole = st.sampled_from(
    (
        '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "f", "arguments": {"a": "é€ \\"q\\" <tool_call>"}}\n</tool_call>\n',
        "Some words.\n",
    )
)
outputs = st.one_of(
    # What a model says when all goes well: thinking, then text and calls.
    st.tuples(
        st.sampled_from(("", "<think>\nSo.\n</think>\n\n", "<think>\nLook: <tool_call>?\n</think>\n\n")),
        st.lists(_whole | pieces, max_size=5).map("".join),
    ).map("".join),
    st.lists(pieces, max_size=10).map("".join),
)
laws = settings(max_examples=EXPLORED // 5 or 15)


async def ask(model: ServedModel, path: str, body: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the answer and the events of the same request."""
    async with serving(model) as server:
        whole = await server.request("POST", path, {"model": "test-model", **body})
        stream = await server.request("POST", path, {"model": "test-model", "stream": True, **body})
    assert whole.status == stream.status == 200, whole.body
    return whole.json, [event.json for event in stream.events if event.data != "[DONE]"]


def chat(text: str, **body: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the choice of a chat completion, and the chunks of its stream."""
    messages = [{"role": "user", "content": "hi"}]
    whole, chunks = asyncio.run(
        ask(speaking(text), "/v1/chat/completions", {"messages": messages, "tools": CHAT_TOOLS, **body})
    )
    choice: dict[str, Any] = whole["choices"][0]
    return choice, [chunk["choices"][0] for chunk in chunks if chunk["choices"]]


def folded(chunks: list[Any]) -> dict[str, Any]:
    """Join the chunks as a client does."""
    content = reasoning = ""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        delta = chunk["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(calls):  # CS-10: id, type and name come once, with the first fragment.
                assert call["id"]
                assert call["type"] == "function"
                calls.append({"name": call["function"]["name"], "arguments": ""})
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
            calls[-1]["arguments"] += call["function"]["arguments"]
    return {"content": content, "reasoning": reasoning, "calls": calls, "finish": chunks[-1]["finish_reason"]}


def test_outputs_are_mostly_of_what_the_laws_are_about() -> None:
    """The strategy must draw thinking with a call, and several calls, often enough."""
    seen: Counter[str] = Counter()

    @seed(1)
    @settings(max_examples=50, database=None)
    @given(outputs)
    def count(text: str) -> None:
        choice, _ = chat(text)
        message = choice["message"]
        calls = len(message.get("tool_calls", ()))
        seen["calls"] += calls > 1
        seen["both"] += bool(calls and message.get("reasoning_content"))

    count()
    assert min(seen["calls"], seen["both"]) > 2, seen


@laws
@given(outputs, st.booleans())
def test_chat_is_the_same_in_both_modes(text: str, logprobs: bool) -> None:
    choice, chunks = chat(text, logprobs=logprobs)
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    assert folded(chunks) == _read(choice)
    # Calls that broke off are shown, but the finish reason does not ask for their results.
    assert (choice["finish_reason"] == "tool_calls") == (bool(calls) and all(map(is_json, calls)))
    assert len({call["id"] for call in message.get("tool_calls", ())}) == len(calls)  # TOOL-09
    assert all(call["name"] == "f" for call in calls)  # TOOL-02
    if logprobs:  # LP-03
        entries = choice["logprobs"]["content"]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == (
            message["content"] or ""
        )


@laws
@given(outputs)
def test_responses_equal_chat(text: str) -> None:
    choice, _ = chat(text)
    message = choice["message"]
    whole, events = asyncio.run(
        ask(speaking(text), "/v1/responses", {"input": "hi", "tools": RESPONSE_TOOLS})
    )
    final = events[-1]["response"]
    assert [_without_ids(item) for item in final["output"]] == [
        _without_ids(item) for item in whole["output"]
    ]
    for place, item in enumerate(
        final["output"]
    ):  # RS-09: what was streamed is what the item says in the end.
        deltas = [
            event["delta"]
            for event in events
            if event["type"].endswith(".delta") and event["output_index"] == place
        ]
        parts = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert "".join(deltas) == parts
    joined: dict[str, Any] = {"message": "", "reasoning": "", "function_call": []}
    for item in whole["output"]:
        if item["type"] == "function_call":
            joined["function_call"].append((item["name"], item["arguments"]))
        else:
            joined[item["type"]] += "".join(part["text"] for part in item["content"])
    assert joined == {
        "message": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "function_call": [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ],
    }


def _without_ids(item: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


@settings(max_examples=EXPLORED // 5 or 10)
@given(st.lists(outputs, min_size=2, max_size=4))
def test_choices_of_one_request_share_nothing(texts: list[str]) -> None:
    """CHAT-02: each is what it is alone, in both modes."""
    alone = [chat(text)[0] for text in texts]
    messages = [{"role": "user", "content": "hi"}]
    whole, chunks = asyncio.run(
        ask(
            speaking(*texts),
            "/v1/chat/completions",
            {"messages": messages, "tools": CHAT_TOOLS, "n": len(texts)},
        )
    )
    for number, expected in enumerate(alone):
        choice = whole["choices"][number]
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        streamed = folded([one for one in own if one["index"] == number])
        assert _read(choice) == _read(expected) == streamed


def _read(choice: dict[str, Any]) -> dict[str, Any]:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [{"name": call["name"], "arguments": call["arguments"]} for call in calls],
        "finish": choice["finish_reason"],
    }


def is_json(call: dict[str, str]) -> bool:
    try:
        return isinstance(json.loads(call["arguments"]), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("stop", ["<", "t", "\n", "n", '"', "f", "a", "}", "b", "</"])
def test_a_stop_string_inside_of_a_call_cuts_it(stop: str) -> None:
    """The markup is not text, and the finish reason does not ask for a result of the cut call."""
    choice, chunks = chat('<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>', stop=[stop])
    calls = [call["function"] for call in choice["message"].get("tool_calls", ())]
    assert not (choice["message"]["content"] or "").strip("<")
    assert choice["finish_reason"] == ("tool_calls" if calls and all(map(is_json, calls)) else "stop")
    assert folded(chunks)["finish"] == choice["finish_reason"]


def test_without_tools_nothing_is_a_call() -> None:
    """TOOL-03."""
    text = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    bodies: tuple[dict[str, Any], ...] = ({"tools": []}, {"tool_choice": "none"})
    for body in bodies:
        choice, _ = chat(text, **body)
        assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


@pytest.mark.parametrize("limit", range(1, 40))
def test_what_the_token_limit_cuts_is_length_and_leaks_no_markup(limit: int) -> None:
    """CHAT-05, CHAT-06: an answer that the limit ended is never `tool_calls`."""
    text = '<think>\nSo.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
    choice, chunks = chat(text, max_tokens=limit)
    message = choice["message"]
    assert folded(chunks)["content"] == (message["content"] or "") == ""
    assert choice["finish_reason"] == "length"
    for call in message.get("tool_calls", ()):
        assert '{"a": "b"}'.startswith(call["function"]["arguments"])


def test_reasoning_tokens_are_counted() -> None:
    text = "<think>\nSo it is.\n</think>\n\nYes."
    whole, _ = asyncio.run(
        ask(speaking(text), "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    )
    thought = len(TOKENIZER.encode_rendered("<think>\nSo it is.\n</think>"))
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == thought
    assert json.loads(json.dumps(whole))["choices"][0]["message"]["reasoning_content"] == "So it is."


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("reasoning_content", {"reasoning_content"}),
        ("reasoning", {"reasoning"}),
        ("both", {"reasoning", "reasoning_content"}),
    ],
)
def test_the_operator_chooses_the_name_of_the_thinking(field: str, names: set[str]) -> None:
    async def run() -> Any:
        async with serving(speaking("<think>So.</think>Yes."), reasoning_field=field) as server:
            body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}]}
            return (await server.request("POST", "/v1/chat/completions", body)).json

    message = asyncio.run(run())["choices"][0]["message"]
    assert {name for name in ("reasoning", "reasoning_content") if name in message} == names
    assert {message[name] for name in names} == {"So."}


BEGUN = '<think>Hm.</think>\n\nI call.\n<tool_call>\n{"name": "f", "arg'
REST = 'uments": {"a": "b"}}\n</tool_call>'


def test_a_call_that_a_message_has_begun_is_a_call() -> None:
    """Neither its beginning nor its end is text, and only the new part of it is sent."""
    for echo in (False, True):
        choice, chunks = chat(REST, response_prefix=BEGUN, echo=echo)
        message = choice["message"]
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": "b"}'}
        assert (message["content"] or "").strip() == ("I call." if echo else "")
        assert message.get("reasoning_content") == ("Hm." if echo else None)
        assert choice["finish_reason"] == "tool_calls"
        found = folded(chunks)
        assert found["content"] == (message["content"] or "")
        assert [call["name"] for call in found["calls"]] == ["f"]


def test_a_thought_that_a_message_has_begun_goes_on() -> None:
    for echo in (False, True):
        choice, _ = chat(" Well.</think>\n\nYes.", response_prefix="<think>Hm.", echo=echo)
        assert choice["message"]["reasoning_content"] == ("Hm. Well." if echo else " Well.")
        assert choice["message"]["content"] == "Yes."
