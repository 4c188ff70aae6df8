"""A stream folds to the same choices as the whole answer, however it is cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_conformance.checks.answers import choices
from plumbline_conformance.transcript.answer_fold import AnsweredCall, Choice
from plumbline_conformance.transcript.exchange import Exchange

SETTINGS = settings(max_examples=EXPLORED or 40, deadline=None, database=None)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CALLS = st.lists(
    st.builds(AnsweredCall, name=TEXT.filter(bool), arguments=TEXT, custom=st.booleans()), max_size=3
)
CHOICE = st.builds(
    Choice,
    content=TEXT,
    reasoning=TEXT,
    calls=CALLS,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
)


def exchange(body: bytes, *, stream: bool) -> Exchange:
    asked = json.dumps({"stream": stream}).encode()
    found = Exchange(method="POST", url="http://x", request_headers={}, request_body=asked, status=200)
    found.frames.append((0.0, body))
    return found


def type_and_key(call: AnsweredCall) -> tuple[str, str]:
    return ("custom", "input") if call.custom else ("function", "arguments")


def whole(answer: list[Choice]) -> Exchange:
    listed: list[dict[str, Any]] = []
    for index, one in enumerate(answer):
        calls = [
            {
                "type": type_and_key(c)[0],
                type_and_key(c)[0]: {"name": c.name, type_and_key(c)[1]: c.arguments},
            }
            for c in one.calls
        ]
        message = {"content": one.content or None, "reasoning": one.reasoning, "tool_calls": calls}
        listed.append({"index": index, "message": message, "finish_reason": one.finish_reason})
    return exchange(json.dumps({"choices": listed}).encode(), stream=False)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def streamed(draw: st.DrawFn, answer: list[Choice]) -> Exchange:
    """Generate streams of the choices, with deltas of any size and choices in any order."""
    queues: list[list[dict[str, Any]]] = []
    for index, one in enumerate(answer):
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        deltas += [{"reasoning_content": piece} for piece in draw(cut(one.reasoning))]
        deltas += [{"content": piece} for piece in draw(cut(one.content))]
        for place, call in enumerate(one.calls):
            kind, key = type_and_key(call)
            deltas.append({"tool_calls": [{"index": place, "id": "x", kind: {"name": call.name, key: ""}}]})
            deltas += [
                {"tool_calls": [{"index": place, kind: {key: piece}}]} for piece in draw(cut(call.arguments))
            ]
        chunks = [{"index": index, "delta": delta, "finish_reason": None} for delta in deltas]
        queues.append([*chunks, {"index": index, "delta": {}, "finish_reason": one.finish_reason}])
    lines = []
    while any(queues):
        queue = draw(st.sampled_from([queue for queue in queues if queue]))
        lines.append(f"data: {json.dumps({'choices': [queue.pop(0)]})}\n\n")
    return exchange("".join(lines).encode(), stream=True)


@SETTINGS
@given(st.lists(CHOICE, min_size=1, max_size=3), st.data())
def test_any_cutting_folds_to_the_whole_answer(answer: list[Choice], data: st.DataObject) -> None:
    """CHAT-19 depends on this law."""
    assert choices(whole(answer)) == answer == choices(data.draw(streamed(answer)))
