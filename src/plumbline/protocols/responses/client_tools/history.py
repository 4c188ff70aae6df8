"""Read earlier calls of the tools that a client runs, and their outputs, into what the model wrote and sees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from plumbline._generated.client_tools import (
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
from plumbline._generated.items import InputItem
from plumbline.protocols.common.fields import or_default, tag_of
from plumbline.wire.errors import missing_required_parameter

__all__ = ["ClientCall", "ClientOutput", "call_arguments", "call_name", "output_text", "with_call_ids"]

ClientCall: TypeAlias = FunctionShellCallItemParam | ApplyPatchToolCallItemParam | LocalShellToolCallParam
ClientOutput: TypeAlias = (
    FunctionShellCallOutputItemParam | ApplyPatchToolCallOutputItemParam | LocalShellToolCallOutputParam
)


def with_call_ids(entries: Sequence[tuple[str, InputItem]]) -> Iterator[tuple[str, InputItem]]:
    """Yield items with the field of each, where outputs of a local shell name their call by its call_id.

    The official document requires `call_id` there and defines `id` only, which clients fill with the call_id or with
    the id of the call.

    Raises:
        ApiError: 400 for an output that has neither.
    """
    calls: dict[str, str] = {}
    for where, item in entries:
        if isinstance(item, LocalShellToolCallParam):
            if item_id := or_default(item.id, None):
                calls[item_id] = item.call_id
        elif isinstance(item, LocalShellToolCallOutputParam):
            named = or_default(item.call_id, None) or or_default(item.id, None)
            if not named:
                raise missing_required_parameter(f"{where}.call_id")
            item = msgspec.structs.replace(item, call_id=calls.get(named, named))
        yield where, item


def call_name(call: ClientCall) -> str:
    """Return the name under which the model called."""
    return tag_of(call).removesuffix("_call")


def call_arguments(call: ClientCall) -> str:
    """Return the arguments of a call as JSON, in the order in which the model writes them."""
    found: dict[str, Any]
    match call:
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
    """Return what the model sees of an output: JSON of what each command wrote, or how the patch went."""
    match output:
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
