"""The command line: parse arguments and run the judge's commands."""

from plumbline_conformance.cli.arguments import add_commands, main, parsed, ready, run_command
from plumbline_conformance.cli.live_check import check

__all__ = ["add_commands", "check", "main", "parsed", "ready", "run_command"]
