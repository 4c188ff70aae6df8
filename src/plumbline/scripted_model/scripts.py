"""A script set: what the model is told, and what it then has to say, character for character."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

__all__ = ["DEFAULT", "CalledTool", "Meaning", "Script", "ScriptError", "ScriptSet", "load"]

DEFAULT = Path(__file__).with_name("default.yaml")
"""The set that comes with Plumbline: what breaks servers, in the markup of Qwen and Hermes."""

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Padding, the start and the end of a turn. No answer may contain them: they would end or begin one."""


class ScriptError(ValueError):
    """The file is not a usable script set; the text says where and why."""


class CalledTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that an answer makes."""

    name: str
    arguments: dict[str, Any]


class Meaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The message that an answer is, to a server that reads its markup."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[CalledTool, ...] = ()


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prompt and its answer."""

    prompt: str
    """The text of the last message. A test that wants this answer sends exactly this."""
    output: str
    """The answer, markup included."""
    name: str = ""
    """What the script is there to show."""
    message: Meaning | None = None
    """What the answer means. None where it has markup that servers may read differently; without any, it is text."""
    stop: tuple[str, ...] = ()
    """Stop sequences of a further request, which ends before the first of them."""
    max_tokens: int | None = None
    """The token limit of a further request, which it cuts."""


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
    """Texts that are single tokens and visible in an answer, as the family of the markup has them."""
    special: tuple[str, ...] = ()
    """Texts that are single control tokens, which servers leave out of an answer unless they are asked not to."""


def load(path: Path) -> ScriptSet:
    """Read a script set: JSON, or YAML if the name does not end in `.json`.

    The file holds a list of scripts, or an object with `scripts` and, if the markup is another family's, `markers` and
    `special`.

    Raises:
        ScriptError: it cannot be read, or it contradicts itself.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path} cannot be read: {error}") from error
    value = _parsed(path, text)
    if isinstance(value, list):
        value = {"scripts": value}
    try:
        found = msgspec.convert(value, ScriptSet)
    except msgspec.ValidationError as error:
        raise ScriptError(f"{path}: {error}") from error
    check(found)
    return found


def check(found: ScriptSet) -> None:
    """Refuse what no model could learn.

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
    # A server takes control tokens in a prompt for text, so the model would hear something else than it has learned.
    for token in tokens:
        if token in text:
            raise ScriptError(f"{where}: '{field}' must not contain {token!r}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ScriptError(f"{where}: '{field}' has half a surrogate pair, which is no text.") from error


def _parsed(path: Path, text: str) -> Any:
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except ValueError as error:
            raise ScriptError(f"{path} is not valid JSON: {error}") from error
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise ScriptError("YAML needs the package pyyaml; JSON needs nothing.") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ScriptError(f"{path} is not valid YAML: {error}") from error
