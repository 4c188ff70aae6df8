"""The `plumbline` command. What needs torch is imported when it runs, so the judge works without it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from plumbline import __version__
from plumbline.scripted_model import command as script_model
from plumbline_conformance import cli as judge

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="plumbline", description="The reference implementation of the OpenAI API."
    )
    parser.add_argument("--version", action="version", version=f"plumbline {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="serve the API", formatter_class=_Formatter))
    script_model.add_arguments(
        commands.add_parser(
            "script-model",
            help="make a tiny checkpoint that answers with written texts",
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
    """Shows defaults where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, [], False) else super()._get_help_string(action)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument("--model", default="", metavar="PATH_OR_HUB_ID", help="default: the pocket model")
    model.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="offer it under this id; repeatable",
    )
    model.add_argument("--engine", choices=("plumbline", "transformers"), default="plumbline")
    model.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, …")
    model.add_argument("--dtype", choices=("auto", "float32", "float16", "bfloat16"), default="auto")
    model.add_argument(
        "--max-model-len", type=int, metavar="TOKENS", help="default: what the model was made for"
    )
    model.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="sampling defaults: the model's own, or OpenAI's",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, default=8000)
    server.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="repeatable; PLUMBLINE_API_KEY (comma-separated) works too",
    )
    server.add_argument("--api-key-file", metavar="FILE", help="one key a line")
    server.add_argument("--max-body-bytes", type=int, default=10 * 1024 * 1024, metavar="BYTES")
    server.add_argument(
        "--body-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="give up a body that brings nothing for this long",
    )
    server.add_argument("--max-connections", type=int, default=4096, metavar="N", help="0: no limit")
    server.add_argument(
        "--keep-alive-interval",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="comment on a silent stream; 0: never",
    )
    server.add_argument("--shutdown-timeout", type=float, default=30.0, metavar="SECONDS")
    dialect = parser.add_argument_group("dialect")
    dialect.add_argument(
        "--tool-parser",
        default="auto",
        metavar="NAME",
        help="how the model writes tool calls: a dialect, none, or auto (by its chat template)",
    )
    dialect.add_argument(
        "--reasoning-parser", default="auto", metavar="NAME", help="how it writes its reasoning: the same"
    )
    dialect.add_argument(
        "--reasoning-field",
        default="reasoning_content",
        metavar="NAME",
        help="its name in chat completions: reasoning_content, reasoning (as vLLM has it) or both",
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument("--max-num-seqs", type=int, default=256, metavar="N", help="requests in one step")
    engine.add_argument(
        "--max-num-batched-tokens", type=int, default=1024, metavar="N", help="tokens in one step"
    )
    engine.add_argument(
        "--max-num-waiting",
        type=int,
        default=1024,
        metavar="N",
        help="requests that may wait; more get a 429",
    )
    engine.add_argument("--block-size", type=int, default=16, metavar="TOKENS")
    engine.add_argument("--kv-cache-bytes", type=int, default=256 * 1024 * 1024, metavar="BYTES")
    engine.add_argument(
        "--batch-invariant",
        action="store_true",
        help="on a CPU: the same bits for a request in any batch and any chunking; prefill is slower",
    )
    engine.add_argument("--no-prefix-caching", dest="enable_prefix_caching", action="store_false")


def _script_model(arguments: argparse.Namespace) -> int:
    try:
        return script_model.run(arguments)
    except ModuleNotFoundError as error:
        print(
            f"plumbline script-model needs the package {error.name!r}. "
            "Install it with: pip install 'plumbline[serve]'",
            file=sys.stderr,
        )
        return 2


def _serve(arguments: argparse.Namespace) -> int:
    try:
        from plumbline.server.run import run
        from plumbline.server.settings import Settings, read_api_keys
    except ModuleNotFoundError as error:
        print(
            f"plumbline serve needs the package {error.name!r}. Install it with: pip install 'plumbline[serve]'",
            file=sys.stderr,
        )
        return 2
    values = vars(arguments)
    try:
        settings = Settings(
            api_keys=read_api_keys(values["api_key"], values["api_key_file"]),
            served_model_names=tuple(values["served_model_name"]),
            **{
                name: value
                for name, value in values.items()
                if name not in ("command", "api_key", "api_key_file", "served_model_name")
            },
        )
        return run(settings)
    except (ValueError, FileNotFoundError) as error:
        # Settings, models and tokenizers that cannot be served say why in one sentence; a traceback adds nothing.
        print(f"plumbline: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
