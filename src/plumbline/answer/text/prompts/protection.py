"""Protect the texts of one request, so that no text of a client becomes a control token in the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.guard import Guard, TokenPattern
from plumbline.answer.text.prompts.joined_messages import as_objects
from plumbline.answer.text.prompts.template_values import guarded, template_message
from plumbline.answer.turn import Message

__all__ = ["Protection"]

_OURS = 3
"""Marks in a row around markup that the server wrote. Protected texts that meet have two at most."""


class Protection:
    """Protect the texts of one request.

    Args:
        guard: the marks of the request.
        marks: what a text of a client must not become.
        control: what a text of the assistant must not become: earlier answers may contain the plain markers of the
            model family (`<think>`, `<tool_call>`), because templates look for them there.
    """

    def __init__(self, guard: Guard, marks: TokenPattern, control: TokenPattern) -> None:
        self._guard = guard
        self._marks = marks
        self._control = control
        self._ours = guard.mark * _OURS

    def client(self, text: str) -> str:
        """Protect a text of a client."""
        return self._guard.protect(text, self._marks)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Protect a message for a template."""
        return guarded(message, self._said if message["role"] == "assistant" else self.client, self.client)

    def written(self, message: Message, write: CallWriter) -> str:
        """Return the text of a message with its calls after it; their markup may become control tokens."""
        (shown,) = as_objects([message])
        functions = [call["function"] for call in template_message(shown, "string")["tool_calls"]]
        calls = [
            WrittenCall(
                self.client(function["name"]), _object(self.client(str(function["arguments"]))), number
            )
            for number, function in enumerate(functions)
        ]
        text = message.content or ""
        return f"{text}{self._ours}{write(calls, bool(text.strip()))}{self._ours}"

    def _said(self, text: str) -> str:
        """Protect a text of the assistant, but for what `written` has written."""
        parts = text.split(self._ours)
        return "".join(
            part if number % 2 else self._guard.protect(part, self._control)
            for number, part in enumerate(parts)
        )


def _object(arguments: str) -> str:
    """Return arguments as a JSON object: an object that cannot be read is a text of one."""
    try:
        if isinstance(json.loads(arguments), dict):
            return arguments
    except (ValueError, RecursionError):
        pass
    return json.dumps({"arguments": arguments}, ensure_ascii=False)
