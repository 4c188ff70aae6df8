"""Make the console that commands print to."""

from __future__ import annotations

from rich.console import Console

from plumbline_conformance.console.streams import discard_output

__all__ = ["INTERRUPTED", "console"]

INTERRUPTED = 130
"""The exit status of an interrupted command, as in shells."""


class _Console(Console):
    """A console that goes on silently when the pipe is closed; rich's own exits with status 1."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        discard_output()


def console() -> Console:
    """Return a console: colours on a terminal, plain lines in a pipe, never wrapped, so that commands can be copied."""
    return _Console(highlight=False, soft_wrap=True)
