"""Convert earlier calls of client tools, and their outputs, to the arguments and texts that the model sees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from plumbline.contract._generated.client_tools import (
    ApplyPatchDeleteFileOperationParam,
    ApplyPatchToolCallItemParam,
    ApplyPatchToolCallOutputItemParam,
    FunctionShellCallItemParam,
    FunctionShellCallOutputContentParam,
    FunctionShellCallOutputExitOutcomeParam,
    FunctionShellCallOutputItemParam,
    LocalShellToolCallOutputParam,
    LocalShellToolCallParam,
)
from plumbline.contract._generated.items import InputItem
from plumbline.contract._generated.tool_search import (
    ToolSearchCallItemParam,
    ToolSearchExecutionType,
    ToolSearchOutputItemParam,
)
from plumbline.contract.wire.errors import missing_required_parameter
from plumbline.server.protocols.common.fields import or_default, tag_of
from plumbline.server.protocols.responses.client_tools.search import loaded_tools

__all__ = [
    "ClientCall",
    "ClientOutput",
    "call_arguments",
    "call_name",
    "output_text",
    "search_execution",
    "with_call_ids",
]

ClientCall: TypeAlias = (
    FunctionShellCallItemParam
    | ApplyPatchToolCallItemParam
    | LocalShellToolCallParam
    | ToolSearchCallItemParam
)
ClientOutput: TypeAlias = (
    FunctionShellCallOutputItemParam
    | ApplyPatchToolCallOutputItemParam
    | LocalShellToolCallOutputParam
    | ToolSearchOutputItemParam
)


def with_call_ids(entries: Sequence[tuple[str, InputItem]]) -> Iterator[tuple[str, InputItem]]:
    """Yield items with the field of each, so that outputs name their calls by call_id.

    The official document requires `call_id` of the output of a local shell and defines `id` only, which clients fill
    with the call_id or with the id of the call. Searches that a server ran have no call_id; they are left out, because
    the model made no call.

    Raises:
        ApiError: 400 for an item that names no call.
    """
    calls: dict[str, str] = {}
    for where, item in entries:
        if isinstance(item, ToolSearchCallItemParam | ToolSearchOutputItemParam):
            if search_execution(item) == "server":
                continue
            if not item.call_id:
                raise missing_required_parameter(f"{where}.call_id")
        elif isinstance(item, LocalShellToolCallParam):
            if item_id := or_default(item.id, None):
                calls[item_id] = item.call_id
        elif isinstance(item, LocalShellToolCallOutputParam):
            named = or_default(item.call_id, None) or or_default(item.id, None)
            if not named:
                raise missing_required_parameter(f"{where}.call_id")
            item = msgspec.structs.replace(item, call_id=calls.get(named, named))
        yield where, item


def search_execution(item: ToolSearchCallItemParam | ToolSearchOutputItemParam) -> ToolSearchExecutionType:
    """Return who ran a search; where the item does not say so, a client's has a call_id."""
    return or_default(item.execution, None) or ("client" if or_default(item.call_id, None) else "server")


def call_name(call: ClientCall) -> str:
    """Return the name under which the model called."""
    return tag_of(call).removesuffix("_call")


def call_arguments(call: ClientCall) -> str:
    """Return the arguments of a call as JSON, in the order in which the model writes them."""
    found: dict[str, Any]
    match call:
        case ToolSearchCallItemParam():
            found = call.arguments
        case FunctionShellCallItemParam(action=action):
            found = {
                "commands": action.commands,
                "timeout_ms": or_default(action.timeout_ms, None),
                "max_output_length": or_default(action.max_output_length, None),
            }
        case LocalShellToolCallParam(action=command):
            # No model of this server writes the last two; another server's may have.
            more = {"env": or_default(command.env, None), "user": or_default(command.user, None)}
            found = {
                "command": command.command,
                "working_directory": or_default(command.working_directory, None),
                "timeout_ms": or_default(command.timeout_ms, None),
                **{name: value for name, value in more.items() if value},
            }
        case ApplyPatchToolCallItemParam(operation=operation):
            diff = "" if isinstance(operation, ApplyPatchDeleteFileOperationParam) else operation.diff
            found = {"type": tag_of(operation), "path": operation.path, "diff": diff}
    return json.dumps(found, ensure_ascii=False)


def output_text(output: ClientOutput) -> str:
    """Return what the model sees of an output: JSON of what each command wrote, how the patch went, the tools found."""
    match output:
        case ToolSearchOutputItemParam():
            return json.dumps({"tools": [one.shown_name for one in loaded_tools(output.tools, "tools")]})
        case FunctionShellCallOutputItemParam():
            return json.dumps([_command(one) for one in output.output], ensure_ascii=False)
        case LocalShellToolCallOutputParam():
            return output.output
        case ApplyPatchToolCallOutputItemParam():
            text = or_default(output.output, None)
            return output.status if not text else f"{output.status}: {text}"


def _command(content: FunctionShellCallOutputContentParam) -> dict[str, Any]:
    outcome = content.outcome
    ended = (
        {"exit_code": outcome.exit_code}
        if isinstance(outcome, FunctionShellCallOutputExitOutcomeParam)
        else {"timeout": True}
    )
    return {"stdout": content.stdout, "stderr": content.stderr, **ended}
