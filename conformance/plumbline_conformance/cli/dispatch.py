"""Run the judge's commands.

Exit status: 0 conforming; 1 violations, a refused core request, or with --strict a stale baseline; 2 the command could
not run or no check reached a verdict; 3 the suite itself failed; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from plumbline_conformance.console.command import Command, read
from plumbline_conformance.console.commands import JUDGE, command_of, parse_arguments, parser_of
from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.console.streams import robust_output
from plumbline_conformance.console.terminal import INTERRUPTED, console
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.transcript.defects import traceback_of

__all__ = ["complain", "main", "run_command"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the judge's commands without the server's."""
    argv = sys.argv[1:] if argv is None else argv
    parser = parser_of(JUDGE, next((text for text in argv if not text.startswith("-")), ""))
    with robust_output():
        arguments = parse_arguments(parser, argv)
        command = command_of(JUDGE, arguments.command)
        assert command is not None
        return run_command(command, vars(arguments))


def run_command(command: type[Command], given: Mapping[str, Any], **more: Any) -> int:
    """Run a command and return its exit status.

    Args:
        command: its declaration.
        given: the parsed arguments.
        more: further arguments of its `run`.
    """
    try:
        return read(command, given).run(console(), **more)
    except UnusableInput as error:
        complain(str(error))
    except ModuleNotFoundError as error:
        if not command.extra:
            raise
        complain(
            f"{given['command']} needs the package {error.name!r}. In a clone of Plumbline, run: "
            f"pip install '.[{command.extra}]'"
        )
    except OSError as error:
        name = f"{error.filename}: " if error.filename is not None else ""
        complain(f"a file cannot be read or written: {name}{error.strerror or error}")
    except KeyboardInterrupt:
        console().print("Interrupted: there is no result.")
        return INTERRUPTED
    except Exception as error:
        # The exit status 1 of an uncaught exception would mean that the server breaks a rule.
        console().print("The command failed; please report this:", markup=False)
        for line in traceback_of(error).splitlines():
            console().print(printable(line), markup=False)
        return 3
    return 2


def complain(why: str) -> None:
    """Print why a command cannot run."""
    with suppress(OSError):
        print(f"plumbline: {printable(why)}", file=sys.stderr, flush=True)
