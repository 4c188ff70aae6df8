"""Render an earlier turn with a tool call, to see how the model's chat template writes calls."""

from __future__ import annotations

from plumbline.dialects.variant import EXAMPLE, SCHEMA
from plumbline.text.render import Renderer
from plumbline.text.templates.template import TemplateError
from plumbline.turn import ChatPrompt, Message, Tool, ToolCall

__all__ = ["shown_call"]

_QUESTION = "How is the weather?"
_MOST = 4096
"""Characters behind the question that are searched for the call. Each marker in them is tried."""


def shown_call(renderer: Renderer, call_id: str) -> str:
    """Return the rendered turn with the example call; empty if the template refuses it.

    Text before the question is left out, because instructions may show example calls as well.

    Args:
        renderer: renders the model's prompts.
        call_id: the id of the call, in the style of the family, which some templates require.
    """
    call = ToolCall(call_id, EXAMPLE.name, EXAMPLE.arguments)
    prompt = ChatPrompt(
        messages=(
            Message(role="user", content=_QUESTION),
            Message(role="assistant", tool_calls=(call,)),
        ),
        tools=(Tool(name=EXAMPLE.name, description="Tells the weather.", parameters=SCHEMA),),
        add_generation_prompt=False,
    )
    try:
        text = renderer.text(prompt)
    except TemplateError:
        return ""
    _, asked, turn = text.rpartition(_QUESTION)
    return turn[:_MOST] if asked else text[-_MOST:]
