"""Declare a command as one struct: its annotated fields are its options, `run` is what it does.

    class GreetCommand(Command, frozen=True, kw_only=True):
        example = "plumbline greet World --times 2"

        name: Annotated[str, Describe("who", "whom to greet", "NAME", positional=True)]
        times: Annotated[AtLeastOne, Describe("how", "how often", "N")] = 1

`read(GreetCommand, {"name": "World", "times": "0"})` raises an error of one line: "--times must be an integer of at
least 1, got 0". The parser, the help, the errors and the checks of files are derived from the declaration.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from plumbline_conformance.console.options import (
    Option,
    OptionError,
    UnusableInput,
    checked,
    from_text,
    options_of,
)
from plumbline_conformance.console.output_files import why_unreadable, why_unwritable

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Command", "OptionGroup", "add_command", "add_options", "read"]


class OptionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Options that several commands share. A field that is a group itself stands for the options of the group."""

    def files(self) -> tuple[dict[Path, str], dict[str, Path]]:
        """Return the files that are read, with the options that name them, and those that are written."""
        read: dict[Path, str] = {}
        written: dict[str, Path] = {}
        for option in options_of(type(self), deep=False):
            value = getattr(self, option.field)
            for path in value if isinstance(value, tuple) else [value]:
                if option.about.reads and path is not None:
                    read[path] = option.label
                if option.about.writes and path is not None:
                    written[option.label] = path
        for field in self.__struct_fields__:
            if isinstance(group := getattr(self, field), OptionGroup):
                more = group.files()
                read, written = read | more[0], written | more[1]
        return read, written


class Command(OptionGroup, frozen=True, kw_only=True):
    """A command of `plumbline`."""

    example: ClassVar[str] = ""
    statuses: ClassVar[str] = ""
    """What its exit statuses mean, for its help."""
    extra: ClassVar[str] = ""
    """The extra of the package that it needs."""

    def run(self, out: Console) -> int:
        """Run the command and return its exit status. The files that it names have been checked.

        Raises:
            UnusableInput: it cannot run; the message says why, and what to do.
        """
        raise NotImplementedError


Group = TypeVar("Group", bound=OptionGroup)


def read(kind: type[Group], given: Mapping[str, Any]) -> Group:
    """Read a command from parsed arguments, and check its files.

    Args:
        kind: the class of the command.
        given: texts, lists of texts and switches, by the names of options; None if an option was not given.

    Raises:
        UnusableInput: an option is missing or wrong, or a file cannot be read or written.
    """
    found = _read(kind, given)
    inputs, outputs = found.files()
    for path, label in inputs.items():
        if reason := why_unreadable(path):
            raise OptionError(label, f"names {path}, which cannot be read: {reason}")
    if reason := why_unwritable(outputs, inputs):
        raise UnusableInput(reason)
    return found


def _read(kind: type[Group], given: Mapping[str, Any]) -> Group:
    values: dict[str, Any] = {}
    options = {option.field: option for option in options_of(kind, deep=False)}
    for field in msgspec.structs.fields(kind):
        option = options.get(field.name)
        if option is None:
            values[field.name] = _read(field.type, given)
            continue
        value = given.get(option.name)
        if option.default is msgspec.NODEFAULT and value in (None, []):
            raise OptionError(option.label, f"is missing: give {option.about.help}")
        if value is not None and (value != [] or not option.about.positional):
            text = from_text(option, value) if isinstance(value, str) else value
            values[option.field] = checked(option, text, "")
    return kind(**values)


def add_command(parser: argparse.ArgumentParser, command: type[Command]) -> None:
    """Add the options of a command to its parser, with its exit statuses and an example below them."""
    options = options_of(command)
    add_options(parser, options)
    positions = [_position(option) for option in options if option.about.positional]
    # Options stand before what takes everything that follows.
    place = -1 if any(option.about.rest for option in options) else len(positions)
    positions.insert(place, "[OPTIONS]")
    parser.usage = " ".join([parser.prog, *positions])
    parser.epilog = f"{command.statuses}example: {command.example}"


def _position(option: Option) -> str:
    text = f"{option.label} …" if option.basic is tuple else option.label
    return text if option.default is msgspec.NODEFAULT else f"[{text}]"


def add_options(
    parser: argparse.ArgumentParser, options: Iterable[Option], *, negatable: bool = False
) -> None:
    """Add options to a parser, in their groups. The parsed arguments have what was given, by the names of options.

    Args:
        parser: the parser.
        options: the options.
        negatable: whether switches have a `--no-…` as well, because other sources can set them.
    """
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in options:
        title = option.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        if not option.about.only_in_file:
            _add(groups[title], option, negatable)
        if option.about.in_file:
            _add(groups[title], option.file_option, negatable)


def _add(group: argparse._ArgumentGroup, option: Option, negatable: bool) -> None:
    about = option.about
    settings: dict[str, Any] = {"default": None, "help": _help(option)}
    if about.positional:
        settings["nargs"] = argparse.REMAINDER if about.rest else "*" if option.basic is tuple else "?"
    elif option.basic is bool:
        settings["action"] = argparse.BooleanOptionalAction if negatable else "store_true"
    elif about.spread:
        settings["nargs"] = "+"
    elif option.basic is tuple:
        settings["action"] = "append"
    if option.choices:
        settings["metavar"] = f"{{{','.join(option.choices)}}}"
    elif about.metavar:
        settings["metavar"] = about.metavar
    if about.positional:
        added = group.add_argument(option.name, **settings)
    else:
        added = group.add_argument(option.flag, *about.also, dest=option.name, **settings)
    if option.choices:
        # argcomplete's name. argparse's own `choices` would refuse a wrong value before its source is known.
        added.completer = lambda **_: option.choices  # type: ignore[attr-defined]


def _help(option: Option) -> str:
    engines = f" ({option.only})" if option.only else ""
    default = f" (default: {option.default_text})" if option.default_text else ""
    return f"{option.about.help}{engines}{default}".replace("%", "%%")
