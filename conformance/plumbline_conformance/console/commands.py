"""List the commands and parse the command line. Only the chosen command is imported, so a help text is quick."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from plumbline_conformance.console.streams import discard_output

if TYPE_CHECKING:
    from plumbline_conformance.console.command import Command

__all__ = ["JUDGE", "Entry", "Parser", "command_of", "parse_arguments", "parser_of"]

_LONGEST_NAME = 64
"""Characters of an unknown option that are compared with the known ones."""
_FORMER_COMMANDS = {
    "diff": "plumbline compare URL OTHER_URL compares two servers",
    "exact": "plumbline compare URL SCRIPTS compares a server with a scripted checkpoint",
    "models": "plumbline list lists the models, plumbline list --supported what can be served",
    "verify": "plumbline compare URL SAMPLES.JSONL compares a server with results of another one",
}
_FORMER_OPTIONS = ("--base-url", "--upstream", "--url")
"""Former names of the server's URL."""


class Entry(NamedTuple):
    """A command in the list of all commands."""

    purpose: str
    place: str = ""
    """`MODULE:CLASS` of its declaration; empty for a command with a parser of its own."""


def _judge(purpose: str, name: str) -> Entry:
    return Entry(purpose, f"plumbline_conformance.{name}")


JUDGE: Mapping[str, Mapping[str, Entry]] = {
    "judge": {
        "check": _judge("test a server", "cli.check:CheckCommand"),
        "checks": _judge("list checks, or rules with their checks", "cli.checks:ChecksCommand"),
        "explain": _judge("explain a check, a scenario or a rule", "cli.explain:ExplainCommand"),
        "judge": _judge("run the checks on a recording, without a server", "cli.judge:JudgeCommand"),
        "export": _judge("convert a recording for other tools", "cli.judge:ExportCommand"),
        "matrix": _judge("show several servers in one table", "cli.matrix:MatrixCommand"),
        "watch": _judge("check live traffic, as a transparent proxy", "cli.watch:WatchCommand"),
        "fuzz": _judge("send generated requests, valid and invalid", "cli.fuzz:FuzzCommand"),
    },
    "compare": {
        "compare": _judge(
            "compare a server with another one that has the same weights", "cli.compare:CompareCommand"
        ),
        "bench": _judge(
            "measure the speed of a server under load, or compare two in turn",
            "bench.measurement:BenchCommand",
        ),
    },
    "tools": {
        "client": _judge(
            "test a client: answer it in every legal way", "variations.client_trial:ClientCommand"
        ),
        "vectors": _judge(
            "score a parser, template engine, client or grammar by known answers",
            "vectors.scoring:VectorsCommand",
        ),
    },
}
"""The judge's commands by heading."""


def command_of(groups: Mapping[str, Mapping[str, Entry]], name: str) -> type[Command] | None:
    """Return the declaration of a command; None if it has none, or does not exist."""
    place = next((group[name].place for group in groups.values() if name in group), "")
    module, _, kind = place.partition(":")
    return getattr(import_module(module), kind) if module else None


def parser_of(groups: Mapping[str, Mapping[str, Entry]], chosen: str) -> Parser:
    """Return a parser of all commands, with the options of the chosen one."""
    overview = "\n\n".join(
        "\n".join([f"{heading}:", *(f"  {name:14}{entry.purpose}" for name, entry in group.items())])
        for heading, group in groups.items()
    )
    parser = Parser(
        prog="plumbline",
        usage="plumbline COMMAND …",
        description="The reference implementation of the OpenAI API.",
        epilog=f"{overview}\n\nplumbline COMMAND --help explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(
        prog="plumbline", dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    for group in groups.values():
        for name, entry in group.items():
            purpose = f"{entry.purpose[0].upper()}{entry.purpose[1:]}."
            command = commands.add_parser(name, description=purpose, add_help=name != "serve")
            parser.commands[name] = command
            if name == chosen and entry.place:
                from plumbline_conformance.console.command import add_command

                found = command_of(groups, name)
                assert found is not None
                add_command(command, found)
    return parser


class Parser(argparse.ArgumentParser):
    """Has errors of one line that repeat no value, because it may be a secret, and name the nearest command."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.commands: dict[str, argparse.ArgumentParser] = {}

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '([^']{1,40})' \(choose from (.*)\)$", message)
        if wrong is not None:
            commands = re.findall(r"[\w-]+", wrong[2])
            nearest = difflib.get_close_matches(wrong[1], commands, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(commands)}"
            message = f"there is no command {wrong[1]}: {_FORMER_COMMANDS.get(wrong[1], hint)}"
        message = re.sub(r"(--[\w-]+)=\S*", r"\1=…", message)
        message = re.sub(r"^argument (?:-\w, |-\w/)?(\S+): expected .*argument", r"\1 needs a value", message)
        message = re.sub(
            r"^the following arguments are required: (.*)", r"\1 is missing: see --help", message
        )
        self.exit(2, f"plumbline: {message.removeprefix('argument ')}\n")


def parse_arguments(parser: Parser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments, or print the help text and exit with status 0 even if the pipe is closed.

    argparse of Python 3.11.2 raises an error in the latter case. The error about unknown arguments names the nearest
    option, and repeats names of options only, because values may be secrets.
    """
    try:
        found, unknown = parser.parse_known_args(argv)
    except BrokenPipeError:
        discard_output()
        raise SystemExit(0) from None
    actions = _actions(parser, found)
    lists = [action.dest for action in actions if not action.option_strings and action.nargs in ("*", "+")]
    if unknown and lists and not any(text.startswith("-") for text in unknown):
        # argparse takes a list in one piece, and so none of it after an option that follows the list's beginning.
        setattr(found, lists[0], [*(getattr(found, lists[0]) or ()), *unknown])
    elif unknown:
        names = [text.partition("=")[0] if text.startswith("-") else "…" for text in unknown]
        wrong = next((name for name in names if name.startswith("--")), "")
        parser.error(f"unrecognized arguments: {' '.join(names)}{_hint(wrong, actions, found.command)}")
    return found


def _hint(wrong: str, actions: Sequence[argparse.Action], command: str) -> str:
    """Return what to use instead of an unknown option, in brackets, if that is known."""
    if wrong in _FORMER_OPTIONS and any(action.dest in ("url", "urls") for action in actions):
        return f" (the server stands without an option: plumbline {command} URL)"
    named = any(action.metavar in ("NAME", "MODEL") and not action.option_strings for action in actions)
    flags = [flag for action in actions for flag in action.option_strings] + ["--model"] * named
    near = difflib.get_close_matches(wrong[:_LONGEST_NAME], flags, 1)
    if named and near == ["--model"]:
        return f" (the model stands without an option: plumbline {command} NAME)"
    return f" (did you mean {near[0]}?)" if near else ""


def _actions(parser: Parser, found: argparse.Namespace) -> list[argparse.Action]:
    """Return the options of a parser and of the command that was found."""
    return [*parser._actions, *parser.commands[found.command]._actions]
