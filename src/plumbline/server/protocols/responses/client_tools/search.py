"""Show the model the tools that a search has loaded, and not those that wait for one (TOOL-22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from plumbline.contract._generated.items import InputItem
from plumbline.contract._generated.tool_search import ToolSearchOutputItemParam
from plumbline.contract._generated.tools import (
    CustomToolParam,
    FunctionToolParam,
    HostedToolNamespace,
    HostedToolToolSearch,
)
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import tag_of
from plumbline.server.protocols.common.tools.tool_choice import check_names
from plumbline.server.protocols.responses.client_tools.hosted import additional_tools
from plumbline.server.protocols.responses.client_tools.namespaces import Member, callable_tools

__all__ = ["loaded_tools", "shown_tools", "shows_at_once"]

_LOADABLE = FunctionToolParam | CustomToolParam | HostedToolNamespace
_MOST_TOOLS = 1024
"""The most tools of a prompt with loaded ones, as for the tools of a request."""


def shown_tools(tools: Sequence[Any], entries: Sequence[tuple[str, InputItem]]) -> list[Member]:
    """Return the tools that the model sees: those that are not deferred, and those that items have loaded or added.

    The search of a client tells the model the names and descriptions of what waits. If the server is to search, all
    tools are shown at once: the search would find them in the same request.

    Args:
        tools: the tools of the request.
        entries: the items of the context, with the field of each.

    Raises:
        ApiError: 400 for two tools with the same name, for deferred tools without a search that could load them, for
            loaded tools that are neither functions nor custom tools, and for too many of them.
    """
    declared = list(callable_tools(tools))
    check_names([(member.shown_name, f"{member.where}.name") for member in declared])
    waiting = [member for member in declared if member.tool.defer_loading is True]
    if waiting and not any(isinstance(tool, HostedToolToolSearch) for tool in tools):
        reason = "needs a tool of the type 'tool_search' in 'tools', which loads the tool"
        raise unsupported_value(f"{waiting[0].where}.defer_loading", True, reason)
    if shows_at_once(tools):
        declared = [_loaded_by_server(one) for one in declared]
    else:
        declared = [
            _listing_waiting(one, tools, waiting) for one in declared if one.tool.defer_loading is not True
        ]
    found = {member.shown_name: member for member in declared}
    # A tool that is loaded again may have changed.
    loaded = {member.shown_name: member for member in _of_items(entries)}
    if loaded and len(loaded.keys() | found.keys()) > _MOST_TOOLS:
        raise invalid_request(
            f"A prompt has at most {_MOST_TOOLS} tools; the items of the input add more.", "input"
        )
    return [*found.values(), *(member for name, member in loaded.items() if name not in found)]


def _of_items(entries: Sequence[tuple[str, InputItem]]) -> Iterator[Member]:
    """Yield the tools that searches have loaded, and those that items have added."""
    for where, item in entries:
        if isinstance(item, ToolSearchOutputItemParam):
            yield from loaded_tools(item.tools, f"{where}.tools")
    for where, added in additional_tools(entries):
        yield from callable_tools(added, where)


def shows_at_once(tools: Sequence[Any]) -> bool:
    """Return whether deferred tools are shown at once, because the server is to search them."""
    searches = [tool for tool in tools if isinstance(tool, HostedToolToolSearch)]
    return bool(searches) and all(tool.execution != "client" for tool in searches)


def _loaded_by_server(member: Member) -> Member:
    """Return a tool; a deferred function is in a namespace of its own name."""
    if member.tool.defer_loading is not True or member.namespace:
        return member
    return member._replace(namespace=member.tool.name)


def _listing_waiting(member: Member, tools: Sequence[Any], waiting: Sequence[Member]) -> Member:
    """List the waiting namespaces and functions in the description of a search; return other tools as they are."""
    if member.shown_name != "tool_search" or not waiting:
        return member
    names = {one.namespace for one in waiting}
    functions = [(one.tool.name, one.tool.description) for one in waiting if not one.namespace]
    namespaces = [
        (tool.name, tool.description)
        for tool in tools
        if isinstance(tool, HostedToolNamespace) and tool.name in names
    ]
    lines = [
        f"{name}: {text}" if isinstance(text, str) and text else name
        for name, text in (*functions, *namespaces)
    ]
    description = "\n".join([f"{member.tool.description} There are:", *lines])
    return member._replace(tool=msgspec.structs.replace(member.tool, description=description))


def loaded_tools(tools: Sequence[Any], where: str) -> Iterator[Member]:
    """Yield the tools of the output of a search.

    Raises:
        ApiError: 400 naming a tool that is neither a function, a custom tool nor a namespace of them.
    """
    for index, tool in enumerate(tools):
        if not isinstance(tool, _LOADABLE):
            raise unsupported_value(
                f"{where}[{index}].type",
                tag_of(tool),
                "cannot be loaded by a search: only functions, custom tools and namespaces of them can",
            )
    yield from callable_tools(tools, where)
