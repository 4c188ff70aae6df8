"""Every command has a description and an example, and every option says what it does."""

from __future__ import annotations

import argparse
import shlex

import pytest

from plumbline_conformance.cli.arguments import add_commands
from plumbline_conformance.console.commands import COMMANDS


def commands() -> dict[str, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(prog="plumbline")
    parsers = parser.add_subparsers(dest="command")
    add_commands(parsers)
    return dict(parsers.choices)


@pytest.mark.parametrize("name", commands())
def test_every_option_has_help(name: str) -> None:
    actions = commands()[name]._actions

    assert [action.dest for action in actions if not action.help] == []


@pytest.mark.parametrize("name", commands())
def test_each_group_of_options_fits_on_a_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = commands()[name].format_help().split("\n\n")

    assert max(len(group.splitlines()) for group in groups) <= 24


@pytest.mark.parametrize("name", commands())
def test_the_example_of_a_command_is_one_that_it_takes(name: str) -> None:
    program, command, *arguments = shlex.split(COMMANDS[name][1])

    assert (program, command) == ("plumbline", name)
    assert commands()[name].parse_args(arguments)
    assert COMMANDS[name][1] in " ".join(commands()[name].format_help().split())


def test_every_example_is_of_a_command() -> None:
    assert set(COMMANDS) == set(commands())
