"""Read the input items of a Responses request into messages, and check them against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from plumbline.answer.turn import MediaReference, Message, Part, ToolCall
from plumbline.contract._generated.content import (
    InputImageContent,
    InputTextContent,
    OutputTextContentParam,
    RefusalContent,
)
from plumbline.contract._generated.items import (
    CompactionTriggerItemParam,
    CustomToolCall,
    CustomToolCallOutput,
    EasyInputMessage,
    FunctionCallOutputItemParam,
    FunctionToolCall,
    InputItem,
    ItemReferenceParam,
    ReasoningItemParam,
)
from plumbline.contract.wire.errors import (
    invalid_request,
    invalid_value,
    missing_required_parameter,
    unsupported_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import or_default, tag_of
from plumbline.server.protocols.common.media import image_reference, joined_text, unread_part
from plumbline.server.protocols.common.sealing import Sealer, UnsealError
from plumbline.server.protocols.common.tools.tool_choice import custom_arguments, is_cut
from plumbline.server.protocols.responses.client_tools.history import (
    ClientCall,
    ClientOutput,
    call_arguments,
    call_name,
    output_text,
    with_call_ids,
)
from plumbline.server.protocols.responses.client_tools.namespaces import joined_name
from plumbline.server.protocols.responses.compaction import cannot_open, opened, since_compaction
from plumbline.server.protocols.responses.mcp.history import (
    RemoteItem,
    RemotePast,
    read_past,
    remote_messages,
)

__all__ = ["Entry", "read_entries", "read_input", "read_messages"]

Entry: TypeAlias = tuple[str, InputItem]
"""An item with the field that it comes from."""

_CALL = FunctionToolCall | CustomToolCall | ClientCall
_OUTPUT = FunctionCallOutputItemParam | CustomToolCallOutput | ClientOutput


def read_input(
    items: str | Sequence[InputItem],
    instructions: str | None,
    sealer: Sealer | None = None,
    earlier: Sequence[InputItem] = (),
    modalities: Collection[str] = (),
) -> tuple[Message, ...]:
    """Read `input` and `instructions` (R-12, R-13, R-14).

    Consecutive calls belong to one assistant message, with the text before them. Reasoning belongs to the assistant
    message after it.

    Args:
        items: the input.
        instructions: what the conversation begins with.
        sealer: what opens `encrypted_content`; without one it is refused.
        earlier: stored items that come before the input (ST-04, ST-09).
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 for items that this server does not support, for encrypted content that it cannot open, and for
            calls and outputs without a counterpart (TOOL-12).
    """
    entries = read_entries(items, sealer, earlier)
    return read_messages(entries, read_past(entries), instructions, sealer, modalities)


def read_entries(
    items: str | Sequence[InputItem], sealer: Sealer | None, earlier: Sequence[InputItem] = ()
) -> list[Entry]:
    """Return the items of a context with the fields that they come from; those of a compaction are opened.

    Raises:
        ApiError: 400 for no items at all, and for a compaction that this server cannot open.
    """
    if isinstance(items, str):
        items = [EasyInputMessage(role="user", content=items)]
    if not items and not earlier:
        raise invalid_value("input", [])
    return list(_entries(items, earlier, sealer))


def read_messages(
    entries: Sequence[Entry],
    past: RemotePast,
    instructions: str | None,
    sealer: Sealer | None,
    modalities: Collection[str],
) -> tuple[Message, ...]:
    """Return the messages of a context; `past` is what it says about MCP servers.

    Raises:
        ApiError: 400 as for `read_input`.
    """
    messages = [] if instructions is None else [Message(role="system", content=instructions)]
    entries = list(with_call_ids(entries))
    _check_pairing([item for _, item in entries])
    conversation = _Conversation(messages)
    for where, item in entries:
        if isinstance(item, ReasoningItemParam):
            conversation.think(_reasoning(item, where, sealer))
        elif isinstance(item, RemoteItem):  # TOOL-21
            for message in remote_messages(item, past.requests):
                conversation.add(message)
        else:
            conversation.add(_message(item, where, modalities))
    return conversation.joined()


class _Conversation:
    """Messages so far. Consecutive calls join one message, and thoughts the assistant message after them, if any.

    Both are collected in lists: joining each to the ones before takes a time quadratic in their number.
    """

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._thoughts: list[str] = []
        self._calls: dict[int, list[ToolCall]] = {}
        """The calls of messages with several, by the place of the message."""

    def think(self, thought: str) -> None:
        """Keep a thought for the assistant message after it."""
        self._thoughts.append(thought)

    def add(self, message: Message) -> None:
        """Add a message, or its calls to the assistant message before it."""
        thoughts, self._thoughts = self._thoughts, []
        asked = bool(self._messages) and self._messages[-1].role in ("user", "tool")
        if message.role == "user" and asked and any(thoughts):  # CHAT-24: the answer was cut in its thinking.
            self._messages.append(Message(role="assistant", content="", reasoning="".join(thoughts)))
        elif message.role == "assistant":
            message = msgspec.structs.replace(message, reasoning="".join(thoughts) or None)
            if message.tool_calls and self._messages and self._messages[-1].role == "assistant":
                self._join(message)
                return
        self._messages.append(message)

    def _join(self, message: Message) -> None:
        last = self._messages[-1]
        calls = self._calls.setdefault(len(self._messages) - 1, list(last.tool_calls))
        calls += message.tool_calls
        if last.reasoning is None and message.reasoning is not None:
            self._messages[-1] = msgspec.structs.replace(last, reasoning=message.reasoning)

    def joined(self) -> tuple[Message, ...]:
        """Return the messages with their calls."""
        for index, calls in self._calls.items():
            self._messages[index] = msgspec.structs.replace(self._messages[index], tool_calls=tuple(calls))
        return tuple(self._messages)


def _message(item: InputItem, where: str, modalities: Collection[str]) -> Message:
    """Read one item that is a message, a call or a result."""
    match item:
        case EasyInputMessage():
            text, parts = _content(item.content, f"{where}.content", modalities)
            return Message(role=item.role, content=text, parts=parts)
        case FunctionToolCall():
            return _call(item.call_id, _name(item), item.arguments)
        case CustomToolCall():
            return _call(item.call_id, _name(item), custom_arguments(item.input))
        case FunctionCallOutputItemParam() | CustomToolCallOutput():
            text, parts = _content(item.output, f"{where}.output", modalities)
            return Message(role="tool", content=text, parts=parts, tool_call_id=item.call_id)
        case _ if isinstance(item, ClientCall):  # TOOL-20
            return _call(str(item.call_id), call_name(item), call_arguments(item))
        case _ if isinstance(item, ClientOutput):
            return Message(role="tool", content=output_text(item), tool_call_id=str(item.call_id))
        case ItemReferenceParam():
            raise invalid_request(f"Item with id '{item.id}' not found.", f"{where}.id")  # ST-13
        case CompactionTriggerItemParam():
            raise unsupported_value(f"{where}.type", tag_of(item), "must be the last item of the input")
        case _:
            raise unsupported_value(f"{where}.type", tag_of(item), "is not supported by this server")


def _entries(
    items: Sequence[InputItem], earlier: Sequence[InputItem], sealer: Sealer | None
) -> Iterator[tuple[str, InputItem]]:
    """Yield all items with the fields that they come from; the items of a compaction come from its field.

    The last compaction stands for everything before it.
    """
    first = since_compaction(items)
    is_compacted = bool(items) and tag_of(items[first]) == "compaction"
    for item in () if is_compacted else earlier[since_compaction(earlier) :]:
        yield from (("input", one) for one in opened(item, "input", sealer))
    for index in range(first, len(items)):
        where = f"input[{index}]"
        yield from ((where, one) for one in opened(items[index], where, sealer))


def _reasoning(item: ReasoningItemParam, where: str, sealer: Sealer | None) -> str:
    """Return the text of a reasoning item: its content, what its encrypted content holds (ST-16), or its summary."""
    text = "".join(part.text for part in or_default(item.content, None) or [])
    summary = "".join(part.text for part in item.summary)
    sealed = or_default(item.encrypted_content, None)
    if sealed is None:
        return text or summary
    try:
        if sealer is None:
            raise UnsealError("this server does not support encrypted content")
        opened = sealer.open(sealed)
    except UnsealError as error:
        raise cannot_open(where, str(error)) from None
    return text or opened or summary


def _call(call_id: str, name: str, arguments: str) -> Message:
    return Message(role="assistant", tool_calls=(ToolCall(call_id, name, arguments),))


def _name(call: FunctionToolCall | CustomToolCall) -> str:
    """Return the name that the model saw when it made the call."""
    return joined_name(or_default(call.namespace, None), call.name)


def _content(content: Any, where: str, modalities: Collection[str]) -> tuple[str, tuple[Part, ...] | None]:
    """Return the text of a content, and its parts unless it is a string. Other kinds of parts are refused."""
    if isinstance(content, str):
        return content, None
    parts: list[Part] = []
    for index, part in enumerate(content):
        match part:
            case InputTextContent() | OutputTextContentParam():
                parts.append(part.text)
            case RefusalContent():
                parts.append(part.refusal)
            case InputImageContent() if "image" in modalities:
                parts.append(_image(part, f"{where}[{index}]"))
            case _:
                raise unread_part(part, f"{where}[{index}]", modalities)
    return joined_text(parts), tuple(parts)


def _image(part: InputImageContent, where: str) -> MediaReference:
    if or_default(part.file_id, None) is not None:
        raise unsupported_parameter(f"{where}.file_id", "is not supported: this server keeps no files")
    url = or_default(part.image_url, None)
    if url is None:
        raise missing_required_parameter(f"{where}.image_url")
    return image_reference(url, or_default(part.detail, None), f"{where}.image_url")


def _check_pairing(items: Sequence[InputItem]) -> None:
    """Check that outputs and calls pair up by `call_id`, with any items between them (TOOL-11, TOOL-12).

    A call that a limit cut needs no output, because no client can carry it out (CHAT-24).
    """
    calls: dict[str, bool] = {}
    for item in items:
        if isinstance(item, _CALL):
            calls[str(item.call_id)] = _is_cut(item)
        elif isinstance(item, _OUTPUT):
            if item.call_id not in calls:
                raise invalid_request(
                    f"No tool call found for function call output with call_id {item.call_id}.", "input"
                )
            del calls[str(item.call_id)]
    missing = next((call_id for call_id, cut in calls.items() if not cut), None)
    if missing is not None:
        raise invalid_request(f"No tool output found for function call {missing}.", "input")


def _is_cut(call: Any) -> bool:
    return getattr(call, "status", None) == "incomplete" or (
        isinstance(call, FunctionToolCall) and is_cut(call.arguments)
    )
