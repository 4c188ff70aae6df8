"""The chunks or events of any answer fold to its answer in one piece (CHAT-19, RS-16)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent as TheirEvent
from support.judges import (
    as_folded,
    check_response,
    check_text_logprobs,
    fold_chunks,
    fold_response,
    fold_texts,
    valid,
    without_nulls,
)
from support.models import TOKENIZER
from support.parsing.answers import answers, text_deltas, usages
from support.strategies import texts

from plumbline.answer.events import (
    Finish,
    OutputEvent,
    Progress,
    TextDelta,
    TokenIds,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import rate_limited, server_error
from plumbline.server.protocols.chat.writer import ChatWriter
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.completions.reader import read_completion
from plumbline.server.protocols.completions.writer import CompletionWriter, PromptText
from plumbline.server.protocols.responses.identity import Fresh
from plumbline.server.protocols.responses.initial_response import initial_response
from plumbline.server.protocols.responses.reader import read_response
from plumbline.server.protocols.responses.writer import ResponsesWriter

DEFAULTS = Defaults(vocab_size=TOKENIZER.vocab_size)


@st.composite
def interleaved(draw: st.DrawFn, kind: st.SearchStrategy[list[OutputEvent]], most: int = 3) -> Any:
    """Several choices at once: (their number, [(choice, event)] with each choice's events in order)."""
    choices = draw(st.lists(kind, min_size=1, max_size=most))
    order = draw(st.permutations([index for index, events in enumerate(choices) for _ in events]))
    iterators = [iter(events) for events in choices]
    return len(choices), [(index, next(iterators[index])) for index in order]


def as_json(values: list[Any]) -> list[dict[str, Any]]:
    """Return values as a client decodes them."""
    return [json.loads(encode(value)) for value in values]


def written(
    writer: ChatWriter | CompletionWriter, events: list[tuple[int, OutputEvent]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the chunks of an answer and the answer in one piece, as a client decodes them."""
    chunks, fold = writer.chunks(), writer.fold()
    sent: list[Any] = [*chunks.start()]
    for index, event in events:
        sent += chunks.event(index, event)
        fold.event(index, event)
    (whole,) = as_json([fold.answer()])
    return as_json([*sent, *chunks.end()]), whole


# Chat completions


@given(interleaved(answers()), st.booleans(), st.booleans())
def test_the_chunks_of_a_chat_fold_to_its_answer(
    answer: tuple[int, list[tuple[int, OutputEvent]]], logprobs: bool, usage: bool
) -> None:
    """CHAT-19, CS-01 to CS-14."""
    n, events = answer
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "n": n,
        "logprobs": logprobs,
    }
    if usage:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    writer = ChatWriter(decode(CreateChatCompletionRequest, encode(body)), model="m", fingerprint="fp")
    chunks, whole = written(writer, events)
    folded = fold_chunks(chunks, n=n, usage=usage, logprobs=logprobs)
    valid("CreateChatCompletionResponse", whole)

    assert folded["choices"] == [as_folded(choice) for choice in whole["choices"]]
    assert whole["object"] == "chat.completion"
    assert whole["id"] == chunks[0]["id"]
    if usage:
        assert folded["usage"] == whole["usage"]
    for choice in whole["choices"]:
        message = choice["message"]
        assert {"content", "refusal"} <= set(message), "CHAT-03"
        assert message["content"] is not None or message["refusal"] or message["tool_calls"], "CHAT-03"
        assert (choice["logprobs"] is not None) == logprobs, "LP-01"


@given(interleaved(answers()))
def test_content_comes_with_the_role_only_where_a_text_follows(
    answer: tuple[int, list[tuple[int, OutputEvent]]],
) -> None:
    """CS-02: clients open a text where a delta has content, so an answer that only calls tools has it nowhere."""
    n, events = answer
    body = {"model": "m", "n": n, "messages": [{"role": "user", "content": "hi"}]}
    writer = ChatWriter(decode(CreateChatCompletionRequest, encode(body)), model="m", fingerprint="fp")
    chunks, _ = written(writer, events)
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(n):
        role, *rest = [choice["delta"] for choice in choices if choice["index"] == index]
        assert role["role"] == "assistant"
        assert not any("role" in delta for delta in rest)
        shown = [event for at, event in events if at == index and not isinstance(event, TokenIds | Progress)]
        first = role.get("content")
        if n == 1:
            assert (first == "") == isinstance(shown[0], TextDelta | Finish)
        if not any(isinstance(event, TextDelta) for event in shown[:-1]) and len(shown) > 1:
            assert all(delta.get("content") is None for delta in (role, *rest))
        assert first in (None, "")


@given(interleaved(answers()), st.booleans())
def test_the_official_client_adds_the_chunks_up_to_the_answer(
    answer: tuple[int, list[tuple[int, OutputEvent]]], logprobs: bool
) -> None:
    """CS-02, CS-04, CS-10, CS-11 are what its accumulator trips over."""
    n, events = answer
    body = {
        "model": "m", "messages": [{"role": "user", "content": "hi"}], "n": n, "logprobs": logprobs,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    writer = ChatWriter(decode(CreateChatCompletionRequest, encode(body)), model="m", fingerprint="fp")
    chunks, whole = written(writer, events)
    state: ChatCompletionStreamState[Any] = ChatCompletionStreamState()
    failure = None
    for chunk in chunks:
        try:
            state.handle_chunk(construct_type(type_=ChatCompletionChunk, value=chunk))  # type: ignore[arg-type]
        except Exception as error:  # `length` always raises, by design of that client.
            failure = type(error).__name__
            if failure != "LengthFinishReasonError":
                raise
    theirs = state.current_completion_snapshot

    if failure is None:
        assert theirs.usage is not None
        assert theirs.usage.total_tokens == whole["usage"]["total_tokens"]
        for ours, choice in zip(whole["choices"], theirs.choices, strict=True):
            assert (ours["message"]["content"] or "") == (choice.message.content or "")
            assert ours["finish_reason"] == choice.finish_reason
            assert [call["function"]["arguments"] for call in ours["message"].get("tool_calls", [])] == [
                call.function.arguments for call in choice.message.tool_calls or []
            ]
            assert [call["id"] for call in ours["message"].get("tool_calls", [])] == [
                call.id for call in choice.message.tool_calls or []
            ]


def test_usage_counts_the_prompt_once_and_every_choice() -> None:
    """CHAT-08, CHAT-09."""
    request = decode(
        CreateChatCompletionRequest, b'{"model":"m","n":3,"messages":[{"role":"user","content":"hi"}]}'
    )
    finishes: list[tuple[int, OutputEvent]] = [
        (index, Finish("stop", Usage(10, 4, cached_tokens=index))) for index in range(3)
    ]
    _, whole = written(ChatWriter(request, model="m", fingerprint="fp"), finishes)
    usage = whole["usage"]

    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 12, 22)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_answer_that_has_not_ended_cannot_be_whole() -> None:
    request = decode(
        CreateChatCompletionRequest, b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
    )
    with pytest.raises(RuntimeError, match="no finish"):
        ChatWriter(request, model="m", fingerprint="fp").fold().answer()


# Legacy completions


@st.composite
def plain_answers(draw: st.DrawFn) -> list[OutputEvent]:
    reason: Any = draw(st.sampled_from(["stop", "length"]))
    return [*(draw(text_deltas()) if draw(st.booleans()) else []), Finish(reason, draw(usages), None)]


@given(interleaved(plain_answers()), st.booleans(), st.booleans(), texts)
def test_the_chunks_of_a_completion_fold_to_its_answer(
    answer: tuple[int, list[tuple[int, OutputEvent]]], logprobs: bool, echo: bool, prompt: str
) -> None:
    """CMP-01, CMP-04, CMP-05, CMP-08."""
    n, events = answer
    body: dict[str, Any] = {"model": "m", "prompt": "p", "n": n, "echo": echo, "stream": True}
    body |= {"logprobs": 1} if logprobs else {}
    request = decode(CreateCompletionRequest, encode({**body, "stream_options": {"include_usage": True}}))
    plan = read_completion(request, DEFAULTS)
    echoed = PromptText(prompt, tuple(prompt) if logprobs else None) if echo else None
    writer = CompletionWriter(request, plan, [echoed], model="m", fingerprint="fp")
    chunks, whole = written(writer, events)
    folded = fold_texts(chunks, n=n, usage=True)
    valid("CreateCompletionResponse", whole)

    assert folded["usage"] == whole["usage"]
    for ours, theirs in zip(whole["choices"], folded["choices"], strict=True):
        assert without_nulls({**ours, "logprobs": None}) == without_nulls({**theirs, "logprobs": None})
        assert ours["text"].startswith(prompt if echo else "")
        assert (ours["logprobs"] is not None) == logprobs
        if logprobs:
            check_text_logprobs(ours["text"], ours["logprobs"])
            empty: dict[str, list[Any]] = {key: [] for key in ours["logprobs"]}
            assert (theirs["logprobs"] or empty) == ours["logprobs"]


# Responses


def response_writer(**changes: Any) -> ResponsesWriter:
    request = decode(CreateResponse, encode({"model": "m", "input": "hi", **changes}))
    turn = read_response(request, DEFAULTS)
    seals = "reasoning.encrypted_content" in changes.get("include", [])
    return ResponsesWriter(
        initial_response(request, turn, "m"),
        Fresh(Sealer("a secret of sixteen") if seals else None),
        logprobs=turn.sampling.logprobs is not None,
    )


@given(answers(), st.booleans())
def test_the_events_of_a_response_fold_to_it(events: list[OutputEvent], logprobs: bool) -> None:
    """RS-01 to RS-18, R-01 to R-10."""
    include = ["message.output_text.logprobs"] if logprobs else []
    writer = response_writer(include=include)
    sent = writer.start()
    for event in events:
        sent += writer.event(event)
    final = fold_response(as_json(sent))

    assert final == json.loads(encode(writer.response)), "RS-16"
    texts_ = [
        part["text"]
        for item in final["output"]
        if item["type"] == "message"
        for part in item["content"]
        if "text" in part
    ]
    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "".join(texts_)
    assert [e.id for e in events if isinstance(e, ToolCallStart)] == [
        item["call_id"] for item in final["output"] if item["type"] == "function_call"
    ]
    finish = events[-1]
    assert isinstance(finish, Finish)
    cut = finish.reason == "length"
    assert (final["status"] == "incomplete") == cut, "R-05, R-06"
    states = [item["status"] for item in final["output"]]
    assert "incomplete" not in states[:-1], "R-07"
    whole = not isinstance(events[-2], ToolCallEnd) or events[-2].complete if len(events) > 1 else True
    assert cut or (states[-1] == "completed") == whole, "SO-05"


@given(answers())
def test_the_official_client_adds_the_events_up_to_the_response(events: list[OutputEvent]) -> None:
    """RS-03, RS-05, RS-06, RS-09 are what its accumulator trips over."""
    writer = response_writer()
    sent = writer.start()
    for event in events:
        sent += writer.event(event)
    from openai import omit

    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for value in as_json(sent):
        state.handle_event(construct_type(type_=TheirEvent, value=value))  # type: ignore[arg-type]
    if writer.response.status == "completed":
        theirs = state._completed_response
        assert theirs is not None
        ours = json.loads(encode(writer.response))
        assert [item["id"] for item in ours["output"]] == [item.id for item in theirs.output]  # type: ignore[union-attr]
        assert theirs.output_text == "".join(e.text for e in events if isinstance(e, TextDelta))


@given(answers(), st.data())
def test_a_response_can_fail_after_any_event(events: list[OutputEvent], data: st.DataObject) -> None:
    """ERR-10, ERR-11, RS-15: what was open is closed as incomplete, then `error`, then `response.failed`."""
    writer = response_writer()
    sent = writer.start()
    for event in events[: data.draw(st.integers(0, len(events) - 1))]:
        sent += writer.event(event)
    sent += writer.fail(server_error("It broke."))
    final = fold_response(as_json(sent))

    assert (final["status"], final["error"]) == ("failed", {"code": "server_error", "message": "It broke."})


def test_a_late_refusal_keeps_its_reason() -> None:
    """ERR-10: `error.code` is from the closed list of the protocol."""
    writer = response_writer()
    writer.start()
    events = as_json(writer.fail(rate_limited("Too many.")))

    assert [events[0]["code"], events[1]["response"]["error"]["code"]] == ["rate_limit_exceeded"] * 2
    assert events[0]["error"]["type"] == "rate_limit_error"


def test_a_response_echoes_its_request() -> None:
    """R-11."""
    given_fields: dict[str, Any] = {
        "instructions": "Be brief.", "max_output_tokens": 50, "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9,
        "top_logprobs": 3, "truncation": "auto", "safety_identifier": "s", "prompt_cache_key": "k", "user": "u",
        "max_tool_calls": 4, "parallel_tool_calls": False, "presence_penalty": 0.25, "frequency_penalty": -0.25,
    }  # fmt: skip
    echoed = json.loads(encode(response_writer(**given_fields).response))

    assert {key: echoed[key] for key in given_fields} == given_fields


def test_a_response_fills_in_the_defaults() -> None:
    """R-11; `store` has the effective value: without a store nothing is kept."""
    echoed = json.loads(encode(response_writer().response))
    expected = {
        "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "parallel_tool_calls": True, "tools": [],
        "truncation": "disabled", "store": False, "background": False, "metadata": {}, "instructions": None,
        "max_output_tokens": None, "previous_response_id": None, "top_logprobs": 0, "service_tier": "default",
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": None, "summary": None},
    }  # fmt: skip

    assert {key: echoed[key] for key in expected} == expected


def test_function_tools_are_echoed_with_every_key() -> None:
    """Strict clients need `description`, `parameters` and `strict`, null where absent."""
    tools = [{"type": "function", "name": "f", "parameters": None, "strict": None}]
    echoed = json.loads(encode(response_writer(tools=tools).response))["tools"]

    assert echoed == [
        {"type": "function", "name": "f", "description": None, "parameters": None, "strict": None}
    ]


def test_nothing_of_a_tool_or_of_reasoning_is_lost_in_the_echo() -> None:
    """R-11."""
    tool = {
        "type": "function", "name": "f", "description": "d", "parameters": {}, "strict": False,
        "output_schema": {"type": "object"}, "defer_loading": False, "allowed_callers": ["direct"],
    }  # fmt: skip
    reasoning = {"effort": "low", "summary": "auto", "context": "auto", "generate_summary": "auto"}
    writer = response_writer(tools=[tool], reasoning=reasoning)
    writer.start()
    writer.event(Finish("stop", Usage(1, 1)))
    echoed = json.loads(encode(writer.response))

    check_response(echoed)
    assert echoed["tools"] == [tool]
    assert echoed["reasoning"] == reasoning


def test_snapshots_do_not_change_after_they_were_made() -> None:
    """RS-04: the first events are encoded as they were, however late."""
    writer = response_writer()
    created = writer.start()[0]
    for event in (TextDelta("a"), Finish("stop", Usage(1, 1))):
        writer.event(event)

    assert json.loads(encode(created))["response"]["output"] == []
    check_response(json.loads(encode(writer.response)))
    assert msgspec.structs.asdict(created)["response"].status == "in_progress"
