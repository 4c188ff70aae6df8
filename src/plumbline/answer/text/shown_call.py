"""Render an earlier turn with a tool call, to see how the model's chat template writes calls."""

from __future__ import annotations

from plumbline.answer.dialects.variant import EXAMPLE, SCHEMA
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolCall

__all__ = ["shown_call"]

_QUESTION = "How is the weather?"
_MOST = 4096
"""Characters after the question that are searched for the call. Each marker in them is tried."""


def shown_call(renderer: Renderer, call_id: str) -> str:
    """Return the rendered turn with the example call; empty if the template refuses it.

    The turn begins after the question, because instructions may show example calls as well, and after the whole
    opening of the turn that a prompt ends with: functionary's prompt ends with the marker `>>>` of the first call.

    Args:
        renderer: renders the model's prompts.
        call_id: the id of the call, in the style of the family, which some templates require.
    """
    call = ToolCall(call_id, EXAMPLE.name, EXAMPLE.arguments)
    question = Message(role="user", content=_QUESTION)
    tools = (Tool(name=EXAMPLE.name, description="Tells the weather.", parameters=SCHEMA),)
    shown = (question, Message(role="assistant", tool_calls=(call,)))
    try:
        text = renderer.text(ChatPrompt(messages=shown, tools=tools, add_generation_prompt=False))
    except TemplateError:
        return ""
    _, asked, turn = text.rpartition(_QUESTION)
    if not asked:
        return text[-_MOST:]
    try:
        _, _, opening = renderer.text(ChatPrompt(messages=(question,), tools=tools)).rpartition(_QUESTION)
    except TemplateError:
        opening = ""
    return turn.removeprefix(opening)[:_MOST]
