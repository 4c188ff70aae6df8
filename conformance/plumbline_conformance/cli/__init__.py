"""Parse the command line and run the judge's commands, each of which is declared in a module of its own."""

from plumbline_conformance.cli.dispatch import main, run_command

__all__ = ["main", "run_command"]
