"""Show earlier calls, the texts beside them and their results with chat templates that leave some of these out.

Templates of models that were trained without tools show no calls (Gemma 3, Granite 3.3, SmolLM3). Others show no text
beside calls (Llama 3.1, Hermes 3, the first of Mistral), or no name but the one in an id of their family (Kimi K2). The
model would then not see what it said and called. Which form of a conversation a template shows whole is found out with
conversations of a few words, one for each kind of message; the attempts that change little come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from plumbline.answer.text.prompts.joined_messages import joined
from plumbline.answer.turn import Message, Tool, ToolCall

__all__ = ["KINDS", "TOOL", "CallKind", "Change", "WriteCalls", "changed", "example", "is_whole", "kinds_in"]

WriteCalls = Callable[[Message], str]
"""Returns the text of a message with its calls after it, as the model writes them."""
Change = Callable[[Sequence[Message], "CallKind", WriteCalls], tuple[Message, ...]]
"""Changes the messages of a kind, and their results."""


class CallKind(NamedTuple):
    """Messages with calls that a template treats alike."""

    name: str
    """What a template may leave out of them, for the operator."""
    beside: bool
    """Whether they have a text beside the calls."""

    def has(self, message: Message) -> bool:
        """Return whether a message is of this kind."""
        return bool(message.tool_calls) and bool((message.content or "").strip()) == self.beside

    @property
    def attempts(self) -> tuple[tuple[Change, ...], ...]:
        """The changes to try: each attempt makes several, one after the other, and the first makes none."""
        return _BESIDE if self.beside else _ALONE


KINDS: Final = (
    CallKind("earlier calls with their results", beside=False),
    CallKind("texts beside earlier calls", beside=True),
)
TOOL: Final = Tool(
    name="look",
    description="Look.",
    parameters={"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
)
"""The tool of the examples."""
_CALL = ToolCall("abcdefghi", TOOL.name, '{"at": "kestrel"}')


def example(kind: CallKind) -> tuple[Message, ...]:
    """Return a conversation with a message of a kind."""
    return (
        Message(role="user", content="heron"),
        Message(role="assistant", content="osprey" if kind.beside else None, tool_calls=(_CALL,)),
        Message(role="tool", content="plover", tool_call_id=_CALL.id, name=_CALL.name),
        Message(role="assistant", content="curlew"),
        Message(role="user", content="dunlin"),
    )


def is_whole(kind: CallKind, text: str) -> bool:
    """Return whether a rendered example has all its words. Gemma 4's template writes a text after its calls."""
    _, asked, rest = text.partition("heron")
    turn, answered, rest = rest.rpartition("curlew")
    named, argument, _ = turn.partition("kestrel")  # Names may stand in results as well.
    words = ("plover", *(("osprey",) if kind.beside else ()))
    return (
        bool(asked and answered and argument)
        and _CALL.name in named
        and "dunlin" in rest
        and all(word in turn for word in words)
    )


def kinds_in(messages: Iterable[Message]) -> list[CallKind]:
    """Return the kinds of calling messages in a conversation."""
    calling = [message for message in messages if message.tool_calls]
    return [kind for kind in KINDS if any(map(kind.has, calling))]


def changed(
    messages: Sequence[Message], kind: CallKind, changes: Iterable[Change], write: WriteCalls
) -> Sequence[Message]:
    """Make changes to the messages of a kind, one after the other."""
    for change in changes:
        messages = change(messages, kind, write)
    return messages


def with_named_ids(messages: Sequence[Message], kind: CallKind, write: WriteCalls) -> tuple[Message, ...]:
    """Give calls ids with their names, as Kimi K2 writes them: its template shows no other name."""
    found: list[Message] = []
    renamed: dict[str, str] = {}
    earlier = 0
    for message in messages:
        if message.tool_calls:
            for number, call in enumerate(message.tool_calls, earlier) if kind.has(message) else ():
                if not call.id.startswith(prefix := f"functions.{call.name}:"):
                    renamed[call.id] = f"{prefix}{number}"
            earlier += len(message.tool_calls)
            calls = (
                msgspec.structs.replace(call, id=renamed.get(call.id, call.id)) for call in message.tool_calls
            )
            message = msgspec.structs.replace(message, tool_calls=tuple(calls))
        elif message.tool_call_id is not None:
            call_id = renamed.get(message.tool_call_id, message.tool_call_id)
            message = msgspec.structs.replace(message, tool_call_id=call_id)
        found.append(message)
    return tuple(found)


def with_results_of_users(
    messages: Sequence[Message], kind: CallKind, write: WriteCalls
) -> tuple[Message, ...]:
    """Let a user send the results, between the tags that Hermes and Qwen have for them."""
    ids = {call.id for message in messages if kind.has(message) for call in message.tool_calls}
    found: list[Message] = []
    follows = False
    for message in messages:
        is_result = message.role == "tool" and message.tool_call_id in ids
        shown = _of_user(message) if is_result else message
        if is_result and follows:
            found[-1] = joined([found[-1], shown], "user")
        else:
            found.append(shown)
        follows = is_result
    return tuple(found)


def _of_user(result: Message) -> Message:
    before, after = "<tool_response>\n", "\n</tool_response>"
    return Message(
        role="user",
        content=f"{before}{result.content or ''}{after}",
        parts=None if result.parts is None else (before, *result.parts, after),
    )


def as_text(messages: Sequence[Message], kind: CallKind, write: WriteCalls) -> tuple[Message, ...]:
    """Write calls into the text of their message."""
    return tuple(
        msgspec.structs.replace(message, content=write(message), parts=None, tool_calls=())
        if kind.has(message)
        else message
        for message in messages
    )


def with_text_first(messages: Sequence[Message], kind: CallKind, write: WriteCalls) -> tuple[Message, ...]:
    """Put the text into a message of its own before the calls."""
    return tuple(
        part for message in messages for part in (_apart(message) if kind.has(message) else (message,))
    )


def _apart(message: Message) -> Iterator[Message]:
    yield msgspec.structs.replace(message, tool_calls=())
    yield msgspec.structs.replace(message, content=None, parts=None, reasoning=None)


_ALONE: Final[tuple[tuple[Change, ...], ...]] = (
    (),
    (with_named_ids,),
    (with_results_of_users,),
    (as_text,),
    (with_results_of_users, as_text),
)
_BESIDE: Final[tuple[tuple[Change, ...], ...]] = (
    (),
    (with_named_ids,),
    # The template's own markup of a call is better than ours, so the text gives way first.
    (with_text_first,),
    (with_results_of_users,),
    (with_results_of_users, with_text_first),
    (as_text,),
    (with_results_of_users, as_text),
)
