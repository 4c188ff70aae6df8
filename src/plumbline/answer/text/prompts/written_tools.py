"""Show tools with chat templates that have no place for them.

Templates of models that were trained without tools show none of a request (SmolLM2, Gemma 3, DeepSeek R1): the model
would not know that it may call. Their definitions, and the form of a call, then stand in the system message. The
template of Phi-4 mini shows tools only beside a system message, so it gets an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.prompts.joined_messages import INSTRUCTING, joined
from plumbline.answer.turn import Message, Tool
from plumbline.base.exact_number import dumps

__all__ = ["EXAMPLES", "PLACES", "TOOL", "Place", "WriteTools", "in_system_message", "shows", "tools_text"]

WriteTools = Callable[[Sequence[Mapping[str, Any]]], str]
"""Returns the text with the definitions of tools."""
Place = Callable[[Sequence[Message], str], Sequence[Message]]
"""Changes a conversation so that its tools are shown, given their text."""

TOOL: Final = Tool(
    name="osprey",
    description="plover",
    parameters={"type": "object", "properties": {"curlew": {"type": "string", "description": "dunlin"}}},
)
"""The tool of the examples."""
EXAMPLES: Final = (
    (Message(role="user", content="heron"),),
    (Message(role="system", content="crane"), Message(role="user", content="heron")),
)
"""Conversations with which a place is tried. Some templates show tools beside a system message only."""
_FORM: Final = WrittenCall("function_name", json.dumps({"parameter_name": "value"}))


def as_they_are(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """Leave the tools to the template."""
    return messages


def beside_system_message(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """Leave the tools to the template, and give it a system message."""
    if any(message.role in INSTRUCTING for message in messages):
        return messages
    return (Message(role="system", content=""), *messages)


def in_system_message(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """Write the tools after the first system message, or into one of their own."""
    first, rest = messages[:1], messages[1:]
    if first and first[0].role in INSTRUCTING:
        return (joined([first[0], Message(role="system", content=text)], first[0].role), *rest)
    return (Message(role="system", content=text), *messages)


PLACES: Final[tuple[Place, ...]] = (as_they_are, beside_system_message, in_system_message)
"""What to try until the template shows the tools; what changes little comes first."""


def shows(text: str) -> bool:
    """Return whether a rendered example shows `TOOL`."""
    return TOOL.name in text and "curlew" in text


def tools_text(tools: Sequence[Mapping[str, Any]], write: CallWriter, client: Callable[[str], str]) -> str:
    """Describe tools and how to call them, in the dialect in which calls are read.

    Args:
        tools: the definitions, as templates get them.
        write: writes a call.
        client: protects a text of the client.
    """
    definitions = "\n".join(client(dumps(tool["function"])) for tool in tools)
    form = write([_FORM], False)
    return (
        f"You can call the following functions. Each line describes one as JSON:\n{definitions}\n\n"
        "If a function helps to answer, call it: write nothing but its name and arguments, in this form, "
        f"and wait for the result.\n{form}\n"
        "If no function helps, answer in words."
    )
