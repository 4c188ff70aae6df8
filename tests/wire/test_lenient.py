"""Laws of the forms that `--lenient` accepts.

1. A form makes of its sample what docs/reference/compatibility-fields.md says; the contract decodes the result.
2. A form is idempotent, and returns the same object for a body that does not have it.
3. A body that decoding and the reader accept is read to the same turn, and uses no form.
4. The hint ends an error if and only if a form changes what the error names and the rest decodes.
5. The input of a form is never changed in place.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.bodies import ROOTS

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.conversations import CreateConversationItemsBody
from plumbline.contract._generated.responses import (
    CompactResponseMethodPublicBody,
    CreateResponse,
    TokenCountsBody,
)
from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.lenient.forms import FORMS, MAX_STOPS, READ_LATER
from plumbline.contract.wire.lenient.stage import HINT, decode_leniently, rewrite, with_hint
from plumbline.server.protocols.chat.reader import read_chat
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.completions.reader import read_completion
from plumbline.server.protocols.responses.reader import read_response

CHAT, COMPLETION, RESPONSE = CreateChatCompletionRequest, CreateCompletionRequest, CreateResponse
USER = {"role": "user", "content": "hi"}
DEFAULTS = Defaults(vocab_size=100)
PART = {"type": "input_text", "text": "hi"}
TAG = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [*messages, USER], **fields}


def called(arguments: Any) -> list[Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
    ]


def item(arguments: Any) -> list[Any]:
    return [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
    ]


def heard(*parts: Any) -> dict[str, Any]:
    return chat({"role": "user", "content": [{"type": "text", "text": "?"}, *parts]})


NESTED = {"type": "function", "function": {"name": "f", "strict": False, "parameters": {}}}
FLAT = {"type": "function", "name": "f", "strict": False, "parameters": {}}
OPEN = {"role": "assistant", "content": "so"}
CONTINUING = {"model": "m", "messages": [USER, OPEN], "continue_final_message": True, "echo": True}

SAMPLES: list[tuple[str, Any, dict[str, Any], dict[str, Any]]] = [
    ("gateway_flat_input", RESPONSE, {"input": [PART]},
     {"input": [{"type": "message", "role": "user", "content": [PART]}]}),
    ("gateway_flat_input", TokenCountsBody, {"input": [PART, PART]},
     {"input": [{"type": "message", "role": "user", "content": [PART, PART]}]}),
    ("gateway_flat_input", CompactResponseMethodPublicBody, {"model": "m", "input": [PART]},
     {"model": "m", "input": [{"type": "message", "role": "user", "content": [PART]}]}),
    ("gateway_bare_reasoning", RESPONSE, {"input": [{"type": "reasoning", "content": []}]},
     {"input": [{"type": "reasoning", "content": [], "summary": []}]}),
    ("gateway_bare_reasoning", CreateConversationItemsBody, {"items": [{"type": "reasoning", "summary": None}]},
     {"items": [{"type": "reasoning", "summary": []}]}),
    ("transformers_nested_tools", RESPONSE, {"input": "hi", "tools": [NESTED]}, {"input": "hi", "tools": [FLAT]}),
    ("transformers_nested_tools", RESPONSE,
     {"input": "hi", "tools": [NESTED, {"type": "web_search"}],
      "tool_choice": {"type": "function", "function": {"name": "f"}}},
     {"input": "hi", "tools": [FLAT, {"type": "web_search"}], "tool_choice": {"type": "function", "name": "f"}}),
    ("sglang_null_content", CHAT, chat({"role": "user", "content": None}), chat({"role": "user", "content": ""})),
    ("sglang_null_content", CHAT, chat(USER, {"role": "assistant", "content": None, "reasoning": "so"}),
     chat(USER, {"role": "assistant", "content": "", "reasoning": "so"})),
    ("sglang_null_content", CHAT, chat(USER, {"role": "assistant", "reasoning_content": "so"}),
     chat(USER, {"role": "assistant", "content": "", "reasoning_content": "so"})),
    ("sglang_object_arguments", CHAT, chat(*called({"a": 1})), chat(*called('{"a":1}'))),
    ("sglang_object_arguments", CHAT, chat(*called(None)), chat(*called("{}"))),
    ("sglang_object_arguments", RESPONSE, {"input": item(None)}, {"input": item("{}")}),
    ("sglang_object_arguments", RESPONSE, {"input": item({"a": [None]})}, {"input": item('{"a":[null]}')}),
    ("sglang_object_arguments", CreateConversationItemsBody, {"items": item({})}, {"items": item("{}")}),
    ("sglang_structural_tag", CHAT, chat(response_format={"type": "structural_tag", **TAG}), chat(structural_tag=TAG)),
    ("sglang_structural_tag", COMPLETION, {"model": "m", "prompt": "a", "response_format":
     {"type": "structural_tag", **TAG}}, {"model": "m", "prompt": "a", "structural_tag": TAG}),
    ("tabbyapi_empty_stops", CHAT, chat(stop=["a", "", "b", ""]), chat(stop=["a", "b"])),
    ("tabbyapi_empty_stops", CHAT, chat(stop=""), chat()),
    ("tabbyapi_empty_stops", CHAT, chat(stop=[]), chat()),
    ("tabbyapi_empty_stops", COMPLETION, {"model": "m", "prompt": "a", "stop": ["", ""]},
     {"model": "m", "prompt": "a"}),
    ("vllm_many_stops", CHAT, chat(stop=[*"abcde"]), chat(stop=[*"abcde"])),
    ("vllm_many_stops", COMPLETION, {"model": "m", "prompt": "a", "stop": ["a"] * MAX_STOPS},
     {"model": "m", "prompt": "a", "stop": ["a"] * MAX_STOPS}),
    ("vllm_many_stops", RESPONSE, {"input": "a", "stop": [*"abcde"]}, {"input": "a", "stop": [*"abcde"]}),
    ("vllm_echo", CHAT, chat(echo=True, logprobs=True), chat(logprobs=True)),
    ("vllm_echo", CHAT, {**CONTINUING, "logprobs": True}, {**CONTINUING, "n_probs": 1, "top_logprobs": 0}),
    ("vllm_echo", CHAT, chat(echo=True, logprobs=True, response_prefix="so", top_logprobs=3),
     chat(echo=True, response_prefix="so", n_probs=1, top_logprobs=3)),
    *(("vllm_null_members", root, {**body, **nulls}, {**body, **rest}) for root, body, nulls, rest in (
        (CHAT, chat(), {"messages": [{**USER, "name": None}]}, {"messages": [USER]}),
        (CHAT, chat(), {"tools": [{"type": "function", "function": {
            "name": "f", "description": None, "parameters": None}}]},
         {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (CHAT, chat(), {"tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": {
            "properties": {"a": {"default": None}}}}}]},
         {"tools": [{"type": "function", "function": {"name": "f", "parameters": {
             "properties": {"a": {"default": None}}}}}]}),
        (CHAT, chat(), {"response_format": {"type": "json_schema", "json_schema": {
            "name": "a", "description": None, "schema": {"const": None}}}},
         {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": None}}}}),
        (CHAT, chat(stream=True), {"stream_options": {"include_usage": None}}, {"stream_options": {}}),
        (COMPLETION, {"model": "m", "prompt": "a", "stream": True}, {"stream_options": {"include_usage": None}},
         {"stream_options": {}}),
        (RESPONSE, {"input": "hi"}, {"text": {"format": None, "verbosity": "low"}}, {"text": {"verbosity": "low"}}),
    )),
    ("vllm_audio_url", CHAT, heard({"type": "audio_url", "audio_url": {"url": "data:audio/mpeg;base64,AAAA"}}),
     heard({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}})),
    ("transformers_generation_config", CHAT,
     chat(generation_config='{"max_new_tokens": 5, "do_sample": false, "eos_token_id": 3}'),
     chat(max_completion_tokens=5, temperature=0, stop_token_ids=[3])),
    ("transformers_generation_config", CHAT,
     chat(generation_config={"max_new_tokens": 5, "temperature": 0.5, "stop_strings": "a", "top_k": 3,
                             "num_return_sequences": 2, "eos_token_id": [3, 4], "transformers_version": "5.0.0"},
          temperature=0.75, max_tokens=7),
     chat(stop="a", top_k=3, n=2, stop_token_ids=[3, 4], temperature=0.75, max_tokens=7)),
    ("transformers_generation_config", COMPLETION,
     {"model": "m", "prompt": "a", "generation_config": {"max_new_tokens": 5, "min_new_tokens": 2, "min_p": 0.5}},
     {"model": "m", "prompt": "a", "max_tokens": 5, "min_tokens": 2, "min_p": 0.5}),
    ("transformers_generation_config", RESPONSE,
     {"input": "a", "generation_config": {"max_new_tokens": 50, "repetition_penalty": 1.5}},
     {"input": "a", "max_output_tokens": 50, "repetition_penalty": 1.5}),
]  # fmt: skip
each_sample = pytest.mark.parametrize(
    ("name", "root", "body", "wanted"), SAMPLES, ids=[f"{s[0]}-{n}" for n, s in enumerate(SAMPLES)]
)


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


def read(request: Any) -> Any:
    match request:
        case CreateChatCompletionRequest():
            return read_chat(request, DEFAULTS, modalities=("audio",))
        case CreateCompletionRequest():
            return read_completion(request, DEFAULTS)
        case CreateResponse():
            return read_response(request, DEFAULTS)
        case _:
            return request


def refusal(root: Any, body: bytes) -> ApiError | None:
    """Return the error of the contract's own road, if any."""
    try:
        read(decode(root, body))
    except ApiError as error:
        return error
    return None


def form(root: Any, name: str) -> Any:
    return next(form for form in FORMS[root.__name__] if form.__name__ == name)


@each_sample
def test_a_form_becomes_what_the_contract_has(name: str, root: Any, body: Any, wanted: Any) -> None:
    before = copy.deepcopy(body)
    decoded, (rewritten, names) = decode_leniently(root, raw(body))

    assert names == (name,)
    assert json.loads(rewritten) == wanted
    read(decoded)
    if name != "vllm_many_stops":
        assert read(decoded) == read(decode(root, raw(wanted)))
        assert form(root, name)(body) == wanted
        assert body == before
    else:
        assert decoded.stop == wanted["stop"]


@each_sample
def test_a_form_is_idempotent(name: str, root: Any, body: Any, wanted: Any) -> None:
    if name != "vllm_many_stops":
        assert form(root, name)(wanted) is wanted


@each_sample
def test_an_error_has_the_hint_that_the_form_is_accepted(
    name: str, root: Any, body: Any, wanted: Any
) -> None:
    error = refusal(root, raw(body))
    if name == "transformers_generation_config":
        # The only form that means something else without the option: an unknown field, which is ignored by name.
        assert error is None
    else:
        assert error is not None
        hinted = with_hint(error, root, raw(body))
        assert hinted.message == f"{error.message} {HINT}"
        assert (hinted.status, hinted.param, hinted.code) == (error.status, error.param, error.code)


@each_sample
def test_another_mistake_has_no_hint(name: str, root: Any, body: Any, wanted: Any) -> None:
    """Neither where it is the one that is named, nor where it would still be there."""
    broken = {**body, "model": 5, "items": 5}
    error = refusal(root, raw(broken))
    assert error is not None
    assert with_hint(error, root, raw(broken)).message == error.message
    with pytest.raises(ApiError):
        decode_leniently(root, raw(broken))


REFUSED = {
    "65 stops": (CHAT, chat(stop=["a"] * (MAX_STOPS + 1)), "stop"),
    "a stop that is a number": (CHAT, chat(stop=["a", 1, *"abcd"]), "stop[1]"),
    "an item among parts": (RESPONSE, {"input": [PART, {"role": "user", "content": "a"}]}, "input[0].type"),
    "audio of the web": (
        CHAT,
        heard({"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}),
        "messages[0].content[1].type",
    ),
    "audio of another kind": (
        CHAT,
        heard({"type": "audio_url", "audio_url": {"url": "data:audio/ogg;base64,AAAA"}}),
        "messages[0].content[1].type",
    ),
    "an assistant with nothing": (
        CHAT,
        chat(USER, {"role": "assistant", "content": None}),
        "messages[1].content",
    ),
    "arguments that are a list": (
        CHAT,
        chat(*called([1])),
        "messages[0].tool_calls[0].function.arguments",
    ),
    "beams": (CHAT, chat(generation_config={"num_beams": 4}), "generation_config.num_beams"),
    "choices of Responses": (
        RESPONSE,
        {"input": "a", "generation_config": {"num_return_sequences": 2}},
        "generation_config.num_return_sequences",
    ),
    "a configuration that is a number": (CHAT, chat(generation_config=5), "generation_config"),
    "a configuration that is no JSON": (CHAT, chat(generation_config="{"), "generation_config"),
    "two structural tags": (
        CHAT,
        chat(response_format={"type": "structural_tag", **TAG}, structural_tag=TAG),
        "response_format.type",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart_is_refused_by_name_and_without_a_hint(name: str) -> None:
    root: Any
    root, body, param = REFUSED[name]
    with pytest.raises(ApiError) as refused:
        read(decode_leniently(root, raw(body))[0])
    assert (refused.value.status, refused.value.param) == (400, param)
    error = refusal(root, raw(body))
    assert error is None or with_hint(error, root, raw(body)) is error


# Bodies that may have forms and may be valid

texts = st.sampled_from(["", "a", "b", "so"])
_ARGUMENTS: tuple[Any, ...] = ({}, "{}")
arguments = st.sampled_from(["{}", {}, {"a": 1}, None])
parts = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "audio_url", "text": "a"},
    ]
)
messages = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user")},
        optional={
            "content": st.none() | texts | st.lists(parts, min_size=1, max_size=2),
            "tool_calls": st.just([{"type": "function", "function": {"arguments": {}}}]),
            "reasoning": texts,
        },
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant")},
        optional={
            "content": st.none() | texts,
            "reasoning": st.none() | texts,
            "reasoning_content": st.none() | texts,
            "refusal": st.none() | texts,
            "tool_calls": st.sampled_from([None, [], *(called(a)[0]["tool_calls"] for a in _ARGUMENTS)]),
        },
    ),
    st.just({"role": "tool", "tool_call_id": "c", "content": "r"}),
    arguments.map(lambda value: {"role": "assistant", "function_call": {"name": "f", "arguments": value}}),
)
stops = st.none() | texts | st.lists(texts, max_size=7)
shared: dict[str, Any] = {
    "stop": stops,
    "temperature": st.sampled_from([None, 0, 0.5, 9]),
    "structural_tag": st.sampled_from([None, TAG]),
    "response_format": st.sampled_from(
        [None, {"type": "text"}, {"type": "structural_tag", **TAG}, {"type": []}, "x"]
    ),
    "unknown": st.just({"audio_url": {}, "function": {}}),
}
chats = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(messages, max_size=4)},
    optional={
        **shared,
        "echo": st.sampled_from([None, True, False, 1]),
        "logprobs": st.sampled_from([None, True, False]),
        "top_logprobs": st.sampled_from([None, 0, 2]),
        "n_probs": st.sampled_from([None, 0, 2]),
        "response_prefix": st.sampled_from([None, "so"]),
        "continue_final_message": st.sampled_from([None, True, False]),
    },
)
completions = st.fixed_dictionaries({"model": st.just("m"), "prompt": st.just("a")}, optional=shared)
tools = st.sampled_from([NESTED, FLAT, {**FLAT, **NESTED}, {"type": "web_search"}, {"type": "function"}])
items = st.sampled_from(
    [USER, PART, {"type": "input_image", "image_url": "data:,"}, *item({}), *item("{}"), {"id": "a"}, 5]
)
responses = st.fixed_dictionaries(
    {"input": st.just("hi") | st.lists(items, max_size=3)},
    optional={
        "stop": stops,
        "tools": st.lists(tools, max_size=2),
        "tool_choice": st.sampled_from(["auto", {"type": "function", "name": "f"}, NESTED, {"type": "x"}]),
        "reasoning": st.sampled_from([None, {"effort": "low"}]),
    },
)
requests = st.one_of(
    chats.map(lambda body: (CHAT, body)),
    completions.map(lambda body: (COMPLETION, body)),
    responses.map(lambda body: (RESPONSE, body)),
)


@given(requests)
def test_a_valid_body_is_read_to_the_same_turn(request: tuple[Any, Any]) -> None:
    root, body = request
    if refusal(root, raw(body)) is None:
        decoded, found = decode_leniently(root, raw(body))
        assert found == (raw(body), ())
        assert read(decoded) == read(decode(root, raw(body)))
        assert all(form(body) is body for form in FORMS[root.__name__])


@given(requests)
def test_every_form_is_idempotent_and_pure(request: tuple[Any, Any]) -> None:
    root, body = request
    before = copy.deepcopy(body)
    for change in FORMS[root.__name__]:
        changed = change(body)
        assert change(changed) is changed
        assert (changed is body) == (changed == body)
    assert body == before
    rewritten = rewrite(root, raw(body))
    again = None if rewritten is None else rewrite(root, rewritten.body)
    assert again is None or again.forms == ("vllm_many_stops",)


@given(requests)
def test_the_hint_is_there_only_if_the_option_removes_the_error(request: tuple[Any, Any]) -> None:
    root, body = request
    error = refusal(root, raw(body))
    if error is not None and with_hint(error, root, raw(body)) is not error:
        decoded, found = decode_leniently(root, raw(body))
        assert found.forms
        left = None
        try:
            read(decoded)
        except ApiError as other:
            left = other.message
        assert left != error.message


@given(requests, st.sampled_from(["escaped", "plain"]))
def test_a_form_that_decodes_is_found_however_its_names_are_written(
    request: tuple[Any, Any], spelling: str
) -> None:
    """READ_LATER saves parsing a body again, and must not change what is found."""
    root, body = request
    text = raw(body)
    if spelling == "escaped":
        text = text.replace(b'"stop"', b'"st\\u006fp"').replace(b'"echo"', b'"ech\\u006f"')
    try:
        found = decode_leniently(root, text)[1]
    except ApiError:
        return
    wanted = rewrite(root, text)
    assert found == (wanted or (text, ()))
    assert wanted is None or refusal(root, text) is not None or any(name in text for name in READ_LATER)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"nul", b'"a"', b"[" * 9_000, b'{"a":' * 9_000, b"\xff", b'{"stop":[""]'], ids=str
)
@pytest.mark.parametrize("root", ROOTS.values())
def test_a_body_that_is_no_object_is_refused_as_ever(root: Any, body: bytes) -> None:
    error = refusal(root, body)
    assert error is not None
    assert rewrite(root, body) is None
    assert with_hint(error, root, body) is error
    with pytest.raises(ApiError) as refused:
        decode_leniently(root, body)
    assert refused.value.message == error.message


def test_an_image_without_a_detail_may_say_so() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,", "detail": None}}
    body = json.dumps(chat({"role": "user", "content": [part]})).encode()
    with pytest.raises(ApiError):
        decode(CHAT, body)
    assert decode_leniently(CHAT, body)[1].forms == ("vllm_null_members",)
