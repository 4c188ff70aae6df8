"""Describe one option of a command: its names, its type and range, its help, and the one form of its errors.

The server declares its options with it, and the judge its commands (`command.py`).
"""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec
from msgspec import NODEFAULT, Meta

from plumbline_conformance.console.sizes import parse_size, size_text

__all__ = [
    "Amount",
    "AtLeastOne",
    "Count",
    "Describe",
    "Option",
    "OptionError",
    "Positive",
    "SettingsError",
    "Texts",
    "UnusableInput",
    "checked",
    "from_text",
    "options_of",
    "shown",
]

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Texts = tuple[str, ...]

_MOST = 2**63 - 1
"""The largest integer of an option: settings travel as JSON."""
_LONGEST = 80
"""Characters of a wrong value that an error repeats."""
_PATHS = frozenset({"FILE", "DIR", "PATH"})
"""Metavars of options that are paths."""
_TRUTH: Mapping[str, bool] = MappingProxyType({"true": True, "1": True, "false": False, "0": False})
_WORDS = {int: "an integer", float: "a number", bool: "true or false", tuple: "a list of texts"}


class UnusableInput(Exception):  # noqa: N818 - the name describes the value
    """What a command was given cannot be used; the message states why, and what to use instead."""


class SettingsError(UnusableInput, ValueError):
    """The settings cannot be used; the message explains how to fix it."""


class OptionError(SettingsError):
    """The value of one option cannot be used.

    Args:
        option: its label, such as `--port`.
        problem: what is wrong and what to do, to follow the place that the value came from.
        origin: that place, if it is not the command line, such as `PLUMBLINE_PORT`.
    """

    def __init__(self, option: str, problem: str, origin: str = "") -> None:
        super().__init__(f"{origin or option} {problem}")
        self.option = option
        self.problem = problem
        self._origin = origin

    def at(self, origins: Mapping[str, str]) -> OptionError:
        """Return the error with the place that the value came from, by the labels of options."""
        return OptionError(self.option, self.problem, origins.get(self.option, self._origin))


class Describe(msgspec.Struct, frozen=True):
    """What a declaration adds to the type and the default of an option."""

    group: str
    """The heading that it is listed under."""
    help: str
    metavar: str = ""
    name: str = ""
    """The name in a configuration file; default: the field's."""
    default: str = ""
    """The default in words, where it is not the field's value."""
    engines: tuple[str, ...] = ()
    """The engines that have this option, if not all do; others refuse a value that is not the default."""
    advice: str = ""
    """What to do instead with an engine that lacks the option."""
    parse: Callable[[tuple[str, ...]], Any] | None = None
    """Turns the given list of texts into the field's value; it raises `ValueError`."""
    secret: bool = False
    """Whether no error may repeat the value."""
    in_file: str = ""
    """Help of a further option, `--NAME-file`, that names a file with the value."""
    only_in_file: bool = False
    """Whether the command line has that further option only, because others can read command lines."""
    spread: bool = False
    """Whether one flag takes several values; otherwise a list's flag is repeated."""
    whole: bool = False
    """Whether a text is a list of one, commas included; several come as a JSON array."""
    adds: bool = False
    """Whether the values of all sources count, instead of the first source's."""
    also: tuple[str, ...] = ()
    """Further names of the flag."""
    choices: tuple[str, ...] = ()
    """The only values of a text, where its type does not name them."""
    positional: bool = False
    """Whether the value stands by itself, without a flag."""
    rest: bool = False
    """Whether everything that follows belongs to the value, options included."""
    reads: bool = False
    """Whether the value is a file that the command reads."""
    writes: bool = False
    """Whether the value is a file that the command writes."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One option of a command, with everything that its sources, help and documentation are derived from."""

    field: str
    """The field of the settings."""
    name: str
    """The key in a configuration file."""
    kind: Any
    """The type of the field."""
    default: Any
    about: Describe

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return self.about.metavar if self.about.positional else f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"PLUMBLINE_{self.name.upper()}"

    @property
    def label(self) -> str:
        """The name in errors about values without another origin."""
        return self.file_option.flag if self.about.only_in_file else self.flag

    @property
    def file_option(self) -> Option:
        """The further option that names a file with the value."""
        about = Describe(self.about.group, self.about.in_file, "FILE")
        return Option(field=self.field, name=f"{self.name}_file", kind=str, default="", about=about)

    @property
    def basic(self) -> type:
        """`str`, `int`, `float`, `bool`, `Path` or `tuple`."""
        return _basic(self.kind)[0]

    @property
    def only(self) -> str:
        """Which engines have the option, in words; empty for all."""
        return f"only {', '.join(self.about.engines)}" if self.about.engines else ""

    @property
    def choices(self) -> tuple[str, ...]:
        """The only values of a text; empty for any."""
        return self.about.choices or _basic(self.kind)[2]

    @property
    def is_path(self) -> bool:
        """Whether the value is a path, in which `~` is the user's home directory."""
        return self.about.metavar in _PATHS

    @property
    def is_size(self) -> bool:
        """Whether the value is a number of bytes, which may be given as a text such as `1GiB`."""
        return self.about.metavar == "SIZE"

    @property
    def default_text(self) -> str:
        """The default for readers, or an empty string for nothing."""
        if self.about.default or self.default in (None, "", (), NODEFAULT) or self.about.secret:
            return self.about.default
        if isinstance(self.default, bool):
            return "on" if self.default else ""
        if self.is_size:
            return size_text(self.default)
        if isinstance(self.default, tuple):
            return " ".join(map(str, self.default))
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def expected(self) -> str:
        """What a value must be, such as `an integer from 0 to 65535`."""
        basic, meta, _ = _basic(self.kind)
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.is_size:
            return f"a size in bytes{_range(meta)}, such as 1048576 or 1GiB"
        if basic is tuple and (each := _basic(typing.get_args(self.kind)[0]))[0] in _WORDS:
            basic, meta, _ = each  # Each value has a flag, or stands beside the others.
        return _WORDS.get(basic, "a text") + _range(meta)

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with a value of the field and what it must be, or None."""
        if isinstance(value, int | float) and not -_MOST - 1 <= value <= _MOST:
            return f"must be finite and below 2**63, got {shown(value)}"
        try:
            if self.about.choices and isinstance(value, str) and value not in self.about.choices:
                raise msgspec.ValidationError
            msgspec.convert(value, self.kind)
        except msgspec.ValidationError:
            got = "" if self.about.secret else f", got {shown(value)}"
            return f"must be {self.expected}{got}"
        return None

    def convert(self, texts: tuple[str, ...]) -> Any:
        """Return the values of a list.

        Raises:
            OptionError: one has another type or is out of its range.
        """
        kind = typing.get_args(self.kind)[0] if typing.get_args(self.kind) else str
        found = []
        for text in texts:
            try:
                if self.choices and text not in self.choices:
                    raise msgspec.ValidationError
                value = Path(os.path.expanduser(text)) if kind is Path else text
                found.append(msgspec.convert(value, kind, strict=False))
            except msgspec.ValidationError:
                raise OptionError(self.label, f"must be {self.expected}, got {shown(text)}") from None
        return tuple(found)


def options_of(settings: type[msgspec.Struct], *, deep: bool = True) -> tuple[Option, ...]:
    """Return the options that the annotated fields of a class declare, in their order.

    Args:
        settings: the class.
        deep: whether to go into fields that are groups of options.
    """
    hints = typing.get_type_hints(settings, include_extras=True)
    found: list[Option] = []
    for field in msgspec.structs.fields(settings):
        if isinstance(hints[field.name], type):
            found += options_of(hints[field.name]) if deep else ()
            continue
        kind, *extras = typing.get_args(hints[field.name])
        about = next(extra for extra in extras if isinstance(extra, Describe))
        meta = tuple(extra for extra in extras if extra is not about)
        found.append(
            Option(
                field=field.name,
                name=about.name or field.name,
                kind=Annotated[(kind, *meta)] if meta else kind,
                default=field.default,
                about=about,
            )
        )
    return tuple(found)


def from_text(option: Option, text: str) -> Any:
    """Convert the text of an environment variable or of the command line, if it can be converted.

    A list is comma-separated, or a JSON array if it begins with `[`.
    """
    if option.about.whole and not text.lstrip().startswith("["):
        return [text]
    try:
        if option.basic is int:
            return int(text)
        if option.basic is float:
            return float(text)
        if option.basic is tuple:
            parts = text.split(",") if not text.lstrip().startswith("[") else json.loads(text)
            return [part.strip() if isinstance(part, str) else part for part in parts if part != ""]
    except (ValueError, RecursionError):
        return text
    return _TRUTH.get(text.strip().lower(), text) if option.basic is bool else text


def checked(option: Option, value: Any, origin: str) -> Any:
    """Return the value of the option's field.

    Args:
        option: the option.
        value: a scalar, or a list of texts.
        origin: where the value was given, for errors.

    Raises:
        OptionError: the value is of another type or out of its range.
    """
    if option.basic is tuple:
        if option.about.whole and isinstance(value, str):
            value = [value]
        if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
            got = "" if option.about.secret else f", got {shown(value)}"
            raise OptionError(option.label, f"must be {option.expected}{got}", origin)
        try:
            value = (option.about.parse or option.convert)(tuple(value))
        except OptionError as error:
            raise error.at({option.label: origin}) from None
    if isinstance(value, str) and option.is_size and (size := parse_size(value)) is not None:
        value = size
    if isinstance(value, str) and (option.is_path or option.basic is Path):
        value = option.basic(os.path.expanduser(value))
    if isinstance(value, str) and option.about.secret:
        value = value.strip()
    problem = option.problem(value)
    if problem is not None:
        raise OptionError(option.label, problem, origin)
    return msgspec.convert(value, option.kind)


def _basic(kind: Any) -> tuple[type, Meta | None, tuple[str, ...]]:
    """Return the class of a type's values, their range and their choices."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        basic, _, choices = _basic(inner[0])
        return basic, inner[1], choices
    if origin is Literal:
        return str, None, inner
    if origin in (types.UnionType, typing.Union):
        return _basic(next(each for each in inner if each is not type(None)))
    return tuple if origin is Sequence else origin or kind, None, ()


def _range(meta: Meta | None) -> str:
    if meta is None:
        return ""
    least = f" above {meta.gt:g}" if meta.gt is not None else ""
    if meta.ge is not None:
        least = f" of at least {meta.ge:g}" if meta.le is None else f" from {meta.ge:g}"
    if meta.le is None:
        return least
    return f"{least} to {meta.le:g}" if meta.ge is not None else f"{least} and at most {meta.le:g}"


def shown(value: Any) -> str:
    """Return a wrong value as errors repeat it."""
    text = "a table" if isinstance(value, dict) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
