"""Leave out tools that cannot be offered, where the request wants that (`x_skip_invalid_tools`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from plumbline.answer.turn import ChatPrompt, ToolChoice, Turn
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.call import Call, note_skipped
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.incoming import client_index, refused_tool
from plumbline.server.protocols.common.fields import or_default
from plumbline.server.protocols.common.tools.tool_choice import ToolRequest

__all__ = ["read_skipping", "skips", "without_tool"]

R = TypeVar("R", bound=ToolRequest)
T = TypeVar("T")


def skips(request: ToolRequest | CreateCompletionRequest) -> bool:
    """Return whether a request wants invalid tools to be left out."""
    return not isinstance(request, CreateCompletionRequest) and request.x_skip_invalid_tools is True


async def read_skipping(request: R, call: Call, read: Callable[[R], T], more: int = 0) -> tuple[R, T]:
    """Read a request; if it wants so, without the tools that cannot be read.

    Args:
        request: the request.
        call: its call; its facts get the names of the tools that are left out.
        read: reads a request; see `Call.read`.
        more: see `Call.read`.

    Returns:
        The request with the tools that are left, and what `read` returns for it.

    Raises:
        ApiError: from `read`.
    """
    removed: list[int] = []
    while True:
        try:
            return request, await call.read(partial(read, request), more)
        except ApiError as error:
            tools: Sequence[Any] = or_default(request.tools, [])
            index = refused_tool(error)
            if not skips(request) or index is None or index >= len(tools):
                raise
            original = client_index(index, removed)
            removed.append(original)
            if not note_skipped(call.facts, _name(tools[index]) or f"tools[{original}]"):
                raise
            left = [*tools[:index], *tools[index + 1 :]]
            request = msgspec.structs.replace(request, tools=left or UNSET)


def without_tool(turn: Turn, name: str) -> Turn | None:
    """Return a turn without a tool; None if it must call that tool, or has no other to call."""
    prompt, choice = turn.prompt, turn.tool_choice
    if not isinstance(prompt, ChatPrompt):
        return None
    tools = tuple(tool for tool in prompt.tools if tool.name != name)
    if len(tools) == len(prompt.tools):
        return None
    if choice.names is not None:
        choice = msgspec.structs.replace(choice, names=tuple(one for one in choice.names if one != name))
    if choice.mode == "required" and (not tools or choice.names == ()):
        return None
    if not tools:
        choice = ToolChoice(mode="none")
    return msgspec.structs.replace(
        turn, prompt=msgspec.structs.replace(prompt, tools=tools), tool_choice=choice
    )


def _name(tool: Any) -> str:
    """Return the name of a tool of any API."""
    described = getattr(tool, "function", None) or getattr(tool, "custom", None) or tool
    name = described.get("name") if isinstance(described, Mapping) else getattr(described, "name", None)
    return name if isinstance(name, str) else ""
