"""The model's template and tokens choose between the variants of a family's calls."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path

import pytest
from support.models import byte_level
from support.parsing.folding import fold

from plumbline.answer.dialects.parsers.marker_parser import MarkerParser
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS, choose
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.dialects.spec.markers import Markers
from plumbline.answer.dialects.variant import EXAMPLE
from plumbline.answer.events import TextDelta
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.shown_call import shown_call
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolCall

_TESTS = Path(__file__).parent.parent
TEMPLATES = {
    f"{folder}/{path.stem}": path.read_text("utf-8")
    for folder in ("text", "dialects")
    for path in sorted((_TESTS / folder / "templates").glob("*.jinja"))
}
TOKENIZER = byte_level()
ALARM = {
    "type": "object",
    "properties": {"sound": {"type": "string"}, "hour": {"type": "integer"}},
}


@cache
def _renderer(source: str) -> Renderer:
    return Renderer(TOKENIZER, ChatTemplate(source, bos_token="<s>", eos_token="</s>"))


def _chosen(source: str) -> ToolDialect | None:
    return choose(source, show_call=partial(shown_call, _renderer(source))).tool


def _rendered(source: str, dialect: ToolDialect) -> tuple[str, str]:
    """A prompt, and what the template puts behind it for a turn that calls; none if it refuses."""
    call_id = "functions.set_alarm:0" if dialect.ids == "kimi" else "123456789"
    question = Message(role="user", content="Wake me at 7.")
    turn = Message(
        role="assistant", tool_calls=(ToolCall(call_id, "set_alarm", '{"sound": "bell", "hour": 7}'),)
    )
    tools = (Tool(name="set_alarm", parameters=ALARM),)
    try:
        renderer = _renderer(source)
        before = renderer.text(ChatPrompt(messages=(question,), tools=tools))
        after = renderer.text(ChatPrompt(messages=(question, turn), tools=tools, add_generation_prompt=False))
    except TemplateError:
        return "", ""
    return before, after.removeprefix(before) if after.startswith(before) else ""


def _read(dialect: ToolDialect, text: str) -> list[tuple[str, ...]]:
    parser = MarkerParser(
        Markers(dialect, None), {"set_alarm": ALARM}, inside=False, new_id=lambda name, number: name
    )
    return fold([*parser.push(TextDelta(text)), *parser.finish("stop")])


def _called(dialect: ToolDialect, text: str) -> bool:
    calls = [part for part in _read(dialect, text) if part[0] == "call"]
    return [(part[1], part[3]) for part in calls] == [("set_alarm", "whole")] and json.loads(calls[0][2]) == {
        "sound": "bell",
        "hour": 7,
    }


@cache
def rendering() -> dict[str, tuple[ToolDialect, str]]:
    """The templates that write a turn that calls, as their families' models do: the dialect and the turn."""
    return {
        name: (dialect, text)
        for name, source in TEMPLATES.items()
        if (dialect := _chosen(source)) is not None and not dialect.messages
        if _called(TOOL_DIALECTS[dialect.name], text := _rendered(source, dialect)[1])
    }


def test_the_way_to_write_is_the_one_of_the_template() -> None:
    """A differential law: the first section alone, with its first markers alone, reads what the template writes."""
    for name, (dialect, text) in rendering().items():
        section = dialect.sections[0]
        assert _called(_only(dialect), text), (name, text)
        assert section.open[:1] == tuple(m for m in section.open if m in text)[:1], name
        # All sections together find no more of the turn to be markup.
        assert _text(_read(_only(dialect), text)) == _text(_read(dialect, text)), name


def _only(dialect: ToolDialect) -> ToolDialect:
    return ToolDialect(name=dialect.name, sections=dialect.sections[:1], silent=dialect.silent)


def _text(folded: list[tuple[str, ...]]) -> str:
    return "".join(part[1] for part in folded if part[0] == "text")


def test_most_whole_templates_write_turns_that_call() -> None:
    """So the law above is one of many templates, and of the dialects with several sections all that have one."""
    found = rendering()
    names = {name for name in found if name.startswith("text/")}
    assert len(names) >= 18, sorted(names)
    several = {dialect.name for dialect, _ in found.values() if len(dialect.sections) > 1}
    assert several >= {
        "mistral",
        "phi4_mini",
        "granite",
        "llama3_json",
        "llama4_pythonic",
        "qwen3_coder",
        "mimo",
    }


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("text/mistral_v3", 1),
        ("text/mistral_v7", 0),
        ("dialects/mistral_small", 0),
        ("text/phi4_mini", 1),
        ("text/granite3", 0),
        ("text/llama31_tools", 0),
        ("text/llama4", 1),
        ("dialects/llama4", 0),
        ("dialects/lfm2", 0),
        ("dialects/dots", 0),
        ("dialects/xlam", 0),
        ("text/qwen3_coder", 0),
    ],
)
def test_templates_choose(name: str, number: int) -> None:
    """Also those that write no calls at all, or none that is whole."""
    dialect = _chosen(TEMPLATES[name])
    assert dialect is not None
    known = TOOL_DIALECTS[dialect.name]
    assert dialect.sections[0] == known.sections[number]
    assert sorted(map(repr, dialect.sections)) == sorted(map(repr, known.sections))
    assert (dialect is known) == (number == 0)


@pytest.mark.parametrize(
    ("tool", "template", "tokens", "number", "opened"),
    [
        # The template has the markers of one way alone.
        ("mistral", "[INST] [TOOL_CALLS]", {"[TOOL_CALLS]", "[ARGS]"}, 1, "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS] [ARGS]", {"[TOOL_CALLS]"}, 0, "[TOOL_CALLS]"),
        ("phi4_mini", "functools", {"<|tool_call|>", "<|/tool_call|>"}, 0, "functools"),
        ("granite", "<tool_call> </tool_call>", {"<|tool_call|>"}, 0, "<tool_call>"),
        ("gigachat3", "function call<|role_sep|>", (), 0, "function call<|role_sep|>"),
        # It has neither, and the tokenizer one.
        ("mistral", "", {"[TOOL_CALLS]"}, 1, "[TOOL_CALLS]"),
        ("mistral", "", {"[TOOL_CALLS]", "[ARGS]"}, 0, "[TOOL_CALLS]"),
        ("phi4_mini", "", {"<|tool_call|>", "<|/tool_call|>"}, 1, "<|tool_call|>"),
        ("phi4_mini", "", {"<|tool_call|>", "f", "<"}, 0, "functools"),
        ("granite", "", {"<tool_call>", "</tool_call>"}, 0, "<tool_call>"),
        ("gigachat3", "", {"<|role_sep|>"}, 0, "function call<|role_sep|>"),
        ("gigachat3", "", {"<|role_sep|>", "<|function_call|>"}, 0, "<|function_call|>"),
        ("kimi_k2", "", {"<|tool_call_section_begin|>"}, 0, "<|tool_call_section_begin|>"),
        # Nothing tells them apart.
        ("mistral", "", (), 0, "[TOOL_CALLS]"),
        ("phi4_mini", "", (), 0, "functools"),
        ("granite", "", (), 0, "<|tool_call|>"),
        ("llama3_json", "<|python_tag|>", {"<|python_tag|>"}, 0, ""),
        ("lfm2", "", {"<|tool_call_start|>", "<|tool_call_end|>"}, 0, "<|tool_call_start|>"),
        ("dots", "<dots_function_call>", (), 0, "<dots_function_call>"),
        ("qwen3_coder", "<function=", (), 0, "<tool_call>"),
    ],
)
def test_markers_choose_where_no_turn_is_shown(
    tool: str, template: str, tokens: set[str], number: int, opened: str
) -> None:
    dialect = choose(template, tool=tool, added_tokens=tokens).tool
    assert dialect is not None
    assert dialect.sections[0].call_format == TOOL_DIALECTS[tool].sections[number].call_format
    assert "".join(dialect.sections[0].open[:1]) == opened


def test_both_ends_of_a_section_are_those_that_the_template_writes() -> None:
    section = TOOL_DIALECTS["deepseek_v4"].sections[0]
    plain = render_calls([EXAMPLE], section)
    written = plain.replace("tool_calls>", "toolcalls>")
    assert written != plain
    for template, shows in (
        ("", lambda call_id: f"Hm.{written}"),
        ("<｜DSML｜toolcalls></｜DSML｜toolcalls>", None),
    ):
        dialect = choose(template, tool="deepseek_v4", show_call=shows).tool
        assert dialect is not None
        assert dialect.sections[0].open[0] == "<｜DSML｜toolcalls>"
        assert dialect.sections[0].close[0] == "</｜DSML｜toolcalls>"


@pytest.mark.parametrize(
    "written",
    [
        "",
        '<|python_start|>[get_weather(city="Rome")]<|python_end|>',
        '<|python_start|>[other(city="Paris")]<|python_end|>',
        "<|python_start|>[get_weather(city=",
        '<|python_start|><|python_end|>{"name": "get_weather", "parameters": {"city": "Paris"}}',
    ],
)
def test_a_turn_without_the_call_chooses_nothing(written: str) -> None:
    assert (
        choose("", tool="llama4_pythonic", show_call=lambda call_id: written).tool
        is TOOL_DIALECTS["llama4_pythonic"]
    )


def test_only_dialects_that_leave_a_choice_ask_the_template() -> None:
    asked: list[str] = []

    def shows(call_id: str) -> str:
        asked.append(call_id)
        return ""

    for name in ("hermes", "qwen3_coder", "harmony", "minimax_m2"):
        assert choose("", tool=name, show_call=shows).tool is TOOL_DIALECTS[name]
    assert asked == []
    choose("", tool="kimi_k2", show_call=shows)
    choose("", tool="mistral", show_call=shows)
    assert asked == ["functions.get_weather:0", "abcdefghi"]


@pytest.mark.parametrize(
    "instructions",
    [
        '{% for _ in range(5000) %}[TOOL_CALLS] [{"name": {% endfor %}',
        'Example: [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}',
    ],
)
def test_what_stands_before_the_turn_is_not_what_the_template_writes(instructions: str) -> None:
    """Each marker is tried, so a prompt that repeats them is not read whole; nor do examples count that it gives."""
    source = TEMPLATES["text/mistral_v3"]
    assert shown_call(_renderer(instructions + source), "abcdefghi") == shown_call(
        _renderer(source), "abcdefghi"
    )
    assert _chosen(instructions + source) == _chosen(source)


def test_only_the_beginning_of_a_long_turn_is_read() -> None:
    after = '{% for _ in range(5000) %}[TOOL_CALLS] [{"name": {% endfor %}'
    source = TEMPLATES["text/mistral_v3"]
    assert len(shown_call(_renderer(source + after), "abcdefghi")) == 4096
    assert _chosen(source + after) == _chosen(source)
