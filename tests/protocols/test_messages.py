"""Laws of the Messages API: what is written folds, in its official client too, and reads back as it was meant."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from jiter import from_json
from pydantic import TypeAdapter
from support.judges import valid
from support.parsing.answers import answers
from support.strategies import number_literals, texts

from plumbline.answer.events import (
    Finish,
    OutputEvent,
    Progress,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract.wire.decode import decode, encode
from plumbline.server.protocols.messages.partial_json import parse_partial_object
from plumbline.server.protocols.messages.writer import MessageWriter

from .message_requests import (
    BODY,
    RESULT,
    SAID,
    SEALER,
    Json,
    after_call,
    prompt,
)

THEIR_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def written(events: list[OutputEvent], **changes: Any) -> tuple[list[Json], Json]:
    """The events of an answer as a stream has them, and the answer in one piece."""
    request = decode(CreateMessageRequest, encode({**BODY, **changes}))
    usage = events[-1].usage if isinstance(events[-1], Finish) else Usage(1, 0)
    writer = MessageWriter(request, SEALER, model="m", prompt_tokens=usage.prompt_tokens, max_model_len=1000)
    stream = [json.loads(encode(one)) for one in writer.start(events[0])]
    stream += [json.loads(encode(one)) for event in events for one in writer.event(0, event)]
    stream += [json.loads(encode(one)) for one in writer.end()]
    return stream, json.loads(encode(writer.answer()))


def folded(stream: list[Json]) -> Json:
    """Fold a stream by its grammar (MSG-07, MSG-08): blocks one after the other, and no event out of its place."""
    start, *rest, delta, stop = (event for event in stream if event["type"] != "ping")
    assert (start["type"], delta["type"], stop) == (
        "message_start",
        "message_delta",
        {"type": "message_stop"},
    )
    message: Json = start["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    is_open, arguments = False, ""
    for event in rest:
        kind = event["type"]
        assert event["index"] == len(message["content"]) - (kind != "content_block_start")
        assert is_open is (kind != "content_block_start")
        if kind == "content_block_start":
            is_open, arguments = True, ""
            message["content"].append(event["content_block"])
            continue
        block = message["content"][-1]
        match event.get("delta"):
            case {"type": "input_json_delta", "partial_json": part}:
                arguments += part
            case {"type": "text_delta", "text": part}:
                block["text"] += part
            case {"type": "thinking_delta", "thinking": part}:
                block["thinking"] += part
            case {"type": "signature_delta", "signature": part}:
                block["signature"] = part
            case None:
                is_open = False
                if block["type"] == "tool_use":
                    block["input"] = from_json(arguments.encode(), partial_mode=True) if arguments else {}
    assert not is_open
    return {**message, **delta["delta"], "usage": delta["usage"]}


@given(answers(), st.booleans())
def test_a_stream_folds_to_the_answer_in_one_piece(events: list[OutputEvent], shows: bool) -> None:
    """MSG-01, MSG-07, MSG-08, MSG-10; all of it has the types of the contract."""
    thinking = {} if shows else {"thinking": {"type": "adaptive", "display": "omitted"}}
    stream, answer = written(events, **thinking)
    assert folded(stream) == answer
    valid("CreateMessageResponse", answer)
    for event in stream:
        valid("MessageStreamEvent", event)
    assert shows or not any(block.get("thinking") for block in answer["content"])


@given(answers())
def test_the_official_client_folds_a_stream_to_the_same_answer(events: list[OutputEvent]) -> None:
    stream, answer = written(events)
    buffers: dict[int, bytes] = {}
    snapshot = None
    for event in stream:
        if event["type"] not in ("ping", "message_stop"):
            theirs = THEIR_EVENT.validate_python(event)
            snapshot = accumulate_event(event=theirs, current_snapshot=snapshot, json_bufs=buffers)
    assert snapshot is not None
    found = json.loads(snapshot.to_json(exclude_none=True))
    assert found["content"] == answer["content"]
    assert found["stop_reason"] == answer["stop_reason"]
    assert found["usage"] == {name: value for name, value in answer["usage"].items() if value is not None}


@given(answers())
def test_an_answer_that_is_sent_back_is_what_the_model_wrote(events: list[OutputEvent]) -> None:
    """MSG-02, MSG-05, MSG-06: whole calls keep their ids, names and arguments; thinking and text their characters."""
    _, answer = written(events)
    content = [{k: v for k, v in block.items() if v is not None} for block in answer["content"]]
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    if not content:
        return
    results = [{"type": "tool_result", "tool_use_id": call} for call in reversed(calls)]
    following = [{"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}]
    found = prompt(messages=[*BODY["messages"], {"role": "assistant", "content": content}, *following])
    _, message, *rest = found.messages

    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert (message.reasoning or "", message.content or "") == (thought, said)
    assert [call.id for call in message.tool_calls] == calls
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        (block["name"], block["input"]) for block in content if block["type"] == "tool_use"
    ]
    assert [(one.role, one.tool_call_id) for one in rest] == [
        *(("tool", call) for call in reversed(calls)),
        ("user", None),
    ]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | texts,
        _nested := lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    ).map(lambda value: json.dumps({"a": value, "b": [value]}, ensure_ascii=False)),
    st.data(),
)
def test_arguments_that_break_off_are_what_the_official_client_makes_of_them(
    text: str, data: st.DataObject
) -> None:
    """MSG-08."""
    begun = text[: data.draw(st.integers(1, len(text)))]
    assert parse_partial_object(begun) == from_json(begun.encode(), partial_mode=True)


@pytest.mark.parametrize("text", ['{"a": "\\ud83d", "b": 1}', '{"a": ' + "[" * 50_000])
def test_arguments_of_any_kind_are_read(text: str) -> None:
    found = parse_partial_object(text)
    encode(found)
    assert found == {} or [str(value).encode("utf-8", "replace") for value in json.loads(text).values()] == [
        str(value).encode() for value in found.values()
    ]


@given(number_literals, st.booleans())
def test_numbers_of_arguments_stay_as_the_model_wrote_them(literal: str, cut: bool) -> None:
    """MSG-08; a double would change some of them, and is `null` where there is none."""
    found = parse_partial_object(f'{{"a": [{literal}]' + ("" if cut else "}"))
    (value,) = json.loads(encode(found), parse_float=Decimal, parse_int=Decimal)["a"]
    assert value == Decimal(literal)


@pytest.mark.parametrize("joint", [None, "\n", "\r\n\r\n", " ", ""])
@pytest.mark.parametrize("rest", ["", "so", "x\ny"])
def test_the_billing_line_of_claude_code_is_not_shown_and_all_else_is(joint: str | None, rest: str) -> None:
    """It differs between conversations, which would share no cached prefix. Gateways join it with what follows."""
    line = "x-anthropic-billing-header: cc_version=1; cc_entrypoint=cli;"
    blocks = [{"type": "text", "text": text} for text in (line, rest) if text]
    found = prompt(system=blocks if joint is None else f"{line}{joint}{rest}").messages
    assert [message.content for message in found if message.role == "system"] == ([rest] if rest else [])


@pytest.mark.parametrize("text", ["", "[1", "x", '{"a": 1}}', "{]", '{"a" 1'])
def test_arguments_that_are_no_object_are_none(text: str) -> None:
    assert parse_partial_object(text) in ({}, {"a": 1})


@given(
    st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=6),
    st.lists(texts.filter(bool), min_size=6, max_size=6),
)
def test_neighbours_of_one_role_are_one_turn(roles: list[str], said: list[str]) -> None:
    """MSG-02; a string is one block of text."""
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    blocks = [
        {"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in messages
    ]
    found = prompt(messages=messages)
    turns = [role for index, role in enumerate(roles) if index == 0 or roles[index - 1] != role]
    assert [message.role for message in found.messages] == turns
    assert found == prompt(messages=blocks)
    assert (
        found.continue_final_message is (roles[-1] == "assistant") is not found.add_generation_prompt
    )  # MSG-03
    for role in ("user", "assistant"):
        given_text = "".join(one["content"] for one in messages if one["role"] == role)
        assert "".join(m.content or "" for m in found.messages if m.role == role).replace("\n", "") == (
            given_text.replace("\n", "")
        )


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("a", "a"),
        ([SAID, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}], "so\nb"),
    ],
)
def test_instructions_come_first(system: Any, expected: str) -> None:
    first, second = prompt(system=system).messages
    assert (first.role, first.content, second.role) == ("system", expected, "user")
    twice = [{"role": "system", "content": "c"}, *BODY["messages"]]
    assert [one.content for one in prompt(system=system, messages=twice).messages] == [f"{expected}\nc", "hi"]
    between = [*BODY["messages"], {"role": "system", "content": system}, *BODY["messages"]]
    assert [one.role for one in prompt(messages=between).messages] == ["user", "system", "user"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({}, ""),
        ({"content": None}, ""),
        ({"content": []}, ""),
        ({"content": "b"}, "b"),
        ({"content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]}, "b\nc"),
        ({"content": "b", "is_error": False}, "b"),
        ({"content": "b", "is_error": True}, "Error: b"),
    ],
)
def test_a_result_has_every_form(result: Json, expected: str) -> None:
    """MSG-05."""
    one = {"type": "tool_result", "tool_use_id": "t1", **result}
    found = prompt(messages=after_call({"type": "text", "text": "first"}, one)).messages
    assert [(m.role, m.content, m.tool_call_id) for m in found[2:]] == [
        ("tool", expected, "t1"),
        ("user", "first", None),
    ]


def test_pictures_are_read_where_the_model_reads_them() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    web = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    result = {**RESULT, "content": [{"type": "image", "source": source}]}
    found = prompt(messages=after_call(result, web, {"type": "text", "text": "What?"})).messages
    assert [getattr(part, "url", part) for m in found[2:] for part in m.parts or ()] == [
        "data:image/png;base64,aGk=",
        "https://example.org/a.png",
        "What?",
    ]


@pytest.mark.parametrize(
    ("finish", "expected"),
    [
        (Finish("stop", Usage(5, 3)), ("end_turn", None)),
        (Finish("stop", Usage(5, 3), "END"), ("stop_sequence", "END")),
        (Finish("stop", Usage(5, 3), "<eot>"), ("end_turn", None)),
        (Finish("stop", Usage(5, 3), 7), ("end_turn", None)),
        (Finish("length", Usage(5, 20)), ("max_tokens", None)),
        (Finish("length", Usage(995, 5)), ("model_context_window_exceeded", None)),
        (Finish("length", Usage(980, 20)), ("max_tokens", None)),
        (Finish("tool_calls", Usage(5, 3)), ("tool_use", None)),
    ],
)
def test_an_answer_says_why_it_ended(finish: Finish, expected: tuple[str, str | None]) -> None:
    """MSG-09."""
    _, answer = written([finish], stop_sequences=["END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == expected


def test_counts_of_the_prompt_add_up() -> None:
    """MSG-10."""
    stream, answer = written(
        [Progress(1, cached_tokens=6), Finish("stop", Usage(9, 4, cached_tokens=6, reasoning_tokens=2))]
    )
    begun = stream[0]["message"]["usage"]
    assert (begun["input_tokens"], begun["cache_read_input_tokens"], begun["output_tokens"]) == (3, 6, 0)
    assert answer["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 6,
        "output_tokens": 4,
        "output_tokens_details": {"thinking_tokens": 2},
        "service_tier": "standard",
    }


def test_one_call_is_written_as_it_comes() -> None:
    events: list[OutputEvent] = [
        ToolCallStart("f", "c1"),
        ToolCallDelta('{"x": '),
        ToolCallDelta('"a'),
        Finish("length", Usage(1, 1)),
    ]
    stream, answer = written(events)
    assert [event["delta"]["partial_json"] for event in stream if event["type"] == "content_block_delta"] == [
        '{"x": ',
        '"a',
    ]
    assert msgspec.json.encode(answer["content"]) == b'[{"type":"tool_use","id":"c1","name":"f","input":{}}]'
