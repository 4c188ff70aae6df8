"""Ends of thinking that the thinking quotes, in every dialect that has no control token for them.

Laws:
    1. An end of thinking in quotes or backticks is a part of the thinking, which goes on up to the next end.
    2. An end after a closed quotation is an end, whatever the answer begins with.
    3. Neither depends on how the output is cut.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.about import about
from support.parsing.dialects import DIALECTS, Dialect, Folded, cut

from plumbline.answer.dialects.spec.markers import is_control

THINKING = [
    dialect
    for dialect in DIALECTS
    if dialect.reasoning is not None
    and dialect.reasoning.close
    and not dialect.reasoning.append
    and not is_control(dialect.reasoning.close[0])
]
QUOTES = st.sampled_from(["`", '"', "'"])
BEFORE = st.sampled_from(["", "The ", "So (", "First.\n", "It is **", "[1, "])
AFTER = st.sampled_from([" ends it.", ".", " and `</x>`", ""])
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


def read(dialect: Dialect, text: str, sizes: list[int]) -> Folded:
    message, _ = dialect.read([text])
    assert dialect.read(cut(text, sizes))[0] == message
    assert dialect.read(cut(text, [1]))[0] == message
    return message


def markers(dialect: Dialect) -> tuple[str, str]:
    """What begins thinking, and what ends it."""
    assert dialect.reasoning is not None
    begin = "" if dialect.reasoning.starts_inside else dialect.reasoning.open[0]
    return begin, dialect.reasoning.close[0]


def test_the_laws_have_dialects_to_hold_for() -> None:
    assert len(THINKING) > 20


@given(QUOTES, BEFORE, AFTER, SIZES, st.data())
def test_a_quoted_end_is_thinking(
    quote: str, before: str, after: str, sizes: list[int], data: st.DataObject
) -> None:
    for dialect in data.draw(st.permutations(THINKING))[:6]:
        begin, end = markers(dialect)
        thought = f"{before}{quote}{end}{quote}{after}"
        with about(f"{dialect}: {thought!r}"):
            message = read(dialect, f"{begin}{thought}\n{end}\n\nYes.", sizes)
            assert (message.reasoning.strip(), message.content.strip()) == (thought.strip(), "Yes.")


@given(QUOTES, BEFORE, SIZES, st.data())
def test_an_end_after_a_quotation_is_an_end(
    quote: str, before: str, sizes: list[int], data: st.DataObject
) -> None:
    for dialect in data.draw(st.permutations(THINKING))[:6]:
        begin, end = markers(dialect)
        thought, answer = f"{before}{quote}x{quote}", f"{quote}y{quote} it is."
        with about(f"{dialect}: {thought!r}"):
            message = read(dialect, f"{begin}{thought}{end}{answer}", sizes)
            assert (message.reasoning.strip(), message.content.strip()) == (thought.strip(), answer)
