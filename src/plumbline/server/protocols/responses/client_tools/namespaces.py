"""Show tools of namespaces to the model under joined names, and list the hosted tools of a request (TOOL-15).

Codex groups the tools of an MCP server as `{"type": "namespace", "name": "mcp__files", "tools": [...]}`. A template
knows no groups, so the model sees `mcp__files__read`, and its call goes back as `read` in the namespace `mcp__files`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType

from plumbline.contract._generated.tools import CustomToolParam, FunctionToolParam, HostedTool
from plumbline.contract.wire.errors import invalid_request, invalid_type, missing_required_parameter
from plumbline.server.protocols.common.fields import tag_of
from plumbline.server.protocols.responses.client_tools.declared import client_function
from plumbline.server.protocols.responses.client_tools.hosted import additional_tools, left_out_items

__all__ = ["CallableTool", "Member", "callable_tools", "joined_name", "unavailable_tools"]

CallableTool = FunctionToolParam | CustomToolParam

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


class Member(NamedTuple):
    """A tool that the client runs: its field in the request, its namespace or None, and the tool."""

    where: str
    namespace: str | None
    tool: CallableTool

    @property
    def shown_name(self) -> str:
        """The name that the model sees."""
        return joined_name(self.namespace, self.tool.name)


def callable_tools(tools: Sequence[Any], param: str = "tools") -> Iterator[Member]:
    """Yield the tools that the client runs, including those in namespaces, shells, patches and searches.

    Args:
        tools: the tools.
        param: their field in the request.

    Raises:
        ApiError: 400 naming the field, for a namespace with a wrong name or with a member that is neither a function
            nor a custom tool.
    """
    for index, tool in enumerate(tools):
        where = f"{param}[{index}]"
        if isinstance(tool, CallableTool):
            yield Member(where, None, tool)
        elif (function := client_function(tool, where)) is not None:
            yield Member(where, None, function)
        elif tag_of(tool) == "namespace":
            yield from _members(tool, where)


def joined_name(namespace: str | None, name: str) -> str:
    """Return the name that the model sees: `NAMESPACE__NAME`.

    A function that a server's search loads is in a namespace of its own name, by which the Agents SDK knows its calls.
    """
    if not namespace or namespace == name:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def unavailable_tools(
    tools: Sequence[Any], items: str | Sequence[Any] | UnsetType | None = ()
) -> tuple[str, ...]:
    """Return the types of the hosted tools and items of a request, each once. The server runs none of them."""
    numbered = enumerate(items) if isinstance(items, list) else ()
    added = additional_tools([(f"input[{index}]", item) for index, item in numbered])
    every = [*tools, *(tool for _, some in added for tool in some)]
    kinds = [tag_of(tool) for tool in every if isinstance(tool, HostedTool) and client_function(tool) is None]
    kinds = [kind for kind in kinds if kind != "namespace"]
    return tuple(dict.fromkeys([*kinds, *left_out_items(items)]))


def _members(namespace: Any, where: str) -> Iterator[Member]:
    name = namespace.name
    if name is msgspec.UNSET:
        raise missing_required_parameter(f"{where}.name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise invalid_request(
            f"Invalid '{where}.name': a namespace has 1 to 64 letters, digits, '_' and '-'.",
            f"{where}.name",
            "invalid_value",
        )
    if not isinstance(namespace.tools, list) or not namespace.tools:
        raise invalid_type(f"{where}.tools", "an array with at least one tool", namespace.tools or None)
    for index, entry in enumerate(namespace.tools):
        inner = f"{where}.tools[{index}]"
        try:
            tool = msgspec.convert(entry, CallableTool)
        except msgspec.ValidationError as error:
            reason = f"Invalid '{inner}': it must be a function or a custom tool ({error})."
            raise invalid_request(reason, inner, "invalid_value") from None
        yield Member(inner, name, tool)
