"""Compare other servers' parsers with ours on our cases, and list the differences.

    python tests/reference_parsers/compare.py           every difference has a verdict, or this fails
    python tests/reference_parsers/compare.py --write   and tests/reference_parsers/differences.md is written

A verdict is a person's: `verdicts.json` has them, for one case or for several alike. `ours` means that our reading is
right, `theirs` that ours should change, `ambiguous` that the output can be read either way.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "conformance/reference_parsers"), str(ROOT / "src")]

from peers import ParsedMessage, PeerParsers, peers  # noqa: E402
from plumbline_messages import content_message, full_message, reasoning_message  # noqa: E402

from plumbline.answer.dialects.build import build_dialect  # noqa: E402
from plumbline.answer.dialects.model_dialect import AnswerFrame  # noqa: E402
from plumbline.answer.dialects.parsers.marker_parser import MarkerParser  # noqa: E402
from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS, DialectChoice  # noqa: E402
from plumbline.answer.dialects.spec.call_format import WrittenCall  # noqa: E402
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, ToolDialect, Utterance  # noqa: E402
from plumbline.answer.dialects.spec.markers import Markers  # noqa: E402
from plumbline.answer.events import TextDelta  # noqa: E402

GENERATED = 6
MODES = ("whole", "streamed")
_THINKING = ", thinking"
"""Behind the name of a reasoning dialect, as a verdict with `thinking` speaks of it."""
_TOGETHER = ", both"
"""Behind the name of a tool dialect where its thinking is read as well; a verdict with `together` speaks of it."""


class Output(NamedTuple):
    """An output of a model."""

    title: str
    text: str
    reason: str = "stop"


class Difference(NamedTuple):
    """A reading in which a peer differs from our parser."""

    peer: str
    dialect: str
    title: str
    mode: str
    text: str
    ours: ParsedMessage
    theirs: str


def tools_of(dialect: ToolDialect) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the tools of a dialect's cases: the schemas by name, and as a request has them."""
    folder = ROOT / "tests/dialects/cases"
    path = next(path for name in (dialect.name, "hermes") if (path := folder / f"{name}.json").is_file())
    tools = json.loads(path.read_text("utf-8"))["tools"]
    return tools, [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in tools.items()
    ]


def outputs(dialect: ToolDialect) -> Iterator[Output]:
    """Yield the written cases without thinking, and some random utterances."""
    path = ROOT / "tests/dialects/cases" / f"{dialect.name}.json"
    if not path.is_file():
        return
    file = json.loads(path.read_text("utf-8"))
    reasoning = REASONING_DIALECTS.get(file["reasoning"] or "")
    for case in file["cases"]:
        text = case["output"]
        if (
            case.get("reasoning") == "hm" and reasoning is not None
        ):  # Thinking that the dialect cannot do without.
            text = text.partition(reasoning.close[0])[2].lstrip("\n")
            if not text:
                continue  # It ends amid its thinking, or is nothing else.
        elif "reasoning" in case:
            continue
        yield Output(case["title"], text, case.get("reason", "stop"))
    draw = random.Random(dialect.name)
    forbidden = dialect.sections[0].call_format.forbidden
    for number in range(GENERATED):
        calls = []
        for _ in range(draw.randint(1, 3)):
            words = draw.sample(
                ["Zürich", 'a "b"', "c\\d", "🎉", "{e}", "[f]", "g, h", "<i>", "'j'", "k: l", "\nm"], 3
            )
            city = " ".join(words)
            assert not any(text in city for text in forbidden)
            arguments = {"city": city, "days": draw.randint(-9, 10**9)}
            calls.append(WrittenCall("get_weather", json.dumps(arguments, ensure_ascii=False)))
        yield Output(
            f"made by chance, {number + 1}",
            build_dialect(DialectChoice(dialect, None)).render(Utterance(tuple(calls))),
        )


def ours(dialect: ToolDialect, output: Output, tools: dict[str, Any]) -> ParsedMessage:
    """Parse text and calls with our parser; the result does not depend on how the output is cut."""
    parser = MarkerParser(
        Markers(dialect, None), tools, inside=False, new_id=lambda name, number: str(number)
    )
    events = [
        *parser.push(TextDelta(output.text)),
        *parser.finish("length" if output.reason == "length" else "stop"),
    ]
    return content_message(events)


def our_thought(dialect: ReasoningDialect, output: Output, *, inside: bool) -> ParsedMessage:
    """Parse reasoning and text with our parser."""
    parser = MarkerParser(
        Markers(None, dialect), {}, inside=inside or dialect.starts_inside, new_id=lambda name, number: ""
    )
    events = [
        *parser.push(TextDelta(output.text)),
        *parser.finish("length" if output.reason == "length" else "stop"),
    ]
    return reasoning_message(events)


def differences_of_thinking(peer: PeerParsers) -> tuple[int, list[Difference]]:
    """How many readings of thinking were compared, and those that differ."""
    known = set(peer.reasoning_parsers())
    compared = 0
    found = []
    for dialect in dict.fromkeys(REASONING_DIALECTS.values()):
        name = next((name for name in (dialect.name, *dialect.aliases) if name in known), None)
        path = ROOT / "tests/dialects/cases" / f"reasoning-{dialect.name}.json"
        if name is None or not path.is_file():
            continue
        file = json.loads(path.read_text("utf-8"))
        # Some of their parsers look for the markers of calls as well.
        markers = sorted(Markers(TOOL_DIALECTS.get(dialect.name), dialect).texts)
        variables = dict(dialect.switch.on)
        for inside in (False, True):
            for case in file["inside" if inside else "cases"]:
                output = Output(case["title"], case["output"], case.get("reason", "stop"))
                expected = our_thought(dialect, output, inside=inside)
                opened = dialect.open[0] if inside or dialect.starts_inside else ""
                for mode in MODES:
                    streamed = mode == "streamed"
                    ask = partial(
                        peer.read_reasoning, name, output.text, markers, opened, variables, streamed=streamed
                    )
                    theirs = _instead(ask, expected)
                    if theirs is None:
                        continue
                    compared += 1
                    if theirs:
                        label = dialect.name + _THINKING
                        found.append(
                            Difference(peer.name, label, output.title, mode, output.text, expected, theirs)
                        )
    return compared, found


def whole_outputs(dialect: ToolDialect, reasoning: ReasoningDialect) -> Iterator[Output]:
    """Yield the written cases with thinking, and some random utterances with thinking."""
    file = json.loads((ROOT / "tests/dialects/cases" / f"{dialect.name}.json").read_text("utf-8"))
    for case in file["cases"]:
        if case.get("reasoning", "hm") != "hm" or dialect.messages:
            yield Output(case["title"], case["output"], case.get("reason", "stop"))
    draw = random.Random(dialect.name)
    for number in range(GENERATED):
        thought = " ".join(
            draw.sample(["So", "é", "🎉", "then 3 < 4", "[x]", "\n\n", "{y}", "why?"], 4)
        ).strip()
        calls = [
            WrittenCall("get_weather", json.dumps({"city": "Paris", "days": n})) for n in range(number % 3)
        ]
        text = [] if calls and number % 2 else ["It is 4."]
        utterance = Utterance((*(calls if not dialect.sections[0].open else ()), *text), thought)
        if dialect.sections[0].open or dialect.messages:
            utterance = Utterance((*text, *calls), thought)
        yield Output(
            f"made by chance, {number + 1}",
            build_dialect(DialectChoice(dialect, reasoning)).render(utterance),
        )


def differences_together(peer: PeerParsers) -> tuple[int, list[Difference]]:
    """How many readings of thinking and calls in one output were compared, and those that differ."""
    compared = 0
    found = []
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        path = ROOT / "tests/dialects/cases" / f"{dialect.name}.json"
        if not path.is_file():
            continue
        reasoning = REASONING_DIALECTS.get(json.loads(path.read_text("utf-8"))["reasoning"] or "")
        if reasoning is None:
            continue
        name = next((n for n in (dialect.name, *dialect.aliases) if n in set(peer.names())), None)
        reasoning_parser = next(
            (n for n in (reasoning.name, *reasoning.aliases) if n in set(peer.reasoning_parsers())), None
        )
        if name is None or reasoning_parser is None:
            continue
        tools, wire = tools_of(dialect)
        markup = Markers(dialect, reasoning)
        model = build_dialect(DialectChoice(dialect, reasoning))
        frame = AnswerFrame(thinking="inside" if reasoning.starts_inside else "before")
        opened = reasoning.open[0] if reasoning.starts_inside else ""
        for output in whole_outputs(dialect, reasoning):
            parser = model.parser(tools, frame, new_id=lambda name, number: str(number))
            reason = "length" if output.reason == "length" else "stop"
            expected = full_message([*parser.push(TextDelta(output.text)), *parser.finish(reason)])  # type: ignore[arg-type]
            for mode in MODES:
                asked = (
                    name,
                    reasoning_parser,
                    output.text,
                    wire,
                    sorted(markup.texts),
                    opened,
                    dict(reasoning.switch.on),
                )
                theirs = _instead(
                    partial(peer.read_with_reasoning, *asked, streamed=mode == "streamed"), expected
                )
                if theirs is None:
                    continue
                compared += 1
                if theirs:
                    label = dialect.name + _TOGETHER
                    found.append(
                        Difference(peer.name, label, output.title, mode, output.text, expected, theirs)
                    )
    return compared, found


def differences(peer: PeerParsers) -> tuple[int, list[Difference]]:
    """How many readings were compared, and those that differ."""
    known = set(peer.names())
    compared = 0
    found = []
    for dialect in dict.fromkeys(TOOL_DIALECTS.values()):
        name = next((name for name in (dialect.name, *dialect.aliases) if name in known), None)
        if name is None or dialect.messages:
            continue
        tools, wire = tools_of(dialect)
        markers = sorted(Markers(dialect, None).texts)
        for output in outputs(dialect):
            expected = ours(dialect, output, tools)
            for mode in MODES:
                ask = partial(peer.read, name, output.text, wire, markers, streamed=mode == "streamed")
                theirs = _instead(ask, expected)
                if theirs is None:
                    continue
                compared += 1
                if not theirs:
                    continue
                found.append(
                    Difference(peer.name, dialect.name, output.title, mode, output.text, expected, theirs)
                )
    return compared, found


def verdict(difference: Difference, rules: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first rule that speaks of it."""
    for rule in rules:
        if ("thinking" in rule) != difference.dialect.endswith(_THINKING):
            continue
        if ("together" in rule) != difference.dialect.endswith(_TOGETHER):
            continue
        dialect = difference.dialect.removesuffix(_THINKING).removesuffix(_TOGETHER)
        named = (("peer", difference.peer), ("dialect", dialect), ("mode", difference.mode))
        if all(rule.get(key, value) == value for key, value in named) and difference.title.startswith(
            rule.get("case", "")
        ):
            return rule
    return None


def _instead(ask: Callable[[], ParsedMessage], expected: ParsedMessage) -> str | None:
    """Return the peer's differing reading; empty if it is the same, None if the peer does not read such outputs."""
    try:
        read = ask()
    except NotImplementedError:  # A stub: it reads the family elsewhere, or needs files that are not at hand.
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    return "" if read == expected else _described(read)


def _described(content_message: ParsedMessage) -> str:
    parts = [f"content {content_message.content!r}"] if content_message.content else []
    parts += [f"{name} {arguments}" for name, arguments in content_message.calls]
    return "; ".join(parts) or "nothing"


def main() -> int:
    """Compare; returns 1 if a difference has no verdict."""
    rules = json.loads((HERE / "verdicts.json").read_text("utf-8"))
    sections = []
    missing = []
    for peer in peers():
        compared, found = differences(peer)
        thoughts, more = differences_of_thinking(peer)
        both, most = differences_together(peer)
        compared, found = compared + thoughts + both, [*found, *more, *most]
        print(f"{peer.name}: {len(found)} of {compared} readings differ")
        counts = {"ours": 0, "theirs": 0, "ambiguous": 0}
        rows = []
        for difference in found:
            rule = verdict(difference, rules)
            if rule is None:
                missing.append(difference)
                continue
            counts[rule["verdict"]] += 1
            rows.append(_row(difference, rule))
        sections.append(_section(f"{peer.name} {peer.version}", compared, counts, rows))
    for difference in missing:
        print(f"no verdict: {difference.peer} {difference.dialect}: {difference.title} ({difference.mode})")
        print(
            f"  output {difference.text!r}\n  ours   {_described(difference.ours)}\n  theirs {difference.theirs}"
        )
    if "--write" in sys.argv:
        (ROOT / "tests/reference_parsers/differences.md").write_text(_HEAD + "\n".join(sections), "utf-8")
    return 1 if missing else 0


_HEAD = """# Where other servers read an output differently

Written by `nox -s differential`: the tool parsers of other servers, called in-process with the cases of
`tests/dialects/cases` (those without thinking) and with utterances made by chance, whole and token by token, and their
parsers of thinking with the cases of ours; *both* are outputs with thinking and calls, read by the two parsers
together as those servers do. White space is not compared. The verdicts are a person's
(`tests/reference_parsers/verdicts.json`): *ours* means that our reading is right, *theirs* that it should change,
*ambiguous* that the output can be read either way.
"""


def _section(peer: str, compared: int, counts: dict[str, int], rows: list[str]) -> str:
    total = sum(counts.values())
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    head = f"\n## {peer}\n\n{compared} readings compared, {total} differ: {summary}.\n\n"
    return (
        head
        + "| dialect | case | mode | ours | theirs | verdict |\n|---|---|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def _row(difference: Difference, rule: dict[str, Any]) -> str:
    cells = [
        difference.dialect,
        difference.title,
        difference.mode,
        _described(difference.ours),
        difference.theirs,
    ]
    cells.append(f"**{rule['verdict']}**: {rule['note']}")
    return "| " + " | ".join(_cell(text) for text in cells) + " |"


def _cell(text: str) -> str:
    text = text if len(text) <= 160 else text[:159] + "…"
    for raw, escaped in (
        ("\\", "\\\\"),
        ("|", "\\|"),
        ("<", "&lt;"),
        ("\n", "⏎"),
        ("`", "\\`"),
        ("[", "\\["),
    ):
        text = text.replace(raw, escaped)
    return text


if __name__ == "__main__":
    sys.exit(main())
