"""The dialects of a model are chosen by its chat template, or else by its tokens."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.parsing.folding import fold

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import (
    REASONING_DIALECTS,
    TOOL_DIALECTS,
    UnknownDialectError,
    choose,
    matching,
)
from plumbline.answer.dialects.variant import EXAMPLE, SCHEMA
from plumbline.answer.events import TextDelta

_TEMPLATES = {
    path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
"""Excerpts in the style of each family. The comment at the top says what they have to be taken for."""


_WHOLE = {
    "apertus": ("apertus", "apertus"),
    "command_4": ("cohere_command4", "cohere_command4"),
    "deepseek_v31": ("deepseek_v31", "deepseek_v3"),
    "ernie45": ("ernie45", "ernie45"),
    "gemma4": ("gemma4", "gemma4"),
    "glm47": ("glm47", "glm45"),
    "granite4": ("hermes", None),
    "hunyuan_a13b": ("hunyuan_a13b", "hunyuan_a13b"),
    "kimi_k3": ("kimi_k3", "kimi_k3"),
    "lfm2": ("lfm2", "think"),
    "longcat": ("longcat", "qwen3"),
    "mimo": ("mimo", "qwen3"),
    "minimax_m3": ("minimax_m3", "minimax_m3"),
    "nemotron3": ("qwen3_coder", "nemotron_v3"),
    "pythonic": ("pythonic", None),
    "step3": ("step3", "step3"),
    "step3p5": ("qwen3_coder", "step3"),
    "xlam": ("xlam", None),
    "command_a": ("cohere_command3", "cohere_command3"),
    "command_r.tool_use": ("command_r_plus", None),
    "deepseek_r1": (None, "deepseek_r1"),
    "deepseek_v3": ("deepseek_v3", None),
    "functiongemma": ("functiongemma", None),
    "gemma3": (None, None),
    "glm45": ("glm45", "glm45"),
    "gpt_oss": ("harmony", "harmony"),
    "granite3": ("granite", None),
    "hermes3": ("hermes", None),
    "internlm25": ("internlm", None),
    "jamba": ("jamba", None),
    "kimi_k2": ("kimi_k2", None),
    "llama31_tools": ("llama3_json", None),
    "llama4": ("llama4_pythonic", None),
    "minimax_m2": ("minimax_m2", "minimax_m2"),
    "mistral_v3": ("mistral", None),
    "mistral_v7": ("mistral", None),
    "olmo3": ("olmo3", None),
    "phi4_mini": ("phi4_mini", None),
    "qwen25": ("hermes", None),
    "qwen2_vl": (None, None),
    "qwen3": ("hermes", "qwen3"),
    "qwen3_coder": ("qwen3_coder", None),
    "seed_oss": ("seed_oss", "seed_oss"),
}
"""What the whole templates are to be taken for that the tests of rendering have."""


def _expected(template: str) -> tuple[str, str]:
    match = re.match(r"{# tool: (\S+), reasoning: (\S+) #}\n", template)
    assert match is not None
    return match.group(1), match.group(2)


@pytest.mark.parametrize("name", sorted(_TEMPLATES))
def test_a_template_is_taken_for_its_family(name: str) -> None:
    tool, reasoning = _expected(_TEMPLATES[name])
    body = _TEMPLATES[name].split("\n", 1)[1]
    tools = [dialect.name for dialect in matching(TOOL_DIALECTS, body)][:1]
    assert tools == ([tool] if tool != "none" else [])
    thoughts = [dialect.name for dialect in matching(REASONING_DIALECTS, body)][:1]
    assert thoughts == ([reasoning] if reasoning != "none" else [])


@pytest.mark.parametrize("name", sorted(_WHOLE))
def test_whole_templates_are_recognised(name: str) -> None:
    folder = Path(__file__).parent.parent / "text" / "templates"
    chosen = choose((folder / f"{name}.jinja").read_text("utf-8"))
    assert (chosen.tool and chosen.tool.name, chosen.reasoning and chosen.reasoning.name) == _WHOLE[name]


def test_every_dialect_that_can_be_detected_has_a_template() -> None:
    named = [_expected(template) for template in _TEMPLATES.values()]
    assert {d.name for d in TOOL_DIALECTS.values() if d.detect} == {tool for tool, _ in named} - {"none"}
    assert {d.name for d in REASONING_DIALECTS.values() if d.detect} == {r for _, r in named} - {"none"}


def test_tokens_count_only_where_the_template_is_silent() -> None:
    tokens = {"<|open|>", "<|close|>", "<|sep|>", "<|im_end|>"}
    chosen = choose("", added_tokens=tokens)
    assert chosen.tool is TOOL_DIALECTS["kimi_k3"]
    assert chosen.reasoning is REASONING_DIALECTS["kimi_k3"]
    chosen = choose(_TEMPLATES["qwen3"], added_tokens=tokens)
    assert chosen.tool is TOOL_DIALECTS["hermes"]
    assert choose("", added_tokens={"<tool_call>", "</think>"}).tool is None


_HEADERS = ("", "<|assistant|>\n", "<think>\n\n</think>\n\n")


def _shown(turn: str, call_id: str) -> str:
    """Render a turn with a call."""
    return turn + "<|end|>"


@pytest.mark.parametrize("name", sorted({d.name for d in TOOL_DIALECTS.values() if d.detect}))
def test_the_dialect_of_a_rendered_call_reads_it(name: str) -> None:
    """Where no pattern matches the template's source. Without a marker, a call counts only where the turn begins."""
    dialect = TOOL_DIALECTS[name]
    for section in () if dialect.messages else dialect.sections:
        if section.at_line:
            continue
        written = render_calls([EXAMPLE], section)
        for header in _HEADERS if section.open or section.item_open else _HEADERS[:1]:
            chosen = choose("", show_call=partial(_shown, header + written))
            assert chosen.tool is not None, written
            events = build_dialect(chosen).parser({EXAMPLE.name: SCHEMA}, AnswerFrame())
            folded = fold([*events.push(TextDelta(written)), *events.finish("stop")])
            assert [part[:2] for part in folded] == [("call", EXAMPLE.name)]


def test_a_dialect_without_patterns_is_chosen_by_its_name_alone() -> None:
    written = render_calls([EXAMPLE], TOOL_DIALECTS["generic_json"].sections[0])
    assert choose(written, show_call=lambda call_id: written).tool is not TOOL_DIALECTS["generic_json"]
    assert choose("", tool="generic_json").tool is TOOL_DIALECTS["generic_json"]


def test_a_rendered_call_counts_more_than_the_source_and_the_tokens() -> None:
    joined = "{% set mark = '｜DSML｜' %}{{ '<' + mark + 'function_calls>' }}"
    turn = render_calls([EXAMPLE], TOOL_DIALECTS["deepseek_v32"].sections[0])
    tokens = {"｜DSML｜"}
    assert choose(joined, added_tokens=tokens).tool is TOOL_DIALECTS["deepseek_v4"]
    assert (
        choose(joined, added_tokens=tokens, show_call=lambda call_id: turn).tool
        is TOOL_DIALECTS["deepseek_v32"]
    )
    chosen = choose(_TEMPLATES["qwen3"], show_call=lambda call_id: turn)
    assert chosen.tool is TOOL_DIALECTS["deepseek_v32"]


@pytest.mark.parametrize(
    "turn", ["", "It is sunny.", '<unknown>{"name": "get_weather", "parameters": {"city": "Paris"}}']
)
def test_a_turn_that_no_dialect_reads_chooses_none(turn: str) -> None:
    assert choose("", show_call=lambda call_id: turn).tool is None


def test_a_given_name_wins_and_an_unknown_one_is_refused_with_the_list() -> None:
    chosen = choose(_TEMPLATES["qwen3"], tool="mistral", reasoning="none")
    assert chosen.tool is TOOL_DIALECTS["mistral"]
    assert chosen.reasoning is None
    with pytest.raises(UnknownDialectError, match=r"hermes.*mistral"):
        choose("", tool="hermeneutics")


@pytest.mark.parametrize(
    ("template", "tool", "reasoning"),
    [("gpt_oss", "auto", "none"), ("gpt_oss", "harmony", "none"), ("plain", "openai", "auto")],
)
def test_harmony_is_read_whole_or_not_at_all(template: str, tool: str, reasoning: str) -> None:
    """Its headers are never text, with tools and without."""
    chosen = choose(_TEMPLATES[template], tool=tool, reasoning=reasoning)
    assert (chosen.tool, chosen.reasoning) == (TOOL_DIALECTS["harmony"], REASONING_DIALECTS["harmony"])
    assert "its messages hold both" in chosen.describe()
    dialect = build_dialect(chosen)
    said = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
    declared: tuple[dict[str, Any], ...] = ({}, {"f": {}})
    for tools in declared:
        parser = dialect.parser(tools, AnswerFrame())
        events = [*parser.push(TextDelta(said)), *parser.finish("stop")]
        assert fold(events) == [("reasoning", "Hm."), ("text", "Yes.")]


def test_no_other_dialect_brings_a_reasoning_with_it() -> None:
    chosen = choose(_TEMPLATES["qwen3"], reasoning="none")
    assert (chosen.tool, chosen.reasoning) == (TOOL_DIALECTS["hermes"], None)
