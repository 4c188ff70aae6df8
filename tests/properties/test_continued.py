"""Laws of answers that continue a message, for every dialect.

* The echo of the beginning and the events of the rest are the whole message.
* Without an echo, no text comes twice, and a call that goes on comes from its beginning.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import FEW_EXAMPLES, some
from support.parsing.dialects import DIALECTS, Dialect, cut, fold
from support.parsing.plans import Plan, plans, sizes

from plumbline.answer.events import Logprob, OutputEvent, TextDelta, ToolCallEnd

laws = settings(max_examples=FEW_EXAMPLES)


def continued(
    dialect: Dialect, plan: Plan, begun: str, pieces: list[str], *, echo: bool
) -> list[OutputEvent]:
    """The events of an answer to a message that begins so; every character of it is a token with a logprob."""
    parser = dialect.parser(plan, logprobs=not echo)
    events = list(parser.continue_message(begun, echo=echo))
    for piece in pieces:
        entries = () if echo else tuple(Logprob(char, 0, char.encode(), char, -1.0) for char in piece)
        events += parser.push(TextDelta(piece, entries))
    return [*events, *parser.finish("stop")]


@laws
@given(dialects=some(DIALECTS), plan=plans, place=st.floats(0, 1), lengths=sizes)
def test_an_echo_and_the_rest_are_the_whole_message(
    dialects: list[Dialect], plan: Plan, place: float, lengths: list[int]
) -> None:
    for dialect in dialects:
        text = dialect.write(dialect.utterance(plan))
        size = int(place * len(text))
        events = continued(dialect, plan, text[:size], list(cut(text[size:], lengths)), echo=True)
        assert fold(events) == dialect.read([text], plan)[0], (dialect, text[:size])


@laws
@given(dialects=some(DIALECTS), plan=plans, place=st.floats(0, 1), lengths=sizes)
def test_without_an_echo_nothing_comes_twice(
    dialects: list[Dialect], plan: Plan, place: float, lengths: list[int]
) -> None:
    for dialect in dialects:
        text = dialect.write(dialect.utterance(plan))
        size = int(place * len(text))
        whole = dialect.parser(plan, logprobs=True)
        events = list(
            whole.push(TextDelta(text, tuple(Logprob(c, n, c.encode(), c, -1.0) for n, c in enumerate(text))))
        )
        events += whole.finish("stop")
        entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
        new = "".join(entry.text for entry in entries if entry.token_id >= size)
        first = dialect.parser(plan)
        done = sum(isinstance(event, ToolCallEnd) for event in first.push(TextDelta(text[:size])))

        rest = continued(dialect, plan, text[:size], list(cut(text[size:], lengths)), echo=False)

        expected, found = fold(events), fold(rest)
        if dialect.reasoning is None or not dialect.reasoning.append:
            assert found.content == new, (dialect, text[:size])
        assert expected.reasoning.endswith(found.reasoning), (dialect, text[:size])
        assert found.calls == expected.calls[done:], (dialect, text[:size])
        told = [entry for event in rest if isinstance(event, TextDelta) for entry in event.logprobs]
        assert "".join(entry.text for entry in told) == new, (dialect, text[:size])
