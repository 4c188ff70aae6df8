"""Fields about reasoning over HTTP, in both modes."""

from __future__ import annotations

from typing import Any

import pytest
from support.servers.api_calls import Json, chat, respond, streamed
from support.servers.asgi import Server, serving
from support.speaking import speaking

ANSWER = "<think>\nSo it is. Or not.\n</think>\n\nYes, it is."
USER = [{"role": "user", "content": "hello"}]


async def both_modes(**fields: Any) -> tuple[Json, list[Json]]:
    """Return the message of a whole answer, and the deltas of a stream."""
    async with serving(speaking(ANSWER)) as server:
        message = (await chat(server, messages=USER, **fields))["choices"][0]["message"]
        chunks = await streamed(server, "/v1/chat/completions", {"messages": USER, **fields})
    return message, [chunk["choices"][0]["delta"] for chunk in chunks]


def joined(deltas: list[Json], name: str) -> str:
    return "".join(delta.get(name) or "" for delta in deltas)


async def test_reasoning_comes_under_both_names_by_default() -> None:
    """CS-17: clients of vLLM read `reasoning`, others `reasoning_content`."""
    message, deltas = await both_modes()
    for name in ("reasoning", "reasoning_content"):
        assert message[name] == joined(deltas, name) == "So it is. Or not."
    assert message["content"] == joined(deltas, "content") == "Yes, it is."


async def test_reasoning_can_be_left_out() -> None:
    message, deltas = await both_modes(include_reasoning=False)
    assert message["content"] == joined(deltas, "content") == "Yes, it is."
    for name in ("reasoning", "reasoning_content"):
        assert name not in message
        assert not any(name in delta for delta in deltas)


@pytest.mark.parametrize("fields", [{}, {"stream_reasoning": False}])
async def test_reasoning_can_stay_in_the_text(fields: Json) -> None:
    message, deltas = await both_modes(separate_reasoning=False, **fields)
    assert message["content"] == joined(deltas, "content")
    assert "".join(message["content"].split()) == "".join(ANSWER.split())
    assert "reasoning" not in message
    assert not any("reasoning" in delta for delta in deltas)


async def test_reasoning_can_come_in_one_piece_before_the_text() -> None:
    message, deltas = await both_modes(stream_reasoning=False)
    pieces = [delta["reasoning"] for delta in deltas if "reasoning" in delta]
    assert pieces == [message["reasoning"]] == ["So it is. Or not."]
    assert joined(deltas, "content") == message["content"] == "Yes, it is."


async def test_reasoning_that_the_limit_cuts_is_not_lost() -> None:
    async with serving(speaking("<think>\nSo it is")) as server:
        body = {"messages": USER, "stream_reasoning": False}
        chunks = await streamed(server, "/v1/chat/completions", body)
    assert joined([chunk["choices"][0]["delta"] for chunk in chunks], "reasoning") == "So it is"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("other", [{"include_reasoning": False}, {"logprobs": True}])
async def test_reasoning_in_the_text_excludes_other_wishes(other: Json, stream: bool) -> None:
    body = {"model": "test-model", "messages": USER, "separate_reasoning": False, "stream": stream, **other}
    async with serving(speaking(ANSWER)) as server:
        answer = await server.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.error["param"] == "separate_reasoning"


async def test_both_fields_of_a_message_are_read_and_have_to_agree() -> None:
    async with serving(speaking(ANSWER)) as server:
        counts = []
        for fields in (
            {"reasoning": "So."},
            {"reasoning_content": "So."},
            {"reasoning": "So.", "reasoning_content": "So."},
            {"reasoning": "So.", "reasoning_content": ""},  # Some clients fill one and send the other empty.
            {"reasoning": None, "reasoning_content": "So."},
            {"reasoning": "", "reasoning_content": "So."},
        ):
            messages = [*USER, {"role": "assistant", "content": "Yes.", **fields}, *USER]
            counts.append((await chat(server, messages=messages))["usage"]["prompt_tokens"])
        fields = {"reasoning": "So.", "reasoning_content": "No."}
        messages = [*USER, {"role": "assistant", "content": "Yes.", **fields}, *USER]
        refused = await server.post("/v1/chat/completions", {"model": "test-model", "messages": messages})
    assert len(set(counts)) == 1
    assert refused.status == 400
    assert refused.error["param"] == "messages[1].reasoning"


SEALED = ["reasoning.encrypted_content"]


async def _sealed_item(server: Server) -> Json:
    answer = await respond(server, input="hi", include=SEALED, store=False)
    item: Json = answer["output"][0]
    assert item["type"] == "reasoning"
    return item


async def _input_tokens(server: Server, item: Json) -> int:
    """Count the prompt of a conversation with this reasoning item in it."""
    message = {"role": "assistant", "content": "Yes, it is."}
    given = [*USER, item, message, *USER]
    return int((await respond(server, input=given, store=False))["usage"]["input_tokens"])


async def test_sealed_reasoning_comes_in_both_modes_only_if_asked_for() -> None:
    async with serving(speaking(ANSWER)) as server:
        whole = await respond(server, include=SEALED)
        events = await streamed(server, "/v1/responses", {"input": "hi", "include": SEALED})
        plain = await respond(server)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert whole["output"][0]["encrypted_content"].startswith("pl1.")
    assert done[0]["encrypted_content"] == events[-1]["response"]["output"][0]["encrypted_content"]
    assert "So it is" not in done[0]["encrypted_content"]
    assert "encrypted_content" not in plain["output"][0]


async def test_the_model_sees_sealed_reasoning_as_it_sees_plain_reasoning() -> None:
    """ST-16: without a store, a client sends back what it got."""
    async with serving(speaking(ANSWER)) as server:
        item = await _sealed_item(server)
        plain = {name: value for name, value in item.items() if name != "encrypted_content"}
        sealed = {name: value for name, value in item.items() if name != "content"}
        none = {"type": "reasoning", "summary": []}
        counts = [await _input_tokens(server, one) for one in (plain, sealed, item, none)]
    assert counts[0] == counts[1] == counts[2] > counts[3]


async def test_a_server_with_the_same_key_opens_it_and_another_does_not() -> None:
    key = "sixteen characters"
    async with serving(speaking(ANSWER), sealing_key=key) as server:
        sealed = {
            "type": "reasoning",
            "summary": [],
            "encrypted_content": (await _sealed_item(server))["encrypted_content"],
        }
        expected = await _input_tokens(server, sealed)
    async with serving(speaking(ANSWER), sealing_key=key) as server:
        assert await _input_tokens(server, sealed) == expected
    async with serving(speaking(ANSWER)) as server:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            answer = await server.post(path, {"model": "test-model", "input": [*USER, sealed]})
            assert answer.status == 400
            assert answer.error["param"] == "input[1].encrypted_content"
            assert answer.error["code"] == "invalid_encrypted_content"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("content", ["", "no such thing", "pl1.", "pl1.AAAA", "gAAAAAB" + "x" * 100])
async def test_corrupt_sealed_reasoning_is_refused(content: str, stream: bool) -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": content}
    async with serving(speaking(ANSWER)) as server:
        answer = await server.post(
            "/v1/responses", {"model": "test-model", "input": [*USER, item], "stream": stream}
        )
    assert answer.status == 400
    assert answer.error["param"] == "input[1].encrypted_content"


LONG = f"<think>{'So it is. ' * 300}</think>Yes."


@pytest.mark.parametrize(
    ("text", "wanted", "has_summary"),
    [
        (ANSWER, {}, False),
        (ANSWER, {"summary": "auto"}, True),
        (ANSWER, {"summary": "concise"}, True),
        (ANSWER, {"generate_summary": "auto"}, True),
        (LONG, {"summary": "auto"}, False),
        (LONG, {"summary": "detailed"}, True),
        (ANSWER, {"summary": "detailed"}, True),
    ],
)
async def test_reasoning_is_its_own_summary(text: str, wanted: dict[str, str], has_summary: bool) -> None:
    """RS-12: both modes agree, and the events of the summary add up to it."""
    async with serving(speaking(text)) as server:
        whole = await respond(server, reasoning=wanted)
        events = await streamed(server, "/v1/responses", {"input": "hi", "reasoning": wanted})
    for body in (whole, events[-1]["response"]):
        item = body["output"][0]
        parts = [{"type": "summary_text", "text": item["content"][0]["text"]}] if has_summary else []
        assert item["summary"] == parts
    kinds = [event["type"].removeprefix("response.reasoning_summary_") for event in events]
    deltas = [event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta"]
    for name, count in (("part.added", 1), ("text.done", 1), ("part.done", 1)):
        assert kinds.count(name) == (count if has_summary else 0)
    assert "".join(deltas) == "".join(part["text"] for part in events[-1]["response"]["output"][0]["summary"])
    if wanted.get("summary") == "detailed":  # It grows with the reasoning.
        assert len(deltas) == sum(event["type"] == "response.reasoning_text.delta" for event in events) > 1


async def test_a_summary_stands_for_reasoning_that_a_client_leaves_out() -> None:
    async with serving(speaking(ANSWER)) as server:
        item = (await respond(server, reasoning={"summary": "auto"}))["output"][0]
        bare = {name: value for name, value in item.items() if name != "content"}
        assert await _input_tokens(server, bare) == await _input_tokens(server, item)
