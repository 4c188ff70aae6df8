"""Write the page of options from the declaration: `python -m plumbline.server.settings.page FILE`."""

from __future__ import annotations

import sys
from pathlib import Path

from plumbline.server.settings.settings import OPTIONS
from plumbline_conformance.console.options import Option

__all__ = ["page"]

_INTRODUCTION = """\
# Options of `plumbline serve`

<!-- Written by `nox -s generate` from src/plumbline/server/settings/declaration.py. Do not edit. -->

An option can be set in three places. The first that has it counts:

1. on the command line: `--max-num-seqs 64`;
2. by an environment variable, `PLUMBLINE_` and the name in capitals: `PLUMBLINE_MAX_NUM_SEQS=64`;
3. in a [TOML](https://toml.io) file that `--config FILE` or `PLUMBLINE_CONFIG` names.

```toml
model = "./Qwen3-8B"
port = 8001
max_num_seqs = 64
prefix_caching = false
cors_origin = ["https://app.example", "https://*.example"]
served_model_name = ["qwen", "default"]
```

| type | command line | environment | file |
|---|---|---|---|
| text, number | `--port 8001` | `PLUMBLINE_PORT=8001`; an empty variable counts as not set | `port = 8001` |
| size | `--max-body-bytes 1GiB` | `PLUMBLINE_MAX_BODY_BYTES=1GiB` | `max_body_bytes = "1GiB"` or bytes |
| switch | `--strict`, `--no-strict` | `PLUMBLINE_STRICT=true`, `false`, `1` or `0` | `strict = true` |
| list | `--lora a=./a --lora b=./b` | `PLUMBLINE_LORA=a=./a,b=./b` or a JSON array | `lora = ["a=./a", "b=./b"]` |
| models | `--model a=./a --model b=./b` | `PLUMBLINE_MODEL=./a` or a JSON array | `model = "./a"` or a list |

- A size is a number of bytes, or one with a unit: `KiB` to `TiB` and `K` to `T` are powers of 1024, `KB` to `TB` of
  1000.
- `--engine-args` takes several values at once, all other lists repeat the option.
- Lists are not merged: the first place that has one counts. API keys are the exception: those of all places count.
- Relative paths start at the current directory, those in a file too. `~` is the home directory.
- A configuration file has no tables and at most 1 MiB. A key that is not an option is an error that names the nearest
  option; an unknown `PLUMBLINE_` variable is one line on standard error.
- An error names the place of the value: `--port`, `PLUMBLINE_PORT` or `port in plumbline.toml`.
- Some options belong to some engines. A server whose engine lacks an option refuses to start if the option has another
  value than its default.
- Keep secrets out of command lines, which other users can read: `--api-key-file` and `--sealing-key-file` name files,
  and `sealing_key` is read from the environment (`PLUMBLINE_SEALING_KEY`) and the file only.
"""


def page() -> str:
    """Return the text of the page."""
    groups: dict[str, list[Option]] = {}
    for option in OPTIONS:
        further = [option.file_option] if option.about.in_file else []
        groups.setdefault(option.about.group, []).extend([option, *further])
    parts = [_INTRODUCTION]
    for group, options in groups.items():
        parts += [
            f"## {group.capitalize()}\n",
            "| option | value | default | what it does |",
            "|---|---|---|---|",
        ]
        parts += [_row(option) for option in options]
        parts.append("")
    return "\n".join(parts)


def _row(option: Option) -> str:
    name = f"`{option.name}`" if option.about.only_in_file else f"`{option.flag}`"
    engines = f" {option.only.capitalize()}." if option.only else ""
    text = option.about.help[0].upper() + option.about.help[1:].removesuffix(".")
    return f"| {name} | {_value(option)} | {option.default_text} | {text}.{engines} |".replace(
        "{{", "`{{"
    ).replace("}}", "}}`")


def _value(option: Option) -> str:
    if option.choices:
        return ", ".join(f"`{choice}`" for choice in option.choices)
    if option.basic is bool:
        return "switch"
    kind = option.expected.removeprefix("an ").removeprefix("a ")
    return f"{kind} (`{option.about.metavar}`)" if option.about.metavar else kind


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), "utf-8")
