"""Find out whether a model's chat template keeps the thinking of earlier turns.

Where it does not, the prompt of a new turn differs from what the engine has cached from the thinking of the turn before
on, so the prefix cache is of use up to there only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.turn import ChatPrompt, Message

__all__ = ["dropped_thinking", "keeps_earlier_thinking"]

_THOUGHT = "Two and two are four."
_TURNS = (
    Message(role="user", content="What is two and two?"),
    Message(role="assistant", content="It is 4.", reasoning=_THOUGHT),
    Message(role="user", content="And three and three?"),
)
_VARIABLES: Final[Mapping[str, bool]] = {
    "preserve_thinking": True,  # Qwen 3.6, LFM2.5-8B
    "clear_thinking": False,  # GLM-4.7
    "keep_past_thinking": True,  # LFM2.5
    "truncate_history_thinking": False,  # Nemotron 3
}
"""The template variables of model families that keep the thinking, and their values."""


def keeps_earlier_thinking(renderer: Renderer, variables: Mapping[str, Any] | None = None) -> bool | None:
    """Render a conversation of two turns, and return whether the first one's thinking is in it.

    Args:
        renderer: renders the model's prompts.
        variables: template variables, as in `chat_template_kwargs` of a request.

    Returns:
        None if that is not known: the template refuses the conversation.
    """
    try:
        return _THOUGHT in renderer.text(ChatPrompt(messages=_TURNS, template_kwargs=dict(variables or {})))
    except TemplateError:
        return None


def dropped_thinking(renderer: Renderer) -> str:
    """Return the line that the server prints if earlier thinking is dropped and a variable keeps it; else nothing."""
    if keeps_earlier_thinking(renderer) is not False:
        return ""
    for name, value in _VARIABLES.items():
        if keeps_earlier_thinking(renderer, {name: value}):
            return (
                "The chat template drops the thinking of earlier turns, so a new turn finds the prompt in the prefix "
                "cache only up to the thinking of the turn before; "
                f"--default-chat-template-kwargs '{json.dumps({name: value})}' keeps it"
            )
    return ""
