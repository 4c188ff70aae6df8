"""Read the scripts of a checkpoint from the `scripts.json` in its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["CalledTool", "Meaning", "Script", "ScriptSet", "UnreadableScriptsError", "read_scripts"]


class UnreadableScriptsError(ValueError):
    """The file cannot be read or has no scripts."""


class CalledTool(msgspec.Struct, frozen=True):
    """A tool call in an answer."""

    name: str
    arguments: dict[str, Any]


class Meaning(msgspec.Struct, frozen=True):
    """The message that a server returns if it parses the markup of an output."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[CalledTool, ...] = ()


class Script(msgspec.Struct, frozen=True):
    """A prompt, and the output of the model."""

    prompt: str
    output: str
    name: str = ""
    message: Meaning | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None

    @property
    def title(self) -> str:
        """Return the name for reports."""
        return f"{self.prompt} ({self.name})" if self.name else self.prompt


class ScriptSet(msgspec.Struct, frozen=True):
    """The prompts and outputs that a checkpoint has learned."""

    scripts: tuple[Script, ...]
    markers: tuple[str, ...] = (
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    )
    """Markers of the markup; an output without any of them is plain text."""
    special: tuple[str, ...] = ()
    """Texts of control tokens, which servers may leave out of an answer."""

    def is_plain(self, script: Script) -> bool:
        """Return whether the output is plain text for every server."""
        return not any(text in script.output for text in (*self.markers, *self.special))

    def is_open(self, script: Script) -> bool:
        """Return whether the output has control tokens, so that the expected text is unknown."""
        return any(text in script.output for text in self.special)


def read_scripts(path: Path) -> ScriptSet:
    """Read scripts from a file, or from `scripts.json` in a model folder.

    Raises:
        UnreadableScriptsError: the file cannot be read or has no scripts.
    """
    file = path / "scripts.json" if path.is_dir() else path
    try:
        found = msgspec.convert(json.loads(file.read_text("utf-8")), ScriptSet)
    except (OSError, ValueError) as error:
        raise UnreadableScriptsError(f"{file} cannot be read as scripts: {error}") from error
    if not found.scripts:
        raise UnreadableScriptsError(f"{file} has no scripts.")
    return found
