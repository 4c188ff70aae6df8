"""Write the calls of shells, patches and searches as official items.

Their fields are known once the arguments are whole, so all events of an item come at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline.contract._generated.client_tools import (
    ApplyPatchCreateFileOperation,
    ApplyPatchDeleteFileOperation,
    ApplyPatchToolCall,
    ApplyPatchUpdateFileOperation,
    FunctionShellAction,
    FunctionShellCall,
    LocalEnvironmentResource,
    LocalShellExecAction,
    LocalShellToolCall,
)
from plumbline.contract._generated.items import OutputItem
from plumbline.contract._generated.tool_search import ToolSearchCall
from plumbline.server.protocols.responses.event_order import Machine, Step
from plumbline.server.protocols.responses.items import CallItem, ItemStatus

__all__ = ["CLIENT_CALLS", "LocalShellCallItem", "PatchCallItem", "ShellCallItem"]

_Operation = ApplyPatchCreateFileOperation | ApplyPatchUpdateFileOperation | ApplyPatchDeleteFileOperation


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
        action = _read(self.text, FunctionShellAction)
        self.dropped = action is None and status != "incomplete"
        self.finished = FunctionShellCall(
            id=self.id,
            call_id=self.call_id,
            action=FunctionShellAction(commands=[]) if action is None else action,
            status=status,
            environment=LocalEnvironmentResource(),
        )


class _WholeCallItem(CallItem):
    """A call without events of its own: it is added whole, and ends at once."""

    machine: Machine = "whole_call"

    finished: Any

    def added(self) -> OutputItem:
        found: OutputItem = msgspec.structs.replace(self.finished, status="in_progress")
        return found


class LocalShellCallItem(_WholeCallItem):
    """A call of the local shell. One that was cut has no command, so that no client runs half of it."""

    prefix = "lsh_"

    def finish(self, status: ItemStatus) -> None:
        """Set `finished`; a call that broke off before other output is dropped (R-07)."""
        self.text = "".join(self.fragments)
        action = _read(self.text, _LocalShellArguments)
        self.dropped = action is None and status != "incomplete"
        self.finished = LocalShellToolCall(
            id=self.id,
            call_id=self.call_id,
            action=LocalShellExecAction(command=[], env={}) if action is None else action.as_action(),
            status=status,
        )


class _LocalShellArguments(msgspec.Struct):
    """What the model writes."""

    command: list[str]
    working_directory: str | None = None
    timeout_ms: int | None = None

    def as_action(self) -> LocalShellExecAction:
        return LocalShellExecAction(
            command=self.command,
            working_directory=self.working_directory,
            timeout_ms=self.timeout_ms,
            env={},
        )


class PatchCallItem(_WholeCallItem):
    """A call of a patch. One that was cut is dropped: the official item has no status for it."""

    prefix = "apc_"

    def finish(self, status: ItemStatus) -> None:
        """Set `finished`, unless the call was cut."""
        self.text = "".join(self.fragments)
        operation = None if status == "incomplete" else _read(self.text, _Operation)
        self.dropped = operation is None
        if operation is not None:
            self.finished = ApplyPatchToolCall(
                id=self.id, call_id=self.call_id, status="completed", operation=operation
            )


class SearchCallItem(_WholeCallItem):
    """A search for tools (TOOL-22). One that was cut searches for nothing."""

    prefix = "tsc_"

    def finish(self, status: ItemStatus) -> None:
        """Set `finished`; a call that broke off before other output is dropped (R-07)."""
        self.text = "".join(self.fragments)
        arguments = _read(self.text, dict[str, Any])
        self.dropped = arguments is None and status != "incomplete"
        self.finished = ToolSearchCall(
            id=self.id, call_id=self.call_id, execution="client", arguments=arguments or {}, status=status
        )


CLIENT_CALLS: dict[str, type[CallItem]] = {
    "shell": ShellCallItem,
    "local_shell": LocalShellCallItem,
    "apply_patch": PatchCallItem,
    "tool_search": SearchCallItem,
}
"""The items of calls, by the name that the model sees."""


def _read(text: str, kind: Any) -> Any:
    """Return the arguments as a value of this type; None if they are cut or do not fit it."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None
