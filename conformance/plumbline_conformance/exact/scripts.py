"""The scripts of a checkpoint, read from the `scripts.json` of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["CalledTool", "Meaning", "Script", "ScriptSet", "UnreadableScriptsError", "read_scripts"]


class UnreadableScriptsError(ValueError):
    """The file has no scripts; the text says why."""


class CalledTool(msgspec.Struct, frozen=True):
    """A call that an answer makes."""

    name: str
    arguments: dict[str, Any]


class Meaning(msgspec.Struct, frozen=True):
    """The message that an answer is, to a server that reads its markup."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[CalledTool, ...] = ()


class Script(msgspec.Struct, frozen=True):
    """A prompt, and what the model says to it."""

    prompt: str
    output: str
    name: str = ""
    message: Meaning | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None

    @property
    def title(self) -> str:
        """How reports name it."""
        return f"{self.prompt} ({self.name})" if self.name else self.prompt


class ScriptSet(msgspec.Struct, frozen=True):
    """What a checkpoint has learned."""

    scripts: tuple[Script, ...]
    markers: tuple[str, ...] = (
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    )
    """Texts of the markup: an answer without any of them is text. The default is that of the sets themselves."""
    special: tuple[str, ...] = ()
    """Texts of control tokens, which servers may leave out of an answer."""

    def is_plain(self, script: Script) -> bool:
        """Whether an answer is text, whatever a server reads."""
        return not any(text in script.output for text in (*self.markers, *self.special))

    def is_open(self, script: Script) -> bool:
        """Whether an answer has control tokens, so that nobody can say what has to be left of it."""
        return any(text in script.output for text in self.special)


def read_scripts(path: Path) -> ScriptSet:
    """Read the file, or the one in a model's folder.

    Raises:
        UnreadableScriptsError: it cannot be read, or it has no scripts.
    """
    file = path / "scripts.json" if path.is_dir() else path
    try:
        found = msgspec.convert(json.loads(file.read_text("utf-8")), ScriptSet)
    except (OSError, ValueError) as error:
        raise UnreadableScriptsError(f"{file} cannot be read as scripts: {error}") from error
    if not found.scripts:
        raise UnreadableScriptsError(f"{file} has no scripts.")
    return found
