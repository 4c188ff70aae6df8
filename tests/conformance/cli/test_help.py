"""Every command is declared once: its help, its example and its errors come from the declaration."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from pathlib import Path

import pytest

from plumbline.cli import _COMMANDS, main
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.commands import command_of, parse_arguments, parser_of
from plumbline_conformance.console.options import options_of

NAMES = [name for group in _COMMANDS.values() for name, entry in group.items() if entry.place]


def declared(name: str) -> type[Command]:
    found = command_of(_COMMANDS, name)
    assert found is not None
    return found


def parser(name: str) -> argparse.ArgumentParser:
    return parser_of(_COMMANDS, name).commands[name]


WITH_URL = [
    name for name in NAMES if {"url", "urls"} & {option.field for option in options_of(declared(name))}
]
REQUIRED = [
    "check",
    "explain",
    "judge",
    "export",
    "matrix",
    "watch",
    "fuzz",
    "compare",
    "bench",
    "script-model",
    "pull",
    "rm",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_help_with_one_default_and_no_path_of_the_machine(name: str) -> None:
    actions = parser(name)._actions

    assert [action.dest for action in actions if not action.help] == []
    assert [action.dest for action in actions if (action.help or "").lower().count("default") > 1] == []
    assert sys.prefix not in parser(name).format_help()
    assert str(Path.cwd()) not in parser(name).format_help()


@pytest.mark.parametrize("name", NAMES)
def test_each_group_of_options_fits_on_a_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    groups = parser(name).format_help().split("\n\n")

    assert max(len(group.splitlines()) for group in groups) <= 24


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_command_is_one_that_it_takes(name: str) -> None:
    example = declared(name).example
    program, command, *arguments = shlex.split(example)

    assert (program, command) == ("plumbline", name)
    assert parse_arguments(parser_of(_COMMANDS, name), [name, *arguments])
    assert example in " ".join(parser(name).format_help().split())


def test_the_commands_are_listed_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.findall(r"^(\w+):$", capsys.readouterr().out, re.MULTILINE) == [
        "options",
        "serve",
        "models",
        "judge",
        "compare",
        "tools",
    ]


def test_the_server_has_one_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(WITH_URL) == {"check", "watch", "fuzz", "compare", "bench", "list", "run"}
    for name in set(WITH_URL) - {"run"}:  # It talks to a model, which stands first.
        assert str(parser(name).usage).split()[2].strip("[]") == "URL"
        for former in ("--base-url", "--upstream", "--url"):
            with pytest.raises(SystemExit) as ended:
                main([name, former, "http://h/v1"])
            assert ended.value.code == 2
            said = capsys.readouterr().err
            assert said.startswith(f"plumbline: unrecognized arguments: {former} (")
            assert said.endswith(f"the server stands without an option: plumbline {name} URL)\n")


@pytest.mark.parametrize(
    ("name", "successor"),
    [("diff", "compare URL"), ("exact", "compare URL"), ("verify", "compare URL"), ("models", "list lists")],
)
def test_a_former_command_names_the_new_one(
    name: str, successor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--base-url", "http://h/v1"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(
        f"plumbline: there is no command {name}: plumbline {successor} "
    )


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_missing_is_named_with_what_to_give(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    printed = capsys.readouterr()
    assert re.fullmatch(r"plumbline: \S+ is missing: give .+\n", printed.err)
    assert printed.out == ""
