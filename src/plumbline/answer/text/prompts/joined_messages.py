"""Say the same with fewer kinds of messages, for chat templates that know few."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from plumbline.answer.turn import Message, Part, Role

__all__ = [
    "FORMS",
    "by_turns",
    "instructions",
    "joined",
    "one_call_each",
    "with_few_instructions",
    "with_joined_parts",
]

_INSTRUCTING = ("system", "developer")
_SHORT = 9


def instructions(messages: Sequence[Message]) -> list[str]:
    """Return the texts of system and developer messages, unless the only one is before a user's message.

    Templates show such a one. Others may be dropped.
    """
    texts = [(m.content or "").strip() for m in messages if m.role in _INSTRUCTING]
    usual = len(messages) > 1 and messages[0].role in _INSTRUCTING and any(m.role == "user" for m in messages)
    return [] if len(texts) == usual else texts


def with_few_instructions(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join the first system messages, and put later ones at the beginning of the user's message after them.

    If no message of the user follows, they end the one before, or are one of their own.
    """
    found: list[Message] = []
    late: list[Message] = []
    for message in messages:
        if message.role not in _INSTRUCTING:
            if late and message.role == "user":
                message, late = joined([*late, message], "user"), []
            found.append(message)
        elif not found:
            found.append(message)
        elif len(found) == 1 and found[0].role in _INSTRUCTING:
            found[0] = joined([found[0], message], found[0].role)
        else:
            late.append(message)
    if late and found and found[-1].role == "user":
        found[-1] = joined([found[-1], *late], "user")
    elif late:
        found.append(joined(late, "user"))
    return tuple(found)


def by_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join messages of users that follow each other, and texts of answers with what the model wrote after them."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        alike = last is not None and last.role == message.role and message.role in ("user", "assistant")
        if last is not None and alike and not last.tool_calls:
            found[-1] = joined([last, message], message.role)
        else:
            found.append(message)
    return tuple(found)


def with_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Let a user speak first, and an answer stand between results and the next user; drop answers that say nothing.

    Nobody said anything there, so the added messages are empty. Qwen's templates look for a user's question, those of
    Mistral want users and assistants to take turns. Agents go on from results where the beginning of a conversation was
    dropped, and users interrupt them.
    """
    found: list[Message] = []
    for index, message in enumerate(messages):
        last = found[-1] if found else None
        if message.role not in (*_INSTRUCTING, "user") and (last is None or last.role in _INSTRUCTING):
            found.append(Message(role="user", content=""))
        elif message.role == "user" and last is not None and last.role == "tool":
            found.append(
                Message(role="assistant", content=" ")
            )  # Ministral's template refuses no text at all.
        if message.role != "assistant" or message.tool_calls or (message.content or "").strip():
            found.append(message)
        elif (
            message.reasoning or index == len(messages) - 1
        ):  # The last one may be what the answer continues.
            found.append(msgspec.structs.replace(message, content=" ", parts=None))
    if all(message.role in _INSTRUCTING for message in found):
        found.append(Message(role="user", content=""))
    return by_turns(found)


def one_call_each(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put calls that were made at once into messages of their own, each before its result.

    Llama's templates refuse several calls in a message, and that of gpt-oss shows the first one only.
    """
    found: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message.role == "tool" and any(
            call.id == message.tool_call_id for m in waiting for call in m.tool_calls
        ):
            place = next(
                i for i, m in enumerate(waiting) if any(c.id == message.tool_call_id for c in m.tool_calls)
            )
            while place + 1 < len(waiting) and waiting[place + 1].role == "tool":
                place += 1
            waiting.insert(place + 1, message)
            continue
        found += waiting
        waiting = []
        if len(message.tool_calls) > 1:
            first, *others = message.tool_calls
            waiting = [
                msgspec.structs.replace(message, tool_calls=(first,)),
                *(Message(role="assistant", tool_calls=(call,)) for call in others),
            ]
        else:
            found.append(message)
    return (*found, *waiting)


def with_thoughts_in_text(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put thoughts before the text that stands beside calls: the template of gpt-oss takes one of them."""
    return tuple(
        msgspec.structs.replace(
            message, content=f"{message.reasoning}\n\n{message.content}", parts=None, reasoning=None
        )
        if message.tool_calls and message.reasoning and message.content
        else message
        for message in messages
    )


def with_users_only(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Let users give the instructions: the templates of Gemma 2 and of the first Mistral have no place for others."""
    return by_turns(
        [
            msgspec.structs.replace(message, role="user") if message.role in _INSTRUCTING else message
            for message in messages
        ]
    )


def with_joined_parts(messages: Sequence[Message], role: Role) -> tuple[Message, ...]:
    """Join texts that follow each other in the contents of a role, by line breaks."""
    return tuple(
        msgspec.structs.replace(message, parts=tuple(_joined_texts(message.parts)))
        if message.role == role and message.parts is not None
        else message
        for message in messages
    )


def _joined_texts(parts: Sequence[Part]) -> Iterator[Part]:
    for is_text, group in groupby(parts, key=lambda part: isinstance(part, str)):
        found = list(group)
        yield from ["\n".join(map(str, found))] if is_text else found


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


def joined(messages: Sequence[Message], role: Role) -> Message:
    """Return one message with the contents of several, an empty line between them; the rest is that of the last."""
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


FORMS = (
    with_few_instructions,
    by_turns,
    with_turns,
    one_call_each,
    with_thoughts_in_text,
    as_objects,
    with_short_ids,
    with_users_only,
)
"""What to change, in this order and one after the other, until a template takes the conversation."""
