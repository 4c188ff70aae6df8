"""How a reasoning effort reaches the chat template: by the usual variables, and by those of the family."""

from __future__ import annotations

import pytest
from support.models import byte_level

from plumbline.dialects.registry import REASONING_DIALECTS
from plumbline.text.render import Renderer
from plumbline.text.template import ChatTemplate
from plumbline.turn import ChatPrompt, Message

TEMPLATE = "{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}"


def rendered(effort: str | None, dialect: str | None, **kwargs: object) -> str:
    thinking = None if dialect is None else REASONING_DIALECTS[dialect].switch.variables
    renderer = Renderer(byte_level(), ChatTemplate(TEMPLATE), thinking)
    messages = (Message(role="user", content="hi"),)
    return renderer.text(ChatPrompt(messages=messages, effort=effort, template_kwargs=kwargs))


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
