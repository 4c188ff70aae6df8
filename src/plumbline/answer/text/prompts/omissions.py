"""Find out what a chat template leaves out without a word, with conversations of a few words.

Some templates show the first text of a system message, or the first of several calls. The texts of a conversation
cannot be looked for in its prompt, because templates escape and strip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from plumbline.answer.text.prompts.joined_messages import one_call_each, with_joined_parts
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.turn import Message, Role, Tool, ToolCall

__all__ = ["Omissions"]

Render = Callable[[Sequence[Message], Tool], str]

_FIRST, _SECOND = "kestrel", "osprey"
_TOOL = Tool(
    name="look",
    description="Look.",
    parameters={"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
)
_USER = Message(role="user", content="Hi")
_CALL = ToolCall("abcdefghi", "look", f'{{"at": "{_FIRST}"}}')
_OTHER = ToolCall("abcdefghj", "look", f'{{"at": "{_SECOND}"}}')
_CALLS = (
    _USER,
    Message(role="assistant", tool_calls=(_CALL, _OTHER)),
    Message(role="tool", content="yes", tool_call_id=_CALL.id, name="look"),
    Message(role="tool", content="yes", tool_call_id=_OTHER.id, name="look"),
)
_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


class Omissions:
    """What one template leaves out of conversations; each is tried once, when a conversation has it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], bool] = {}

    def whole(self, messages: Sequence[Message], tools: bool, render: Render) -> Sequence[Message]:
        """Return the conversation in a form of which the template leaves nothing out that it shows elsewhere.

        Args:
            messages: the conversation.
            tools: whether there are tools, for which a model may have another template.
            render: renders a conversation, with a tool if there are tools, and with nothing else of the request.
        """
        if any(len(message.tool_calls) > 1 for message in messages) and self._omits(
            "calls", tools, render, _CALLS
        ):
            messages = one_call_each(messages)
        for role in _ROLES:
            several = any(_has_several_texts(message) for message in messages if message.role == role)
            if several and self._omits(role, tools, render, _with_parts(role)):
                messages = with_joined_parts(messages, role)
        return messages

    def _omits(self, what: str, tools: bool, render: Render, messages: Sequence[Message]) -> bool:
        """Return whether the template shows the first word of a conversation and not the second."""
        if (what, tools) not in self._found:
            try:
                text = render(messages, _TOOL)
            except TemplateError:
                return False
            self._found[what, tools] = _FIRST in text and _SECOND not in text
        return self._found[what, tools]


def _has_several_texts(message: Message) -> bool:
    return sum(isinstance(part, str) for part in message.parts or ()) > 1


def _with_parts(role: Role) -> list[Message]:
    message = Message(
        role=role,
        content=f"{_FIRST}\n{_SECOND}",
        parts=(_FIRST, _SECOND),
        tool_call_id=_CALL.id if role == "tool" else None,
    )
    match role:
        case "system" | "developer":
            return [message, _USER]
        case "assistant":
            return [_USER, message, _USER]
        case "tool":
            called = ToolCall(_CALL.id, _CALL.name, "{}")
            return [_USER, Message(role="assistant", tool_calls=(called,)), message]
        case _:
            return [message]
