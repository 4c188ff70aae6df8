"""Read the tools of a Responses request, its MCP servers, and which of them the model may or must call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from plumbline.answer.remote_tools import RemoteServer, RemoteTool, RemoteTools, shown_name
from plumbline.answer.turn import Tool, ToolChoice
from plumbline.contract._generated.responses import CreateResponse, TokenCountsBody
from plumbline.contract._generated.tools import (
    CustomGrammarFormatParam,
    FunctionToolParam,
    HostedToolChoiceApplyPatch,
    HostedToolChoiceShell,
    ToolChoiceAllowed,
    ToolChoiceCustom,
    ToolChoiceFunction,
    ToolChoiceMCP,
)
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import or_default, tag_of
from plumbline.server.protocols.common.tools.tool_choice import (
    allowed_choice,
    custom_tool,
    named_choice,
    plain_choice,
    wants_parallel,
    with_checked_parameters,
)
from plumbline.server.protocols.responses.client_tools.declared import client_names
from plumbline.server.protocols.responses.client_tools.namespaces import Member
from plumbline.server.protocols.responses.mcp.declared import read_servers, remote_choice
from plumbline.server.protocols.responses.mcp.history import RemotePast

__all__ = ["read_remote", "read_tools"]


def read_tools(
    request: CreateResponse | TokenCountsBody, members: Sequence[Member]
) -> tuple[tuple[Tool, ...], tuple[RemoteServer, ...], ToolChoice]:
    """Read the tools for the prompt, the MCP servers, and which tools the model may or must call.

    Hosted tools are accepted, echoed and never called (TOOL-15): Codex always sends some. The server names them in the
    header `x-plumbline-unavailable-tools`. With `tool_choice: none` the prompt has no tools, so the model calls none
    (TOOL-03).
    """
    tools = tuple(map(_read_tool, members))
    servers = read_servers(or_default(request.tools, []))
    default: Any = "auto" if tools or servers else "none"
    choice = _read_choice(or_default(request.tool_choice, default), tools, servers, request, members)
    return ((), (), choice) if choice.mode == "none" else (tools, servers, choice)


def read_remote(
    request: CreateResponse | TokenCountsBody,
    tools: Sequence[Tool],
    servers: tuple[RemoteServer, ...],
    past: RemotePast,
) -> RemoteTools | None:
    """Return what a request says about MCP servers; None if it uses none (TOOL-21).

    Raises:
        ApiError: 400 for an approved call without its server, and for a tool that the context lists with a wrong schema
            or with the name of another tool.
    """
    labels = {server.label for server in servers}
    for call in past.approved:
        if call.server not in labels:
            raise invalid_request(
                f"The approved call with id '{call.approval_id}' is for the MCP server '{call.server}', which is not "
                "in 'tools', or 'tool_choice' is 'none'. Send the server with the approval.",
                "tools",
            )
    if not servers:
        return None
    names = {tool.name for tool in tools}
    for server in servers:
        for index, tool in enumerate(past.listed.get(server.label, ())):
            if server.allowed.matches(tool):
                _check_listed(server, tool, names, f"{past.fields[server.label]}[{index}]")
    limit = or_default(request.max_tool_calls, None) if isinstance(request, CreateResponse) else None
    return RemoteTools(servers=servers, listed=past.listed, approved=past.approved, max_calls=limit)


def _check_listed(server: RemoteServer, tool: RemoteTool, names: Collection[str], where: str) -> None:
    """Check a tool of a list in the context: clients can send any list."""
    name = shown_name(server.label, tool.name)
    with_checked_parameters(Tool(name=name, parameters=tool.input_schema), f"{where}.input_schema")
    if name in names:
        raise invalid_request(
            f"'tools' has a tool with the name '{name}', by which the model calls '{tool.name}' of the MCP server "
            f"'{server.label}'. Rename it, or leave the other out with 'allowed_tools'.",
            "tools",
            "invalid_value",
        )


def _read_tool(member: Member) -> Tool:
    where, namespace, tool = member
    pair = None if namespace is None else (namespace, tool.name)
    callers = or_default(tool.allowed_callers, None)
    if callers is not None and "direct" not in callers:
        raise unsupported_value(f"{where}.allowed_callers", callers, "must contain 'direct'")
    if isinstance(tool, FunctionToolParam):
        read = Tool(
            name=member.shown_name,
            member=pair,
            description=or_default(tool.description, None),
            parameters=or_default(tool.parameters, None),
            strict=or_default(tool.strict, None),
        )
        return with_checked_parameters(read, f"{where}.parameters")
    input_format = or_default(tool.format, None)
    grammar = input_format if isinstance(input_format, CustomGrammarFormatParam) else None
    custom = custom_tool(
        member.shown_name,
        or_default(tool.description, None),
        None if grammar is None else grammar.syntax,
        "" if grammar is None else grammar.definition,
    )
    return msgspec.structs.replace(custom, member=pair)


def _shown_name(name: str, members: Sequence[Member]) -> str:
    """Return the name that the model sees of a tool that a choice names, which may be in a namespace."""
    found = [member.shown_name for member in members if member.tool.name == name]
    return name if name in found or len(found) != 1 else found[0]


def _client_names(request: CreateResponse | TokenCountsBody) -> frozenset[str]:
    return client_names(or_default(request.tools, []))


def _read_choice(
    choice: Any,
    tools: tuple[Tool, ...],
    servers: tuple[RemoteServer, ...],
    request: CreateResponse | TokenCountsBody,
    members: Sequence[Member],
) -> ToolChoice:
    parallel = wants_parallel(request.parallel_tool_calls)
    match choice:
        case "auto" | "required" if servers:  # Their tools are not known yet.
            return ToolChoice(mode=choice, parallel=parallel)
        case str():
            return plain_choice(choice, tools, parallel=parallel)
        case ToolChoiceFunction():
            return named_choice(_shown_name(choice.name, members), "function", tools, "tool_choice.name")
        case ToolChoiceCustom():
            return named_choice(_shown_name(choice.name, members), "custom", tools, "tool_choice.name")
        case HostedToolChoiceShell() | HostedToolChoiceApplyPatch() if tag_of(choice) in _client_names(
            request
        ):
            return named_choice(tag_of(choice), "function", tools, "tool_choice.type")
        case ToolChoiceMCP():
            forced = ToolChoice(mode="required", parallel=False)
            return remote_choice([("tool_choice", msgspec.to_builtins(choice))], servers, forced)
        case ToolChoiceAllowed():
            named = _client_names(request)
            local = [
                {"type": "function", "name": kind} if (kind := _type(entry)) in named else entry
                for entry in choice.tools
            ]
            found = allowed_choice(
                choice.mode, local, tools, parallel=parallel, param="tool_choice.tools", others=("mcp",)
            )
            remote = [
                (f"tool_choice.tools[{index}]", entry)
                for index, entry in enumerate(local)
                if _type(entry) == "mcp"
            ]
            return remote_choice(remote, servers, found)
        case _:
            raise unsupported_value("tool_choice.type", tag_of(choice), "is not supported by this server")


def _type(entry: Mapping[str, Any]) -> str:
    """Return the type of an entry of a choice, of which the contract says nothing; empty if it is no string."""
    kind = entry.get("type")
    return kind if isinstance(kind, str) else ""
