"""Score the parsers of other servers by the vectors: `nox -s differential`; `-- --write` updates the page in docs."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from environment import HOME, ROOT, command
from llama_cpp.build import command as llama_cpp

HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "reference" / "parser-scores.md"
_HEAD = """\
# Scores of parsers

Written by `nox -s differential -- --write`: `plumbline vectors --run` asks the parsers of vLLM, SGLang and llama.cpp
for the message of each output of the [vectors](../guides/vectors.md), whole and streamed, and compares it. vLLM's and
SGLang's parsers are chosen by name, llama.cpp's is what it derives from the template of the family in its source. A
family without one is not compared, and neither is one whose parser needs a tokenizer of its own, or whose template
shows llama.cpp another state of the prompt.

*law* counts the outputs that were written from their message, *hand* those in the style of the family, with malformed
and cut ones, where a server may decide in another way: [differences](dialect-differences.md) has a verdict about each
of vLLM's and SGLang's.
"""


def main() -> int:
    """Score every peer that can be run; return 1 if there is none."""
    runner = str(HERE / "runner.py")
    install = "--install" in sys.argv
    commands: list[Sequence[str] | None] = [
        [*command([runner, "vllm"], install=install)],
        [*command([runner, "sglang"])],
        llama_cpp(HOME / ".parsers-llama-cpp"),
    ]
    found = [scores for words in commands if words is not None and (scores := _scores(words)) is not None]
    if found and "--write" in sys.argv:
        PAGE.write_text(_HEAD + "".join(_page(found)), "utf-8")
    return 0 if found else 1


def _scores(words: Sequence[str]) -> dict[str, Any] | None:
    """Return what `plumbline vectors --json` writes; None if the runner cannot be asked."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "scores.json")
        judge = [sys.executable, "-m", "plumbline_conformance.cli", "vectors", "--run", shlex.join(words)]
        done = subprocess.run(
            [*judge, "--suite", "parsers", "--show", "0", "--json", str(file)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        print(done.stdout.splitlines()[-1] if done.stdout else "no answer", flush=True)
        return json.loads(file.read_text("utf-8")) if file.exists() else None


def _page(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    yield "\n| | right | law | hand | not compared |\n|---|---|---|---|---|\n"
    for scores in found:
        rows = scores["scores"]
        right, wrong = sum(row["right"] for row in rows), sum(row["wrong"] for row in rows)
        law = [sum(row["law"][place] for row in rows) for place in (0, 1)]
        hand = [right - law[0], wrong - law[1]]
        skipped = sum(row["skipped"] for row in rows)
        cells = (_share(right, wrong), _share(*law), _share(*hand), str(skipped))
        yield f"| {scores['name']} {scores['version']} | {' | '.join(cells)} |\n"
    yield "\n## By dialect\n\nRight answers of those that were compared.\n\n"
    names = [scores["name"] for scores in found]
    yield f"| dialect | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    groups = {row["group"]: None for scores in found for row in scores["scores"]}
    for group in groups:
        yield f"| {group} | {' | '.join(_cell(scores, group) for scores in found)} |\n"
    yield "\n## What is read in another way\n\nThe titles of the vectors with most wrong answers.\n\n"
    yield f"| vectors | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n"
    titles = [Counter(row["title"].split(",")[0] for row in scores["differences"]) for scores in found]
    for title, _ in sum(titles, Counter()).most_common(20):
        yield f"| {title} | {' | '.join(str(counts[title]) for counts in titles)} |\n"


def _cell(scores: dict[str, Any], group: str) -> str:
    row = next((row for row in scores["scores"] if row["group"] == group), None)
    compared = row["right"] + row["wrong"] if row else 0
    return f"{row['right']} of {compared}" if row and compared else ""


def _share(right: int, wrong: int) -> str:
    return f"{right} of {right + wrong} ({right / max(1, right + wrong):.1%})"


if __name__ == "__main__":
    sys.exit(main())
