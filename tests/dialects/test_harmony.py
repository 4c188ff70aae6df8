"""Laws of the harmony dialect: messages by channel, calls by recipient."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.folding import Folded, cut, parse

from plumbline.answer.dialects.parsers.harmony import HarmonyParser, is_inside, write_harmony
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.events import FinishReason

laws = settings(max_examples=EXPLORED or 40)
MARKERS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"]
TOOLS: dict[str, dict[str, object]] = {"f": {}, "get_weather": {}}


def harmony(inside: bool = False) -> HarmonyParser:
    return HarmonyParser(TOOLS, inside=inside, new_id=lambda name, number: f"call_{number}")


def read(text: str, inside: bool = False, reason: FinishReason = "stop") -> Folded:
    return parse(lambda: harmony(inside), [text], reason).folded


plain = st.text(st.characters(codec="utf-8", exclude_characters="<"), min_size=1).map(str.strip).filter(bool)
# Texts may speak of markers, each between words. At the end of an output, a marker and one word are a cut header.
words = plain | st.builds("{} {} {} and more".format, plain, st.sampled_from(MARKERS), plain)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(MARKERS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    WrittenCall,
    st.sampled_from(sorted(TOOLS)),
    st.dictionaries(st.text(), values, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False)),
)
utterances = st.builds(
    lambda reasoning, before, made, after: Utterance(
        (*([before] if before else []), *made, *([after] if after else [])), reasoning
    ),
    st.none() | words,
    st.none() | words,
    st.lists(calls, max_size=3),
    st.none() | words,
)
soups = st.lists(
    st.sampled_from(
        [*MARKERS, "assistant", "analysis", "final", " to=functions.f", "json", '{"a": 1}', "{", "x "]
    )
    | st.text(max_size=4),
    max_size=12,
).map("".join)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@laws
@given(utterances)
def test_a_rendered_utterance_is_parsed_again(utterance: Utterance) -> None:
    expected: list[tuple[str, ...]] = []
    if utterance.reasoning is not None:
        expected.append(("reasoning", utterance.reasoning))
    for part in utterance.parts:
        if isinstance(part, WrittenCall):
            expected.append(("call", part.name, part.arguments, "whole"))
        elif expected and expected[-1][0] == "text":
            expected[-1] = ("text", expected[-1][1] + part)
        else:
            expected.append(("text", part))
    assert read(write_harmony(utterance)) == expected


@laws
@given(
    st.one_of(soups, utterances.map(write_harmony)), sizes, st.booleans(), st.sampled_from(["stop", "length"])
)
def test_every_cutting_gives_the_same_message(
    text: str, at: list[int], inside: bool, reason: FinishReason
) -> None:
    whole = parse(lambda: harmony(inside), [text], reason)
    pieces = parse(lambda: harmony(inside), cut(text, at), reason)
    assert (pieces.folded, pieces.warnings) == (whole.folded, whole.warnings)


@laws
@given(st.one_of(soups, utterances.map(write_harmony)), st.integers(0, 400))
def test_no_prefix_crashes_and_nothing_is_taken_back(text: str, length: int) -> None:
    short, long = read(text[:length], reason="length"), read(text, reason="length")
    assert len("".join(part[1] for part in short if part[0] == "reasoning")) <= len(text)
    for cut_part, part in zip(short[:-1], long, strict=False):
        assert cut_part == part


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Plain text.", [("text", "Plain text.")]),
        ("<|channel|>analysis<|message|>Thinking", [("reasoning", "Thinking")]),
        (
            ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>',
            [("call", "f", '{"a": 1}', "whole")],
        ),
        ('<|channel|>analysis to=functions.f code<|message|>{"a": 1}', [("call", "f", '{"a": 1}', "whole")]),
        ("<|channel|>commentary to=functions.f<|message|><|call|>", [("call", "f", "{}", "whole")]),
        (
            "<|channel|>commentary to=functions.f<|message|>oops<|call|>",
            [("call", "f", "", "cut"), ("text", "oops")],
        ),
        ("<|channel|>commentary to=python<|message|>print(1)<|call|>", [("text", "print(1)")]),
        ("<|channel|>final<|message|>One<|channel|>final<|message|> two", [("text", "One two")]),
        ("<|channel|>ana", [("text", "<|channel|>ana")]),
        ("<|channel|><|message|>Hi", [("text", "Hi")]),
        ("<|channel|>commentary 2?<|end|><|start|>assistant<|channel|>final<|message|>Hi", [("text", "Hi")]),
        ("to=day I am", [("text", "to=day I am")]),
    ],
)
def test_headers_that_models_write(text: str, expected: Folded) -> None:
    assert read(text) == expected


@laws
@given(st.sampled_from(["final", "analysis"]), plain, st.sampled_from(MARKERS), plain, sizes)
def test_a_marker_in_prose_is_prose(
    channel: str, before: str, marker: str, after: str, at: list[int]
) -> None:
    said = f"{before} `{marker}` {after}"
    kind = "text" if channel == "final" else "reasoning"
    for end in ("", "<|end|>"):
        pieces = cut(f"<|channel|>{channel}<|message|>{said}{end}", at)
        assert parse(harmony, pieces).folded == [(kind, said)]


@pytest.mark.parametrize(
    "header",
    [
        "<|end|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|end|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>",
        "<|end|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|> json<|message|>",
        "<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|><|message|>",
        "<|end|><|start|>assistant<|channel|> commentary to=functions.f\u2013\u2013commentary<|message|>",
        "<|start|>assistantcommentary to=functions.f<|message|>",
    ],
)
def test_a_sloppy_header_is_a_header(header: str) -> None:
    text = f'<|channel|>analysis<|message|>Hm.{header}{{"a": 1}}<|call|>'
    assert read(text) == [("reasoning", "Hm."), ("call", "f", '{"a": 1}', "whole")]


@laws
@given(
    st.sampled_from(["final", "analysis"]),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "<|end|>", "<|return|><|end|>"]),
        st.sampled_from(["", "<|start|>assistant", "<|start|>assistant" * 2]),
        st.sampled_from(["", "<|channel|>final ", "<|channel|>commentary "]),
        st.sampled_from(["", "<|constrain|>", "<|constrain|>json "]),
    ),
    st.sampled_from(
        ["Hello there.", "We need no more than this, and so it ends.", "Ja", '["a", 1]', "1 < 2"]
    ),
    st.sampled_from(["", "<|end|>", "<|start|>assistant<|channel|>final<|message|>"]),
    sizes,
)
def test_text_after_an_end_without_a_header_is_text(
    channel: str, begun: str, said: str, after: str, at: list[int]
) -> None:
    text = f"<|channel|>{channel}<|message|>Hm.<|end|>{begun}{said}{after}"
    got = parse(harmony, cut(text, at)).folded
    expected = [("reasoning", "Hm."), ("text", said)] if channel == "analysis" else [("text", f"Hm.{said}")]
    assert got == expected


@laws
@given(
    st.sampled_from(["<|start|>assistant", "<|start|>assistant" * 2, "assistant"]),
    st.sampled_from(["<|channel|>commentary to=functions.f", " to=functions.f<|channel|>commentary"]),
    st.sampled_from(["", " json", " <|constrain|>json", "<|constrain|>", "\n"]),
    sizes,
)
def test_a_call_whose_header_has_no_end_is_a_call(start: str, header: str, kind: str, at: list[int]) -> None:
    text = f'<|channel|>analysis<|message|>Hm.<|end|>{start}{header}{kind}{{"a": 1}}<|call|>'
    assert parse(harmony, cut(text, at)).folded == [("reasoning", "Hm."), ("call", "f", '{"a": 1}', "whole")]


@laws
@given(
    st.sampled_from(["", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"]),
    st.lists(
        st.sampled_from(
            [
                "",
                "<|channel|>",
                "<|channel|>final",
                "<|channel|>analysis ",
                "<|channel|>commentary to=",
                "<|channel|>commentary to=functions.f ",
                "<|channel|>commentary to=functions.f <|constrain|>json",
                " to=functions.get_weather<|channel|>commentary",
            ]
        ),
        min_size=1,
        max_size=2,
    ),
    st.sampled_from(["analysis", "final", "call", "call of the role", "call without a channel"]),
    sizes,
)
def test_a_header_that_begins_anew_is_the_one_that_it_became(
    before: str, broken: list[str], kind: str, at: list[int]
) -> None:
    header, body, part = {
        "analysis": ("<|channel|>analysis", "So.", ("reasoning", "So.")),
        "final": ("<|channel|>final", "So.", ("text", "So.")),
        "call": ("<|channel|>commentary to=functions.f", "{}", ("call", "f", "{}", "whole")),
        "call of the role": (" to=functions.f<|channel|>analysis", "{}", ("call", "f", "{}", "whole")),
        "call without a channel": (" to=functions.f", "{}", ("call", "f", "{}", "whole")),
    }[kind]
    begun = "<|start|>assistant".join([*broken, header])
    expected = ([("reasoning", "Hm.")] if before else []) + [part]
    if before and kind == "analysis":
        expected = [("reasoning", "Hm.So.")]
    assert parse(harmony, cut(f"{before}{begun}<|message|>{body}<|end|>", at)).folded == expected


@pytest.mark.parametrize(
    ("broken", "again", "expected"),
    [
        ("<|channel|>final", "", ("text", "{}")),
        ("<|channel|>analysis", "", ("reasoning", "{}")),
        ("<|channel|>commentary to=functions.f", "", ("call", "f", "{}", "whole")),
        (" to=functions.f", "<|channel|>commentary", ("call", "f", "{}", "whole")),
    ],
)
def test_what_a_header_that_begins_anew_leaves_out_was_in_the_first(
    broken: str, again: str, expected: tuple[str, ...]
) -> None:
    assert read(f"{broken}<|start|>assistant{again}<|message|>{{}}<|end|>") == [expected]


@pytest.mark.parametrize(
    "said",
    [
        "The `<|channel|>` and `<|message|>` markers open a message.",
        "Every message is `<|start|>{header}<|message|>{content}<|end|>`, see docs.",
        "What follows `<|end|>` and stands before `<|message|>` is a header.",
    ],
)
def test_prose_about_several_markers_is_prose(said: str) -> None:
    assert read(f"<|channel|>final<|message|>{said}<|return|>") == [("text", said)]
    assert read(f"<|channel|>analysis<|message|>{said}<|end|>") == [("reasoning", said)]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_header_after_an_end_that_the_output_leaves_open_is_no_text(reason: FinishReason) -> None:
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    assert read(text, reason=reason) == [("reasoning", "Hm.")]


def test_plain_text_cut_by_the_token_limit_stays() -> None:
    assert read("to=day I am", reason="length") == [("text", "to=day I am")]
    assert read("to=funct", reason="length") == []
    assert read("<|chan", reason="length") == []


@pytest.mark.parametrize(
    "header", ["<|start|>", "<|start|>assis", "<|start|>assistant<|channel|>fin", "<|end|"]
)
def test_a_header_cut_by_the_token_limit_is_no_text(header: str) -> None:
    assert read(f"<|channel|>final<|message|>One.{header}", reason="length") == [("text", "One.")]


def test_a_call_cut_by_the_token_limit_is_reported_as_far_as_it_got() -> None:
    text = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "lo'
    assert read(text, reason="length") == [("call", "f", '{"a": "lo', "cut")]


def test_the_prompt_decides_whether_an_answer_begins_inside_analysis() -> None:
    added = {marker: number for number, marker in enumerate(MARKERS)}
    table = [*(marker.encode() for marker in MARKERS), b"analysis", b"final", b"assistant"]
    analysis, final, assistant = len(MARKERS), len(MARKERS) + 1, len(MARKERS) + 2
    start, channel, message = (added[text] for text in ("<|start|>", "<|channel|>", "<|message|>"))
    assert is_inside([start, assistant, channel, analysis, message], added, table)
    assert not is_inside([start, assistant, channel, final, message], added, table)
    assert not is_inside([start, assistant], added, table)
