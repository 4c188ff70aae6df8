"""What other servers' parsers cost beside ours: the same outputs in the same tokens, in the same run.

Theirs are called in-process, as their servers call them, through the adapters of `tests/differential`. Tokens are whole
markers and pieces of four characters. What a parser is given, such as the text and the ids so far, is made beforehand,
so that nothing but its own work is measured. `same_message` says whether a client would get what it gets from us; a
parser that raises is skipped with what it said.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.micro.test_dialects import PROSE, TOOLS, call, small_calls
from tests.differential.peers import Message, Peer, Stream, cut, message, peers, thought

from plumbline.dialects.api import ReasoningDialect, ToolDialect, Utterance
from plumbline.dialects.markup import Markup
from plumbline.dialects.parser import DialectParser
from plumbline.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.dialects.write import write_utterance
from plumbline.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

PEERS = peers()
if not PEERS:
    pytest.skip("neither vLLM nor SGLang can be imported", allow_module_level=True)

pytestmark = pytest.mark.benchmark(timer=time.process_time, disable_gc=True)

SIZE = 4
ROUNDS = 9
ROUNDS_OF_LONG = 3
WIRE = [
    {"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in TOOLS.items()
]
TEXT = (PROSE * 100).strip()
SHAPES = {
    "text": Utterance((TEXT,)),
    "arguments": call(25),
    "arguments_4_times_as_long": call(100),
    "small_calls": small_calls(50),
}


def ours(markup: Markup, pieces: list[str], tools: dict[str, Any], *, inside: bool) -> Stream:
    """Our parser, ready to read the tokens."""
    parser = DialectParser(markup, tools, inside=inside, new_id=lambda name, number: "id")
    tokens = [TextDelta(piece) for piece in pieces]

    def read() -> list[Any]:
        push = parser.push
        said = [push(token) for token in tokens]
        said.append(parser.finish("stop"))
        return said

    return Stream(len(tokens), read, _said if tools else _thought)


def _said(deltas: list[Any]) -> Message:
    events = [event for said in deltas for event in said]
    calls: list[list[str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append([event.name, ""])
        elif isinstance(event, ToolCallDelta):
            calls[-1][1] += event.arguments
    content = "".join(event.text for event in events if isinstance(event, TextDelta))
    return message(content, [(name, arguments) for name, arguments in calls])


def _thought(deltas: list[Any]) -> Message:
    events = [event for said in deltas for event in said]
    kinds = (ReasoningDelta, TextDelta)
    return thought(*("".join(event.text for event in events if isinstance(event, kind)) for kind in kinds))


def run(benchmark: Any, made: Callable[[], Stream], expected: Message, rounds: int = ROUNDS) -> None:
    """Time the reading of fresh streams, and compare what the last one said."""
    streams: list[tuple[Stream, list[Any]]] = []

    def setup() -> tuple[tuple[Stream], dict[str, Any]]:
        return (made(),), {}

    def read(stream: Stream) -> None:
        said = stream.read()
        streams[:] = [(stream, said)]

    try:
        benchmark.pedantic(read, setup=setup, rounds=rounds)
    except Exception as error:
        pytest.skip(f"{type(error).__name__}: {str(error)[:80]}")
    [(stream, said)] = streams
    benchmark.extra_info["us_per_token"] = benchmark.stats.stats.min / stream.tokens * 1e6
    benchmark.extra_info["same_message"] = stream.message(said) == expected


def _name(dialect: ToolDialect | ReasoningDialect, known: set[str]) -> str | None:
    return next((name for name in (dialect.name, *dialect.aliases) if name in known), None)


def _tool_rows() -> list[Any]:
    """Every dialect that a peer has as well: ours first, then each of theirs."""
    rows = []
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        named = [(peer, name) for peer in PEERS if (name := _name(dialect, set(peer.names())))]
        if dialect.reader == "sections" and named:
            rows.append(pytest.param(dialect, None, "", id=f"{dialect.name}-ours"))
            rows += [
                pytest.param(dialect, peer, name, id=f"{dialect.name}-{peer.name}") for peer, name in named
            ]
    return rows


def _reasoning_rows() -> list[Any]:
    rows = []
    for dialect in dict.fromkeys(REASONING_DIALECTS.values()):
        named = [(peer, name) for peer in PEERS if (name := _name(dialect, set(peer.thinkers())))]
        if dialect.reader == "sections" and named:
            rows.append(pytest.param(dialect, None, "", id=f"{dialect.name}-ours"))
            rows += [
                pytest.param(dialect, peer, name, id=f"{dialect.name}-{peer.name}") for peer, name in named
            ]
    return rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("dialect", "peer", "name"), _tool_rows())
def test_calls(benchmark: Any, dialect: ToolDialect, peer: Peer | None, name: str, shape: str) -> None:
    """Text in which calls are looked for, long arguments, and calls that begin and end all the time."""
    text = write_utterance(SHAPES[shape], dialect, None)
    markup = Markup(dialect, None)
    markers = sorted(markup.markers)

    def mine() -> Stream:
        return ours(markup, cut(text, markers, SIZE), TOOLS, inside=False)

    stream = mine()
    expected = stream.message(stream.read())
    rounds = ROUNDS_OF_LONG if "long" in shape else ROUNDS
    if peer is None:
        run(benchmark, mine, expected, rounds)
    else:
        run(benchmark, lambda: peer.stream(name, text, WIRE, markers, size=SIZE), expected, rounds)


@pytest.mark.parametrize(("dialect", "peer", "name"), _reasoning_rows())
def test_thinking(benchmark: Any, dialect: ReasoningDialect, peer: Peer | None, name: str) -> None:
    """Thinking of which the end is looked for."""
    text = write_utterance(Utterance(("a",), TEXT), None, dialect)
    markup = Markup(None, dialect)
    # Some of their parsers look for the markers of calls as well.
    markers = sorted(Markup(TOOL_DIALECTS.get(dialect.name), dialect).markers)
    opened = dialect.open[0] if dialect.starts_inside else ""
    variables = dict(dialect.switch.on)

    def mine() -> Stream:
        return ours(markup, cut(text, markers, SIZE), {}, inside=dialect.starts_inside)

    stream = mine()
    expected = stream.message(stream.read())
    if peer is None:
        run(benchmark, mine, expected)
    else:
        run(benchmark, lambda: peer.think_stream(name, text, markers, opened, variables, size=SIZE), expected)
