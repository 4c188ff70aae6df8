"""Drop the oldest messages of conversations that do not fit (R-18)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from plumbline.answer.turn import ChatPrompt, Message

__all__ = ["droppable_ends", "without_oldest"]

_INSTRUCTIONS = ("system", "developer")


def droppable_ends(messages: Sequence[Message]) -> list[int]:
    """Return the positions up to which messages may be dropped from the front (R-18).

    Instructions and the last message always stay. The rest begins with a user message, because many templates refuse an
    assistant message in front; only if the last user message itself must be dropped may an assistant message be
    first. A tool result is dropped together with its call, because templates refuse one without the other.
    """
    last_question = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    return [
        index
        for index in range(1, len(messages))
        if (messages[index].role == "user" or (index > last_question and messages[index].role != "tool"))
        and messages[index - 1].role not in _INSTRUCTIONS
    ]


def without_oldest(prompt: ChatPrompt, end: int) -> ChatPrompt:
    """Return the prompt without the messages before `end`, except instructions."""
    kept = tuple(message for message in prompt.messages[:end] if message.role in _INSTRUCTIONS)
    return msgspec.structs.replace(prompt, messages=kept + prompt.messages[end:])
