"""What holds of every dialect, for every output and every way of cutting it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.dialects import DIALECTS, Dialect, Folded, cut, cut_bytes, fold, same
from support.laws import EXAMPLES
from support.plans import Plan, plans, sizes
from support.response_templates import TEMPLATES

from plumbline.dialects.formats.elements import ElementCall
from plumbline.dialects.formats.tagged import TaggedCall
from plumbline.dialects.spec.call_format import Call
from plumbline.dialects.spec.dialect import Utterance
from plumbline.dialects.spec.markers import Markers
from plumbline.events import FinishReason, Logprob, OutputEvent, TextDelta, ToolCallDelta
from plumbline.server.settings import pocket_model
from plumbline.text.tokenizer import TextTokenizer

laws = settings(max_examples=EXAMPLES)


SPOKEN = [*DIALECTS, *TEMPLATES]
"""The dialects that are data, and what tokenizers declare themselves."""
READING = [dialect for dialect in SPOKEN if dialect.reasoning is None or not dialect.reasoning.append]
"""All but those that leave the thinking in the text, markers and all."""

words = st.text("abcdefghij", min_size=1, max_size=6).map(lambda text: f"the {text}s")

_POCKET = TextTokenizer.from_folder(pocket_model())

_SOUP = (
    '{"name": "f", "arguments": {}}',
    '{"name": "ping", "parameters": {"city": "x',
    '"',
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "f",
    "get_weather",
    "functions.f:0",
    "(",
    ")",
    'city="a"',
    "city=",
    "=",
    "\n",
    " ",
    "```",
    "<",
    ">",
    "/",
    "\\",
    "12",
    "-",
    "e",
    "true",
    "None",
    "é🎉",
    "city",
    "count",
    "unknown",
    "{}",
    '"}',
    "null",
    "item",
    "\x00",
    "'",
    "|",
)


def soup(dialect: Dialect, number: int) -> str:
    """A piece of markup of the dialect, of JSON, or of text."""
    return _SOUP[number // 2 % len(_SOUP)] if number % 2 else dialect.atoms[number // 2 % len(dialect.atoms)]


def tokens(text: str) -> Iterator[bytes]:
    """The text as the tokens of the pocket model."""
    return (_POCKET.table[token_id] for token_id in _POCKET.encode_text(text))


def without_stump(dialect: Dialect, text: str) -> str:
    """The text without a beginning of a marker that is too short or too much of a word to be taken for one."""
    stumps = [m[:1] for m in dialect.markers]
    stumps += [m[:n] for m in dialect.markers if m[0].isalnum() for n in range(1, len(m))]
    longest = max((stump for stump in stumps if text.endswith(stump)), key=len, default="")
    return text[: len(text) - len(longest)].rstrip(" \t\r\n")


def begins(one: Folded, other: Folded) -> bool:
    """Whether a message is the beginning of another."""
    if not other.reasoning.startswith(one.reasoning) or not other.content.startswith(one.content):
        return False
    if len(one.calls) > len(other.calls):
        return False
    return all(
        call.name == later.name and later.arguments.startswith(call.arguments)
        for call, later in zip(one.calls, other.calls, strict=False)
    )


@laws
@given(plan=plans, lengths=sizes)
def test_what_a_dialect_writes_it_reads(plan: Plan, lengths: list[int]) -> None:
    for dialect in READING:
        utterance = dialect.utterance(plan)
        text = dialect.write(utterance)
        found = dialect.read([text], plan)
        assert same(found[0], utterance), (dialect, text, found, utterance)
        assert dialect.read(cut(text, lengths), plan) == found, (dialect, text)


def _reordered(dialect: Dialect) -> Iterator[Dialect]:
    """The dialect with each other of its sections as the one to write."""
    sections = dialect.tool.sections if dialect.tool is not None else ()
    for number in range(1, len(sections)):
        turned = (*sections[number:], *sections[:number])
        yield Dialect(msgspec.structs.replace(dialect.tool, sections=turned), dialect.reasoning)


TURNED = [(dialect, other) for dialect in READING for other in _reordered(dialect)]
"""Dialects of several sections, and the same with another section first."""


def _fenced(text: str) -> bool:
    """Whether a backtick of the text stands before a fence around calls, which then begins a character too early."""
    return "````" in text


@laws
@given(
    plan=plans,
    atoms=st.lists(st.integers(0, 63), max_size=14),
    lengths=sizes,
    reason=st.sampled_from(["stop", "length"]),
)
def test_each_section_is_read_whichever_is_written(
    plan: Plan, atoms: list[int], lengths: list[int], reason: FinishReason
) -> None:
    """The order of the sections says what is written. Outputs are the same messages in any order."""
    for dialect, other in TURNED:
        utterance = other.utterance(plan)
        text = other.write(utterance)
        found, _ = other.read(cut(text, lengths), plan)
        assert same(found, utterance) or _fenced(text), (other, text, found, utterance)
        assert dialect.read([text], plan)[0] == found, (dialect, text)
        text = "".join(soup(dialect, number) for number in atoms)
        # Of markup that is no call of any section, the first says what was expected.
        assert dialect.read([text], reason=reason)[0] == other.read([text], reason=reason)[0], (dialect, text)


@laws
@given(plan=plans)
def test_bytes_and_tokens_give_the_same_message(plan: Plan) -> None:
    for dialect in SPOKEN:
        text = dialect.write(dialect.utterance(plan))
        whole = dialect.read([text], plan)
        assert dialect.read(cut_bytes(bytes([byte]) for byte in text.encode()), plan) == whole, dialect
        assert dialect.read(cut_bytes(tokens(text)), plan) == whole, dialect


@laws
@given(
    atoms=st.lists(st.integers(0, 63), max_size=14), lengths=sizes, reason=st.sampled_from(["stop", "length"])
)
def test_no_soup_crashes_and_none_depends_on_its_cutting(
    atoms: list[int], lengths: list[int], reason: FinishReason
) -> None:
    for dialect in SPOKEN:
        text = "".join(soup(dialect, number) for number in atoms)
        whole = dialect.read([text], reason=reason)
        assert dialect.read(cut(text, lengths), reason=reason) == whole, (dialect, text)


@laws
@given(
    plan=plans,
    places=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    reason=st.sampled_from(["stop", "length"]),
)
def test_the_message_of_a_prefix_is_a_prefix_of_the_message(
    plan: Plan, places: list[float], reason: FinishReason
) -> None:
    for dialect in READING:
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
@given(plan=plans, place=st.floats(0, 1))
def test_nothing_of_a_cut_call_is_text(plan: Plan, place: float) -> None:
    for dialect in READING:
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


@laws
@given(first=plans, second=plans, lengths=sizes)
def test_parsers_share_no_state(first: Plan, second: Plan, lengths: list[int]) -> None:
    for dialect in SPOKEN:
        texts = [dialect.write(dialect.utterance(plan)) for plan in (first, second)]
        one, other = dialect.parser(first), dialect.parser(second)
        events: list[OutputEvent] = []
        for pieces in zip_longest(*(cut(text, lengths) for text in texts), fillvalue=""):
            events += one.push(TextDelta(pieces[0]))
            other.push(TextDelta(pieces[1]))
        events += one.finish("stop")
        assert fold(events) == dialect.read([texts[0]], first)[0], dialect


@laws
@given(plan=plans, lengths=sizes, place=st.floats(0, 1.5), reason=st.sampled_from(["stop", "length"]))
def test_logprobs_are_those_of_the_text(
    plan: Plan, lengths: list[int], place: float, reason: FinishReason
) -> None:
    for dialect in READING:
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


@laws
@given(before=words, after=words)
def test_a_literal_marker_in_prose_is_prose(before: str, after: str) -> None:
    for dialect in DIALECTS:
        if dialect.tool is not None and dialect.tool.messages:
            continue  # Harmony's markers have a law of their own.
        markers = Markers(dialect.tool, dialect.reasoning)
        for marker in (*markers.sections, *markers.silent):
            text = f"{before} {marker} {after}"
            if dialect.reasoning is not None and dialect.reasoning.starts_inside:
                text = f"hm {dialect.reasoning.close[0]} {text}"
            found, _ = dialect.read(list(text))
            assert found.content.endswith(f"{before} {marker} {after}"), (dialect, found)
            assert not found.calls, dialect


_TEXTS = (
    {"type": "string"},
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"type": ["string", "integer"]},
    {},
)
"""Schemas of parameters that may be texts: the second and third are what an optional text is for most clients."""


@laws
@given(filling=st.text("abc é€🎉", min_size=60, max_size=80), schema=st.sampled_from(_TEXTS))
def test_arguments_come_while_they_are_written(filling: str, schema: dict[str, Any]) -> None:
    properties = {"city": schema, "count": {"type": "integer"}}
    for dialect in DIALECTS:
        if dialect.tool is None:
            continue
        if not schema and isinstance(dialect.call_format, ElementCall):
            continue  # A value of which nothing is known may have elements in it, up to its end.
        arguments = {"city": filling.strip() + ".", "count": 3}
        call = Call("get_weather", json.dumps(arguments, ensure_ascii=False))
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        parser = dialect.parser(schema={"type": "object", "properties": properties})
        deltas = []
        for piece in cut(text, [4]):
            deltas += [event for event in parser.push(TextDelta(piece)) if isinstance(event, ToolCallDelta)]
        assert len(deltas) > 8, dialect
        assert max(len(delta.arguments) for delta in deltas) < 40, dialect
        deltas += [event for event in parser.finish("stop") if isinstance(event, ToolCallDelta)]
        assert json.loads("".join(delta.arguments for delta in deltas)) == arguments, dialect


_TODOS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "todos": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "s": {"type": "string"},
                    "done": {"type": "boolean"},
                },
            },
        },
        "more": {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}}},
    },
}
_TOKEN = 4


@laws
@given(words=st.lists(st.text("abc é€🎉", max_size=30), min_size=5, max_size=8))
def test_arrays_and_objects_come_while_they_are_written(words: list[str]) -> None:
    strings = [f"{word}." for word in words]
    todos = [{"n": n * 7, "s": text, "done": n % 2 == 0} for n, text in enumerate(strings)]
    arguments = {"todos": todos, "more": {"tags": strings}}
    call = Call("f", json.dumps(arguments, ensure_ascii=False))
    for dialect in DIALECTS:
        if dialect.tool is None:
            continue
        text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
        parser = dialect.parser(schema=_TODOS)
        told: list[str] = []
        # Markup tells nothing, nor does a number or key until it is complete: between deltas there is no more.
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


_PIECES = (
    '"',
    '"',
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "1",
    "tru",
    "e",
    "None",
    "'",
    "\\",
    "\n",
    " ",
    "a",
    "\xa0",
    "</",
)
"""Of which texts between tags are made: some are JSON for a while."""


@laws
@given(
    numbers=st.lists(st.integers(0, len(_PIECES) + 2), max_size=16),
    begun=st.sampled_from(["", "[", '["', '{"a": ', '[{"a": "']),
    lengths=sizes,
    reason=st.sampled_from(["stop", "length"]),
)
def test_no_text_between_tags_depends_on_its_cutting(
    numbers: list[int], begun: str, lengths: list[int], reason: FinishReason
) -> None:
    for dialect in DIALECTS:
        call_format = dialect.call_format
        if not isinstance(call_format, TaggedCall | ElementCall):
            continue
        end = call_format.end if isinstance(call_format, TaggedCall) else call_format.tag
        pieces = (*_PIECES, end, end[:-1], "<![CDATA[")
        value = begun + "".join(pieces[number] for number in numbers)
        for key, written in (("tags", '["@@"]'), ("größe", '{"@@": "@@"}')):
            said = {key: "@@" if isinstance(call_format, ElementCall) else json.loads(written)}
            reasoning = "hm" if dialect.reasoning is not None else None
            call = Call("f", json.dumps(said, ensure_ascii=False))
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
    for dialect in SPOKEN:
        if not dialect.says_calls:
            continue
        for depth in (15, 40, 100):
            value: object = 1.5
            for _ in range(depth):
                value = {"größe": [value]}
            call = Call("f", json.dumps({"größe": value}))
            text = dialect.write(Utterance((call,), "hm" if dialect.reasoning is not None else None))
            for said in (
                text,
                text.partition("1.5")[0] + "[" * 3000,
                text.partition("1.5")[0] + '{"a":' * 3000,
            ):
                assert dialect.read([said], reason="length") == dialect.read(cut(said, [7]), reason="length")


def test_unread_text_stays_short() -> None:
    """What is scanned again with each piece is no longer than the longest marker, so reading is linear."""
    long = "word " * 400
    call = Call("f", json.dumps({"city": long, "tags": [long], "count": 10**100}))
    for dialect in DIALECTS:
        parts = (call, call) if dialect.tool is not None else (long,)
        reasoning = long.strip() if dialect.reasoning is not None else None
        written = dialect.write(Utterance((*parts, long.strip()), reasoning))
        for text in (written, *(marker[:-1] * 300 for marker in dialect.markers)):
            parser = dialect.parser()
            longest = max(map(len, dialect.markers), default=0)
            for piece in cut(text, [3]):
                parser.push(TextDelta(piece))
                unread = len(parser._cursor.text) - parser._cursor.pos
                assert unread <= longest + 3, (dialect, unread, text[:200])
