"""Parse and run the `plumbline` command. Only the modules of the chosen command are imported: a help text is quick."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import argcomplete
import argcomplete.shell_integration

from plumbline_conformance.console.commands import COMMANDS
from plumbline_conformance.console.streams import parse_arguments, robust_output

if TYPE_CHECKING:
    from plumbline.server.settings import Settings

__all__ = ["main"]

_DEFAULT_URL = "http://127.0.0.1:8000/v1"
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
    if "_ARGCOMPLETE" in os.environ:
        argcomplete.autocomplete(_parser(chosen))  # It exits.
    with robust_output():
        arguments = parse_arguments(_parser(chosen), argv)
        match arguments.command:
            case "serve":
                try:
                    return _serve(vars(arguments))
                except KeyboardInterrupt:
                    print("plumbline: interrupted during the start", file=sys.stderr)
                    return 130  # 128 and SIGINT, as shells report it.
            case "script-model":
                return _script_model(arguments)
            case "models":
                return _models(arguments)
            case "completion":
                return _completion(arguments)
            case _:
                from plumbline_conformance.cli import run_command

                if arguments.command != "verify":
                    return run_command(arguments)
                from plumbline.answer.dialects.raw_text import raw_text_reader

                return run_command(arguments, raw_text_reader)


class _Parser(argparse.ArgumentParser):
    """Has errors of one line that repeat no value, because it may be a secret, and name the nearest command."""

    def error(self, message: str) -> NoReturn:
        wrong = re.match(r"argument COMMAND: invalid choice: '([^']{1,40})' \(choose from (.*)\)$", message)
        if wrong is not None:
            commands = re.findall(r"[\w-]+", wrong[2])
            nearest = difflib.get_close_matches(wrong[1], commands, 1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"choose from {', '.join(commands)}"
            message = f"there is no command {wrong[1]}: {hint}"
        message = re.sub(r"(--[\w-]+)=\S*", r"\1=…", message)
        self.exit(2, f"{self.prog}: {message}\n")


class _Version(argparse.Action):
    """Prints the version."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from plumbline import __version__

        print(f"plumbline {__version__}")
        parser.exit()


def _parser(chosen: str) -> argparse.ArgumentParser:
    """Return a parser of all commands, with the options of the chosen one."""
    parser: argparse.ArgumentParser = _Parser(
        prog="plumbline", description="The reference implementation of the OpenAI API."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="serve a model over the API", add_help=chosen != "serve")
    script_model = commands.add_parser(
        "script-model",
        help="make a tiny checkpoint that answers with texts from a file",
        formatter_class=_Formatter,
    )
    models = commands.add_parser("models", help="list models: served, downloaded, or all that can be served")
    completion = commands.add_parser("completion", help="print the completion for a shell")
    completion.description = _COMPLETION
    completion.formatter_class = argparse.RawDescriptionHelpFormatter
    completion.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")
    if chosen == "serve":
        from plumbline.server.settings.command_line import add_arguments

        add_arguments(serve)
    elif chosen == "script-model":
        from plumbline.scripted_model import command

        command.add_arguments(script_model)
    elif chosen == "models":
        models.add_argument(
            "--url",
            default=_DEFAULT_URL,
            help=f"the server whose models are listed (default: {_DEFAULT_URL})",
        )
        models.add_argument(
            "--api-key",
            default=os.environ.get("OPENAI_API_KEY"),
            metavar="KEY",
            help="its API key (default: the variable OPENAI_API_KEY)",
        )
        models.add_argument("--supported", action="store_true", help="list what each engine runs instead")
        models.add_argument(
            "--markdown",
            action="store_true",
            help="print docs/reference/models.md, with --supported",
        )
    if chosen in COMMANDS:
        from plumbline_conformance.cli import add_commands

        add_commands(commands)
    else:
        for name, (purpose, _) in COMMANDS.items():
            commands.add_parser(name, help=purpose)
    return parser


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Appends the default to the help of options that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return (
            action.help if action.default in (None, "", [], True, False) else super()._get_help_string(action)
        )


def _script_model(arguments: argparse.Namespace) -> int:
    from plumbline.scripted_model import command

    try:
        return command.run(arguments)
    except ModuleNotFoundError as error:
        print(f"plumbline script-model needs the package {error.name!r}. {_INSTALL}", file=sys.stderr)
        return 2


def _completion(arguments: argparse.Namespace) -> int:
    print(argcomplete.shell_integration.shellcode(["plumbline"], shell=arguments.shell))
    return 0


def _models(arguments: argparse.Namespace) -> int:
    try:
        from plumbline.server.loading.overview import found, page, supported
    except ModuleNotFoundError as error:
        print(f"plumbline models needs the package {error.name!r}. {_INSTALL}", file=sys.stderr)
        return 2
    if arguments.supported:
        print(page.page().rstrip("\n") if arguments.markdown else supported.overview())
    else:
        print(found.found(arguments.url, arguments.api_key))
    return 0


def _leave_lost_folder() -> None:
    """Go to the root if the working directory was deleted, where libraries cannot find their files."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _serve(arguments: dict[str, Any]) -> int:
    from plumbline.server.settings.options import OptionError
    from plumbline.server.settings.sources import read_settings, unknown_variables

    try:
        from plumbline.server.start.run import run
        from plumbline.server.store.open import default_url
    except ModuleNotFoundError as error:
        print(f"plumbline serve needs the package {error.name!r}. {_INSTALL}", file=sys.stderr)
        return 2
    from plumbline.server.start.explain import explained
    from plumbline.server.start.summary import print_line

    origins: dict[str, str] = {}
    settings: Settings | None = None
    try:
        if ignored := unknown_variables(os.environ):
            print_line(f"plumbline: {ignored}")
        given = read_settings(arguments, os.environ, store=default_url())
        origins, settings = given.origins, given.settings
        return run(settings, lambda: read_settings(arguments, os.environ, store=default_url()).settings)
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
