"""What a model's chat template makes of an earlier turn that called a tool."""

from __future__ import annotations

from plumbline.dialects.section_choice import EXAMPLE, SCHEMA
from plumbline.text.render import Renderer
from plumbline.text.template import TemplateError
from plumbline.turn import ChatPrompt, Message, Tool, ToolCall

__all__ = ["shown_call"]

_MOST = 4096
"""Characters at the end of a conversation in which its last turn stands. Each marker in them is tried."""


def shown_call(renderer: Renderer, call_id: str) -> str:
    """The end of a conversation that ends with a turn of the example call; empty if the template refuses it.

    Args:
        renderer: of the model's prompts.
        call_id: the id of the call, in the style of the family: some templates insist on it.
    """
    call = ToolCall(call_id, EXAMPLE.name, EXAMPLE.arguments)
    prompt = ChatPrompt(
        messages=(
            Message(role="user", content="How is the weather?"),
            Message(role="assistant", tool_calls=(call,)),
        ),
        tools=(Tool(name=EXAMPLE.name, description="Tells the weather.", parameters=SCHEMA),),
        add_generation_prompt=False,
    )
    try:
        return renderer.text(prompt)[-_MOST:]
    except TemplateError:
        return ""
