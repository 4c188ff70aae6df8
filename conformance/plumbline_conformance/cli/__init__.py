"""Parse the command line and run the judge's commands."""

from plumbline_conformance.cli.arguments import add_commands
from plumbline_conformance.cli.dispatch import main, run_command
from plumbline_conformance.cli.live_check import check
from plumbline_conformance.console.streams import parse_arguments, robust_output

__all__ = ["add_commands", "check", "main", "parse_arguments", "robust_output", "run_command"]
