"""Laws of every dialect, for every output and every way of cutting it.

* A dialect parses what it writes, with any of its sections first.
* Bytes, tokens and pieces of any size give the same message; so does any soup of markup, which never crashes a parser.
* Nothing inside of thinking gets into the answer.
* The message of a prefix is a prefix of the message. Nothing of a cut call is text.
* Parsers share no state.
* The logprobs are those of the text.
* A literal marker in prose is prose.
* Arguments are streamed: strings, arrays and objects come in small deltas.
* Deep nesting is refused in any cutting alike. The unread text stays short, so parsing is linear.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXAMPLES, FEW_EXAMPLES, some
from support.parsing.dialects import DIALECTS, Dialect, cut, cut_bytes, fold, same
from support.parsing.plans import Plan, plans, sizes
from support.parsing.soup import (
    ALL_DIALECTS,
    SEPARATING_DIALECTS,
    TAG_PIECES,
    TEXT_SCHEMAS,
    TODO_SCHEMA,
    begins,
    fenced,
    reasons,
    reordered,
    soup,
    soup_numbers,
    thinking_ends,
    tokens,
    without_stump,
    words,
)

from plumbline.answer.dialects.formats.elements import ElementCall
from plumbline.answer.dialects.formats.tagged import TaggedCall
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.events import FinishReason, Logprob, OutputEvent, TextDelta, ToolCallDelta

laws = settings(max_examples=EXAMPLES)
few = settings(max_examples=FEW_EXAMPLES)


@laws
@given(dialects=some(SEPARATING_DIALECTS), plan=plans, lengths=sizes)
def test_what_a_dialect_writes_it_reads(dialects: list[Dialect], plan: Plan, lengths: list[int]) -> None:
    for dialect in dialects:
        utterance = dialect.utterance(plan)
        text = dialect.write(utterance)
        found = dialect.read([text], plan)
        assert same(found[0], utterance), (dialect, text, found, utterance)
        assert dialect.read(cut(text, lengths), plan) == found, (dialect, text)


@few
@given(
    dialects=st.deferred(lambda: some(reordered())),
    plan=plans,
    atoms=soup_numbers,
    lengths=sizes,
    reason=reasons,
)
def test_each_section_is_parsed_whichever_comes_first(
    dialects: list[tuple[Dialect, Dialect]],
    plan: Plan,
    atoms: list[int],
    lengths: list[int],
    reason: FinishReason,
) -> None:
    """The first section is the one to write. Outputs are the same messages in any order."""
    for dialect, other in dialects:
        utterance = other.utterance(plan)
        text = other.write(utterance)
        found, _ = other.read(cut(text, lengths), plan)
        assert same(found, utterance) or fenced(text), (other, text, found, utterance)
        assert dialect.read([text], plan)[0] == found, (dialect, text)
        text = "".join(soup(dialect, number) for number in atoms)
        # Warnings may differ: of markup that is no call, the first section names what it expected.
        assert dialect.read([text], reason=reason)[0] == other.read([text], reason=reason)[0], (dialect, text)


@few
@given(dialects=some(ALL_DIALECTS), plan=plans)
def test_bytes_and_tokens_give_the_same_message(dialects: list[Dialect], plan: Plan) -> None:
    for dialect in dialects:
        text = dialect.write(dialect.utterance(plan))
        whole = dialect.read([text], plan)
        assert dialect.read(cut_bytes(bytes([byte]) for byte in text.encode()), plan) == whole, dialect
        assert dialect.read(cut_bytes(tokens(text)), plan) == whole, dialect


@laws
@given(dialects=some(ALL_DIALECTS), atoms=soup_numbers, lengths=sizes, reason=reasons)
def test_no_soup_crashes_and_none_depends_on_its_cutting(
    dialects: list[Dialect], atoms: list[int], lengths: list[int], reason: FinishReason
) -> None:
    for dialect in dialects:
        text = "".join(soup(dialect, number) for number in atoms)
        whole = dialect.read([text], reason=reason)
        assert dialect.read(cut(text, lengths), reason=reason) == whole, (dialect, text)


@laws
@given(dialects=some(SEPARATING_DIALECTS), atoms=soup_numbers, place=st.floats(0, 1), answer=words)
def test_nothing_inside_of_thinking_gets_into_the_answer(
    dialects: list[Dialect], atoms: list[int], place: float, answer: str
) -> None:
    """Calls that break off there neither; the value of one may contain the end of the thinking and all that follows."""
    for dialect in dialects:
        if (ends := thinking_ends(dialect)) is None:
            continue
        opening, closing, *others = ends
        call = Utterance(
            (WrittenCall("get_weather", '{"count": 3, "tags": ["a"]}'),) if dialect.has_calls else ()
        )
        written = dialect.write(call)
        inside = written[: int(place * len(written))] + "".join(soup(dialect, number) for number in atoms)
        thought = f"{inside} so.{closing}"
        begun = Markers(dialect.tool, dialect.reasoning).follows
        if any(end in thought.removesuffix(closing) for end in (closing, *others, *begun)):
            continue
        folded, _ = dialect.read([f"{opening}{thought}{answer}"])
        assert folded.content in ("", answer), (dialect, inside)


@laws
@given(
    dialects=some(SEPARATING_DIALECTS),
    plan=plans,
    places=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    reason=reasons,
)
def test_the_message_of_a_prefix_is_a_prefix_of_the_message(
    dialects: list[Dialect], plan: Plan, places: list[float], reason: FinishReason
) -> None:
    for dialect in dialects:
        text = dialect.write(dialect.utterance(plan))
        parser = dialect.parser(plan)
        events: list[OutputEvent] = []
        earlier = fold([])
        position = 0
        for place in sorted(places):
            end = int(place * len(text))
            events += parser.push(TextDelta(text[position:end]))
            position = end
            now = fold(events)
            assert begins(earlier, now), (dialect, text[:end])
            earlier = now
            # What is cut here says no more than what had come, and nothing else.
            stopped, _ = dialect.read([text[:end]], plan, reason)
            assert begins(now, stopped), (dialect, text[:end], now, stopped)


@laws
@given(dialects=some(SEPARATING_DIALECTS), plan=plans, place=st.floats(0, 1))
def test_nothing_of_a_cut_call_is_text(dialects: list[Dialect], plan: Plan, place: float) -> None:
    for dialect in dialects:
        utterance = dialect.utterance(plan)
        text = dialect.write(utterance)
        whole, _ = dialect.read([text], plan)
        found, _ = dialect.read([text[: int(place * len(text))]], plan, "length")
        assert whole.reasoning.startswith(without_stump(dialect, found.reasoning)), (dialect, text, found)
        if not dialect.bare:  # Where nothing marks a call, its beginning cannot be told from text.
            assert whole.content.startswith(without_stump(dialect, found.content)), (dialect, text, found)
        for call, full in zip(found.calls, whole.calls, strict=False):
            assert call.name == full.name, dialect
            assert full.arguments.startswith(call.arguments), (dialect, call, full)
            assert not call.complete or call.arguments == full.arguments, (dialect, call, full)
        assert all(call.complete for call in found.calls[:-1]), dialect


@few
@given(dialects=some(ALL_DIALECTS), first=plans, second=plans, lengths=sizes)
def test_parsers_share_no_state(
    dialects: list[Dialect], first: Plan, second: Plan, lengths: list[int]
) -> None:
    for dialect in dialects:
        texts = [dialect.write(dialect.utterance(plan)) for plan in (first, second)]
        one, other = dialect.parser(first), dialect.parser(second)
        events: list[OutputEvent] = []
        for pieces in zip_longest(*(cut(text, lengths) for text in texts), fillvalue=""):
            events += one.push(TextDelta(pieces[0]))
            other.push(TextDelta(pieces[1]))
        events += one.finish("stop")
        assert fold(events) == dialect.read([texts[0]], first)[0], dialect


@laws
@given(dialects=some(SEPARATING_DIALECTS), plan=plans, lengths=sizes, place=st.floats(0, 1.5), reason=reasons)
def test_logprobs_are_those_of_the_text(
    dialects: list[Dialect], plan: Plan, lengths: list[int], place: float, reason: FinishReason
) -> None:
    for dialect in dialects:
        text = dialect.write(dialect.utterance(plan))
        text = text[: int(place * len(text))]
        parser = dialect.parser(plan, logprobs=True)
        events: list[OutputEvent] = []
        for piece in filter(None, cut(text, lengths)):
            events += parser.push(TextDelta(piece, (Logprob(piece, 0, piece.encode(), piece, -1.0),)))
        events += parser.finish(reason)
        entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
        content = fold(events).content
        assert "".join(entry.text for entry in entries) == content, (dialect, text)
        assert b"".join(entry.raw for entry in entries) == content.encode(), (dialect, text)


MARKERS = [
    (dialect, [*markers.sections, *markers.silent])
    for dialect in DIALECTS
    # Harmony's markers have a law of their own.
    if dialect.tool is None or not dialect.tool.messages
    for markers in [Markers(dialect.tool, dialect.reasoning)]
]
"""Made once: each has expressions to compile, more of them than `re` keeps."""


@few
@given(dialects=some(MARKERS), before=words, after=words)
def test_a_literal_marker_in_prose_is_prose(
    dialects: list[tuple[Dialect, list[str]]], before: str, after: str
) -> None:
    for dialect, markers in dialects:
        for marker in markers:
            text = f"{before} {marker} {after}"
            if dialect.reasoning is not None and dialect.reasoning.starts_inside:
                text = f"hm {dialect.reasoning.close[0]} {text}"
            found, _ = dialect.read(list(text))
            assert found.content.endswith(f"{before} {marker} {after}"), (dialect, found)
            assert not found.calls, dialect


@few
@given(
    dialects=some(DIALECTS),
    filling=st.text("abc é€🎉", min_size=60, max_size=80),
    schema=st.sampled_from(TEXT_SCHEMAS),
)
def test_arguments_are_streamed(dialects: list[Dialect], filling: str, schema: dict[str, Any]) -> None:
    properties = {"city": schema, "count": {"type": "integer"}}
    for dialect in dialects:
        if dialect.tool is None:
            continue
        if not schema and isinstance(dialect.call_format, ElementCall):
            continue  # A value of an unknown type may contain elements, up to its end.
        arguments = {"city": filling.strip() + ".", "count": 3}
        call = WrittenCall("get_weather", json.dumps(arguments, ensure_ascii=False))
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        parser = dialect.parser(schema={"type": "object", "properties": properties})
        deltas = []
        for piece in cut(text, [4]):
            deltas += [event for event in parser.push(TextDelta(piece)) if isinstance(event, ToolCallDelta)]
        assert len(deltas) > 8, dialect
        assert max(len(delta.arguments) for delta in deltas) < 40, dialect
        deltas += [event for event in parser.finish("stop") if isinstance(event, ToolCallDelta)]
        assert json.loads("".join(delta.arguments for delta in deltas)) == arguments, dialect


@few
@given(dialects=some(DIALECTS), texts=st.lists(st.text("abc é€🎉", max_size=30), min_size=5, max_size=8))
def test_arrays_and_objects_are_streamed(dialects: list[Dialect], texts: list[str]) -> None:
    strings = [f"{text}." for text in texts]
    todos = [{"n": n * 7, "s": text, "done": n % 2 == 0} for n, text in enumerate(strings)]
    arguments = {"todos": todos, "more": {"tags": strings}}
    call = WrittenCall("f", json.dumps(arguments, ensure_ascii=False))
    for dialect in dialects:
        if dialect.tool is None:
            continue
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        parser = dialect.parser(schema=TODO_SCHEMA)
        told: list[str] = []
        # Markup gives no delta, nor does a number or key before it is complete.
        longest = max(
            map(len, (*dialect.markers, *(dialect.call_format.markers if dialect.call_format else ()))),
            default=0,
        )
        silent = 0
        for piece in cut(text, [4]):
            new = [
                event.arguments for event in parser.push(TextDelta(piece)) if isinstance(event, ToolCallDelta)
            ]
            assert sum(map(len, new)) < 40, (dialect, new)
            assert not (new and told) or silent < 3 * longest + 40, (dialect, silent)
            silent = 0 if new else silent + len(piece)
            told += new
        told += [event.arguments for event in parser.finish("stop") if isinstance(event, ToolCallDelta)]
        assert json.loads("".join(told)) == arguments, dialect


@few
@example(dialects=DIALECTS, numbers=[], begun='["', lengths=[1], reason="stop")
@given(
    dialects=some(DIALECTS),
    numbers=st.lists(st.integers(0, len(TAG_PIECES) + 2), max_size=16),
    begun=st.sampled_from(["", "[", '["', '{"a": ', '[{"a": "']),
    lengths=sizes,
    reason=reasons,
)
def test_no_text_between_tags_depends_on_its_cutting(
    dialects: list[Dialect], numbers: list[int], begun: str, lengths: list[int], reason: FinishReason
) -> None:
    for dialect in dialects:
        call_format = dialect.call_format
        if not isinstance(call_format, TaggedCall | ElementCall):
            continue
        end = call_format.end if isinstance(call_format, TaggedCall) else call_format.tag
        pieces = (*TAG_PIECES, end, end[:-1], "<![CDATA[")
        value = begun + "".join(pieces[number] for number in numbers)
        for key, written in (("tags", '["@@"]'), ("größe", '{"@@": "@@"}')):
            said = {key: "@@" if isinstance(call_format, ElementCall) else json.loads(written)}
            reasoning = "hm" if dialect.reasoning is not None else None
            call = WrittenCall("f", json.dumps(said, ensure_ascii=False))
            text = dialect.write(Utterance((call,), reasoning))
            text = text.replace("@@" if isinstance(call_format, ElementCall) else written, value)
            whole = dialect.read([text], reason=reason)
            assert value == "@@" or whole[0].calls, (dialect, text)
            for call_read in whole[0].calls:
                if call_read.complete:
                    json.loads(call_read.arguments)
            assert dialect.read(cut(text, lengths), reason=reason) == whole, (dialect, text)
            assert dialect.read(cut(text, [1]), reason=reason) == whole, (dialect, text)


def test_no_nesting_is_too_deep_for_a_reader() -> None:
    for dialect in ALL_DIALECTS:
        if not dialect.has_calls:
            continue
        for depth in (15, 40):
            value: object = 1.5
            for _ in range(depth):
                value = {"größe": [value]}
            call = WrittenCall("f", json.dumps({"größe": value}))
            text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
            begun = text.partition("1.5")[0]
            for said in (text, begun + "[" * 3000, begun + '{"a":' * 3000) if depth > 15 else (text,):
                assert dialect.read([said], reason="length") == dialect.read(cut(said, [7]), reason="length")


LOOK_AHEAD = 320
"""Characters after a quote that may be looked at."""


def test_unread_text_stays_short() -> None:
    """The text that is scanned again with each piece is no longer than the longest marker, or what follows a quote."""
    long = "word " * 150
    call = WrittenCall("f", json.dumps({"city": long, "tags": [long], "count": 10**100}))
    for dialect in DIALECTS:
        parts = (call, call) if dialect.tool is not None else (long,)
        reasoning = long.strip() if dialect.reasoning is not None else None
        written = dialect.write(Utterance((*parts, long.strip()), reasoning))
        for text in (written, *(marker[:-1] * 100 for marker in dialect.markers)):
            parser = dialect.parser()
            longest = max(
                max(map(len, dialect.markers), default=0), 8 if dialect.tool is None else LOOK_AHEAD
            )
            for piece in cut(text, [3]):
                parser.push(TextDelta(piece))
                unparsed = len(parser._cursor.text) - parser._cursor.pos  # type: ignore[attr-defined]
                assert unparsed <= longest + 3, (dialect, unparsed, text[:200])
