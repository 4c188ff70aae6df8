"""Try published files: `python -m real [PART…] [--models FOLDER]`.

`vocabularies` compares the tokenizers of llama.cpp's test files with their published ids and with references,
`converter` random models that llama.cpp's converter wrote with those of transformers, `models` the tokenizers of three
published models, `memory` measures starts and memory, `served` starts a server with each model and asks what exact
arithmetic, llama.cpp, if llama-cpp-python is installed, and the protocol can check, `tasks` counts right answers to
small questions, `judge` runs the judge on it. The last lines are the table of `docs/reference/published-models.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path

from .converter import compare_converted
from .files import Model, converter, models, vocabularies
from .memory import start_and_memory
from .served import judge_served, serve
from .tasks import solve
from .vocabulary import Verdict, judge

HOME = Path(__file__).parents[2] / ".nox" / "real"
OF_MODELS: Mapping[str, Callable[[Model, Path], Verdict]] = {
    "models": lambda _, file: judge(file),
    "memory": lambda _, file: start_and_memory(file),
    "served": serve,
    "tasks": solve,
    "judge": judge_served,
}
PARTS = ("vocabularies", "converter", *OF_MODELS)
REFUSED = frozenset({"ggml-vocab-bert-bge.gguf", "ggml-vocab-nomic-bert-moe.gguf"})
"""Vocabularies of models that only embed texts."""


def main(arguments: list[str]) -> int:
    """Run parts, and print a line for each file; return 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="nox -s real --", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(PARTS)}")
    parser.add_argument("--models", type=Path, metavar="FOLDER", help="the model files; default: the hub")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    parts, wrong = options.parts or list(PARTS), 0
    if "vocabularies" in parts:
        for file in vocabularies(HOME):
            found = judge(file)
            if found.refused != (file.name in REFUSED):
                found.problems.append("refused, or read, against what is expected")
            wrong += _report(file.name, found)
    if "converter" in parts:
        wrong += _converted()
    rows: dict[str, dict[str, str]] = {}
    for model, file in models(options.models) if OF_MODELS.keys() & set(parts) else []:
        for part in [each for each in OF_MODELS if each in parts]:
            found = OF_MODELS[part](model, file)
            wrong += _report(model.name, found)
            rows.setdefault(model.name, {}).update(found.row)
    _show(rows)
    return int(wrong > 0)


def _show(rows: dict[str, dict[str, str]]) -> None:
    """Print a table with a column for each model, because there are more questions than models."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    if not names:
        return
    print(f"\n{date.today():%Y-%m-%d}\n\n| | {' | '.join(rows)} |\n|{'---|' * (len(rows) + 1)}")
    for name in names:
        print(f"| {name} | {' | '.join(row.get(name, '') for row in rows.values())} |")


def _converted() -> int:
    try:
        packages = converter(HOME)
    except OSError as error:
        print(f"converter: not tried, it cannot be fetched: {error}", file=sys.stderr)
        return 0
    found = [(name, _report(name, verdict)) for name, verdict in compare_converted(packages)]
    print(f"converter: {sum(not count for _, count in found)} of {len(found)} right", flush=True)
    return sum(count for _, count in found)


def _report(name: str, found: Verdict) -> int:
    print(f"{'WRONG' if found.problems else 'ok':5}  {name}: {found.line}", flush=True)
    for problem in found.problems:
        print(f"       {problem}", flush=True)
    return len(found.problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
