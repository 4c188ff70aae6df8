"""Read the conversation of a Messages request."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any

from plumbline.answer.turn import MediaReference, Message, Part, ToolCall
from plumbline.base.exact_number import dumps
from plumbline.contract._generated.messages import (
    Base64ImageSource,
    DocumentBlockParam,
    ImageBlockParam,
    MessageParam,
    RedactedThinkingBlockParam,
    SearchResultBlockParam,
    SystemMessageParam,
    TextBlockParam,
    ThinkingBlockParam,
    ToolReferenceBlockParam,
    ToolResultBlockParam,
    ToolUseBlockParam,
    URLImageSource,
    UserMessageParam,
)
from plumbline.contract.wire.errors import ApiError, invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.media import image_reference, unread_part
from plumbline.server.protocols.common.sealing import Sealer, UnsealError
from plumbline.server.protocols.messages.documents import document_text

__all__ = ["read_conversation"]

_FAILED = "Error: "
"""What the model sees before the result of a call that failed: chat templates have no field for it."""
_BILLING = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\s]*;?)*[ \t]*[\r\n]*")
"""The line, such as `x-anthropic-billing-header: cc_version=2.1; cch=00000;`."""
_Block = tuple[str, Any]
"""A block, and the field that has it. The content of a message that is a string is one block of text."""


def read_conversation(
    system: str | Sequence[TextBlockParam] | None,
    messages: Sequence[MessageParam],
    sealer: Sealer,
    modalities: Collection[str] = (),
) -> tuple[tuple[Message, ...], bool]:
    """Read a conversation (MSG-02), and whether its last message is continued (MSG-03).

    Args:
        system: the instructions before it.
        messages: the conversation.
        sealer: opens signatures of thinking.
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 for blocks that the model does not read, for calls without results and results without calls
            (MSG-05), and for thinking that does not come from this server (MSG-06).
    """
    found: list[Message] = []
    instructions = [] if system is None else _without_billing(_blocks(system, "system"))
    open_calls: dict[str, str] = {}
    for role, group in groupby(enumerate(messages), key=lambda item: type(item[1])):
        blocks = [
            block
            for index, message in group
            for block in _blocks(message.content, f"messages[{index}].content")
        ]
        if instructions and role is SystemMessageParam:  # Neighbours of one role are one turn.
            blocks = instructions + blocks
        elif instructions:
            found.append(Message(role="system", content=_joined(instructions)))
        instructions = []
        if role is UserMessageParam:
            found += _user(blocks, open_calls, modalities)
            continue
        _check_answered(open_calls)
        if role is SystemMessageParam:
            found.append(Message(role="system", content=_joined(blocks)))
        else:
            found.append(_assistant(blocks, sealer))
            open_calls = _calls(blocks)
    _check_answered(open_calls)
    return tuple(found), found[-1].role == "assistant"


def _without_billing(blocks: list[_Block]) -> list[_Block]:
    """Drop Claude Code's line for the operator of the API.

    It stands before everything else and differs between conversations, so no two would share a cached prefix. It is a
    block of its own, but gateways join the blocks to one text.
    """
    where, block = blocks[0]
    found = _BILLING.match(block.text)
    if found is None:
        return blocks
    rest = block.text[found.end() :]
    return [(where, TextBlockParam(text=rest)), *blocks[1:]] if rest else blocks[1:]


def _blocks(content: str | Sequence[Any], where: str) -> list[_Block]:
    if isinstance(content, str):
        return [(where, TextBlockParam(text=content))]
    return [(f"{where}[{index}]", block) for index, block in enumerate(content)]


def _user(
    blocks: Sequence[_Block], open_calls: dict[str, str], modalities: Collection[str]
) -> Iterator[Message]:
    """Read a turn of the user: the results that it has come first, whatever stands before them (MSG-05)."""
    rest: list[_Block] = []
    for where, block in blocks:
        if not isinstance(block, ToolResultBlockParam):
            rest.append((where, block))
            continue
        if open_calls.pop(block.tool_use_id, None) is None:
            raise invalid_request(
                f"'{where}.tool_use_id' names no call of the assistant's turn before it that waits for a result.",
                f"{where}.tool_use_id",
            )
        parts = _parts(_blocks(or_default(block.content, ""), f"{where}.content"), modalities)
        if block.is_error is True:
            parts = (_FAILED, *parts)
        yield Message(
            role="tool", content=_text(parts), parts=_several(parts), tool_call_id=block.tool_use_id
        )
    _check_answered(open_calls)
    if rest:
        parts = _parts(rest, modalities)
        yield Message(role="user", content=_text(parts), parts=_several(parts))


def _several(parts: tuple[Part, ...]) -> tuple[Part, ...] | None:
    """Return the parts, unless they are one text, which templates of strings read as well."""
    return None if len(parts) < 2 and all(isinstance(part, str) for part in parts) else parts


def _parts(blocks: Sequence[_Block], modalities: Collection[str]) -> tuple[Part, ...]:
    """Read blocks as parts. Neighbouring texts are lines of their own."""
    found: list[Part] = []
    for where, block in blocks:
        if (text := _block_text(block, where)) is not None:
            if found and isinstance(found[-1], str) and not found[-1].endswith("\n"):
                found[-1] += "\n"
            found.append(text)
        elif isinstance(block, ImageBlockParam) and "image" in modalities:
            found.append(_image(block, f"{where}.source"))
        else:
            raise unread_part(block, where, modalities)
    return tuple(found)


def _block_text(block: Any, where: str) -> str | None:
    """Return the text of a block; None for other kinds."""
    match block:
        case TextBlockParam(text=text):
            return text
        case DocumentBlockParam() | SearchResultBlockParam():
            return document_text(block, where)
        case ToolReferenceBlockParam(tool_name=name):
            return f"Found tool: {name}"
    return None


def _image(block: ImageBlockParam, where: str) -> MediaReference:
    match block.source:
        case Base64ImageSource(media_type=kind, data=data):
            return image_reference(f"data:{kind};base64,{data}", None, f"{where}.data")
        case URLImageSource(url=url) if url[:5].lower() != "data:":
            return image_reference(url, None, f"{where}.url")
        case URLImageSource():
            raise invalid_request(
                f"'{where}.url' must begin with http:// or https://; send a file in base64 as a source of type "
                "'base64'.",
                f"{where}.url",
            )
        case _:
            raise unsupported_value(
                f"{where}.type", "file", "is not supported: this server keeps no files; send it in base64"
            )


def _joined(blocks: Sequence[_Block]) -> str:
    return _text(_parts(blocks, ()))


def _text(parts: tuple[Part, ...]) -> str:
    """Return the text of parts. Neighbours are lines already (`_parts`), and so are texts around a file."""
    found: list[str] = []
    for before, part in pairwise(("", *parts)):
        if isinstance(part, str):
            found.append(part if isinstance(before, str) or not found else f"\n{part}")
    return "".join(found)


@dataclass(slots=True)
class _Assistant:
    text: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)


def _assistant(blocks: Sequence[_Block], sealer: Sealer) -> Message:
    """Read a turn of the model.

    Neighbouring texts are joined as they are: the model wrote them without a break. Texts around thinking or a call are
    paragraphs, as those of Responses are.
    """
    found = _Assistant()
    before: Any = None
    for where, block in blocks:
        match block:
            case TextBlockParam(text=text):
                if found.text and not isinstance(before, TextBlockParam):
                    found.text.append("\n\n")
                found.text.append(text)
            case ThinkingBlockParam(thinking=text, signature=signature):
                found.thinking.append(_opened(text, signature, f"{where}.signature", sealer))
            case RedactedThinkingBlockParam(data=data):
                found.thinking.append(_opened("", data, f"{where}.data", sealer))
            case ToolUseBlockParam():
                arguments = dumps(block.input)
                found.calls.append(ToolCall(block.id, block.name, arguments))
        before = block
    text = "".join(found.text)
    return Message(
        role="assistant",
        content=text if text or not found.calls else None,
        reasoning="".join(found.thinking) or None,
        tool_calls=tuple(found.calls),
    )


def _opened(text: str, signature: str, param: str, sealer: Sealer) -> str:
    """Return the thinking that a signature seals (MSG-06).

    Raises:
        ApiError: 400 if it was not made by this server, or if the text beside it was changed.
    """
    try:
        opened = sealer.open(signature)
    except UnsealError as error:
        raise invalid_request(
            f"'{param}' cannot be opened: {error}. Leave the block out to continue without it.", param
        ) from None
    if text not in ("", opened):
        raise invalid_request(
            f"'{param}' belongs to another text: send thinking back unchanged, or leave the block out.", param
        )
    return opened


def _calls(blocks: Sequence[_Block]) -> dict[str, str]:
    """Return the field of each call of a turn by its id.

    Raises:
        ApiError: 400 for an id that occurs twice.
    """
    found: dict[str, str] = {}
    for where, block in blocks:
        if isinstance(block, ToolUseBlockParam):
            if block.id in found:
                raise invalid_request(f"'{where}.id' repeats the id of '{found[block.id]}'.", f"{where}.id")
            found[block.id] = where
    return found


def _check_answered(open_calls: dict[str, str]) -> None:
    """Check that the user's turn after calls has their results (MSG-05)."""
    if open_calls:
        raise _unanswered(open_calls)


def _unanswered(open_calls: dict[str, str]) -> ApiError:
    names = ", ".join(list(open_calls)[:10])
    return invalid_request(
        f"Each 'tool_use' block must have a 'tool_result' block in the next message. These have none: {names}.",
        next(iter(open_calls.values())),
    )
