"""The fold of answers never fails, and names what is malformed."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_conformance.transcript.answer_fold import (
    AnsweredCall,
    Choice,
    Fault,
    Surface,
    fold_stream,
    fold_whole,
)

KEYS = st.sampled_from(
    [
        "choices",
        "message",
        "delta",
        "content",
        "text",
        "reasoning",
        "tool_calls",
        "function",
        "custom",
        "name",
        "arguments",
        "index",
        "finish_reason",
        "usage",
        "output",
        "type",
        "status",
        "response",
        "item",
        "output_index",
        "incomplete_details",
        "summary",
    ]
)
TYPES = st.sampled_from(
    [
        "message",
        "reasoning",
        "function_call",
        "response.output_text.delta",
        "response.output_item.added",
        "response.completed",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | TYPES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)


@settings(max_examples=EXPLORED or 60, deadline=None, database=None)
@given(st.sampled_from(get_args(Surface)), JSON, st.lists(JSON, max_size=4))
def test_garbage_folds_to_strings_and_calls(surface: Surface, body: Any, values: list[Any]) -> None:
    for answer in (fold_whole(surface, body), fold_stream(surface, values)):
        for choice in answer.choices:
            texts = [choice.content, choice.reasoning, choice.summary]
            texts += [text for call in choice.calls for text in (call.name, call.arguments)]
            assert all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([], "envelope"),
        ({"choices": None}, "envelope"),
        ({"choices": ["x"]}, "choice"),
        ({"choices": [{"message": "x", "finish_reason": "stop"}]}, "choice"),
        ({"choices": [{"finish_reason": "stop"}]}, "message"),
        ({"choices": [{"message": {"content": ["x"]}, "finish_reason": "stop"}]}, "text"),
        ({"choices": [{"message": {"reasoning": {"text": "x"}}, "finish_reason": "stop"}]}, "reasoning"),
        (
            {
                "choices": [
                    {"message": {"tool_calls": [{"function": {"name": "f"}}]}, "finish_reason": "stop"}
                ]
            },
            "calls",
        ),
        ({"choices": [{"message": {"content": "x"}}]}, "finish"),
    ],
)
def test_a_malformed_part_of_a_whole_answer_is_one_fault(body: Any, fault: Fault) -> None:
    assert fold_whole("chat", body).faults == {fault}


def test_a_response_and_its_events_fold_to_equal_choices() -> None:
    response = {
        "status": "completed",
        "output": [
            {"type": "reasoning", "content": [], "summary": [{"text": "brief"}]},
            {"type": "message", "content": [{"text": "Hel"}, {"text": "lo"}]},
            {"type": "function_call", "name": "f", "arguments": "{}"},
        ],
    }
    events = [
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "brief"},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Hello"},
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {"type": "function_call", "name": "f"},
        },
        {"type": "response.function_call_arguments.done", "output_index": 2, "arguments": "{}"},
        {"type": "response.completed", "response": response},
    ]

    whole, streamed = fold_whole("responses", response), fold_stream("responses", events)

    wanted = Choice(
        content="Hello", summary="brief", calls=[AnsweredCall("f", "{}")], finish_reason="completed"
    )
    assert whole.choices == [wanted] == streamed.choices
    assert whole.faults == set() == streamed.faults
