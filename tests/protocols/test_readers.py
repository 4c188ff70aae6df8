"""Every field of a request takes effect or is refused by its name (HTTP-10, ERR-05, ERR-07, CHAT-14)."""
# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect
from openai.types.beta.response_create_params import ResponseCreateParamsBase as BetaResponseCreateParams
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseCreateParams
from support.about import about
from support.contract import CONTRACT
from support.models import TOKENIZER

from plumbline.answer.turn import ChatPrompt, Message, TextPrompt, TokenPrompt, ToolCall, Turn
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.names.spellings import SPELLINGS
from plumbline.server.protocols.common.sampling.parameters import Defaults

from .minimal_requests import FLAT_TOOL, MINIMAL, ROOTS, TOOL, USER, read, refusal

_SHARED: dict[str, Any] = {
    "temperature": 0.3, "top_p": 0.4, "top_k": 7, "min_p": 0.2, "seed": 5, "frequency_penalty": 0.5,
    "presence_penalty": 0.6, "repetition_penalty": 1.2, "logit_bias": {"5": 3}, "min_tokens": 2, "stop_token_ids": [5],
    "ignore_eos": True, "skip_special_tokens": False, "priority": 3, "cache_salt": "s", "extra_key": "k", "stop": ["a"], "user": "u",
    "structured_outputs": {"regex": "a"}, "bad_words": ["a"], "allowed_token_ids": [5],
    "json_schema": {}, "regex": "a", "grammar": 'root ::= "a"', "ebnf": 'root ::= "a"',
    "request_id": "r", "rid": "r",
}  # fmt: skip
_GUIDED: dict[str, Any] = {
    "guided_json": {}, "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": "a",
    "return_token_ids": True, "truncate_prompt_tokens": 5, "truncation_side": "right",
    "include_stop_str_in_output": True,
    "structural_tag": {"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["a"]},
    "prompt_logprobs": 1, "logprob_token_ids": [5], "return_tokens_as_token_ids": True, "use_beam_search": True,
    "length_penalty": 2, "add_special_tokens": False, "add_bos_token": False, "kv_transfer_params": {},
    "mm_processor_kwargs": {}, "lora_path": "a", "return_hidden_states": True, "session_params": {},
    "logits_processors": ["x"], "custom_logit_processor": "x", "custom_params": {"a": 1},
}  # fmt: skip
_CHAIN: dict[str, Any] = {
    "repeat_penalty": 1.2, "repeat_last_n": 5, "typical_p": 0.5, "top_a": 0.5, "tfs": 0.5, "top_n_sigma": 2,
    "xtc_probability": 0.5, "dry_multiplier": 1, "mirostat": 2, "dynatemp_range": 0.5, "samplers": ["top_k"],
    "banned_strings": ["a"], "cache_prompt": False, "id_slot": 3, "n_probs": 2,
    "use_beam_search": True, "length_penalty": 0.5,
}  # fmt: skip
"""Samplers of llama.cpp and TabbyAPI."""
_FACTS: dict[str, Any] = {"prompt_logprobs": 2, "logprob_token_ids": [5], "return_tokens_as_token_ids": True}
"""Facts about tokens that the turn does not know of: they shape the answer only."""
_CHAIN_SHAPES: dict[str, Any] = {
    "xtc_threshold": 0.2, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9,
    "dry_sequence_breakers": ["a"], "mirostat_tau": 3, "mirostat_eta": 0.2, "dynatemp_exponent": 2,
}  # fmt: skip
"""They shape samplers that are off by default, so alone they have no effect."""
_IDENTITY: dict[str, Any] = {
    "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
    "prompt_cache_options": {}, "service_tier": "auto",
}  # fmt: skip

SAMPLES: dict[str, dict[str, Any]] = {
    "chat": {
        **_SHARED, **_GUIDED, **_IDENTITY, **_CHAIN, **_CHAIN_SHAPES, **_FACTS,
        "messages": [{"role": "user", "content": "other"}], "top_logprobs": 2, "modalities": ["text", "audio"],
        "verbosity": "low", "reasoning_effort": "low", "max_completion_tokens": 5, "max_tokens": 6,
        "web_search_options": {}, "response_format": {"type": "json_object"},
        "audio": {"voice": "alloy", "format": "wav"}, "store": True, "moderation": {"model": "m"}, "stream": True,
        "logprobs": True, "n": 2, "prediction": {"type": "content", "content": "a"}, "stream_options": {},
        "tools": [TOOL], "tool_choice": "required", "x_repair_calls": True, "parallel_tool_calls": False,
        "function_call": "none",
        "functions": [{"name": "f"}], "chat_template_kwargs": {"a": 1}, "add_generation_prompt": False,
        "continue_final_message": True, "documents": [{}], "thinking_token_budget": 5,
        "response_prefix": "Sure", "echo": True, "include_reasoning": False, "separate_reasoning": False,
        "stream_reasoning": False, "chat_template": "a", "input_ids": [5], "template_vars": {"a": 1},
        "add_special_tokens": True, "add_bos_token": True,
    },
    "completions": {
        **_SHARED, **_GUIDED, **_CHAIN, **_CHAIN_SHAPES, **_FACTS,
        "prompt": "other", "best_of": 3, "echo": True, "logprobs": 2, "max_tokens": 5, "n": 2, "stream": True,
        "stream_options": {}, "suffix": "a",
    },
    "responses": {
        "bad_words": ["a"], "allowed_token_ids": [5],
        **_SHARED, **_IDENTITY, **_CHAIN, **_CHAIN_SHAPES,
        "input": "other", "top_logprobs": 2, "previous_response_id": "resp_1", "background": True,
        "max_tool_calls": 3, "text": {"format": {"type": "json_object"}}, "tools": [FLAT_TOOL],
        "tool_choice": "required", "x_repair_calls": True, "prompt": {"id": "p"}, "truncation": "auto",
        "reasoning": {"effort": "low"}, "enable_response_messages": True, "logits_processors": ["x"],
        "custom_logit_processor": "x", "custom_params": {"a": 1},
        "include": ["message.output_text.logprobs"], "parallel_tool_calls": False, "store": True,
        "instructions": "Be brief.", "moderation": {"model": "m"}, "stream": True, "stream_options": {},
        "conversation": "conv_1", "context_management": [{"type": "compaction"}], "max_output_tokens": 20,
        "chat_template_kwargs": {"a": 1}, "thinking_token_budget": 5, "include_stop_str_in_output": True,
        "access_programs": {"a": 1}, "background_options": {"a": 1}, "image": {"a": 1}, "multi_agent": {"a": 1},
    },
}  # fmt: skip
"""For each field a value that means something."""

WITHOUT_EFFECT: dict[str, set[str]] = {
    # R-19, CHAT-15: for the service's own bookkeeping, or about how the answer is sent and not its text. The fields
    # about tools have no effect as long as there are no tools.
    "chat": {
        "x_skip_invalid_tools",
        *("model", "stream", "user", "request_id", "rid"),
        "verbosity",
        "parallel_tool_calls",
        *_IDENTITY,
        *_CHAIN_SHAPES,
        "prompt_logprobs",
        *("prediction", "include_reasoning", "separate_reasoning", "stream_reasoning"),
        *("return_tokens_as_token_ids", "sse_ping_interval"),
    },
    "completions": {
        *("model", "stream", "user", "request_id", "rid"),
        *_CHAIN_SHAPES,
        "prompt_logprobs",
        *("return_tokens_as_token_ids", "sse_ping_interval"),
    },
    "responses": {
        *("model", "stream", "user", "request_id", "rid"),
        "x_skip_invalid_tools",
        "max_tool_calls",
        "context_management",
        "prompt",
        "top_logprobs",
        "parallel_tool_calls",
        *_IDENTITY,
        *_CHAIN_SHAPES,
    },
}


def fields(api: str) -> list[inspect.Field]:
    kind = inspect.type_info(ROOTS[api][0])
    assert isinstance(kind, inspect.StructType)
    return list(kind.fields)


@pytest.mark.parametrize("api", ROOTS)
def test_no_field_is_ignored_silently(api: str) -> None:
    """A field changes the turn, or is refused by its name, or is one of the few hints without effect."""
    for field in fields(api):
        with about(field.encode_name):
            if field.encode_name not in SPELLINGS:
                _has_an_effect(api, field.encode_name)


@pytest.mark.parametrize("api", ROOTS)
def test_every_spelling_is_read_as_ours(api: str) -> None:
    """Alone, and beside the same value under our name; another value there is refused."""
    names = {field.encode_name for field in fields(api)}
    found = {name: ours for name, ours in SPELLINGS.items() if {name, ours} <= names}
    assert len(found) > 8
    for name, ours in found.items():
        value = SAMPLES[api][ours]
        for sent in ({name: value}, {name: value, ours: value}, {name: None, ours: value}):
            with about(sent):
                assert turn_or_refusal(api, sent) == turn_or_refusal(api, {ours: value})
        assert refusal(api, **{name: value, ours: _another(value)}).param == name


def test_the_spellings_are_those_that_the_contract_describes() -> None:
    described = {
        name: match[1]
        for schema in CONTRACT["components"]["schemas"].values()
        for name, field in schema.get("properties", {}).items()
        if (match := re.fullmatch(r"(?:Other|Older) spelling of `(\w+)`\..*", field.get("description", "")))
    }
    assert described == SPELLINGS


def _another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value / 2 if isinstance(value, float) else value - 1
        case list():
            return [*value, *value]
        case dict():
            return {**value, "another": 1}
        case _:
            return f"{value}{value}"


def turn_or_refusal(api: str, sent: dict[str, Any]) -> Any:
    try:
        return read(api, **sent)
    except ApiError as error:
        return error.message


def test_all_tokens_are_zero_to_one_server_and_minus_one_to_another() -> None:
    shaped = {"dry_multiplier": 1}
    assert read("chat", **shaped, dry_range=0) == read("chat", **shaped, dry_penalty_last_n=-1)


def _has_an_effect(api: str, field: str) -> None:
    if field in WITHOUT_EFFECT[api]:
        if field in SAMPLES[api]:
            assert read(api, **{field: SAMPLES[api][field]}) == read(api)
        return
    refused: ApiError | None = None
    try:
        assert read(api, **{field: SAMPLES[api][field]}) != read(api)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        assert refused.param is not None
        assert refused.param.partition(".")[0].partition("[")[0] == field


@pytest.mark.parametrize(
    ("field", "switch"),
    [
        (
            field,
            {
                name: value
                for name, value in _CHAIN.items()
                if name.partition("_")[0] == field.partition("_")[0]
            },
        )
        for field in _CHAIN_SHAPES
    ],
)
@pytest.mark.parametrize("api", ROOTS)
def test_a_shape_matters_where_its_sampler_is_on(api: str, field: str, switch: dict[str, Any]) -> None:
    assert read(api, **switch, **{field: _CHAIN_SHAPES[field]}) != read(api, **switch)


@pytest.mark.parametrize("api", ROOTS)
def test_null_is_the_same_as_nothing(api: str) -> None:
    """HTTP-10."""
    names = [
        field.encode_name
        for field in fields(api)
        if isinstance(field.type, inspect.UnionType)
        and any(isinstance(kind, inspect.NoneType) for kind in field.type.types)
        and not field.required
        and field.encode_name != "input"
    ]
    assert names
    for name in names:
        with about(name):
            assert read(api, **{name: None}) == read(api)


@pytest.mark.parametrize(("api", "field"), [("completions", "prompt"), ("responses", "input")])
def test_null_for_what_is_needed_is_a_missing_field(api: str, field: str) -> None:
    """HTTP-10, ERR-04."""
    error = refusal(api, **{field: None})

    assert (error.param, error.code) == (field, "missing_required_parameter")


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
LEGACY: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "f", "arguments": "{}"},
}
RETURNED: dict[str, Any] = {"role": "function", "name": "f"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "r"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("api", "changes", "param", "code"),
    [
        ("chat", {"stream_options": {"include_usage": True}}, "stream_options", None),
        ("chat", {"top_logprobs": 2}, "top_logprobs", None),
        ("chat", {"top_logprobs": 2, "logprobs": False}, "top_logprobs", None),
        ("chat", {"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ("chat", {"stop": ""}, "stop", "invalid_value"),
        ("chat", {"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ("chat", {"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
        ("chat", {"logit_bias": {"²": 1}}, "logit_bias", "invalid_value"),
        ("chat", {"logit_bias": {HUGE: 1}}, "logit_bias", "invalid_value"),
        ("chat", {"logit_bias": {str(TOKENIZER.vocab_size): 1}}, "logit_bias", "invalid_value"),
        ("chat", {"stop_token_ids": [1, 10**6]}, "stop_token_ids[1]", "unsupported_value"),
        ("chat", {"allowed_token_ids": [10**6]}, "allowed_token_ids[0]", "unsupported_value"),
        ("chat", {"min_tokens": 6, "max_tokens": 5}, "min_tokens", "invalid_value"),
        ("chat", {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", None),
        ("chat", {"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0].type", "unsupported_value"),
        ("chat", {"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "missing_required_parameter"),
        ("chat", {"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role", None),
        ("chat", {"messages": [LEGACY, {"role": "function", "name": "g", "content": "x"}]}, "messages[1].name", None),
        ("chat", {"messages": [LEGACY]}, "messages[0].tool_calls", None),
        ("chat", {"messages": [{**LEGACY, "tool_calls": [CALL]}]}, "messages[0].function_call", None),
        ("chat", {"messages": [{"role": "assistant", "content": "a", "audio": {"id": "x"}}]}, "messages[0].audio", "unsupported_parameter"),
        ("chat", {"messages": [USER, RESULT]}, "messages[1].role", None),
        ("chat", {"messages": [CALLS, {**RESULT, "tool_call_id": "c2"}]}, "messages[1].tool_call_id", None),
        ("chat", {"messages": [CALLS, RESULT, RESULT]}, "messages[2].role", None),
        ("chat", {"messages": [CALLS, USER, RESULT]}, "messages[1].role", None),
        ("chat", {"messages": [USER, CALLS]}, "messages[1].tool_calls", None),
        ("chat", {"tool_choice": "required"}, "tool_choice", None),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice.function.name", None),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "tools": [TOOL]}, "tool_choice.allowed_tools.tools", "invalid_value"),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}}, "tools": [TOOL]}, "tool_choice.allowed_tools.tools[0]", None),
        ("chat", {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "mcp"}]}}, "tools": [TOOL]}, "tool_choice.allowed_tools.tools[0].type", "unsupported_value"),
        ("chat", {"tool_choice": {"type": "custom", "custom": {"name": "f"}}, "tools": [TOOL]}, "tool_choice.custom.name", None),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}]}, "tools[0].function.parameters", "invalid_json_schema"),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema.schema", "missing_required_parameter"),
        ("chat", {"response_format": {"type": "json_object"}, "guided_json": {}}, "guided_json", "invalid_value"),
        ("chat", {"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "invalid_value"),
        ("completions", {"stream_options": {}}, "stream_options", None),
        ("completions", {"best_of": 1, "n": 2}, "best_of", "invalid_value"),
        ("completions", {"best_of": 2, "stream": True}, "best_of", None),
        ("completions", {"prompt": [10**6]}, "prompt[0]", "unsupported_value"),
        ("completions", {"prompt": [[1], [1, 10**6]]}, "prompt[1][1]", "unsupported_value"),
        ("responses", {"stream_options": {}}, "stream_options", None),
        ("responses", {"input": []}, "input", "invalid_value"),
        ("responses", {"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
        ("responses", {"tools": [{**FLAT_TOOL, "strict": True, "parameters": {"type": "object"}}]}, "tools[0].parameters", "invalid_json_schema"),
        ("responses", {"tools": [{**FLAT_TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "unsupported_value"),
        ("responses", {"tools": [{**FLAT_TOOL, "allowed_callers": ["programmatic"]}]}, "tools[0].allowed_callers", "unsupported_value"),
        ("chat", {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "unsupported_parameter"),
        ("responses", {"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt", "unsupported_parameter"),
        ("responses", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", None),
        ("responses", {"tool_choice": {"type": "function", "name": "g"}, "tools": [FLAT_TOOL]}, "tool_choice.name", None),
        ("responses", {"tool_choice": {"type": "web_search_preview"}}, "tool_choice.type", "unsupported_value"),
        ("responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id", None),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u", "detail": "auto"}]}]}, "input[0].content[0].type", "unsupported_value"),
        ("responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": {}, "strict": True}}}, "text.format.schema", "invalid_json_schema"),
        ("responses", {"min_tokens": 30, "max_output_tokens": 20}, "min_tokens", "invalid_value"),
    ],
)  # fmt: skip
def test_a_refusal_names_its_field(api: str, changes: dict[str, Any], param: str, code: str | None) -> None:
    """ERR-04, ERR-05; CS-09, LP-05, TOOL-08, CHAT-14, CMP-06, ST-05 and the others, each at its field."""
    error = refusal(api, **changes)

    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("top_k", [-1, 0, TOKENIZER.vocab_size, 10**30])
def test_a_top_k_of_all_tokens_is_none(top_k: int) -> None:
    """What goes to the engine fits its arrays."""
    assert read("chat", top_k=top_k).sampling.top_k == 0


def test_the_newer_limit_wins() -> None:
    """CHAT-07."""
    assert read("chat", max_tokens=5, max_completion_tokens=7).sampling.max_tokens == 7


def test_the_sampling_defaults_of_the_model_apply() -> None:
    own = Defaults(temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, vocab_size=300)
    for api, (root, reader) in ROOTS.items():
        found = reader(decode(root, encode(MINIMAL[api])), own)
        sampling = (found if isinstance(found, Turn) else found.turns[0]).sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.9, 20)
        assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)


# Conversations


def messages(*given: dict[str, Any]) -> tuple[Message, ...]:
    prompt = read("chat", messages=list(given)).prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.messages


def test_every_role_is_read() -> None:
    """CHAT-13, TOOL-13."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    found = messages(
        {"role": "system", "content": "s"},
        {"role": "developer", "content": parts},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": "words", "reasoning_content": "thought", "tool_calls": [CALL]},
        RESULT,
        {"role": "assistant", "content": None, "refusal": "no", "reasoning": "hm"},
    )

    assert found == (
        Message(role="system", content="s"),
        Message(role="developer", content="a\nb", parts=("a", "b")),
        Message(role="user", content="a\nb", parts=("a", "b"), name="Ann"),
        Message(
            role="assistant", content="words", reasoning="thought", tool_calls=(ToolCall("c1", "f", "{}"),)
        ),
        Message(role="tool", content="r", tool_call_id="c1"),
        Message(role="assistant", content="no", reasoning="hm"),
    )


def test_deprecated_calls_and_results_become_tool_calls() -> None:
    """CHAT-13: the role `function`."""
    found = messages(
        LEGACY, {"role": "function", "name": "f", "content": None}, LEGACY, {**RETURNED, "content": "r"}
    )

    assert found == (
        Message(role="assistant", tool_calls=(ToolCall("fn0000000", "f", "{}"),)),
        Message(role="tool", content="", tool_call_id="fn0000000"),
        Message(role="assistant", tool_calls=(ToolCall("fn0000002", "f", "{}"),)),
        Message(role="tool", content="r", tool_call_id="fn0000002"),
    )


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[dict[str, Any]], bool]:
    """Calls and results in any order; and whether every call is answered before the next other message."""
    roles = draw(st.lists(st.sampled_from(["user", "c1", "c2", "c1 c2", "r1", "r2"]), max_size=8))
    found: list[dict[str, Any]] = []
    open_calls: set[str] = set()
    good = True
    for role in roles:
        if role.startswith("r"):
            call = f"c{role[1]}"
            good &= call in open_calls
            open_calls.discard(call)
            found.append({"role": "tool", "tool_call_id": call, "content": "x"})
            continue
        good &= not open_calls
        ids = role.split() if role != "user" else []
        open_calls = set(ids)
        found.append({**CALLS, "tool_calls": [{**CALL, "id": i} for i in ids]} if ids else USER)
    return [*found, *([] if found else [USER])], good and not open_calls


@given(conversations())
def test_calls_are_answered_at_once_or_refused(case: tuple[list[dict[str, Any]], bool]) -> None:
    """CHAT-14."""
    conversation, good = case
    if good:
        assert len(messages(*conversation)) == len(conversation)
    else:
        refusal("chat", messages=conversation)


def test_the_effort_and_the_variables_of_a_client_are_kept_apart() -> None:
    for effort in ("none", "low", "high"):
        chat = read("chat", reasoning_effort=effort, chat_template_kwargs={"a": 1}).prompt
        response = read("responses", reasoning={"effort": effort}, chat_template_kwargs={"a": 1}).prompt
        assert chat.effort == response.effort == effort
        assert chat.template_kwargs == response.template_kwargs == {"a": 1}


def test_without_a_choice_no_tool_is_shown() -> None:
    """TOOL-03."""
    assert read("chat", tools=[TOOL], tool_choice="none").prompt.tools == ()
    assert read("responses", tools=[FLAT_TOOL], tool_choice="none").prompt.tools == ()
    assert [tool.name for tool in read("chat", tools=[TOOL]).prompt.tools] == ["f"]


# Legacy prompts


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", [TextPrompt("a")]),
        (["a", "b"], [TextPrompt("a"), TextPrompt("b")]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
    ],
)
def test_a_prompt_has_four_shapes(prompt: Any, expected: list[Any]) -> None:
    """CMP-02."""
    assert [turn.prompt for turn in read("completions", prompt=prompt).turns] == expected


@pytest.mark.parametrize(
    "prompt", [[], ["a", 1], [1, "a"], [[1], 2], [["a"]], [[]], {}, 1, [True], [-1], [1.5]]
)
def test_a_prompt_of_another_shape_is_refused(prompt: Any) -> None:
    """ERR-08."""
    error = refusal("completions", prompt=prompt)

    assert error.param is not None
    assert error.param.startswith("prompt")


def test_completions_have_other_defaults() -> None:
    """CMP-03, CMP-06."""
    plan = read("completions")

    assert (plan.turns[0].sampling.max_tokens, plan.num_choices, plan.best_of) == (16, 1, 1)
    assert read("completions", best_of=0, n=2).best_of == 2
    assert read("completions", best_of=3).turns[0].sampling.logprobs == 0, "candidates are scored"
    assert read("completions", max_tokens=0).turns[0].sampling.max_tokens == 0


def test_every_parameter_of_the_official_client_is_in_the_contract() -> None:
    """So it is honoured, or a 400 that names it."""
    for theirs, api in (
        ((ResponseCreateParams, BetaResponseCreateParams), "responses"),
        ((ChatParams,), "chat"),
        ((CompletionParams,), "completions"),
    ):
        names = {name for each in theirs for name in each.__annotations__} - {"betas"}
        assert names - {*ROOTS[api][0].__struct_encode_fields__} == set(), api
