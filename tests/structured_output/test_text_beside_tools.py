"""Laws of constrained text beside tools: an answer is text or calls, both are reachable and parsed correctly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED
from support.parsing.folding import Folded, cut, fold

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.events import Logprob, TextDelta
from plumbline.answer.structured_output.answer_grammar import compose, unparsed_part
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.turn import (
    ChoiceFormat,
    JsonFormat,
    LarkFormat,
    OutputFormat,
    RegexFormat,
    Tool,
    ToolChoice,
)

from .test_constraints import compiled_constraint
from .walk import ENDS, builder, frame, matcher, model_dialect, thinking, tokenizer

TOOL_NAMES = sorted({dialect.name for dialect in TOOL_DIALECTS.values()})
AUTO = ToolChoice(mode="auto")
TOOLS = (
    Tool(name="now", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
    Tool(
        name="set_alarm",
        parameters={
            "type": "object",
            "properties": {"on": {"type": "boolean"}},
            "required": ["on"],
            "additionalProperties": False,
        },
        strict=True,
    ),
)
PARAMETERS: dict[str, Any] = {tool.name: tool.parameters for tool in TOOLS}
CALLS = (WrittenCall("now", "{}"), WrittenCall("set_alarm", '{"on": true}'))
ANYTHING: OutputFormat = JsonFormat({})
"""Any document of JSON."""


class Answering:
    """A model of these dialects with a constraint and two tools."""

    def __init__(self, tool: str, form: OutputFormat, reasoning: str | None = None, *, inside: bool = False):
        self.dialect = TOOL_DIALECTS[tool]
        self.harmony = tool == "harmony"
        self.reasoning = REASONING_DIALECTS["harmony"] if self.harmony else None
        if reasoning is not None:
            self.reasoning = REASONING_DIALECTS[reasoning]
        self.inside = inside
        self._model = model_dialect(self.dialect, self.reasoning)
        syntax = self._model.syntax
        found = compose(
            builder(),
            output_format=form,
            tools=TOOLS,
            choice=AUTO,
            syntax=syntax,
            thinking=thinking(inside=inside),
        )
        assert found is not None
        self.grammar = found
        self._unread = unparsed_part(form, TOOLS, AUTO, syntax, thinking(inside=inside))

    def parser(self, *, logprobs: bool = False) -> AnswerParser:
        """What reads one answer."""
        return self._model.parser(
            PARAMETERS, frame(inside=self.inside), unparsed=self._unread, logprobs=logprobs
        )

    def read(self, text: str, sizes: Sequence[int] = (), *, cut_off: bool = False, begun: int = 0) -> Folded:
        """What becomes of an answer, which may have been begun and may be cut off."""
        parser = self.parser()
        events = list(parser.continue_message(text[:begun], echo=True)) if begun else []
        events += [event for piece in cut(text[begun:], sizes) for event in parser.push(TextDelta(piece))]
        return fold([*events, *parser.finish("length" if cut_off else "stop")])

    def text(self, text: str) -> str:
        """A text as the model writes it."""
        return f"{self._model.syntax.text_header}{text}"

    def calls(self, *calls: WrittenCall) -> str:
        """Calls as the model writes them."""
        return render_calls(list(calls), self.dialect.sections[0]).removesuffix(
            "<|call|>" if self.harmony else ""
        )


@cache
def answering(tool: str) -> Answering:
    """A model of this dialect, any document of JSON and two tools."""
    return Answering(tool, ANYTHING)


@cache
def single_bytes() -> dict[bytes, int]:
    """The tokens of one byte."""
    return {raw: number for number, raw in enumerate(tokenizer().table) if len(raw) == 1}


def goes_through(grammar: str, text: str) -> bool:
    """Whether a text goes through byte by byte and may end there; control tokens of the pocket model are text here."""
    found = matcher(grammar)
    for byte in text.encode():
        if not found.accept(single_bytes()[bytes([byte])]):
            return False
    return found.is_done or found.accept(min(ENDS))


def markup(name: str) -> list[str]:
    """Texts that mean something to a dialect."""
    dialect = TOOL_DIALECTS[name]
    texts = ["<think>", "</think>", "<|end|>", "<|return|>", "<|start|>", *dialect.silent]
    for section in dialect.sections:
        texts += [*section.open, *section.close, section.item_open, section.item_close, section.between]
    if name != "harmony":
        calls = [render_calls([call], section) for call in CALLS for section in dialect.sections]
        texts += [
            *calls,
            *(text.replace("\n", "") for text in calls),
        ]  # In a string a line feed is an escape.
    return [text for text in dict.fromkeys(texts) if text.strip()]


DOCUMENTS: list[Any] = [
    {"a": "x"},
    {"name": "Alice"},
    {"name": "now"},
    {"name": "nowhere", "parameters": {}},
    {"parameters": {}, "name": "now"},
    {"function": {"name": "now", "arguments": {}}},
    {},
    [],
    [{"a": "x"}],
    [{"name": "x", "arguments": {}}],
    ["now()"],
    [[1, None], False, "TOOL_CALLS"],
    None,
    False,
    "now",
    -1.5,
]


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_constrained_text_beside_tools_is_reachable(name: str) -> None:
    """Every document of the constraint is reachable, in both layouts."""
    model = answering(name)
    for document in DOCUMENTS:
        for separators in ((",", ":"), (", ", ": ")):
            text = json.dumps(document, separators=separators)
            said = model.text(text)
            assert goes_through(model.grammar, said), text
            assert model.read(said) == [("text", text)]


FORMS: list[OutputFormat] = [
    ANYTHING,
    JsonFormat({"type": "array", "items": {"type": "object"}}),
    RegexFormat(r"(?s:.)*"),
    RegexFormat(r"[\[{].*"),
    ChoiceFormat(("{", "[", "[n", '{"name', '[{"', "<", "<tool", "no")),
    LarkFormat('start: "yes" | "no"'),
]


@pytest.mark.parametrize(
    ("name", "form"),
    # Neighbours among the dialects are alike, so each takes half of the forms.
    [
        (name, form)
        for place, name in enumerate(TOOL_NAMES)
        for form in (FORMS if EXPLORED else FORMS[place % 2 :: 2])
    ],
)
def test_calls_beside_constrained_text_are_reachable_and_parsed_as_calls(
    name: str, form: OutputFormat
) -> None:
    model = Answering(name, form)
    # A call ends an answer of harmony, so there is never a second.
    for said in (CALLS[:1], CALLS[1:], *([] if model.harmony else [CALLS])):
        text = model.calls(*said)
        assert goes_through(model.grammar, text), text
        for sizes in ((), (1,)):
            found = model.read(text, sizes)
            assert [(part[0], part[1], json.loads(part[2]), part[3]) for part in found] == [
                ("call", call.name, json.loads(call.arguments), "whole") for call in said
            ], text


def _texts(name: str) -> st.SearchStrategy[str]:
    """Strings of JSON with markers of a dialect in them."""
    return st.lists(st.one_of(st.sampled_from(markup(name)), st.text(max_size=4)), max_size=4).map("".join)


def _documents(name: str) -> st.SearchStrategy[Any]:
    """Documents with markers in their strings, in names and values."""
    texts = _texts(name)
    values: st.SearchStrategy[Any] = st.one_of(texts, st.integers(-9, 9), st.booleans(), st.none())
    return st.recursive(
        values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    )


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_a_document_beside_tools_arrives_unchanged(name: str) -> None:
    """SO-01: whatever its strings look like, and however the output was cut."""
    model = answering(name)

    @settings(max_examples=EXPLORED // 20 or 3)
    @given(
        document=_documents(name),
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        tight=st.booleans(),
    )
    def law(document: Any, sizes: list[int], tight: bool) -> None:
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":") if tight else (", ", ": "))
        said = model.text(text)
        assert model.read(said) == [("text", text)]
        assert model.read(said, sizes) == [("text", text)]
        # LP-03: each token's entry is with the text, and none is lost while it is not known what the text is.
        entries = [Logprob(piece, 0, piece.encode(), piece, -1.0) for piece in cut(said, sizes)]
        parser = model.parser(logprobs=True)
        events = [event for entry in entries for event in parser.push(TextDelta(entry.text, (entry,)))]
        events += parser.finish("stop")
        told = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
        assert b"".join(entry.raw for entry in told).decode() == text

    law()


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_a_document_that_is_cut_off_is_the_beginning_of_the_whole(name: str) -> None:
    model = answering(name)
    text = json.dumps({"name": markup(name)})
    for size in range(1, len(text)):
        assert model.read(model.text(text[:size]), cut_off=True) in ([("text", text[:size])], [])


def test_a_document_that_begins_as_a_call_is_one() -> None:
    """Calls that are bare JSON documents are distinguished only by their beginning."""
    model = answering("llama3_json")
    assert model.read('{"name": "now", "parameters": {}, "at": "once"}') == [("call", "now", "{}", "whole")]
    document = '{"name": "never", "parameters": {}}'
    assert model.read(document) == [("text", document)]


@pytest.mark.parametrize(
    ("tool", "reasoning"),
    [
        ("hermes", "qwen3"),
        ("llama3_json", "deepseek_r1"),
        ("xlam", "minimax_m2_append_think"),
        ("minimax_m2", "minimax_m2_append_think"),
        ("mistral", "mistral"),
        ("kimi_k2", "kimi_k2"),
    ],
)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("form", [ANYTHING, RegexFormat(r'[ \n]?("<tool_call>"|yes|no)\s?')])
def test_after_the_thinking_comes_a_text_or_calls(
    tool: str, reasoning: str, inside: bool, form: OutputFormat
) -> None:
    model = Answering(tool, form, reasoning, inside=inside)
    assert model.reasoning is not None
    begun = "" if inside else model.reasoning.open[0]
    before = f"{begun}Hm.{model.reasoning.close[0]}{model.reasoning.after_close}"
    kept = model.reasoning.open[0] + model.reasoning.after_open if inside else ""
    texts = ['"<tool_call>"'] + ([" yes", "\nno "] if form is not ANYTHING else [])
    for sizes in ((), (1,), (4, 3)):
        for text in texts:
            assert goes_through(model.grammar, before + text)
            found = model.read(before + text, sizes)
            if model.reasoning.append:
                assert found == [("text", kept + before + text)]
            else:
                assert found == [("reasoning", "Hm."), ("text", text)]
        said = before + model.calls(*CALLS)
        assert goes_through(model.grammar, said)
        first, *calls = model.read(said, sizes)
        if model.reasoning.append:
            assert first == ("text", kept + before.rstrip())
        else:
            assert first == ("reasoning", "Hm.")
        assert [call[1] for call in calls] == ["now", "set_alarm"]


def test_begun_text_is_followed_by_constrained_text_or_calls() -> None:
    model = answering("hermes")
    for sizes in ((), (1,), (2,)):
        assert model.read('Look: {"a": "<tool_call>"}', sizes, begun=6) == [
            ("text", 'Look: {"a": "<tool_call>"}')
        ]
        said = "Look:\n" + model.calls(CALLS[0])
        assert model.read(said, sizes, begun=6)[1:] == [("call", "now", "{}", "whole")]
    for rest, expected in (
        ('"</think>"', ("text", '"</think>"')),
        (said[6:], ("call", "now", "{}", "whole")),
    ):
        parser = model.parser()
        assert not parser.continue_message(said[:6], echo=False)
        assert fold([*parser.push(TextDelta(rest)), *parser.finish("stop")]) == [expected]


def test_a_text_that_begins_like_a_call_is_refused() -> None:
    """It cannot be distinguished from a call, unless white space or a marker precedes."""
    syntax = model_dialect(TOOL_DIALECTS["hermes"], REASONING_DIALECTS["qwen3"]).syntax
    for choices in (("<tool_call>",), ("no", "<tool_call>x")):
        with pytest.raises(ConstraintError, match="cannot be distinguished"):
            compose(builder(), output_format=ChoiceFormat(choices), tools=TOOLS, choice=AUTO, syntax=syntax)
    told = ChoiceFormat((" yes", "x<tool_call>", "</think>"))
    assert compose(builder(), output_format=told, tools=TOOLS, choice=AUTO, syntax=syntax) is not None
    with pytest.raises(ConstraintError, match="cannot be distinguished"):
        compiled_constraint(*TOOLS, form=RegexFormat("<tool_call>.*"))
    promise = compiled_constraint(*TOOLS, form=RegexFormat("<tool_call>.*|<tool>"))
    assert promise.grammar is not None
    assert goes_through(promise.grammar, "<tool>")
    assert not goes_through(promise.grammar, "<tool_call>x")


@pytest.mark.parametrize("form", [None, ANYTHING])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_free_text_cannot_contain_a_harmony_header(form: OutputFormat | None, mode: str) -> None:
    """A header written with ordinary tokens would be parsed as the next message, which is not constrained."""
    syntax = model_dialect(TOOL_DIALECTS["harmony"], REASONING_DIALECTS["harmony"]).syntax
    grammar = compose(
        builder(),
        output_format=form,
        tools=TOOLS,
        choice=ToolChoice(mode="required" if mode == "required" else "auto"),
        syntax=syntax,
    )
    assert grammar is not None
    begun = "<|channel|>analysis<|message|>x"
    after = "<|end|><|start|>assistant"
    call = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
    text = "<|channel|>final<|message|>{}"
    ends = [call, *([text] if mode == "auto" else [])]
    for end in ends:
        assert goes_through(grammar, f"{begun}{after}{end}")
        for header in (
            '<|channel|>commentary to=functions.set_alarm<|message|>{"on": 5}',
            "<|start|>assistant<|channel|>final<|message|>no JSON",
        ):
            assert not goes_through(grammar, f"{begun} {header}{after}{end}")
            assert form is not None or not goes_through(grammar, f"<|channel|>final<|message|>x {header}")
