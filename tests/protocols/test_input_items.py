"""Input items of Responses become messages, or are refused (R-*)."""
# ruff: noqa: E501 - a table reads best with one case a line

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.answer.turn import Message, ToolCall
from plumbline.contract._generated.responses import TokenCountsBody
from plumbline.contract.wire.decode import decode, encode
from plumbline.contract.wire.errors import ApiError
from plumbline.server.protocols.responses.reader import read_response_prompt

from .minimal_requests import FLAT_TOOL, USER, read, refusal

FUNCTION_CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "r"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}


def items(*given: dict[str, Any], **changes: Any) -> tuple[Message, ...]:
    found: tuple[Message, ...] = read("responses", input=list(given), **changes).prompt.messages
    return found


CALLING = Message(role="assistant", tool_calls=(ToolCall("c1", "f", "{}"),))
ANSWERED = Message(role="tool", content="r", tool_call_id="c1")


def test_a_string_is_one_user_message() -> None:
    """R-12."""
    assert read("responses", input="hi") == read("responses", input=[USER])


def test_instructions_come_first() -> None:
    """R-14."""
    assert items(USER, instructions="Be brief.")[0] == Message(role="system", content="Be brief.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([USER], [Message(role="user", content="hi")]),
        ([{**USER, "type": "message"}], [Message(role="user", content="hi")]),
        ([{"role": "developer", "content": [{"type": "input_text", "text": "a"}]}], [Message(role="developer", content="a", parts=("a",))]),
        (
            [{"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
              "content": [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]}],
            [Message(role="assistant", content="a\nb", parts=("a", "b"))],
        ),
        ([{"role": "assistant", "content": "a", "phase": "final_answer"}], [Message(role="assistant", content="a", phase="final_answer")]),
        ([FUNCTION_CALL, OUTPUT], [CALLING, ANSWERED]),
        ([FUNCTION_CALL, USER, OUTPUT], [CALLING, Message(role="user", content="hi"), ANSWERED]),
        ([{**FUNCTION_CALL, "id": "fc_1", "status": "completed"}, OUTPUT], [CALLING, ANSWERED]),
        (
            [FUNCTION_CALL, {**OUTPUT, "output": [{"type": "input_text", "text": "r"}]}],
            [CALLING, msgspec.structs.replace(ANSWERED, parts=("r",))],
        ),
        (
            [{"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": 'a"é'},
             {"type": "custom_tool_call_output", "call_id": "c1", "output": "r"}],
            [Message(role="assistant", tool_calls=(ToolCall("c1", "f", '{"input": "a\\"é"}'),)), ANSWERED],
        ),
        (
            [{"role": "assistant", "content": "Let me see."}, FUNCTION_CALL, {**FUNCTION_CALL, "call_id": "c2"},
             {**OUTPUT, "call_id": "c2"}, OUTPUT],
            [Message(role="assistant", content="Let me see.",
                     tool_calls=(ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}"))),
             Message(role="tool", content="r", tool_call_id="c2"), ANSWERED],
        ),
        ([THOUGHT, {"role": "assistant", "content": "a"}], [Message(role="assistant", content="a", reasoning="hm")]),
        ([THOUGHT, FUNCTION_CALL, OUTPUT], [msgspec.structs.replace(CALLING, reasoning="hm"), ANSWERED]),
        (
            [{**THOUGHT, "id": "rs_1", "encrypted_content": None}, THOUGHT, {"role": "assistant", "content": "a"}],
            [Message(role="assistant", content="a", reasoning="hmhm")],
        ),
        # Thinking that led to nothing belongs to no later turn.
        (
            [THOUGHT, USER, {"role": "assistant", "content": "a"}],
            [Message(role="user", content="hi"), Message(role="assistant", content="a")],
        ),
        ([{"type": "reasoning", "summary": [], "encrypted_content": None}, USER], [Message(role="user", content="hi")]),
    ],
)  # fmt: skip
def test_input_items_are_read(given: list[dict[str, Any]], expected: list[Message]) -> None:
    """R-13, TOOL-10, TOOL-11, ST-16."""
    assert list(items(*given)) == expected


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([OUTPUT], "No tool call found for function call output with call_id c1."),
        ([OUTPUT, FUNCTION_CALL], "No tool call found for function call output with call_id c1."),
        ([FUNCTION_CALL, OUTPUT, OUTPUT], "No tool call found for function call output with call_id c1."),
        ([FUNCTION_CALL, USER], "No tool output found for function call c1."),
    ],
)
def test_calls_and_outputs_that_do_not_fit_are_refused(given: list[dict[str, Any]], text: str) -> None:
    """TOOL-12: param `input`, code null, OpenAI's text."""
    error = refusal("responses", input=given)

    assert (error.message, error.param, error.code) == (text, "input", None)


@pytest.mark.parametrize("arguments", ["", '{"a', '{"a": "x'])
@pytest.mark.parametrize("status", [{}, {"status": "incomplete"}])
def test_a_call_that_a_limit_cut_needs_no_output(arguments: str, status: dict[str, str]) -> None:
    """CHAT-24, in chat completions and Responses: no client can carry it out."""
    call = {**FUNCTION_CALL, **status, "arguments": arguments}
    for sent in ([call, USER], [call, OUTPUT, USER]):
        assert ToolCall("c1", "f", arguments) in items(*sent)[0].tool_calls
    function = {"name": "f", "arguments": arguments}
    cut = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    for answer in ([], [{"role": "tool", "tool_call_id": "c1", "content": "r"}]):
        found = read("chat", messages=[USER, cut, *answer, USER]).prompt.messages
        assert found[1].tool_calls == (ToolCall("c1", "f", arguments),)


@given(st.lists(st.sampled_from(["thought", "text", "call"]), min_size=1, max_size=7), st.booleans())
@example(["thought", "call", "thought", "call"], True)  # A model that thinks between its calls.
@example(["thought", "call", "thought"], True)
@example(["call", "text"], True)
@example(["thought"], False)
def test_an_answer_is_read_as_in_a_chat_completion(kinds: list[str], goes_on: bool) -> None:
    """Law: no thought, text or call of an answer is lost, and its calls are in one message, before their results."""
    made: dict[str, Callable[[int], dict[str, Any]]] = {
        "thought": lambda n: {**THOUGHT, "content": [{"type": "reasoning_text", "text": f"<thought {n}>"}]},
        "text": lambda n: {"role": "assistant", "content": f"<text {n}>"},
        "call": lambda n: {**FUNCTION_CALL, "call_id": f"c{n}", "name": f"f{n}"},
    }
    answer = [made[kind](n) for n, kind in enumerate(kinds)]
    called = [n for n, kind in enumerate(kinds) if kind == "call"]
    outputs = [{**OUTPUT, "call_id": f"c{n}"} for n in called]

    found = items(USER, *answer, *outputs, *([USER] if goes_on else []))

    said = [m for m in found if m.role == "assistant"]
    assert "".join(m.reasoning or "" for m in said) == "".join(
        f"<thought {n}>" for n, kind in enumerate(kinds) if kind == "thought"
    )
    shown = "".join(m.content or "" for m in said)
    assert [f"<text {n}>" for n, kind in enumerate(kinds) if kind == "text"] == re.findall("<.*?>", shown)
    assert [call.name for m in said for call in m.tool_calls] == [f"f{n}" for n in called]
    if called:
        assert [m.role for m in found if m.role != "user"][-1 - len(called) :] == [
            "assistant",
            *["tool"] * len(called),
        ]
        assert sum(bool(m.tool_calls) for m in said) == 1


def test_hosted_tools_are_accepted_and_not_shown() -> None:
    """TOOL-15: coding agents always send hosted tools; the model does not see them."""
    tools = [FLAT_TOOL, {"type": "web_search", "external_web_access": False}]

    assert [tool.name for tool in read("responses", tools=tools).prompt.tools] == ["f"]


@pytest.mark.parametrize(("field", "value"), [("conversation", "conv_1"), ("personality", "friendly")])
def test_counting_refuses_what_creating_a_response_refuses(field: str, value: Any) -> None:
    """R-15: the count is the one that the same request would have. This reader has no store, so no conversations."""
    body = decode(TokenCountsBody, encode({"model": "m", "input": "hi", field: value}))
    with pytest.raises(ApiError) as caught:
        read_response_prompt(body)
    assert caught.value.param == field
