"""Read back what a template writes, and report how it differs from what was given to it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

from support.models import byte_level
from support.parsing.folding import fold

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.model_dialect import AnswerFrame
from plumbline.answer.dialects.registry import DialectChoice, choose
from plumbline.answer.events import TextDelta
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.shown_call import shown_call
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError
from plumbline.answer.turn import Message, Tool
from real_templates.probes import PROBES, QUESTION, RESULTS, TOOLS, Probe, ResultProbe, called
from real_templates.report import Difference, Report
from real_templates.thinking import thinking_of
from real_templates.turns import AssistantTurn, assistant_turn, prompt_text

__all__ = ["examine"]

_TOKENIZER = byte_level()
_USER = Message(role="user", content=QUESTION)
_SHOWN = 160


class _Reading(NamedTuple):
    reasoning: str
    text: str
    calls: tuple[tuple[str, str], ...]


def examine(name: str, source: str) -> Report:
    """Detect the dialects of a template and read back every probe that it renders."""
    try:
        template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    except TemplateError as error:
        return Report(name, "none", "none", False, "", (), 0, (Difference("detection", str(error)),))
    plain = Renderer(_TOKENIZER, template)
    choice = choose(source, show_call=partial(shown_call, plain))
    control = choice.thinking_control
    renderer = Renderer(_TOKENIZER, template, None if control is None else control.variables)
    has_tools = _has_tools(renderer, choice)
    differences: list[Difference] = []
    if has_tools and choice.tool is None:
        differences.append(Difference("detection", "the template has a tool section and no tool dialect"))
    thinking, wrong = thinking_of(renderer, choice, source, TOOLS if has_tools else ())
    differences += wrong
    dropped: set[str] = set()
    passed = 0
    for probe in PROBES:
        if probe.calls and (not has_tools or choice.tool is None):
            continue
        found = _turn_difference(renderer, choice, probe, probe.tools if has_tools else (), dropped)
        passed += found is None
        differences += [] if found is None else [Difference(probe.name, found)]
    for result in RESULTS if has_tools else ():
        found = _result_difference(renderer, choice, result)
        passed += found is None
        differences += [] if found is None else [Difference(result.name, found)]
    return Report(
        name,
        "none" if choice.tool is None else choice.tool.name,
        "none" if choice.reasoning is None else choice.reasoning.name,
        has_tools,
        thinking,
        tuple(sorted(dropped)),
        passed,
        tuple(differences),
    )


def _has_tools(renderer: Renderer, choice: DialectChoice) -> bool:
    turn = called(PROBES[0], style=_style(choice))
    for messages in ((_USER,), (_USER, turn)):
        try:
            text = prompt_text(renderer, *messages, generate=len(messages) == 1, tools=TOOLS)
        except TemplateError:
            continue
        if TOOLS[0].name in text:
            return True
    return False


def _style(choice: DialectChoice) -> str:
    return "call" if choice.tool is None else choice.tool.ids


def _turn_difference(
    renderer: Renderer, choice: DialectChoice, probe: Probe, tools: tuple[Tool, ...], dropped: set[str]
) -> str | None:
    """Return how the turn that is read differs from the probe; None if it does not."""
    message = called(probe, style=_style(choice))
    try:
        prompt = prompt_text(renderer, _USER, generate=True, tools=tools)
        unopened = prompt_text(renderer, _USER, generate=False, tools=tools)
        whole = prompt_text(renderer, _USER, message, generate=False, tools=tools)
    except TemplateError as error:
        return f"refused: {error}"[:_SHOWN]
    turn = assistant_turn(unopened, prompt, whole, choice, question=QUESTION)
    expected = _expected(probe, whole, dropped)
    found = _read(choice, turn, tools)
    if found == expected:
        return None
    return f"{_described(found, expected)} of {turn.text[:_SHOWN]!r}"


def _expected(probe: Probe, whole: str, dropped: set[str]) -> _Reading:
    """Return what can be read of the probe: templates may leave out thinking, and text beside calls."""
    asked = whole.rpartition(QUESTION)[2]
    text, reasoning = probe.text or "", probe.reasoning or ""
    if reasoning not in asked:
        dropped.add("thinking before calls" if probe.calls else "thinking")
        reasoning = ""
    if probe.calls and text not in asked:
        dropped.add("text beside calls")
        text = ""
    calls = tuple((name, _canonical(arguments)) for name, arguments in probe.calls)
    return _Reading(reasoning, text, calls)


def _read(choice: DialectChoice, turn: AssistantTurn, tools: tuple[Tool, ...]) -> _Reading:
    schemas = {tool.name: tool.parameters or {} for tool in tools}
    parser = build_dialect(choice).parser(schemas, AnswerFrame(thinking=turn.thinking))
    parts = fold([*parser.push(TextDelta(turn.text)), *parser.finish("stop")])
    calls = [
        (part[1], _canonical(part[2]) if part[3] == "whole" else f"broken off: {part[2]}")
        for part in parts
        if part[0] == "call"
    ]
    reasoning, text = (
        "".join(part[1] for part in parts if part[0] == kind) for kind in ("reasoning", "text")
    )
    return _Reading(reasoning.strip(), text.strip(), tuple(calls))


def _canonical(arguments: str) -> str:
    """Return a JSON text with one spelling for each value, so that 1, 1.0 and true differ."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return f"not JSON: {arguments}"


def _described(found: _Reading, expected: _Reading) -> str:
    differing = [
        f"{name} {getattr(found, name)!r}"[:_SHOWN]
        for name in _Reading._fields
        if getattr(found, name) != getattr(expected, name)
    ]
    return "; ".join(differing)


def _result_difference(renderer: Renderer, choice: DialectChoice, probe: ResultProbe) -> str | None:
    """Return a result that is missing in the prompt or not in its place; None if there is none."""
    two = next(turn for turn in PROBES if len(turn.calls) == len(probe.results))
    turn = called(two, style=_style(choice))
    results = [
        Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
        for call, text in zip(turn.tool_calls, probe.results, strict=True)
    ]
    answer = [] if probe.text is None else [Message(role="assistant", content=probe.text)]
    try:
        whole = prompt_text(renderer, _USER, turn, *results, *answer, generate=not answer, tools=TOOLS)
    except TemplateError as error:
        return f"refused: {error}"[:_SHOWN]
    rest = whole.rpartition(QUESTION)[2]
    for text in (*probe.results, *([probe.text] if probe.text else ())):
        for spelling in _spellings(text):
            _, found, after = rest.partition(spelling)
            if found:
                rest = after
                break
        else:
            return f"{text!r} is not in its place in {whole.rpartition(QUESTION)[2][-_SHOWN:]!r}"
    return None


def _spellings(text: str) -> list[str]:
    """Return the ways in which a template may write a text: as it is, in a JSON string, or parsed and written anew."""
    found = [text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]]
    try:
        value: Any = json.loads(text)
    except ValueError:
        return found
    return [*found, json.dumps(value), json.dumps(value, separators=(",", ":")), str(value)]
