"""Collect the messages that the rounds of an answer add to its prompt."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.answer.events import OutputEvent, ReasoningDelta, TextDelta
from plumbline.answer.remote_tools import RemoteResult, result_text
from plumbline.answer.turn import Message, ToolCall

__all__ = ["RoundMessages"]


class RoundMessages:
    """The messages of the prompt and of the rounds: the same as those that the items of the answer are read as."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.all = list(messages)
        self._text: list[str] = []
        self._before: list[str] = []
        """Reasoning before the text."""
        self._after: list[str] = []
        """Reasoning after the text. It belongs to what follows."""

    def add(self, event: OutputEvent) -> None:
        """Add an event, if it is part of a message."""
        if isinstance(event, TextDelta):
            if self._after:
                self.end_text()
            self._text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            (self._after if self._text else self._before).append(event.text)

    def add_call(self, call: ToolCall, result: RemoteResult) -> None:
        """Add a call with what the model wrote before it, and its result."""
        self.end_text()
        reasoning = "".join(self._before) or None
        self._before = []
        message = Message(role="assistant", reasoning=reasoning, tool_calls=(call,))
        if self.all and self.all[-1].role == "assistant":  # The call belongs to the text before it.
            last = self.all.pop()
            message = msgspec.structs.replace(
                last, reasoning=last.reasoning or reasoning, tool_calls=(*last.tool_calls, call)
            )
        self.all.append(message)
        self.all.append(Message(role="tool", content=result_text(result), tool_call_id=call.id))

    def end_text(self) -> None:
        """End the message that the model was writing."""
        if self._text:
            text = "".join(self._text)
            reasoning = "".join(self._before) or None
            self.all.append(Message(role="assistant", content=text, parts=(text,), reasoning=reasoning))
            self._text, self._before, self._after = [], self._after, []
