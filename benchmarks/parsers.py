"""What other servers' parsers cost beside ours: the same outputs in the same tokens, in the same run.

    python tests/differential/environment.py benchmarks/parsers.py --passes 2

Theirs are called in-process, as their servers call them, through the adapters of `tests/differential`. Tokens are whole
markers and pieces of four characters. What a parser is given, such as the text and the ids so far, is made beforehand,
so that nothing but its own work is measured, in time of the process. `same_message` says whether a client would get
what it gets from us. Goal: 3 us or less per token, whatever the length.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tests/differential")]

from ours import said, thinks  # noqa: E402
from peers import Peer, Stream, cut, peers  # noqa: E402

from benchmarks.utterances import PROSE, TOOLS, call, small_calls  # noqa: E402
from plumbline.dialects.parsers.marker_parser import MarkerParser  # noqa: E402
from plumbline.dialects.parsers.render import render_utterance  # noqa: E402
from plumbline.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS  # noqa: E402
from plumbline.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance  # noqa: E402
from plumbline.dialects.spec.markers import Markers  # noqa: E402
from plumbline.events import TextDelta  # noqa: E402

SIZE = 4
"""Characters of a token."""
ENOUGH = 0.3
"""Seconds after which an output is not read once more in the same pass."""
ROUNDS = 9
WIRE = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()
]
TEXT = (PROSE * 100).strip()
SHAPES = {
    "text": Utterance((TEXT,)),
    "arguments": call(25),
    "arguments, 4 times as long": call(100),
    "small calls": small_calls(50),
}


class Reading(NamedTuple):
    """One output and everybody who reads it; ours is the first."""

    dialect: str
    shape: str
    by: dict[str, Callable[[], Stream]]


def ours(markup: Markers, pieces: list[str], tools: dict[str, Any], *, inside: bool) -> Stream:
    """Our parser, ready to read the tokens."""
    parser = MarkerParser(markup, tools, inside=inside, new_id=lambda name, number: "id")
    tokens = [TextDelta(piece) for piece in pieces]

    def read() -> list[Any]:
        push = parser.push
        told = [push(token) for token in tokens]
        told.append(parser.finish("stop"))
        return told

    fold = said if tools else thinks
    return Stream(len(tokens), read, lambda told: fold(list(chain.from_iterable(told))))


def readings(found: list[Peer]) -> Iterator[Reading]:
    """Every output of a dialect that one of them has as well."""
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        named = {peer: name for peer in found if (name := _name(dialect, set(peer.names())))}
        if not dialect.messages and named:
            yield from (_calls(dialect, named, shape) for shape in SHAPES)
    for thinking in dict.fromkeys(REASONING_DIALECTS.values()):
        named = {peer: name for peer in found if (name := _name(thinking, set(peer.thinkers())))}
        if not thinking.messages and named:
            yield _thinking(thinking, named)


def _name(dialect: ToolDialect | ReasoningDialect, known: set[str]) -> str | None:
    return next((name for name in (dialect.name, *dialect.aliases) if name in known), None)


def _calls(dialect: ToolDialect, named: dict[Peer, str], shape: str) -> Reading:
    text = render_utterance(SHAPES[shape], dialect, None)
    markup = Markers(dialect, None)
    markers = sorted(markup.texts)
    pieces = cut(text, markers, SIZE)
    by: dict[str, Callable[[], Stream]] = {"plumbline": lambda: ours(markup, pieces, TOOLS, inside=False)}
    for peer, name in named.items():
        by[peer.name] = lambda peer=peer, name=name: peer.stream(name, text, WIRE, markers, size=SIZE)
    return Reading(dialect.name, shape, by)


def _thinking(dialect: ReasoningDialect, named: dict[Peer, str]) -> Reading:
    text = render_utterance(Utterance(("a",), TEXT), None, dialect)
    markup = Markers(None, dialect)
    # Some of their parsers look for the markers of calls as well.
    markers = sorted(Markers(TOOL_DIALECTS.get(dialect.name), dialect).texts)
    pieces = cut(text, markers, SIZE)
    opened = dialect.open[0] if dialect.starts_inside else ""
    variables = dict(dialect.switch.on)
    by: dict[str, Callable[[], Stream]] = {
        "plumbline": lambda: ours(markup, pieces, {}, inside=dialect.starts_inside)
    }
    for peer, name in named.items():
        by[peer.name] = lambda peer=peer, name=name: peer.think_stream(
            name, text, markers, opened, variables, size=SIZE
        )
    return Reading(dialect.name, "thinking", by)


def measure(reading: Reading, row: dict[str, Any]) -> None:
    """Let everybody read the output a few times; what is in the row stays where it is not bettered."""
    expected = None
    for name, made in reading.by.items():
        spent = 0.0
        for _ in range(ROUNDS):
            try:
                stream = made()
                began = time.process_time()
                told = stream.read()
                took = time.process_time() - began
                read = stream.message(told)
            except Exception as error:  # It does not read this family here, or stumbles.
                row.setdefault("failed", {})[name] = f"{type(error).__name__}: {str(error)[:80]}"
                break
            if name == "plumbline":
                expected, row["tokens"] = read, stream.tokens
            else:
                row.setdefault("same_message", {})[name] = read == expected
            cost = took / stream.tokens * 1e6
            row["us_per_token"][name] = round(min(cost, row["us_per_token"].get(name, cost)), 3)
            spent += took
            if spent > ENOUGH:
                break


def main() -> None:
    """Print the rows and whose parsers they are of, as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--passes", type=int, default=1, help="through everything; the fastest reading counts"
    )
    passes = parser.parse_args().passes
    found = peers()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    gc.disable()
    for number in range(passes if found else 0):
        for reading in readings(found):
            row = rows.setdefault(
                (reading.dialect, reading.shape),
                {"dialect": reading.dialect, "reading": reading.shape, "tokens": 0, "us_per_token": {}},
            )
            measure(reading, row)
            gc.collect()
        print(f"pass {number + 1} of {passes}", file=sys.stderr)
    versions = {peer.name: peer.version for peer in found}
    json.dump({"peers": versions, "rows": list(rows.values())}, sys.stdout)


if __name__ == "__main__":
    main()
