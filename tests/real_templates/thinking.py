"""Render prompts with thinking and without, and find where an answer starts in each."""

from __future__ import annotations

import re

from jinja2 import meta
from support.models import byte_level

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import DialectChoice
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.sandbox import template_environment
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import Message, Tool
from real_templates.probes import QUESTION
from real_templates.report import Difference
from real_templates.turns import prompt_text

__all__ = ["thinking_of"]

_SWITCH = re.compile(r"think|reason|effort|thought", re.IGNORECASE)
_OPENED = re.compile(r"think[^<>]*[>▷\]]$", re.IGNORECASE)
_ALWAYS_SET = frozenset(("enable_thinking", "reasoning_effort"))
"""The variables that the renderer sets whatever the dialect is."""
_USER = Message(role="user", content=QUESTION)


def thinking_of(
    renderer: Renderer, choice: DialectChoice, source: str, tools: tuple[Tool, ...]
) -> tuple[str, list[Difference]]:
    """Describe where an answer starts by default, with thinking and without, and return what is wrong with that.

    Args:
        renderer: the template with the variables of the dialect.
        choice: the dialects of the template.
        source: its source.
        tools: the tools of the conversation; none if the template does not show tools.
    """
    variables = {
        variable
        for variable in meta.find_undeclared_variables(template_environment().parse(source))
        if _SWITCH.search(variable) and "content" not in variable
    }
    tokenizer = _tokenizer(choice)
    model = build_dialect(choice, tokenizer)
    prompts: dict[str, str] = {}
    starts: dict[str, str] = {}
    for effort in ("default", "high", "none"):
        given = None if effort == "default" else effort
        try:
            prompts[effort] = prompt_text(renderer, _USER, generate=True, effort=given, tools=tools)
        except TemplateError:
            starts[effort] = "refused"
        else:
            starts[effort] = model.frame(tokenizer.encode_rendered(prompts[effort])).thinking
    found = []
    end = prompts.get("default", "").rstrip()[-40:]
    if choice.reasoning is None and _OPENED.search(end):
        found.append(Difference("thinking", f"no reasoning dialect, and the prompt ends with {end!r}"))
    found += _switch_differences(renderer, choice, variables, starts)
    shown = ", ".join(f"{effort}: {start}" for effort, start in starts.items())
    return f"{shown} ({', '.join(sorted(variables)) or 'no switch'})", found


def _tokenizer(choice: DialectChoice) -> TextTokenizer:
    """Return a tokenizer that has the tags of the thinking as added tokens, as those of models do."""
    reasoning = choice.reasoning
    tags = () if reasoning is None else (*reasoning.open, *reasoning.close)
    known = byte_level().added
    return byte_level([{"content": tag} for tag in tags if tag not in known and not re.search(r"\s", tag)])


def _switch_differences(
    renderer: Renderer, choice: DialectChoice, variables: set[str], starts: dict[str, str]
) -> list[Difference]:
    """Return what is wrong with the switch of a template that has one."""
    control = choice.thinking_control
    known = variables & (_ALWAYS_SET | ({name for name, _ in control.off} if control else set()))
    if not known:
        return []
    found = []
    if starts["none"] == "inside":
        found.append(Difference("switch", "an answer without thinking starts inside it"))
    try:
        # Without tools, because some templates think only then.
        on, off = (prompt_text(renderer, _USER, generate=True, effort=effort) for effort in ("high", "none"))
    except TemplateError:
        return found
    if on == off:
        found.append(Difference("switch", f"{', '.join(sorted(known))} changes nothing"))
    return found
