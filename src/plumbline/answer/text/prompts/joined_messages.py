"""Say the same with fewer kinds of messages, for chat templates that know few."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby, takewhile

import msgspec

from plumbline.answer.turn import Message, Part, Role
from plumbline.base.exact_number import dumps, exact_number

__all__ = [
    "FORMS",
    "FORMS_APART",
    "INSTRUCTED",
    "INSTRUCTING",
    "Form",
    "by_turns",
    "instructions",
    "joined",
    "one_call_each",
    "with_few_instructions",
    "with_joined_parts",
]

Form = Callable[[Sequence[Message]], tuple[Message, ...]]
"""Returns a conversation that says the same in another way."""

INSTRUCTING = ("system", "developer")
"""Roles of instructions."""
_SHORT = 9


def instructions(messages: Sequence[Message]) -> list[str]:
    """Return the texts of system and developer messages, unless the only one is before a user's message.

    Templates show such a one. Others may be dropped.
    """
    texts = [(m.content or "").strip() for m in messages if m.role in INSTRUCTING]
    usual = len(messages) > 1 and messages[0].role in INSTRUCTING and any(m.role == "user" for m in messages)
    return [] if len(texts) == usual else texts


def with_few_instructions(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join the first system messages, and put later ones at the beginning of the user's message after them.

    If no message of the user follows, they end the one before, or are one of their own; an answer at the end stays
    there, because the model may continue it.
    """
    first = list(takewhile(lambda message: message.role in INSTRUCTING, messages))
    found = [joined(first, first[0].role)] if len(first) > 1 else first.copy()
    late: list[Message] = []
    for index, message in enumerate(messages[len(first) :], len(first) + 1):
        if message.role in INSTRUCTING:
            late.append(message)
            continue
        if late and message.role == "user":
            message, late = joined([*late, message], "user"), []
        elif message.role == "assistant" and index == len(messages):
            late = _add_late(found, late)
        found.append(message)
    _add_late(found, late)
    return tuple(found)


def _add_late(found: list[Message], late: list[Message]) -> list[Message]:
    """Add instructions as a user's message, or to the user's message before them; nothing is left of them."""
    if late and found and found[-1].role == "user":
        found[-1] = joined([found[-1], *late], "user")
    elif late:
        found.append(joined(late, "user"))
    return []


def by_turns(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join messages of users that follow each other, and answers without calls."""
    return _joined_runs(messages, lambda message: message.role == "user" or _is_text(message))


def with_texts_beside_calls(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Join texts of answers with the calls after them. Some templates show no text beside calls: this is a late try."""
    runs = _joined_runs(messages, _is_text)
    found: list[Message] = []
    for message in runs:
        if found and message.role == "assistant" and _is_text(found[-1]):
            found[-1] = joined([found[-1], message], "assistant")
        else:
            found.append(message)
    return tuple(found)


def with_answered_texts(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Let a user say nothing between a text of an answer and the calls after it.

    The first templates of Mistral want users and assistants to take turns, count no calls and show no text beside them.
    """
    found: list[Message] = []
    for message in messages:
        if message.tool_calls and found and _is_text(found[-1]):
            found.append(Message(role="user", content=""))
        found.append(message)
    return tuple(found)


def _is_text(message: Message) -> bool:
    return message.role == "assistant" and not message.tool_calls


def _joined_runs(messages: Sequence[Message], is_joined: Callable[[Message], bool]) -> tuple[Message, ...]:
    """Join neighbours of one role, in a time linear in their length."""
    found: list[Message] = []
    for (role, may_join), group in groupby(messages, key=lambda one: (one.role, is_joined(one))):
        run = list(group)
        found += [joined(run, role)] if may_join and len(run) > 1 else run
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
        if message.role not in (*INSTRUCTING, "user") and (last is None or last.role in INSTRUCTING):
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
    if all(message.role in INSTRUCTING for message in found):
        found.append(Message(role="user", content=""))
    return by_turns(found)


def one_call_each(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Put calls that were made at once into messages of their own, each before its result.

    Llama's templates refuse several calls in a message, and that of gpt-oss shows the first one only.
    """
    found: list[Message] = []
    turns: list[list[Message]] = []  # Each call with its results.
    places: dict[str, deque[list[Message]]] = {}
    for message in messages:
        if message.role == "tool" and (open_turns := places.get(message.tool_call_id or "")):
            turn = open_turns.popleft() if len(open_turns) > 1 else open_turns[0]
            turn.append(message)
            continue
        found += chain.from_iterable(turns)
        turns, places = [], {}
        if len(message.tool_calls) < 2:
            found.append(message)
            continue
        one = message
        for call in message.tool_calls:
            turns.append([msgspec.structs.replace(one, tool_calls=(call,))])
            places.setdefault(call.id, deque()).append(turns[-1])
            one = Message(role="assistant")
    return (*found, *chain.from_iterable(turns))


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
            msgspec.structs.replace(message, role="user") if message.role in INSTRUCTING else message
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
        value = json.loads(arguments, parse_float=exact_number)
    except (ValueError, RecursionError):
        value = arguments
    return arguments if value is None else dumps({"arguments": value})


def joined(messages: Sequence[Message], role: Role) -> Message:
    """Return one message with the contents of several, an empty line between them; the rest is that of the last."""
    texts = [message.content or "" for message in messages]
    thoughts = [message.reasoning for message in messages if message.reasoning]
    return msgspec.structs.replace(
        messages[-1],
        role=role,
        content="\n\n".join(filter(None, texts)),
        parts=_joined_parts(messages),
        reasoning="\n\n".join(thoughts) or None,
    )


def _joined_parts(messages: Sequence[Message]) -> tuple[Part, ...] | None:
    """Return the parts of all messages; texts of two messages that meet are one part. None if no message has parts."""
    if all(message.parts is None for message in messages):
        return None
    found: list[Part] = []
    texts: list[str] = []
    for message in messages:
        for index, part in enumerate((message.content or "",) if message.parts is None else message.parts):
            if texts and (index or not isinstance(part, str)):
                found.append("\n\n".join(texts))
                texts = []
            if isinstance(part, str):
                texts.append(part)
            else:
                found.append(part)
    return (*found, "\n\n".join(texts)) if texts else tuple(found)


INSTRUCTED = (with_few_instructions, by_turns, with_turns)
"""What to change, one after the other, until a template that takes the conversation shows its instructions."""

FORMS = (
    with_few_instructions,
    by_turns,
    as_objects,
    with_short_ids,
    with_turns,
    with_texts_beside_calls,
    one_call_each,
    with_thoughts_in_text,
    with_users_only,
)
"""What to change, one after the other, until a template takes the conversation; what changes little comes first."""

FORMS_APART = tuple(with_answered_texts if form is with_texts_beside_calls else form for form in FORMS)
"""The same for templates that show no text beside calls."""
