"""Read earlier calls of a shell and of patches, and their outputs, into what the model wrote and sees."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from plumbline._generated.client_tools import (
    ApplyPatchDeleteFileOperationParam,
    ApplyPatchToolCallItemParam,
    ApplyPatchToolCallOutputItemParam,
    FunctionShellCallItemParam,
    FunctionShellCallOutputContentParam,
    FunctionShellCallOutputExitOutcomeParam,
    FunctionShellCallOutputItemParam,
)
from plumbline.protocols.common.fields import or_default, tag_of

__all__ = ["call_arguments", "call_name", "output_text"]

ClientCall: TypeAlias = FunctionShellCallItemParam | ApplyPatchToolCallItemParam
ClientOutput: TypeAlias = FunctionShellCallOutputItemParam | ApplyPatchToolCallOutputItemParam


def call_name(call: ClientCall) -> str:
    """Return the name under which the model called."""
    return "shell" if isinstance(call, FunctionShellCallItemParam) else "apply_patch"


def call_arguments(call: ClientCall) -> str:
    """Return the arguments of a call as JSON, in the order in which the model writes them."""
    found: dict[str, Any]
    if isinstance(call, FunctionShellCallItemParam):
        action = call.action
        found = {
            "commands": action.commands,
            "timeout_ms": or_default(action.timeout_ms, None),
            "max_output_length": or_default(action.max_output_length, None),
        }
    else:
        operation = call.operation
        diff = "" if isinstance(operation, ApplyPatchDeleteFileOperationParam) else operation.diff
        found = {"type": tag_of(operation), "path": operation.path, "diff": diff}
    return json.dumps(found, ensure_ascii=False)


def output_text(output: ClientOutput) -> str:
    """Return what the model sees of an output: JSON of what each command wrote, or how the patch went."""
    if isinstance(output, FunctionShellCallOutputItemParam):
        return json.dumps([_command(one) for one in output.output], ensure_ascii=False)
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
