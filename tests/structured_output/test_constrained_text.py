"""Laws of constrained text: it arrives unchanged, also if it looks like thinking or calls, or begins with space."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXAMPLES
from support.parsing.folding import cut, fold

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.parsers.response_templates.response_template import ResponseTemplate
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice
from plumbline.answer.events import OutputEvent, TextDelta
from plumbline.answer.structured_output.answer_grammar import compose, unparsed_part
from plumbline.answer.structured_output.grammar.errors import ConstraintError
from plumbline.answer.turn import ChoiceFormat, OutputFormat, RegexFormat, Tool, ToolChoice

from .walk import accepts, builder, frame, model_dialect, sampled, thinking, tokenizer

NAMES = sorted({dialect.name for dialect in REASONING_DIALECTS.values() if not dialect.append})
"""All but those that leave the thinking in the text."""
NO_CALLS = ToolChoice(mode="none")


class Answering:
    """A model of a reasoning dialect with a constraint."""

    def __init__(self, name: str, form: OutputFormat, *, inside: bool = False, thought: bool = False) -> None:
        self.reasoning = REASONING_DIALECTS[name]
        self.harmony = name == "harmony"
        tool = TOOL_DIALECTS["harmony"] if self.harmony else TOOL_DIALECTS["hermes"]
        self.inside = (inside or self.reasoning.starts_inside) and not thought
        self.ended = thought
        self._model = model_dialect(tool, self.reasoning)
        starts = thinking(inside=self.inside, ended=thought)
        found = compose(builder(), output_format=form, syntax=self._model.syntax, thinking=starts)
        assert found is not None
        self.grammar = found
        self._unread = unparsed_part(form, (), NO_CALLS, self._model.syntax, starts)

    def read(self, text: str, sizes: list[int]) -> tuple[str, str]:
        """Thinking and text of an answer."""
        starts = frame(inside=self.inside, ended=self.ended)
        parser = self._model.parser({}, starts, unparsed=self._unread)
        events: list[OutputEvent] = []
        for piece in cut(text, sizes):
            events += parser.push(TextDelta(piece))
        folded = fold([*events, *parser.finish("stop")])
        assert {part[0] for part in folded} <= {"reasoning", "text"}
        thought, text = ("".join(p[1] for p in folded if p[0] == kind) for kind in ("reasoning", "text"))
        return thought, text

    def rendered(self, text: str, *, thought: str | None) -> str:
        """An answer as the model writes it."""
        # What the prompt has begun, it has begun with its header.
        text = text if self.ended else f"{self._model.syntax.text_header}{text}"
        if thought is None:
            return text
        opening = "" if self.inside else self.reasoning.open[0]
        return f"{opening}{thought}{self.reasoning.close[0]}{self.reasoning.after_close}{text}"


def hostile(name: str) -> list[str]:
    """Texts that the dialect's parser would change."""
    reasoning = REASONING_DIALECTS[name]
    marks = (reasoning.open[0], reasoning.close[0])
    return [
        f"{marks[1]}x",
        f"x{marks[0]}y{marks[1]}",
        " yes",
        "\n\nno \n",
        "<tool_call>{}",
        f"a\n{marks[1]}\n",
        "plain",
    ]


def markup_schema(text: str) -> bool:
    """Whether a text has no control token of the pocket model, which no text can have."""
    return not any(
        ours in text for ours, number in tokenizer().added.items() if number in tokenizer().special_ids
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("inside", [True, False])
def test_a_choice_arrives_as_it_was_given(name: str, inside: bool) -> None:
    choices = [choice for choice in hostile(name) if markup_schema(choice)]
    answering = Answering(name, ChoiceFormat(tuple(choices)), inside=inside)
    for choice in choices:
        text = answering.rendered(choice, thought="Hm." if answering.inside else None)
        assert accepts(answering.grammar, text), text
        for sizes in ([len(text)], [1], [3, 1]):
            assert answering.read(text, sizes)[1] == choice
    # A choice that begins like thinking leaves no room for any.
    calm = Answering(name, ChoiceFormat(("plain", " yes", "\nno ")), inside=inside)
    for choice in ("plain", " yes", "\nno "):
        text = calm.rendered(choice, thought="Hm.")
        assert accepts(calm.grammar, text), text
        assert calm.read(text, [2]) == ("Hm.", choice)


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_without_thinking_leaves_nothing_to_read(name: str) -> None:
    choices = [choice for choice in hostile(name) if markup_schema(choice)]
    answering = Answering(name, ChoiceFormat(tuple(choices)), thought=True)
    for choice in choices:
        assert accepts(answering.grammar, answering.rendered(choice, thought=None))
        assert answering.read(answering.rendered(choice, thought=None), [1])[1] == choice


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1", "granite", "harmony", "mistral"])
def test_what_is_drawn_of_a_pattern_matches_it_when_it_is_read(name: str) -> None:
    """Drawn under the grammar and read by the parser in any cutting, white space at both ends included."""
    pattern = r"[ \n]{0,3}(</think>|a|b)[ \n]{0,3}"
    answering = Answering(name, RegexFormat(pattern))
    hints = [f"{answering.reasoning.close[0]}{answering.reasoning.after_close}"]
    drawn = [sampled(answering.grammar, seed, limit=6, most=60, hints=hints) for seed in range(8)]
    found = [text for text in drawn if text is not None]
    assert found

    @settings(max_examples=EXAMPLES // 10)
    @given(text=st.sampled_from(found), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def law(text: str, sizes: list[int]) -> None:
        assert re.fullmatch(pattern, answering.read(text, sizes)[1]), text

    law()


FORBIDDEN = ToolChoice(mode="none", forbidden=True)
TEMPLATE: dict[str, Any] = {
    "start_anchor": "<turn>model\n",
    "fields": {
        "thinking": {"open": ["<think>", "<thought>"], "close": "</think>"},
        "tool_calls": {"open": "<call>", "close": "</call>", "content": "json"},
        "content": {},
    },
}


def declared(source: dict[str, Any]) -> DialectChoice:
    """The choice of a response template."""
    return DialectChoice(None, None, response_template=ResponseTemplate(source))


@pytest.mark.parametrize("opening", ["", "<think>\n", "<think>\n\n</think>\n\n"])
def test_text_under_a_response_template_can_be_constrained(opening: str) -> None:
    """The template's delimiters are text in constrained text, and its thinking stays thinking."""
    ours = tokenizer()
    model = build_dialect(declared(TEMPLATE), ours)
    starts = model.frame(ours.encode_generated("<turn>model\n" + opening))
    inside, ended = starts.thinking == "inside", starts.thinking == "after"
    assert (inside, ended) == (opening == "<think>\n", "</think>" in opening)
    choices = ("<call>{}</call>", " yes", "</think>", "no")
    form = ChoiceFormat(choices)
    grammar = compose(builder(), output_format=form, syntax=model.syntax, thinking=starts.thinking)
    assert grammar is not None
    unparsed = unparsed_part(form, (), NO_CALLS, model.syntax, starts.thinking)
    for choice in choices:
        for thought in (None, "Hm.") if not opening else ("Hm.",) if inside else (None,):
            before = "" if thought is None else f"{'' if inside else '<thought>'}{thought}</think>\n\n"
            assert accepts(grammar, before + choice)
            parser = model.parser({}, starts, unparsed=unparsed)
            events = [event for piece in cut(before + choice, [3]) for event in parser.push(TextDelta(piece))]
            folded = fold([*events, *parser.finish("stop")])
            assert folded == [*([("reasoning", thought)] if thought else []), ("text", choice)]
    with pytest.raises(ConstraintError, match="no dialect"):
        compose(builder(), tools=(Tool(name="f"),), choice=ToolChoice(mode="required"), syntax=model.syntax)


@pytest.mark.parametrize("opening", ["", "<think>\n", "<think>\n\n</think>\n\n"])
def test_no_call_is_begun_that_a_response_template_would_read(opening: str) -> None:
    """TOOL-03: with `none`, markup of calls does not get into text under a response template either."""
    syntax = build_dialect(declared(TEMPLATE)).syntax
    inside, thought = opening == "<think>\n", "</think>" in opening
    grammar = compose(
        builder(), choice=FORBIDDEN, syntax=syntax, thinking=thinking(inside=inside, ended=thought)
    )
    assert grammar is not None
    for before in ("Hm.</think>\n\n",) if inside else ("", *(() if thought else ("<think>Hm.</think>",))):
        assert accepts(grammar, f"{before}It is < 5 [degrees] {{now}}.")
        assert not accepts(grammar, f"{before}It is so: <call>")
        assert not accepts(grammar, f"{before}<call>{{}}</call>")
    assert compose(builder(), choice=NO_CALLS, syntax=syntax, thinking=thinking(inside=inside)) is None


@pytest.mark.parametrize(
    "calls",
    [
        {},
        {"open_pattern": "[<(]call>"},
        {"open_pattern": r"\[\w+\("},
        {"open": '[{"name"'},
        {"open": "{"},
    ],
)
def test_what_begins_no_known_text_is_not_kept_out(calls: dict[str, Any]) -> None:
    fields = {"tool_calls": {**calls, "close": "</call>", "content": "json"}} if calls else {}
    source = {"start_anchor": "<a>", "fields": {**fields, "content": {}}}
    syntax = build_dialect(declared(source)).syntax
    assert compose(builder(), choice=FORBIDDEN, syntax=syntax) is None


def test_a_template_that_transforms_text_is_refused() -> None:
    framed = {"start_anchor": "<a>", "fields": {"content": {"open": "<text>", "close": "</text>"}}}
    syntax = build_dialect(declared(framed)).syntax
    with pytest.raises(ConstraintError, match="response template"):
        compose(builder(), output_format=ChoiceFormat(("a",)), syntax=syntax)
    assert compose(builder(), choice=FORBIDDEN, syntax=syntax) is None
