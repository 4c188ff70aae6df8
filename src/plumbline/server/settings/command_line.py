"""Derive the command line of `plumbline serve` and its help from the declaration."""

from __future__ import annotations

import argparse

from plumbline.server.settings.help import Help
from plumbline.server.settings.settings import OPTIONS
from plumbline_conformance.console.command import add_options

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
    add_options(parser, OPTIONS, negatable=True)
