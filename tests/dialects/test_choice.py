"""Which dialects a model speaks is read off its chat template, and off its tokens where that says nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plumbline.dialects.registry import (
    REASONING_DIALECTS,
    TOOL_DIALECTS,
    UnknownDialectError,
    choose,
    fitting,
)

_TEMPLATES = {
    path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "templates").glob("*.jinja")
}
"""Excerpts in the style of each family. The comment at the top says what they have to be taken for."""


def _expected(template: str) -> tuple[str, str]:
    match = re.match(r"{# tool: (\S+), reasoning: (\S+) #}\n", template)
    assert match is not None
    return match.group(1), match.group(2)


@pytest.mark.parametrize("name", sorted(_TEMPLATES))
def test_a_template_is_its_own_family_and_no_other(name: str) -> None:
    tool, reasoning = _expected(_TEMPLATES[name])
    body = _TEMPLATES[name].split("\n", 1)[1]
    tools = [dialect.name for dialect in fitting(TOOL_DIALECTS, body)]
    assert tools == ([tool] if tool != "none" else [])
    thoughts = [dialect.name for dialect in fitting(REASONING_DIALECTS, body)]
    assert thoughts == ([reasoning] if reasoning != "none" else [])


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


def test_a_given_name_wins_and_an_unknown_one_is_refused_with_the_list() -> None:
    chosen = choose(_TEMPLATES["qwen3"], tool="mistral", reasoning="none")
    assert chosen.tool is TOOL_DIALECTS["mistral"]
    assert chosen.reasoning is None
    with pytest.raises(UnknownDialectError, match=r"hermes.*mistral"):
        choose("", tool="hermeneutics")
