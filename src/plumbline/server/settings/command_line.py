"""Derive the command line of `plumbline serve` and its help from the declaration."""

from __future__ import annotations

import argparse
from typing import Any

from plumbline.server.settings.help import Help
from plumbline.server.settings.options import Option
from plumbline.server.settings.settings import OPTIONS

__all__ = ["add_arguments"]

_SOURCES = """\
Every option can also be set by an environment variable (--max-num-seqs: PLUMBLINE_MAX_NUM_SEQS) or in a TOML file that
--config or PLUMBLINE_CONFIG names (max_num_seqs = 256). The command line comes before the environment, and the
environment before the file. docs/reference/options.md lists all of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options. The parsed arguments have those that were given, by their names."""
    parser.epilog = _SOURCES
    parser.add_argument(
        "-h",
        "--help",
        action=Help,
        nargs="?",
        metavar="GROUP",
        help="show this, the options of a group, or all",
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with options, such as port = 8000")
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        if option.about.group not in groups:
            groups[option.about.group] = parser.add_argument_group(option.about.group)
        group = groups[option.about.group]
        if not option.about.only_in_file:
            _add(group, option)
        if option.about.in_file:
            _add(group, option.file_option)


def _add(group: argparse._ArgumentGroup, option: Option) -> None:
    settings: dict[str, Any] = {"dest": option.name, "default": None, "help": _help(option)}
    if option.basic is bool:
        settings["action"] = argparse.BooleanOptionalAction
    elif option.about.spread:
        settings["nargs"] = "+"
    elif option.basic is tuple:
        settings["action"] = "append"
    if option.choices:
        settings["metavar"] = f"{{{','.join(option.choices)}}}"
    elif option.about.metavar:
        settings["metavar"] = option.about.metavar
    added = group.add_argument(option.flag, **settings)
    if option.choices:
        # argcomplete's name. argparse's own `choices` would refuse a wrong value before its source is known.
        added.completer = lambda **_: option.choices  # type: ignore[attr-defined]


def _help(option: Option) -> str:
    engines = f" ({option.only})" if option.only else ""
    default = f" (default: {option.default_text})" if option.default_text else ""
    return f"{option.about.help}{engines}{default}".replace("%", "%%")
