"""Read the input items of a Responses request into messages, and check them against each other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from plumbline.answer.text.prompts.joined_messages import joined
from plumbline.answer.turn import MediaReference, Message, Part, ToolCall
from plumbline.contract._generated.content import (
    InputFileContent,
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
    HostedItem,
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
from plumbline.server.protocols.common.text_files import FileSource, file_text
from plumbline.server.protocols.common.tools.tool_choice import custom_arguments, is_cut
from plumbline.server.protocols.responses.client_tools.history import (
    ClientCall,
    ClientOutput,
    call_arguments,
    call_name,
    output_text,
    with_call_ids,
)
from plumbline.server.protocols.responses.client_tools.hosted import hosted_messages
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

    Calls and the texts beside them are one assistant message, as in a chat completion. Reasoning belongs to the
    message that it stands in or before.

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
        elif isinstance(item, HostedItem):
            for message in hosted_messages(item, where):
                conversation.add(message)
        elif isinstance(item, RemoteItem):  # TOOL-21
            for message in remote_messages(item, past.requests):
                conversation.add(message)
        else:
            conversation.add(_message(item, where, modalities))
    return conversation.joined()


@dataclass(slots=True)
class _Turn:
    """What the model wrote before somebody else spoke: one message, as in a chat completion.

    It is collected in lists, because joining each piece to the ones before takes a time quadratic in their number.
    """

    thoughts: list[str] = field(default_factory=list)
    pieces: list[Message] = field(default_factory=list)
    has_calls: bool = False

    def add(self, thoughts: Sequence[str], piece: Message | None = None) -> None:
        self.thoughts += thoughts
        if piece is not None:
            self.pieces.append(piece)
            self.has_calls = self.has_calls or bool(piece.tool_calls)

    def message(self) -> Message:
        texts = [piece for piece in self.pieces if piece.content is not None]
        return msgspec.structs.replace(
            joined(texts, "assistant") if texts else Message(role="assistant"),
            reasoning="".join(self.thoughts) or None,
            tool_calls=tuple(call for piece in self.pieces for call in piece.tool_calls),
        )


class _Conversation:
    """Messages so far. Calls, and texts beside calls, are one message; thoughts are part of the answer they led to."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._found: list[Message | _Turn] = list(messages)
        self._thoughts: list[str] = []

    def think(self, thought: str) -> None:
        """Keep a thought until it is known what follows it."""
        self._thoughts.append(thought)

    def add(self, message: Message) -> None:
        """Add a message, or what the model wrote to the turn that it belongs to."""
        if message.role != "assistant":
            self._end_turn()
            self._found.append(message)
            return
        last = self._found[-1] if self._found else None
        if not isinstance(last, _Turn) or not (message.tool_calls or last.has_calls):
            last = _Turn()
            self._found.append(last)
        last.add(self._thoughts, message)
        self._thoughts = []

    def _end_turn(self) -> None:
        """Put thoughts that no text or call follows into the turn before them, or into one of their own (CHAT-24).

        Some models think on after a call, and a limit may cut an answer in its thinking.
        """
        thoughts, self._thoughts = self._thoughts, []
        last = self._found[-1] if self._found else None
        if isinstance(last, _Turn):
            last.add(thoughts)
        elif last is not None and last.role in ("user", "tool") and any(thoughts):
            self._found.append(_Turn(thoughts, [Message(role="assistant", content="")]))

    def joined(self) -> tuple[Message, ...]:
        """Return the messages."""
        self._end_turn()
        return tuple(one.message() if isinstance(one, _Turn) else one for one in self._found)


def _message(item: InputItem, where: str, modalities: Collection[str]) -> Message:
    """Read one item that is a message, a call or a result."""
    match item:
        case EasyInputMessage():
            text, parts = _content(item.content, f"{where}.content", modalities)
            phase = or_default(item.phase, None) if item.role == "assistant" else None
            return Message(role=item.role, content=text, parts=parts, phase=phase)
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
            case InputFileContent():
                file = FileSource(part.file_data, part.filename, part.file_id, part.file_url)
                parts.append(file_text(file, f"{where}[{index}]"))
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
