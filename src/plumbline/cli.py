"""Parse and run the `plumbline` command. Only the modules of the chosen command are imported: a help text is quick."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import argcomplete
import argcomplete.shell_integration

from plumbline_conformance.console.commands import (
    JUDGE,
    Entry,
    Parser,
    command_of,
    parse_arguments,
    parser_of,
)
from plumbline_conformance.console.streams import robust_output

if TYPE_CHECKING:
    from plumbline.server.settings import Settings

__all__ = ["main"]

_COMMANDS = {
    "serve": {
        "serve": Entry("serve a model over the API"),
        "run": Entry("talk to a model at the terminal", "plumbline.chat.command:RunCommand"),
    },
    "models": {
        "pull": Entry("download a model", "plumbline.hub.pull:PullCommand"),
        "list": Entry(
            "list models: served, downloaded, or all that can be served",
            "plumbline.server.loading.overview.command:ListCommand",
        ),
        "rm": Entry("remove a downloaded model", "plumbline.hub.pull:RemoveCommand"),
        "warm": Entry(
            "compile the GPU kernels of a model before it is served",
            "plumbline.server.loading.warming.command:WarmCommand",
        ),
    },
    **JUDGE,
    "tools": {
        **JUDGE["tools"],
        "script-model": Entry(
            "make a tiny checkpoint that answers with texts from a file",
            "plumbline.scripted_model.command:ScriptModelCommand",
        ),
        "completion": Entry("print the completion for a shell"),
    },
}
_COMPLETION = """\
Print a script that completes commands and options at the tab key. To use it, add one of these lines:

  ~/.bashrc                   eval "$(plumbline completion bash)"
  ~/.zshrc                    eval "$(plumbline completion zsh)"
  ~/.config/fish/config.fish  plumbline completion fish | source
"""
_INSTALL = "In a clone of Plumbline, run: pip install '.[serve]'"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    _leave_lost_folder()
    if "_ARGCOMPLETE" in os.environ:  # The shell asks, at a press of the tab key.
        argv = os.environ.get("COMP_LINE", "").split()[1:]
    chosen = next((text for text in argv if not text.startswith("-")), "")
    parser = _parser(chosen)
    if "_ARGCOMPLETE" in os.environ:
        argcomplete.autocomplete(parser)  # It exits.
    with robust_output():
        arguments = parse_arguments(parser, argv)
        match arguments.command:
            case "serve":
                try:
                    return _serve(vars(arguments))
                except KeyboardInterrupt:
                    print("plumbline: interrupted during the start", file=sys.stderr)
                    return 130  # 128 and SIGINT, as shells report it.
            case "completion":
                return _completion(arguments)
        from plumbline_conformance.cli import run_command

        command = command_of(_COMMANDS, chosen)
        assert command is not None
        more = {"readers": _readers} if chosen == "compare" else {}
        return run_command(command, vars(arguments), **more)


def _readers(tool_parser: str, reasoning_parser: str, template: str) -> Any:
    from plumbline.answer.dialects.raw_text import raw_text_reader

    return raw_text_reader(tool_parser, reasoning_parser, template)


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from plumbline import __version__

        print(f"plumbline {__version__}")
        parser.exit()


def _parser(chosen: str) -> Parser:
    """Return a parser of all commands, with the options of the chosen one."""
    parser = parser_of(_COMMANDS, chosen)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.commands
    if chosen == "serve":
        from plumbline.server.settings.command_line import add_arguments

        add_arguments(commands["serve"])
        commands["serve"].add_argument(
            "name", metavar="NAME", nargs="?", help="the model to serve, as --model names it"
        )
    commands["completion"].description = _COMPLETION
    commands["completion"].formatter_class = argparse.RawDescriptionHelpFormatter
    commands["completion"].add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    return parser


def _completion(arguments: argparse.Namespace) -> int:
    print(argcomplete.shell_integration.shellcode(["plumbline"], shell=arguments.shell))
    return 0


def _leave_lost_folder() -> None:
    """Go to the root if the working directory was deleted, where libraries cannot find their files."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _serve(arguments: dict[str, Any]) -> int:
    from plumbline.server.settings.sources import read_settings, unknown_variables
    from plumbline.server.start.explain import explained, print_line
    from plumbline.server.start.run import run
    from plumbline.server.store.default import default_url
    from plumbline_conformance.console.options import OptionError

    if name := arguments.pop("name", None):
        arguments["model"] = [name, *(arguments.get("model") or ())]
    origins: dict[str, str] = {}
    settings: Settings | None = None
    try:
        if ignored := unknown_variables(os.environ):
            print_line(f"plumbline: {ignored}")
        given = read_settings(arguments, os.environ, store=default_url())
        origins, settings = given.origins, given.settings
        return run(settings, lambda: read_settings(arguments, os.environ, store=default_url()).settings)
    except ModuleNotFoundError as error:
        print_line(f"plumbline serve needs the package {error.name!r}. {_INSTALL}")
    except OptionError as error:
        print_line(f"plumbline: {error.at(origins)}")
    except (ValueError, FileNotFoundError) as error:
        # Settings and models that cannot be served raise errors that explain themselves; a traceback adds nothing.
        print_line(f"plumbline: {error}")
    except Exception as error:
        if settings is None or settings.debug:
            raise
        print_line(f"plumbline: {explained(error)}")
        return 1
    return 2


if __name__ == "__main__":
    sys.exit(main())
