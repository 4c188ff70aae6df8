"""Laws of what a request of the Messages API asks for: tool choice, thinking, and refusals by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaMessageCreateParams
from anthropic.types.message_create_params import MessageCreateParamsBase as MessageCreateParams
from support.judges import valid

from plumbline.answer.turn import ChatPrompt
from plumbline.contract._generated.messages import CreateMessageRequest
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.error_forms import message_error
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.common.sampling.parameters import Defaults
from plumbline.server.protocols.messages.reader import _REFUSED, read_message

from .message_requests import (
    BODY,
    CALL,
    PREFILLED,
    RESULT,
    SAID,
    SEALER,
    THOUGHT,
    TOOL,
    Json,
    after_call,
    prompt,
    read,
    refusal,
)


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        (None, "auto", None, True),
        ({"type": "auto"}, "auto", None, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", None, False),
        ({"type": "any"}, "required", None, True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", None, False),
        ({"type": "tool", "name": "f"}, "required", ("f",), False),
        ({"type": "none"}, "none", None, True),
    ],
)
def test_a_choice_of_tools_is_read(choice: Any, mode: str, names: Any, parallel: bool) -> None:
    """MSG-04."""
    found = read(tools=[TOOL], tool_choice=choice)
    assert (found.tool_choice.mode, found.tool_choice.names, found.tool_choice.parallel) == (
        mode,
        names,
        parallel,
    )
    assert isinstance(found.prompt, ChatPrompt)
    assert len(found.prompt.tools) == (mode != "none")


def test_examples_of_arguments_are_shown_to_the_model() -> None:
    (tool,) = prompt(tools=[{**TOOL, "description": "Do f.", "input_examples": [{"x": "é"}]}]).tools
    assert tool.description == 'Do f.\n\nExamples of the input:\n{"x": "é"}'


@pytest.mark.parametrize(
    ("thinking", "config", "effort", "budget"),
    [
        (None, None, None, None),
        ({"type": "disabled"}, None, "none", None),
        ({"type": "disabled"}, {"effort": "high"}, "none", None),
        ({"type": "adaptive"}, None, "medium", None),
        ({"type": "adaptive"}, {"effort": "max"}, "max", None),
        ({"type": "enabled", "budget_tokens": 1024}, None, "medium", 1024),
        (None, {"effort": "low"}, "low", None),
    ],
)
def test_thinking_is_read(thinking: Any, config: Any, effort: str | None, budget: int | None) -> None:
    found = read(thinking=thinking, output_config=config, max_tokens=1025)
    assert isinstance(found.prompt, ChatPrompt)
    assert (found.prompt.effort, found.thinking_budget) == (effort, budget)


def test_a_budget_changes_nothing_for_a_model_that_does_not_think() -> None:
    request = decode(
        CreateMessageRequest,
        encode({**BODY, "max_tokens": 1025, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
    )
    assert read_message(request, Defaults(vocab_size=300), SEALER, thinks=False).thinking_budget is None


@pytest.mark.parametrize(
    "block",
    [
        THOUGHT,
        {**THOUGHT, "thinking": ""},
        {"type": "redacted_thinking", "data": THOUGHT["signature"]},
    ],
)
def test_thinking_comes_back_by_its_seal(block: Json) -> None:
    """MSG-06."""
    message = prompt(messages=[*BODY["messages"], {"role": "assistant", "content": [block, SAID]}]).messages[
        -1
    ]
    assert (message.reasoning, message.content) == ("hm", "so")


def _assistant(*blocks: Any) -> Any:
    return {
        "messages": [*BODY["messages"], {"role": "assistant", "content": list(blocks)}, *BODY["messages"]]
    }


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        (_assistant({**THOUGHT, "thinking": "hmm"}), "messages[1].content[0].signature"),
        (_assistant({**THOUGHT, "signature": "x"}), "messages[1].content[0].signature"),
        (_assistant({**THOUGHT, "signature": ""}), "messages[1].content[0].signature"),
        (_assistant({"type": "redacted_thinking", "data": "x"}), "messages[1].content[0].data"),
        (_assistant(CALL), "messages[1].content[0]"),
        (_assistant(CALL, CALL), "messages[1].content[1].id"),
        ({"messages": [*BODY["messages"], {"role": "assistant", "content": [CALL]}]}, "messages[1].content[0]"),
        ({"messages": after_call({**RESULT, "tool_use_id": "t2"})}, "messages[2].content[0].tool_use_id"),
        ({"messages": after_call(RESULT, RESULT)}, "messages[2].content[1].tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]},
         "messages[0].content[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
         "messages[0].content[0].source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "data:,x"}}]}]},
         "messages[0].content[0].source.url"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "ftp://x"}}]}]},
         "messages[0].content[0].source.url"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tools": [{**TOOL, "input_schema": {"type": "string"}}]}, "tools[0].input_schema.type"),
        ({**PREFILLED, "thinking": {"type": "adaptive"}}, "thinking"),
        ({**PREFILLED, "output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"messages": [*BODY["messages"], {"role": "assistant", "content": ""}]}, "messages"),
        ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{**TOOL, "input_schema": {"type": 3}}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 2000}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "block_binding": {"on_mismatch": "error"}}}, "thinking.block_binding"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits[0].type"),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, "context_management.edits[0].keep"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"container": "c"}, "container"),
        ({"diagnostics": {"previous_message_id": "m"}}, "diagnostics"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
        ({"mcp_servers": [{"type": "url", "url": "https://h", "name": "n"}]}, "mcp_servers"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_refused_by_its_name(changes: Json, param: str) -> None:
    error = refusal(**changes)
    assert error.param == param


def test_every_parameter_of_the_official_client_is_honoured_or_refused_by_its_name() -> None:
    """Those that are headers, and those of the client itself, are left out."""
    theirs = {*MessageCreateParams.__annotations__, *BetaMessageCreateParams.__annotations__}
    theirs -= {"betas", "user_profile_id", "workspace_id"}
    assert theirs - {*CreateMessageRequest.__struct_encode_fields__} == set()
    for name in (*_REFUSED, "thread"):
        for value in ({"type": "x"}, "x", [{"type": "x"}]):
            try:
                request = decode(CreateMessageRequest, encode({**BODY, name: value}))
            except ApiError:
                continue
            with pytest.raises(ApiError) as refused:
                read_message(request, Defaults(vocab_size=300), SEALER, thinks=True)
            assert refused.value.param == name


def test_a_thread_is_refused_with_the_code_that_clients_know() -> None:
    """After it they send the whole conversation (MSG-11)."""
    error = refusal(thread={"type": "continue", "previous_message_id": "msg_1"})
    found = json.loads(message_error(error, None))
    assert found["error"]["details"] == {"error_code": "thread_unsupported_request"}
    valid("MessageErrorResponse", found)


def test_what_changes_nothing_is_taken() -> None:
    """Claude Code sends the last."""
    edits = [{"type": "clear_thinking_20251015", "keep": keep} for keep in ("all", {"type": "all"})]
    nothing: tuple[dict[str, Any], ...] = (
        {"mcp_servers": []},
        {"context_management": {}},
        {"context_management": {"edits": edits}},
    )
    for fields in nothing:
        assert read(**fields) == read()
