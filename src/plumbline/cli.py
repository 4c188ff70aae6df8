"""Parse and run the `plumbline` command. Torch is imported only by commands that need it: the judge does not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from plumbline import __version__
from plumbline.scripted_model import command as script_model
from plumbline.server import options
from plumbline_conformance import cli as judge

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="plumbline", description="The reference implementation of the OpenAI API."
    )
    parser.add_argument("--version", action="version", version=f"plumbline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    options.add_arguments(
        commands.add_parser("serve", help="serve a model over the API", formatter_class=_Formatter)
    )
    script_model.add_arguments(
        commands.add_parser(
            "script-model",
            help="make a tiny checkpoint that answers with texts from a file",
            formatter_class=_Formatter,
        )
    )
    judge.add_commands(commands)
    with judge.ready():
        arguments = judge.parsed(parser, argv)
        match arguments.command:
            case "serve":
                return _serve(arguments)
            case "script-model":
                return _script_model(arguments)
            case _:
                return judge.run_command(arguments)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Appends the default to the help of options that have one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return (
            action.help if action.default in (None, "", [], True, False) else super()._get_help_string(action)
        )


def _script_model(arguments: argparse.Namespace) -> int:
    try:
        return script_model.run(arguments)
    except ModuleNotFoundError as error:
        print(
            f"plumbline script-model needs the package {error.name!r}. "
            "Install it with: pip install '.[serve]' in a clone of Plumbline",
            file=sys.stderr,
        )
        return 2


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from plumbline.server.settings import Settings, read_api_keys, read_loras, read_sealing_key
        from plumbline.server.start.run import run
        from plumbline.store.open import default_url
    except ModuleNotFoundError as error:
        print(
            f"plumbline serve needs the package {error.name!r}. In a clone, run: pip install '.[serve]'",
            file=sys.stderr,
        )
        return 2
    values = vars(arguments)
    try:
        settings = Settings(
            api_keys=read_api_keys(values["api_key"], values["api_key_file"]),
            sealing_key=read_sealing_key(values["sealing_key_file"]),
            store=values["store"] or default_url(),
            served_model_names=tuple(values["served_model_name"]),
            cors_origins=tuple(values["cors_origin"]),
            engine_args=tuple(values["engine_args"]),
            loras=read_loras(values["lora"]),
            **{
                name: value
                for name, value in values.items()
                if name
                not in (
                    "command",
                    "api_key",
                    "api_key_file",
                    "sealing_key_file",
                    "store",
                    "served_model_name",
                    "cors_origin",
                    "engine_args",
                    "lora",
                )
            },
        )
        return run(settings)
    except (ValueError, FileNotFoundError) as error:
        # Settings and models that cannot be served raise errors that explain themselves; a traceback adds nothing.
        print(f"plumbline: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
