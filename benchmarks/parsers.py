"""Compare the cost of our parsers with other servers' parsers, on the same tokens in the same run.

    python conformance/reference_parsers/environment.py benchmarks/parsers.py --passes 2

Other parsers are called in-process, as their servers call them, through the adapters of
`conformance/reference_parsers`. Tokens are whole markers and pieces of four characters. The arguments of a parser, such
as the text and ids so far, are prepared in advance, so that only its own work is measured, in CPU time.
`same_message` states whether a client would get the same message as from our parser. Goal: 3 us or less per token,
whatever the length.
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
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "conformance/reference_parsers")]

from peers import ParserStream, PeerParsers, cut, peers  # noqa: E402
from plumbline_messages import content_message, reasoning_message  # noqa: E402

from benchmarks.utterances import PROSE, TOOLS, call, small_calls  # noqa: E402
from plumbline.answer.dialects.parsers.marker_parser import MarkerParser  # noqa: E402
from plumbline.answer.dialects.parsers.render import render_utterance  # noqa: E402
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS  # noqa: E402
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance  # noqa: E402
from plumbline.answer.dialects.spec.markers import Markers  # noqa: E402
from plumbline.answer.events import TextDelta  # noqa: E402

SIZE = 4
"""Characters of a token."""
ENOUGH = 0.3
"""Seconds after which a parser does not read an output again in the same pass."""
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


class ParserCase(NamedTuple):
    """One output and the parsers that read it; ours is the first."""

    dialect: str
    shape: str
    by: dict[str, Callable[[], ParserStream]]


def ours(markup: Markers, pieces: list[str], tools: dict[str, Any], *, inside: bool) -> ParserStream:
    """Prepare our parser for the tokens."""
    parser = MarkerParser(markup, tools, inside=inside, new_id=lambda name, number: "id")
    tokens = [TextDelta(piece) for piece in pieces]

    def read() -> list[Any]:
        push = parser.push
        told = [push(token) for token in tokens]
        told.append(parser.finish("stop"))
        return told

    fold = content_message if tools else reasoning_message
    return ParserStream(len(tokens), read, lambda told: fold(list(chain.from_iterable(told))))


def cases(found: list[PeerParsers]) -> Iterator[ParserCase]:
    """Yield every output of a dialect that at least one other server has as well."""
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        named = {peer: name for peer in found if (name := _name(dialect, set(peer.names())))}
        if not dialect.messages and named:
            yield from (_calls(dialect, named, shape) for shape in SHAPES)
    for thinking in dict.fromkeys(REASONING_DIALECTS.values()):
        named = {peer: name for peer in found if (name := _name(thinking, set(peer.reasoning_parsers())))}
        if not thinking.messages and named:
            yield _thinking(thinking, named)


def _name(dialect: ToolDialect | ReasoningDialect, known: set[str]) -> str | None:
    return next((name for name in (dialect.name, *dialect.aliases) if name in known), None)


def _calls(dialect: ToolDialect, named: dict[PeerParsers, str], shape: str) -> ParserCase:
    text = render_utterance(SHAPES[shape], dialect, None)
    markup = Markers(dialect, None)
    markers = sorted(markup.texts)
    pieces = cut(text, markers, SIZE)
    by: dict[str, Callable[[], ParserStream]] = {
        "plumbline": lambda: ours(markup, pieces, TOOLS, inside=False)
    }
    for peer, name in named.items():
        by[peer.name] = lambda peer=peer, name=name: peer.stream(name, text, WIRE, markers, size=SIZE)
    return ParserCase(dialect.name, shape, by)


def _thinking(dialect: ReasoningDialect, named: dict[PeerParsers, str]) -> ParserCase:
    text = render_utterance(Utterance(("a",), TEXT), None, dialect)
    markup = Markers(None, dialect)
    # Some of their parsers look for the markers of calls as well.
    markers = sorted(Markers(TOOL_DIALECTS.get(dialect.name), dialect).texts)
    pieces = cut(text, markers, SIZE)
    opened = dialect.open[0] if dialect.starts_inside else ""
    variables = dict(dialect.switch.on)
    by: dict[str, Callable[[], ParserStream]] = {
        "plumbline": lambda: ours(markup, pieces, {}, inside=dialect.starts_inside)
    }
    for peer, name in named.items():
        by[peer.name] = lambda peer=peer, name=name: peer.stream_reasoning(
            name, text, markers, opened, variables, size=SIZE
        )
    return ParserCase(dialect.name, "thinking", by)


def measure(case: ParserCase, row: dict[str, Any]) -> None:
    """Let every parser read the output a few times; the row keeps the fastest time."""
    expected = None
    for name, made in case.by.items():
        spent = 0.0
        for _ in range(ROUNDS):
            try:
                stream = made()
                began = time.process_time()
                told = stream.read()
                took = time.process_time() - began
                read = stream.message(told)
            except Exception as error:  # The parser does not support this family here, or fails.
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
    """Print the rows and the versions of the other servers, as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--passes",
        type=int,
        default=1,
        help="repeat everything this many times and keep the fastest (default 1)",
    )
    passes = parser.parse_args().passes
    found = peers()
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    gc.disable()
    for number in range(passes if found else 0):
        for case in cases(found):
            row = rows.setdefault(
                (case.dialect, case.shape),
                {"dialect": case.dialect, "case": case.shape, "tokens": 0, "us_per_token": {}},
            )
            measure(case, row)
            gc.collect()
        print(f"pass {number + 1} of {passes}", file=sys.stderr)
    versions = {peer.name: peer.version for peer in found}
    json.dump({"peers": versions, "rows": list(rows.values())}, sys.stdout)


if __name__ == "__main__":
    main()
