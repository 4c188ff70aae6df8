"""Read and check script sets: prompts with the exact answers that a scripted checkpoint must give.

`plumbline script-model` trains a model on a set, and writes it to `scripts.json` in the folder of the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from plumbline_conformance.console.options import UnusableInput

__all__ = ["CONTROL", "CalledTool", "Meaning", "Script", "ScriptError", "ScriptSet", "load"]

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Padding, and the start and end of a turn. No answer may contain them."""


class ScriptError(UnusableInput):
    """The file is not a valid script set; the text names the place and the reason."""


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call in an answer."""

    name: str
    arguments: dict[str, Any]


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The message that a server should read from an answer's markup."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[CalledTool, ...] = ()


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt with its answer."""

    prompt: str
    """The text of the last message, which a test sends to get this answer."""
    output: str
    """The answer, markup included."""
    name: str = ""
    """What the script tests."""
    message: Meaning | None = None
    """The expected message. None if servers may read the markup differently; without markup, the answer is text."""
    stop: tuple[str, ...] = ()
    """Stop strings of a second request, which must end before the first of them."""
    max_tokens: int | None = None
    """The token limit of a second request, which cuts its answer."""

    @property
    def title(self) -> str:
        """Return the name for reports."""
        return f"{self.prompt} ({self.name})" if self.name else self.prompt


class ScriptSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The scripts of one checkpoint."""

    scripts: tuple[Script, ...]
    markers: tuple[str, ...] = (
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    )
    """Texts that are single visible tokens, as in the tokenizers of that model family."""
    special: tuple[str, ...] = ()
    """Texts that are single control tokens, which servers leave out of an answer by default."""

    def is_plain(self, script: Script) -> bool:
        """Return whether the output is plain text for every server."""
        return not any(text in script.output for text in (*self.markers, *self.special))

    def is_open(self, script: Script) -> bool:
        """Return whether the output has control tokens, so that the expected text is unknown."""
        return any(text in script.output for text in self.special)


def load(path: Path) -> ScriptSet:
    """Read a script set: JSON, or YAML if the name does not end in `.json`.

    A folder stands for its `scripts.json`. The file has a list of scripts, or an object with `scripts` and, for the
    markup of another family, `markers` and `special`.

    Raises:
        ScriptError: the file cannot be read, or contradicts itself.
    """
    path = path / "scripts.json" if path.is_dir() else path
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ScriptError(
            f"{path} cannot be read as scripts: {(error.strerror or str(error)).lower()}"
        ) from error
    except UnicodeDecodeError as error:
        raise ScriptError(f"{path} cannot be read as scripts: it is not UTF-8 text") from error
    value = _parsed(path, text)
    if isinstance(value, list):
        value = {"scripts": value}
    try:
        found = msgspec.convert(value, ScriptSet)
    except msgspec.ValidationError as error:
        raise ScriptError(f"{path}: {error}") from error
    try:
        check(found)
    except ScriptError as error:
        raise ScriptError(f"{path}: {error}") from None
    return found


def check(found: ScriptSet) -> None:
    """Check that a model can learn the scripts.

    Raises:
        ScriptError: no scripts, one prompt with two answers, or a control token where text should be.
    """
    if not found.scripts:
        raise ScriptError("A script set needs at least one script.")
    answers: dict[str, str] = {}
    for index, script in enumerate(found.scripts):
        where = f"scripts[{index}] ({script.prompt!r})"
        if not script.prompt:
            raise ScriptError(f"{where}: 'prompt' must not be empty.")
        if script.prompt in answers:
            raise ScriptError(f"{where}: another script has this prompt already.")
        answers[script.prompt] = script.output
        _no_control(where, "output", script.output, CONTROL)
        _no_control(where, "prompt", script.prompt, (*CONTROL, *found.markers, *found.special))
    for name, texts in (("markers", found.markers), ("special", found.special)):
        for text in texts:
            if not text or text in CONTROL:
                raise ScriptError(f"'{name}' must not contain {text!r}.")
    if len({*found.markers, *found.special}) != len(found.markers) + len(found.special):
        raise ScriptError("'markers' and 'special' must not name a text twice.")


def _no_control(where: str, field: str, text: str, tokens: Sequence[str]) -> None:
    # Servers treat control tokens in a prompt as text, so the model would get another prompt than in training.
    for token in tokens:
        if token in text:
            raise ScriptError(f"{where}: '{field}' must not contain {token!r}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ScriptError(
            f"{where}: '{field}' has an unpaired surrogate, which is not valid text."
        ) from error


def _parsed(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ScriptError(f"{path} is not valid JSON: {error}") from error
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ScriptError("YAML needs the package pyyaml; install it, or write the file as JSON.") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScriptError(f"{path} is not valid YAML: {error}") from error
