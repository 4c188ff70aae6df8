"""Find out what a chat template leaves out without a word, with conversations of a few words.

Some templates show the first text of a system message, or the first of several calls. The texts of a conversation
cannot be looked for in its prompt, because templates escape and strip them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plumbline.answer.text.prompts.earlier_calls import (
    KINDS,
    TOOL,
    CallKind,
    Change,
    WriteCalls,
    changed,
    example,
    is_whole,
    kinds_in,
)
from plumbline.answer.text.prompts.joined_messages import one_call_each, with_joined_parts
from plumbline.answer.text.prompts.template_values import template_tool
from plumbline.answer.text.prompts.written_tools import (
    EXAMPLES,
    PLACES,
    Place,
    WriteTools,
    in_system_message,
    shows,
)
from plumbline.answer.text.prompts.written_tools import TOOL as SHOWN_TOOL
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.turn import Message, Role, Tool, ToolCall

__all__ = ["Omissions", "Render"]

Render = Callable[[Sequence[Message], Tool], str]

_FIRST, _SECOND = "kestrel", "osprey"
_USER = Message(role="user", content="Hi")
_CALL = ToolCall("abcdefghi", TOOL.name, f'{{"at": "{_FIRST}"}}')
_OTHER = ToolCall("abcdefghj", TOOL.name, f'{{"at": "{_SECOND}"}}')
_CALLS = (
    _USER,
    Message(role="assistant", tool_calls=(_CALL, _OTHER)),
    Message(role="tool", content="yes", tool_call_id=_CALL.id, name=TOOL.name),
    Message(role="tool", content="yes", tool_call_id=_OTHER.id, name=TOOL.name),
)
_ONE_CALL = (_USER, Message(role="assistant", tool_calls=(_CALL,)), _CALLS[2])
_ROLES: tuple[Role, ...] = ("system", "developer", "user", "assistant", "tool")


class Omissions:
    """What one template leaves out of conversations; each is tried once, when a conversation has it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], bool] = {}
        self._changes: dict[tuple[CallKind, bool], tuple[Change, ...] | None] = {}
        self._places: list[Place | None] = []

    def with_tools(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        render: Render,
        write: WriteTools,
    ) -> Sequence[Message]:
        """Return the conversation in a form with which the template shows the tools of the request.

        Args:
            messages: the conversation.
            tools: the tools, as templates get them.
            render: as in `with_calls`.
            write: describes tools in a text.
        """
        place = self._place(render, write)
        return (
            messages if place is None else place(messages, write(tools) if place is in_system_message else "")
        )

    def writes_tools(self, render: Render, write: WriteTools) -> bool | None:
        """Return whether tools are written into the system message; None if the template shows no tools at all."""
        place = self._place(render, write)
        return None if place is None else place is in_system_message

    def _place(self, render: Render, write: WriteTools) -> Place | None:
        if not self._places:
            text = write([template_tool(SHOWN_TOOL)])
            self._places = [
                next(
                    (
                        place
                        for place in PLACES
                        if all(
                            shows(_rendered(render, place(example, text), SHOWN_TOOL)) for example in EXAMPLES
                        )
                    ),
                    None,
                )
            ]
        return self._places[0]

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

    def with_calls(
        self, messages: Sequence[Message], tools: bool, render: Render, write: WriteCalls
    ) -> Sequence[Message]:
        """Return the conversation in a form in which the template shows its calls, the texts beside them and results.

        Args:
            messages: the conversation.
            tools: as in `whole`.
            render: as in `whole`, but in a form that the template takes.
            write: writes calls as text.
        """
        for kind in kinds_in(messages):
            messages = changed(messages, kind, self._changes_for(kind, tools, render, write) or (), write)
        return messages

    def drops_texts(self, tools: bool, render: Render, write: WriteCalls) -> bool:
        """Return whether the template leaves out texts beside calls."""
        return bool(self._changes_for(KINDS[1], tools, render, write))

    def left_out(self, tools: bool, render: Render, write: WriteCalls) -> list[CallKind]:
        """Return the kinds of calls that the template leaves out in every form."""
        return [kind for kind in KINDS if self._changes_for(kind, tools, render, write) is None]

    def _changes_for(
        self, kind: CallKind, tools: bool, render: Render, write: WriteCalls
    ) -> tuple[Change, ...] | None:
        if (kind, tools) not in self._changes:
            self._changes[kind, tools] = next(
                (
                    changes
                    for changes in kind.attempts
                    if is_whole(kind, _rendered(render, changed(example(kind), kind, changes, write)))
                ),
                None,
            )
        return self._changes[kind, tools]

    def _omits(self, what: str, tools: bool, render: Render, messages: Sequence[Message]) -> bool:
        """Return whether the template shows the first word of a conversation and not the second."""
        if (what, tools) not in self._found:
            text = _rendered(render, messages)
            # A template that refuses several calls shows each in a message of its own.
            shown = text or (_rendered(render, _ONE_CALL) if messages is _CALLS else "")
            self._found[what, tools] = _FIRST in shown and _SECOND not in shown
        return self._found[what, tools]


def _rendered(render: Render, messages: Sequence[Message], tool: Tool = TOOL) -> str:
    """Return the rendered conversation; empty if the template refuses it."""
    try:
        return render(messages, tool)
    except TemplateError:
        return ""


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
