"""Say the same with fewer kinds of messages, for chat templates that know few."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import msgspec

from plumbline.answer.turn import Message, Part, Role

__all__ = ["as_objects", "by_turns", "instructions", "with_few_instructions", "with_short_ids"]

_INSTRUCTING = ("system", "developer")
_SHORT = 9


def instructions(messages: Sequence[Message]) -> list[str]:
    """Return the texts of system and developer messages, if there are several or one is not the first message."""
    texts = [(m.content or "").strip() for m in messages if m.role in _INSTRUCTING]
    first = bool(messages) and messages[0].role in _INSTRUCTING
    return [] if len(texts) == first else texts


def with_few_instructions(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join the first system messages, and put later ones at the beginning of the user's message after them.

    If no message of the user follows, they end the one before, or are one of their own.
    """
    found: list[Message] = []
    late: list[Message] = []
    for message in messages:
        if message.role not in _INSTRUCTING:
            if late and message.role == "user":
                message, late = _joined([*late, message], "user"), []
            found.append(message)
        elif not found:
            found.append(message)
        elif len(found) == 1 and found[0].role in _INSTRUCTING:
            found[0] = _joined([found[0], message], found[0].role)
        else:
            late.append(message)
    if late and found and found[-1].role == "user":
        found[-1] = _joined([found[-1], *late], "user")
    elif late:
        found.append(_joined(late, "user"))
    return tuple(found)


def by_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join messages of users that follow each other, and answers without calls."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        alike = last is not None and last.role == message.role and message.role in ("user", "assistant")
        if last is not None and alike and not (last.tool_calls or message.tool_calls):
            found[-1] = _joined([last, message], message.role)
        else:
            found.append(message)
    return tuple(found)


def as_objects(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put arguments that are no JSON object into one, under the key `arguments`."""
    return tuple(
        msgspec.structs.replace(
            message,
            tool_calls=tuple(
                msgspec.structs.replace(call, arguments=_object(call.arguments))
                for call in message.tool_calls
            ),
        )
        if message.tool_calls
        else message
        for message in messages
    )


def with_short_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Give calls ids of nine letters and digits, which Mistral's templates require; ids that are such stay."""
    return tuple(
        msgspec.structs.replace(
            message,
            tool_calls=tuple(
                msgspec.structs.replace(call, id=_short(call.id)) for call in message.tool_calls
            ),
            tool_call_id=None if message.tool_call_id is None else _short(message.tool_call_id),
        )
        for message in messages
    )


def _short(call_id: str) -> str:
    if len(call_id) == _SHORT and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_SHORT]


def _object(arguments: str) -> str:
    if not arguments.strip() or arguments.lstrip().startswith("{"):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return arguments if value is None else json.dumps({"arguments": value}, ensure_ascii=False)


def _joined(messages: Sequence[Message], role: Role) -> Message:
    """Return one message with the contents of several, an empty line between them."""
    texts = [message.content or "" for message in messages]
    parts: list[Part] = []
    for message in messages:
        own: tuple[Part, ...] = (message.content or "",) if message.parts is None else message.parts
        if parts and isinstance(parts[-1], str) and own and isinstance(own[0], str):
            parts[-1] = f"{parts[-1]}\n\n{own[0]}"
            own = own[1:]
        parts += own
    thoughts = [message.reasoning for message in messages if message.reasoning]
    return msgspec.structs.replace(
        messages[-1],
        role=role,
        content="\n\n".join(filter(None, texts)),
        parts=tuple(parts) if any(message.parts is not None for message in messages) else None,
        reasoning="\n\n".join(thoughts) or None,
    )
