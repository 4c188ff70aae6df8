"""Write the calls of tools that the client runs (TOOL-20)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from example_servers.reference.model_output import pieces

__all__ = ["begun", "command_events", "filled"]

Json = dict[str, Any]
_SHELL: Json = {
    "action": {"commands": [], "timeout_ms": None, "max_output_length": None},
    "environment": None,
}


def begun(kind: str, text: str) -> Json:
    """Return the fields of a call as it is added; all but the shell's are whole at once."""
    match kind:
        case "shell":
            return _SHELL
        case "local_shell":
            return {"action": {"type": "exec", "env": {}, **json.loads(text)}}
        case "tool_search":
            return {"execution": "client", "arguments": json.loads(text)}
    return {"operation": json.loads(text)}


def command_events(item: Json, text: str) -> Iterator[tuple[str, Json]]:
    """Yield the events of the commands of a shell call."""
    commands = json.loads(text)["commands"] if item["type"] == "shell_call" else []
    for index, command in enumerate(commands):
        yield "shell_call_command.added", {"command_index": index, "command": ""}
        for piece in pieces(command):
            yield "shell_call_command.delta", {"command_index": index, "delta": piece}
        yield "shell_call_command.done", {"command_index": index, "command": command}


def filled(item: Json, text: str) -> Json:
    """Return the call with its commands."""
    if item["type"] != "shell_call":
        return item
    return {**item, "action": {**item["action"], "commands": json.loads(text)["commands"]}}
