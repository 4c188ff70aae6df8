"""Show the model shells, patches and searches as functions of its dialect (TOOL-20, TOOL-22).

The official document has no schema of their arguments, because its models know the tools. Any other model needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline.contract._generated.client_tools import LocalEnvironmentParam
from plumbline.contract._generated.tool_search import ToolSearchExecutionType
from plumbline.contract._generated.tools import (
    CallableToolAllowedCaller,
    FunctionToolParam,
    HostedToolApplyPatch,
    HostedToolLocalShell,
    HostedToolShell,
    HostedToolToolSearch,
)
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.protocols.common.fields import or_default, tag_of

__all__ = ["client_function", "client_names"]


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_CONTAINERS = ("container_auto", "container_reference")
_NUMBER = {"type": ["integer", "null"]}
_SHELL = FunctionToolParam(
    name="shell",
    description=(
        "Run commands in a shell on the user's machine. They run one after the other, and the result has the output "
        "and the exit status of each. timeout_ms and max_output_length (characters) may be null."
    ),
    parameters=_object(
        commands={"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        timeout_ms=_NUMBER,
        max_output_length=_NUMBER,
    ),
    strict=True,
)
_LOCAL_SHELL = FunctionToolParam(
    name="local_shell",
    description=(
        "Run one command on the user's machine: a program and its arguments, not a line of a shell. "
        "working_directory and timeout_ms may be null."
    ),
    parameters=_object(
        command={"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        working_directory={"type": ["string", "null"]},
        timeout_ms=_NUMBER,
    ),
    strict=True,
)
_TOOL_SEARCH = FunctionToolParam(
    name="tool_search",
    description="Search for more tools. Those that it finds can be called from then on.",
    parameters=_object(query={"type": "string", "minLength": 1}),
)
_APPLY_PATCH = FunctionToolParam(
    name="apply_patch",
    description=(
        "Create, update or delete one file. diff is in the V4A format: lines that begin with a space, + or -, after "
        "@@ lines that name the place; a new file has + lines only. It is empty for a file to delete."
    ),
    parameters=_object(
        type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        path={"type": "string", "minLength": 1},
        diff={"type": "string"},
    ),
    strict=True,
)


def client_function(tool: Any, where: str = "tools") -> FunctionToolParam | None:
    """Return the function that stands for a tool which the client runs; None for another tool.

    A shell in a container and a search that the server runs are hosted tools (TOOL-15): they belong to a service. The
    description tells the model the skills of a local shell.

    Args:
        tool: the tool.
        where: its field in the request.

    Raises:
        ApiError: 400 for members that have another type.
    """
    match tool:
        case HostedToolShell():
            if isinstance(tool.environment, dict) and tool.environment.get("type") in _CONTAINERS:
                return None
            found = msgspec.structs.replace(_SHELL, description=_with_skills(tool.environment, where))
        case HostedToolApplyPatch():
            found = _APPLY_PATCH
        case HostedToolLocalShell():
            return _LOCAL_SHELL
        case HostedToolToolSearch():
            return _search_function(tool, where)
        case _:
            return None
    if tool.allowed_callers is UNSET or tool.allowed_callers is None:
        return found
    callers = _converted(tool.allowed_callers, list[CallableToolAllowedCaller], f"{where}.allowed_callers")
    return msgspec.structs.replace(found, allowed_callers=callers)


def client_names(tools: Sequence[Any]) -> frozenset[str]:
    """Return the names under which the model sees the tools of a request that the client runs."""
    return frozenset(tag_of(tool) for tool in tools if client_function(tool) is not None)


class _Search(msgspec.Struct):
    """The members of a search for tools, which the contract leaves open."""

    execution: ToolSearchExecutionType | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None


def _search_function(tool: HostedToolToolSearch, where: str) -> FunctionToolParam | None:
    given = {name: getattr(tool, name) for name in _Search.__struct_fields__}
    found = _converted({name: one for name, one in given.items() if one is not UNSET}, _Search, where)
    if found.execution != "client":
        return None
    changes = {"description": found.description, "parameters": found.parameters}
    return msgspec.structs.replace(
        _TOOL_SEARCH, **{name: one for name, one in changes.items() if one is not None}
    )


def _with_skills(environment: Any, where: str) -> str:
    description = str(_SHELL.description)
    if environment is UNSET or environment is None:
        return description
    local = _converted(environment, LocalEnvironmentParam, f"{where}.environment")
    skills = or_default(local.skills, None) or []
    lines = [f"{skill.name} ({skill.path}): {skill.description}" for skill in skills]
    return (
        "\n".join([f"{description} Skills, each with the file that explains it:", *lines])
        if lines
        else description
    )


def _converted(value: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid_request(f"Invalid '{where}': {error}.", where, "invalid_value") from None
