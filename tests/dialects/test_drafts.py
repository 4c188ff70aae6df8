"""Calls in thinking that has not ended, in every dialect that may call from there.

Laws:
    1. A call in thinking that an answer follows is a draft: it is thinking, and never a call.
    2. Where no answer follows, the call is a call, whether or not the thinking ends after it.
    3. The result does not depend on how the output is cut, and text before the draft is not held back.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.about import about
from support.parsing.dialects import DIALECTS, Dialect, Folded, cut

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.events import ReasoningDelta, TextDelta

CALLING = [
    dialect
    for dialect in DIALECTS
    if dialect.tool is not None
    and dialect.tool.sections[0].open
    and dialect.reasoning is not None
    and dialect.reasoning.calls_inside
    and not dialect.reasoning.header  # A header before the call ends the thinking.
]
WORDS = st.sampled_from(["", "Hm.", "no, not yet.\n"])
SPACE = st.sampled_from(["", "\n", " \n\n"])
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


def parts(dialect: Dialect, **arguments: str) -> tuple[str, str, str]:
    """What begins thinking, what ends it, and a call."""
    assert dialect.reasoning is not None
    begin = "" if dialect.reasoning.starts_inside else dialect.reasoning.open[0]
    members = ", ".join(f'"{key}": "{value}"' for key, value in arguments.items())
    call = dialect.write(Utterance((WrittenCall("f", f"{{{members}}}"),)))
    return begin, dialect.reasoning.close[0], call.strip()


def read(dialect: Dialect, text: str, sizes: list[int]) -> Folded:
    message, _ = dialect.read([text])
    assert dialect.read(cut(text, sizes))[0] == message
    assert dialect.read(cut(text, [1]))[0] == message
    return message


def test_the_law_has_dialects_to_hold_for() -> None:
    assert len(CALLING) > 25


@given(WORDS, SPACE, st.sampled_from(["Answer.", "call", "words and a call"]), SIZES, st.data())
def test_a_call_in_thinking_before_an_answer_is_thinking(
    words: str, space: str, answer: str, sizes: list[int], data: st.DataObject
) -> None:
    for dialect in data.draw(st.permutations(CALLING))[:6]:
        begin, end, call = parts(dialect, a="draft")
        _, _, real = parts(dialect, a="meant")
        said = {"Answer.": "Answer.", "call": real, "words and a call": f"I look.\n{real}"}[answer]
        text = f"{begin}First: {call}{space}{words}{end}{space}{said}"
        with about(f"{dialect}: {text!r}"):
            message = read(dialect, text, sizes)
            assert message.reasoning.split() == f"First: {call}{space}{words}".split()
            assert [one.arguments for one in message.calls] == (
                [] if answer == "Answer." else ['{"a": "meant"}']
            )
            assert message.content.strip() == ("" if answer == "call" else said.partition("\n")[0])


@given(WORDS, SPACE, st.booleans(), SIZES, st.data())
def test_a_call_in_thinking_without_an_answer_is_a_call(
    words: str, space: str, ended: bool, sizes: list[int], data: st.DataObject
) -> None:
    for dialect in data.draw(st.permutations(CALLING))[:6]:
        begin, end, call = parts(dialect, a="meant")
        text = f"{begin}First: {call}{space}{words}{end + space if ended else ''}"
        with about(f"{dialect}: {text!r}"):
            message = read(dialect, text, sizes)
            assert [one.arguments for one in message.calls] == ['{"a": "meant"}']
            assert "".join(message.reasoning.split()) == "".join(f"First:{words}".split())
            assert not message.content.strip()


@pytest.mark.parametrize("dialect", CALLING, ids=map(repr, CALLING))
def test_a_marker_in_thinking_that_no_call_follows_does_not_hold_the_thinking_back(dialect: Dialect) -> None:
    begin, _, _ = parts(dialect)
    assert dialect.tool is not None
    text = (
        f"{begin}Some write {dialect.tool.sections[0].open[0]}, I think, and others do not."
        + 60 * " And so on."
    )
    parser = dialect.parser()
    events = [event for char in text for event in parser.push(TextDelta(char))]
    seen = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert "I think, and others do not." in seen
