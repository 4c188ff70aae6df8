"""Read items that only other servers make: agents take their histories along when they change the server (TOOL-15).

Calls of tools that this server does not run are left out of the prompt, because the answer after them says what they
found; the header `x-plumbline-unavailable-tools` names them. Codex sends tools as an item, and what its agents write to
each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from plumbline.answer.turn import Message
from plumbline.contract._generated.items import (
    HostedItem,
    HostedItemAdditionalTools,
    HostedItemAgentMessage,
    InputItem,
)
from plumbline.contract._generated.tools import MCPTool, Tool
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import tag_of

__all__ = ["additional_tools", "hosted_messages", "left_out_items"]

_LEFT_OUT: Final = frozenset(
    {
        "file_search_call",
        "web_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "multi_agent_call",
        "multi_agent_call_output",
    }
)
_TEXTS: Final = frozenset({"input_text", "output_text", "text", "summary_text"})


def hosted_messages(item: HostedItem, where: str) -> Iterator[Message]:
    """Yield what the model sees of an item.

    Raises:
        ApiError: 400 for an item without which a conversation makes no sense, such as the screen of a computer, and for
            parts of an agent's message that are not text.
    """
    if isinstance(item, HostedItemAgentMessage):
        yield Message(role="user", content=_agents_text(item, where))
    elif not isinstance(item, HostedItemAdditionalTools) and tag_of(item) not in _LEFT_OUT:
        raise unsupported_value(f"{where}.type", tag_of(item), "is not supported by this server")


def additional_tools(entries: Sequence[tuple[str, InputItem]]) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the tools of each item that adds some, with their field.

    Raises:
        ApiError: 400 naming the item whose tools are none, or the MCP server, which only a request can name.
    """
    for where, item in entries:
        if isinstance(item, HostedItemAdditionalTools):
            given = [] if item.tools is msgspec.UNSET else item.tools
            try:
                found = msgspec.convert(given, list[Tool])
            except msgspec.ValidationError as error:
                raise invalid_request(
                    f"Invalid '{where}.tools': {error}.", f"{where}.tools", "invalid_value"
                ) from None
            for index, tool in enumerate(found):
                if isinstance(tool, MCPTool):
                    raise unsupported_value(
                        f"{where}.tools[{index}].type",
                        "mcp",
                        "is not supported in an item: send it in 'tools'",
                    )
            yield f"{where}.tools", found


def left_out_items(items: str | Sequence[Any] | msgspec.UnsetType | None) -> tuple[str, ...]:
    """Return the types of the items of an input that the prompt does not show, each once."""
    if not isinstance(items, list):
        return ()
    kinds = [tag_of(item) for item in items if isinstance(item, HostedItem)]
    return tuple(dict.fromkeys(kind for kind in kinds if kind in _LEFT_OUT))


def _agents_text(item: HostedItemAgentMessage, where: str) -> str:
    """Return the message of an agent to another one, with their names."""
    parts = item.content if isinstance(item.content, list) else [{"type": "text", "text": item.content}]
    texts: list[str] = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind not in _TEXTS or not isinstance(text, str):
            raise unsupported_value(
                f"{where}.content[{index}].type", kind, "is not supported: of agents only text is read"
            )
        texts.append(text)
    names = [name for name in (item.author, item.recipient) if isinstance(name, str) and name]
    return "\n".join([*([f"Message from {' to '.join(names)}:"] if names else []), *texts])
