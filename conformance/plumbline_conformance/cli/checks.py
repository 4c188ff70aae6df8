"""List checks, or rules with their checks (`plumbline checks`)."""

from __future__ import annotations

from functools import partial
from textwrap import fill
from typing import Annotated

from rich.console import Console

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.common import note
from plumbline_conformance.cli.explain import clause_lines
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError
from plumbline_conformance.console.streams import put
from plumbline_conformance.suite.clauses import clauses_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import as_markdown, manifest
from plumbline_conformance.suite.scenario import CHECKS
from plumbline_conformance.suite.selection import Selection

__all__ = ["ChecksCommand"]

_WIDTH = 100
"""Columns of a line of `checks --rules`."""
_INDENT = " " * 10
_rules = partial(Describe, "rules")


class ChecksCommand(Command, frozen=True, kw_only=True):
    """List checks, or rules with their checks."""

    example = "plumbline checks chat/stream-text"

    selection: Selection = Selection()
    rules: Annotated[bool, _rules("list every rule with its checks, or the reason why it has none")] = False
    clauses: Annotated[
        bool, _rules("with --rules: list the clauses of each rule with their checks as well")
    ] = False
    markdown: Annotated[bool, _rules("with --rules: write Markdown")] = False

    def run(self, out: Console) -> int:
        """Print the list."""
        if self.rules:
            if self.selection != Selection():
                raise OptionError(
                    "--rules",
                    "lists every rule: leave out ids, --profile, --level, --surface and --requirements",
                )
            self._print_rules()
            return 0
        for option in ("markdown", "clauses"):
            if getattr(self, option):
                raise OptionError(f"--{option}", f"needs --rules: use `checks --rules --{option}`")
        note(out, self.selection.ids)
        for name in self.selection.checks():
            found = CHECKS[name]
            put(f"{found.id:42} {found.level:6} {', '.join(found.rules):18} {found.title}")
        return 0

    def _print_rules(self) -> None:
        """Print every rule with its checks, or the reason why it has no check, and with its clauses if wanted."""
        if self.markdown:
            put(as_markdown(), end="")
            return
        for rule, observed in manifest().items():
            text = ", ".join(observed) if isinstance(observed, list) else f"not checked: {observed}"
            put(f"{rule:9} {rules()[rule]['level']}")
            put(_indented(text))
            for clause in clauses_of(rule) if self.clauses else ():
                for line in clause_lines(clause):
                    put(_indented(line))


def _indented(text: str) -> str:
    return fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)
