"""Conversations that do not fit: which of their oldest messages may go (R-18)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.turn import ChatPrompt, Message

__all__ = ["droppable_ends", "without_oldest"]

_INSTRUCTIONS = ("system", "developer")


def droppable_ends(messages: Sequence[Message]) -> list[int]:
    """Where the messages that may go from the front end (R-18): never instructions, never the last message.

    What stays begins with a user's message, because templates that want turns to alternate refuse an assistant in
    front. Only if the last question itself has to go, with what was called and found since, may an assistant's message
    be the first. A tool result goes together with the call that it answers: templates refuse one without the other.
    """
    last_question = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    return [
        index
        for index in range(1, len(messages))
        if (messages[index].role == "user" or (index > last_question and messages[index].role != "tool"))
        and messages[index - 1].role not in _INSTRUCTIONS
    ]


def without_oldest(prompt: ChatPrompt, end: int) -> ChatPrompt:
    """The prompt without the messages before `end` that are no instructions."""
    kept = tuple(message for message in prompt.messages[:end] if message.role in _INSTRUCTIONS)
    return msgspec.structs.replace(prompt, messages=kept + prompt.messages[end:])
