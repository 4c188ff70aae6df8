"""How a reasoning effort reaches the chat template: by the usual variables, and by those of the family."""

from __future__ import annotations

import pytest
from support.models import byte_level

from plumbline.answer.dialects.registry import REASONING_DIALECTS
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.turn import ChatPrompt, Message

TEMPLATE = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}"
BUDGETED = "{{ thinking_budget }}"


def rendered(
    effort: str | None,
    dialect: str | None,
    *,
    template: str = TEMPLATE,
    budget: int | None = None,
    **kwargs: object,
) -> str:
    thinking = None if dialect is None else REASONING_DIALECTS[dialect].switch.variables
    renderer = Renderer(byte_level(), ChatTemplate(template), thinking)
    messages = (Message(role="user", content="hi"),)
    return renderer.text(
        ChatPrompt(messages=messages, effort=effort, thinking_budget=budget, template_kwargs=kwargs)
    )


@pytest.mark.parametrize(
    ("effort", "dialect", "text"),
    [
        (None, None, "||"),
        ("none", None, "none|False|"),
        ("high", None, "high|True|"),
        ("none", "deepseek_v3", "none|False|False"),
        ("low", "deepseek_v3", "low|True|True"),
        ("minimal", "deepseek_v4", "low|True|True"),
    ],
)
def test_an_effort_sets_the_variables_of_the_family(
    effort: str | None, dialect: str | None, text: str
) -> None:
    assert rendered(effort, dialect) == text


def test_what_the_client_sets_itself_wins() -> None:
    assert rendered("high", "deepseek_v3", thinking=False) == "high|True|False"


@pytest.mark.parametrize(
    ("effort", "budget", "dialect", "text"),
    [
        (None, 512, "seed_oss", "512"),
        ("low", 512, "seed_oss", "512"),
        (None, 0, "seed_oss", "0"),
        ("none", 512, "seed_oss", "0"),
        (None, None, "seed_oss", ""),
        (None, 512, "qwen3", ""),
    ],
)
def test_a_budget_reaches_templates_that_take_one(
    effort: str | None, budget: int | None, dialect: str, text: str
) -> None:
    assert rendered(effort, dialect, template=BUDGETED, budget=budget) == text


def test_the_budget_of_the_client_wins() -> None:
    assert rendered(None, "seed_oss", template=BUDGETED, budget=512, thinking_budget=64) == "64"
