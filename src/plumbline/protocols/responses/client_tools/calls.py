"""Write the calls of a shell and of patches as official items.

Their fields are known once the arguments are whole, so all events of an item come at its end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline._generated.client_tools import (
    ApplyPatchCreateFileOperation,
    ApplyPatchDeleteFileOperation,
    ApplyPatchToolCall,
    ApplyPatchUpdateFileOperation,
    FunctionShellAction,
    FunctionShellCall,
    LocalEnvironmentResource,
)
from plumbline._generated.items import OutputItem
from plumbline.protocols.responses.event_order import Machine, Step
from plumbline.protocols.responses.items import CallItem, ItemStatus

__all__ = ["CLIENT_CALLS", "PatchCallItem", "ShellCallItem"]

_OPERATIONS: dict[str, Any] = {
    "create_file": ApplyPatchCreateFileOperation,
    "update_file": ApplyPatchUpdateFileOperation,
}


class ShellCallItem(CallItem):
    """A call of the shell. One that was cut has no commands, so that no client runs half of them."""

    machine: Machine = "shell_call"
    prefix = "sh_"

    finished: FunctionShellCall
    command_index = 0
    """The command that the event is about."""

    @property
    def command(self) -> str:
        """The command that the event is about."""
        return self.finished.action.commands[self.command_index]

    def added(self) -> OutputItem:
        action = msgspec.structs.replace(self.finished.action, commands=[])
        return msgspec.structs.replace(self.finished, action=action, status="in_progress")

    def last_steps(self) -> Iterator[Step]:
        """Yield the steps that show the item and its commands."""
        yield "show"
        for index in range(len(self.finished.action.commands)):
            self.command_index = index
            yield "command"

    def finish(self, status: ItemStatus) -> None:
        """Set `finished`; a call that broke off before other output is dropped (R-07)."""
        self.text = "".join(self.fragments)
        arguments = _read(self.text)
        self.dropped = arguments is None and status != "incomplete"
        if not self.dropped:
            self.finished = self._shell_call({"commands": []} if arguments is None else arguments, status)

    def _shell_call(self, arguments: dict[str, Any], status: ItemStatus) -> FunctionShellCall:
        action = FunctionShellAction(
            commands=arguments.get("commands") or [],
            timeout_ms=arguments.get("timeout_ms"),
            max_output_length=arguments.get("max_output_length"),
        )
        return FunctionShellCall(
            id=self.id,
            call_id=self.call_id,
            action=action,
            status=status,
            environment=LocalEnvironmentResource(),
        )


class PatchCallItem(CallItem):
    """A call of a patch. One that was cut is dropped: the official item has no status for it."""

    machine: Machine = "apply_patch_call"
    prefix = "apc_"

    def added(self) -> OutputItem:
        return msgspec.structs.replace(self.finished, status="in_progress")

    def finish(self, status: ItemStatus) -> None:
        """Set `finished`, unless the call was cut."""
        self.text = "".join(self.fragments)
        arguments = None if status == "incomplete" else _read(self.text)
        self.dropped = arguments is None
        if arguments is not None:
            self.finished = self._patch_call(arguments)

    def _patch_call(self, arguments: dict[str, Any]) -> OutputItem:
        kind = _OPERATIONS.get(arguments.get("type", ""))
        path = arguments.get("path", "")
        operation = (
            ApplyPatchDeleteFileOperation(path=path)
            if kind is None
            else kind(path=path, diff=arguments.get("diff") or "")
        )
        return ApplyPatchToolCall(id=self.id, call_id=self.call_id, status="completed", operation=operation)


CLIENT_CALLS: dict[str, type[CallItem]] = {"shell": ShellCallItem, "apply_patch": PatchCallItem}
"""The items of calls, by the name that the model sees."""


def _read(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
