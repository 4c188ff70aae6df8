"""Draw answers as a dialect's parser makes them."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import strategies as st

from plumbline.answer.events import (
    Finish,
    OutputEvent,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    Usage,
)
from plumbline.answer.text.assemble import TextAssembler
from plumbline.port.engine import TokenLogprob
from support.models import TOKENIZER
from support.strategies import texts

__all__ = ["answers", "text_deltas", "tool_calls", "usages"]

_numbers = itertools.count()

pieces = st.lists(texts.filter(bool), min_size=1, max_size=4)
usages = st.builds(
    lambda prompt, completion, cached, reasoning: Usage(
        prompt, completion, cached_tokens=min(cached, prompt), reasoning_tokens=min(reasoning, completion)
    ),
    *[st.integers(1, 50)] * 4,
)


@st.composite
def text_deltas(draw: st.DrawFn) -> list[OutputEvent]:
    """Text with the logprobs of its tokens, as the assembler makes them."""
    ids = [i for text in draw(pieces) for i in TOKENIZER.encode_text(text)]
    assembler = TextAssembler(TOKENIZER, logprobs=True)
    deltas = [
        assembler.push([i], [TokenLogprob(i, -0.25 * (i % 5), ((i, -0.25 * (i % 5)), (70, -9e9)))])
        for i in ids
    ]
    return [delta for delta in [*deltas, assembler.finish()] if delta is not None]


@st.composite
def tool_calls(draw: st.DrawFn, *, whole: bool = True) -> list[OutputEvent]:
    arguments = json.dumps(draw(st.dictionaries(texts, texts, max_size=2)), ensure_ascii=False)
    cut = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
    parts = [arguments[a:b] for a, b in zip([0, *cut], [*cut, len(arguments)], strict=True)]
    kept = parts if whole else parts[: draw(st.integers(0, len(parts)))]
    name = draw(st.sampled_from(["weather", "search"]))
    start = ToolCallStart(name, f"call_{next(_numbers)}")  # TOOL-09: unique
    return [start, *(ToolCallDelta(part) for part in kept if part), ToolCallEnd(complete=whole)]


@st.composite
def answers(draw: st.DrawFn) -> list[OutputEvent]:
    """The events of one choice, in every order that a dialect can produce."""
    events: list[OutputEvent] = []
    if draw(st.booleans()):
        events += [ReasoningDelta(text) for text in draw(pieces)]
    # A call may also break off anywhere: the model wrote something else in its place.
    segments = draw(st.lists(st.one_of(text_deltas(), tool_calls(), tool_calls(whole=False)), max_size=4))
    events += [event for segment in segments for event in segment]
    made = [event.complete for event in events if isinstance(event, ToolCallEnd)]
    calls = bool(made) and all(made)  # A call that broke off asks for no result.
    ends = ["tool_calls" if calls else "stop", "length"]
    reason: Any = draw(st.sampled_from(ends))
    if reason == "length" and draw(st.booleans()):
        events += draw(tool_calls(whole=False))
    match = draw(st.sampled_from([None, "END", 7])) if reason == "stop" else None
    return [*events, Finish(reason, draw(usages), match)]
