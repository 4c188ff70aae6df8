"""Show the help of `plumbline serve` by parts: the options that most people need, a group, or what a word finds."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

__all__ = ["COMMON", "Help", "help_text"]

COMMON = (
    "--config",
    "--model",
    "--served-model-name",
    "--engine",
    "--device",
    "--max-model-len",
    "--kv-cache-bytes",
    "--max-num-seqs",
    "--host",
    "--port",
    "--api-key-file",
    "--store",
)
"""The options of the first help."""
_ALL = "all"


class HelpSection(NamedTuple):
    """Options below a heading."""

    title: str
    actions: list[argparse.Action]


class Help(argparse.Action):
    """Prints the help that its argument asks for, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, __: Any = None) -> None:
        text = help_text(parser, values or "")
        if text is None:
            titles = ", ".join(section.title for section in _sections(parser))
            parser.error(
                f"--help {values} finds nothing: give all, a part of an option's name, or one of: {titles}"
            )
        print(text, end="")
        parser.exit()


def help_text(parser: argparse.ArgumentParser, wanted: str) -> str | None:
    """Return the help.

    Args:
        parser: of `plumbline serve`.
        wanted: nothing for the common options, `all`, how a group's title begins, or a part of an option's name.

    Returns:
        The text, or None if nothing is found.
    """
    sections = list(_sections(parser))
    if not wanted:
        return _format(parser, [_common(sections)], _groups(sections))
    if wanted != _ALL:
        named = [section for section in sections if section.title.startswith(wanted)]
        sections = named or [
            part for section in sections if (part := _matching(section, wanted.lstrip("-"))).actions
        ]
    return _format(parser, sections, parser.epilog or "") if sections else None


def _sections(parser: argparse.ArgumentParser) -> Iterator[HelpSection]:
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.option_strings]
        if actions:
            yield HelpSection(group.title or "", actions)


def _common(sections: Sequence[HelpSection]) -> HelpSection:
    found = {
        flag: action for section in sections for action in section.actions for flag in action.option_strings
    }
    return HelpSection("common options", [found[flag] for flag in ("--help", *COMMON)])


def _matching(section: HelpSection, word: str) -> HelpSection:
    return HelpSection(
        section.title,
        [action for action in section.actions if any(word in flag for flag in action.option_strings)],
    )


def _groups(sections: Sequence[HelpSection]) -> str:
    """Return what else there is, a line for each group."""
    lines = ["More options, by --help GROUP, --help all, or --help and a part of a name (--help cache):", ""]
    for section in sections:
        if section.title != "options":
            names = " ".join(action.option_strings[0] for action in section.actions)
            shown = names if len(names) <= 66 else f"{names[:66].rpartition(' ')[0]} …"
            lines += [f"  {section.title} ({len(section.actions)})", f"      {shown}"]
    return "\n".join(lines)


def _format(parser: argparse.ArgumentParser, sections: Sequence[HelpSection], end: str) -> str:
    formatter = argparse.RawDescriptionHelpFormatter(prog=parser.prog)
    formatter.add_usage("%(prog)s [NAME] [OPTIONS]", [], [])
    for section in sections:
        formatter.start_section(section.title)
        formatter.add_arguments(section.actions)
        formatter.end_section()
    formatter.add_text(end)
    return formatter.format_help()
