"""Show the model a shell and patches as functions of its dialect (TOOL-20).

The official document has no schema of their arguments, because its models know the tools. Any other model needs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plumbline._generated.tools import FunctionToolParam, HostedToolApplyPatch, HostedToolShell
from plumbline.protocols.common.fields import tag_of

__all__ = ["client_function", "client_names"]


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_NUMBER = {"type": ["integer", "null"]}
_SHELL = FunctionToolParam(
    name="shell",
    description=(
        "Run commands in a shell on the user's machine. They run one after the other, and the result has the output "
        "and the exit status of each. timeout_ms and max_output_length (characters) may be null."
    ),
    parameters=_object(
        commands={"type": "array", "items": {"type": "string"}, "minItems": 1},
        timeout_ms=_NUMBER,
        max_output_length=_NUMBER,
    ),
    strict=True,
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


def client_function(tool: Any) -> FunctionToolParam | None:
    """Return the function that stands for a tool which the client runs; None for another tool.

    A shell in a container is a hosted tool (TOOL-15): it belongs to a service.
    """
    match tool:
        case HostedToolShell() if _is_local(tool.environment):
            return _SHELL
        case HostedToolApplyPatch():
            return _APPLY_PATCH
        case _:
            return None


def client_names(tools: Sequence[Any]) -> frozenset[str]:
    """Return the names under which the model sees the tools of a request that the client runs."""
    return frozenset(tag_of(tool) for tool in tools if client_function(tool) is not None)


def _is_local(environment: Any) -> bool:
    return not isinstance(environment, dict) or environment.get("type") == "local"
