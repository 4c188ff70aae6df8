"""Make the vectors of parsers: for each dialect, outputs of a model and the message of each.

The expected message never comes from a parser. Either a person wrote it (`tests/dialects/cases`), or it was there first
and the text is what the dialect's writer makes of it, or a law gives it: what is no call is text, and of a cut output
the client gets what had come.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from support.parsing.dialects import Dialect
from support.parsing.plans import MARKS, NAMES, SCHEMA, Plan

from plumbline.answer.dialects.registry import REASONING_DIALECTS, TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ReasoningDialect, Utterance
from plumbline.answer.dialects.spec.markers import Markers

__all__ = ["FILES", "TOOLS", "dialect_of", "vectors_of"]

FOLDER = Path(__file__).parents[1] / "dialects" / "cases"
LEAST = 40
"""Vectors of each dialect."""
CUT = {"city": "Zanzibar Stone Town terraces"}
_CUT_AT = ("Zanzi", "Stone T")

FILES: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))
}
"""The written cases by name; `reasoning-NAME` is a reasoning dialect alone."""


def _tool_sets() -> dict[str, dict[str, Any]]:
    """Return the tools of all vectors by the name of the set."""
    found: dict[str, dict[str, Any]] = {
        "none": {},
        "types": dict.fromkeys(NAMES, SCHEMA),
        "weather": FILES["hermes"]["tools"],
    }
    for name, file in FILES.items():
        if file.get("tools") and file["tools"] not in found.values():
            found[name] = file["tools"]
    return found


TOOLS = _tool_sets()


class _Made(msgspec.Struct, kw_only=True):
    """An output and its message, before its cuts are drawn."""

    title: str
    text: str
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = msgspec.field(default_factory=list)
    finish: str = "stop"
    tools: str = "types"
    inside: bool = False
    source: str = "law"
    rules: list[str] = msgspec.field(default_factory=list)


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a file."""
    file = FILES[name]
    tool = TOOL_DIALECTS[file["tool"]] if "tool" in file else None
    return Dialect(tool, REASONING_DIALECTS[file["reasoning"]] if file["reasoning"] else None)


def vectors_of(name: str) -> dict[str, Any]:
    """Return the file of a dialect's vectors."""
    dialect = dialect_of(name)
    draw = random.Random(name)
    made = [*_by_hand(name), *_by_law(dialect, draw)]
    unique = {(one.text, one.tools, one.inside, one.finish): one for one in reversed(made)}
    cases = [
        _case(number, one, dialect, draw) for number, one in enumerate(reversed(list(unique.values())), 1)
    ]
    assert len(cases) >= LEAST, (name, len(cases))
    return {"format": 1, "dialect": _described(name, dialect), "cases": cases}


def _described(name: str, dialect: Dialect) -> dict[str, Any]:
    tool, reasoning = dialect.tool, dialect.reasoning
    found: dict[str, Any] = {"name": name, "markers": sorted(dialect.markers)}
    if tool is not None:
        found["tool"] = {"name": tool.name, "aliases": list(tool.aliases)}
    if reasoning is not None:
        found["reasoning"] = {
            "name": reasoning.name,
            "aliases": list(reasoning.aliases),
            "open": reasoning.open[0],
            "variables": {"on": dict(reasoning.switch.on), "off": dict(reasoning.switch.off)},
        }
    return found


def _case(number: int, made: _Made, dialect: Dialect, draw: random.Random) -> dict[str, Any]:
    reasoning = dialect.reasoning
    inside = reasoning is not None and (made.inside or reasoning.starts_inside)
    case: dict[str, Any] = {"id": number, "title": made.title, "from": made.source, "rules": _rules(made)}
    if made.tools != "none":
        case["tools"] = made.tools
    if inside and reasoning is not None:
        case["opened"] = reasoning.open[0]
    elif reasoning is not None and not _thinks(made, reasoning):
        case["thinking"] = False
    case["pieces"] = _pieces(made.text, dialect.markers if number % 3 else [], draw)
    case["finish"] = made.finish
    case["message"] = {"reasoning": made.reasoning, "content": made.content, "calls": made.calls}
    return case


def _thinks(made: _Made, reasoning: ReasoningDialect) -> bool:
    """Whether the output is one of a model that was asked to think."""
    return bool(made.reasoning) or any(marker in made.text for marker in (*reasoning.open, *reasoning.close))


def _rules(made: _Made) -> list[str]:
    """Return the rules that a parser breaks if it gives another message."""
    found = ["CHAT-19", *made.rules]
    if made.reasoning:
        found.append("CS-17")
    if made.calls:
        found += ["TOOL-01", "TOOL-18"]
        found += ["TOOL-13"] if made.content else []
        found += ["TOOL-19"] if any(call["arguments"] == "{}" for call in made.calls) else []
        found += ["CS-11"] if len(made.calls) > 1 else []
    if made.finish == "length":
        found.append("CHAT-05")
    return sorted(set(found))


def _pieces(text: str, markers: list[str], draw: random.Random) -> list[str]:
    """Cut a text into tokens: each marker is one, unless there are none; the rest are drawn."""
    wholes = [marker for marker in markers if len(marker) > 2]
    parts = re.split(f"({'|'.join(map(re.escape, wholes))})", text) if wholes else [text]
    found = []
    for part in parts:
        if part in wholes:
            found.append(part)
            continue
        position = 0
        while position < len(part):
            size = draw.choice((1, 2, 3, 4, 5, 7))
            found.append(part[position : position + size])
            position += size
    return found


# What a person wrote


def _by_hand(name: str) -> Iterator[_Made]:
    file = FILES[name]
    tools = next(key for key, value in TOOLS.items() if value == file.get("tools", {}))
    for key in ("cases", "inside"):
        for case in file.get(key, ()):
            rules = ["TOOL-02"] if "a tool that the request has not" in case["title"] else []
            yield _Made(
                title=case["title"],
                text=case["output"],
                reasoning=case.get("reasoning", ""),
                content=case["content"],
                calls=case["calls"],
                finish=case.get("reason", "stop"),
                tools=tools,
                inside=key == "inside",
                source="hand",
                rules=rules,
            )


# What laws give

_M = MARKS


def _plans() -> Iterator[tuple[str, str | None, tuple[Any, ...]]]:
    """Yield messages that any dialect can carry: a title, the thinking, and texts and calls."""
    yield "text", None, ("It is sunny.",)
    yield "text in lines", None, ("One.\n\n- two\n- three",)
    yield "text of several bytes a character", None, ("Grüße, 東京 🎉.",)
    yield "text like JSON", None, ('The answer is {"city": [1, 2]}, as said.',)
    yield "text like tags", None, ("Use <b>bold</b> & <br/> if a < b.",)
    yield "text with code", None, ("Run it:\n```python\nprint({})\n```\nDone.",)
    yield "thinking and text", "Two and two.", ("It is 4.",)
    yield "thinking in lines", "One.\n\nTwo < 3.", ("So it is.",)
    yield "thinking of several bytes a character", "東京 é 🎉", ("Ja.",)
    yield "thinking like a call", '{"name": "f", "arguments": {}} and f()', ("No call.",)
    yield "long thinking", "word and more words " * 12, ("Done.",)
    yield "a call without arguments", None, (("ping", {}),)
    yield "a string", None, (("get_weather", {"city": "Paris"}),)
    yield "a string with quotes", None, (("get_weather", {"city": "a \"b\" 'c' `d`"}),)
    yield "a string with backslashes", None, (("get_weather", {"note": "C:\\new\\table \\u0041"}),)
    yield "a string in lines", None, (("get_weather", {"note": "one\n\n  two\tthree"}),)
    yield "a string of several bytes a character", None, (("get_weather", {"city": "Zürich 東京 🎉"}),)
    yield "an empty string", None, (("get_weather", {"city": ""}),)
    yield "strings like other values", None, (("f", {"city": "12", "note": "null"}),)
    yield "a string like JSON", None, (("f", {"note": '{"a": [1]}'}),)
    yield "a string like tags", None, (("f", {"note": "<b>x</b> & y</c>"}),)
    yield "a string with a marker", None, (("f", {"note": f"see {_M[0]} and {_M[3]}."}),)
    yield "a string with the beginning of a marker", None, (("f", {"note": f"see {_M[6]} so."}),)
    yield "integers", None, (("get_weather", {"count": -7}), ("f", {"count": 2**53 + 1}))
    yield "numbers", None, (("f", {"ratio": -1.25, "count": 0}),)
    yield "a large number", None, (("f", {"ratio": 1e300}),)
    yield "truth values and null", None, (("f", {"flag": True, "nothing": None}), ("f", {"flag": False}))
    yield "an array", None, (("f", {"tags": ["a", "b, c", '"d"']}),)
    yield "an empty array", None, (("f", {"tags": []}),)
    nested = {"x-1": 3, "s": "deep", "rows": [[True, False], []], "deep": {"n": None}}
    yield "an object in an object", None, (("f", {"größe": nested}),)
    yield "all types", None, (("get_weather", {"city": "Rome", "count": 3, "flag": False, "tags": ["x"]}),)
    yield "two calls", None, (("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"}))
    yield "three calls", None, (("ping", {}), ("f", {"count": 1}), ("get_weather", {"city": "Oslo"}))
    yield "a name with a hyphen", None, (("search-docs", {"note": "x"}),)
    yield "a name with a dot", None, (("ns.lookup", {"note": "x"}),)
    yield "text before a call", None, ("Let me look.", ("get_weather", {"city": "Paris"}))
    yield "thinking and a call", "The user wants it.", (("get_weather", {"city": "Paris"}),)
    yield "thinking, text and a call", "Look.", ("Let me look.", ("get_weather", {"city": "Paris"}))
    yield "a long string", None, (("f", {"note": "many words, " * 20}),)


def _thoughts() -> Iterator[tuple[str, str, str]]:
    """Yield thinking and text for dialects without calls."""
    for number, thought in enumerate(
        (
            *("a", "Two.\nThree.", "- one\n- two", "`code` {x} [y]", "a < b > c", "é€🎉", "1. 2. 3."),
            *("if (x) { y }", "why? because!", 'said "so"', "C:\\x", "$E = mc^2$", "|a|b|", "# head"),
        )
    ):
        yield f"thinking, {number + 1}", thought, "So."
        yield f"text after thinking, {number + 1}", "Hm.", thought


def _drawn(draw: random.Random) -> Iterator[tuple[str, str | None, tuple[Any, ...]]]:
    """Yield drawn messages with odd characters and places of markers."""
    atoms = (*"a \n<>{}[]`|()=,:;\"'\\", "é", "🎉", "word", "null", "</", "<|", "\t", *_M)
    for number in range(6):
        values: dict[str, Any] = {
            key: "".join(draw.choice(atoms) for _ in range(draw.randint(1, 7)))
            for key in draw.sample(("city", "note"), draw.randint(1, 2))
        }
        values |= draw.choice(({}, {"count": draw.randint(-99, 10**9)}, {"tags": [draw.choice(atoms)]}))
        calls = [(draw.choice(NAMES), values)] + [("f", {"count": number})] * draw.randint(0, 1)
        thought = draw.choice((None, "Hm, so.", "a\n\nb"))
        text = draw.choice(((), ("Well.",)))
        yield f"drawn, {number + 1}", thought, (*text, *calls)


def _by_law(dialect: Dialect, draw: random.Random) -> Iterator[_Made]:
    reasoning = dialect.reasoning
    if reasoning is not None and reasoning.append:
        yield from _appended(dialect)
        return
    if dialect.has_calls:
        messages = [*_plans(), *_drawn(draw)]
    else:
        thoughts = [(title, thought, (text,)) for title, thought, text in _thoughts()]
        messages = [*[one for one in _plans() if all(isinstance(part, str) for part in one[2])], *thoughts]
    for title, thought, parts in messages:
        if thought is not None and reasoning is None:
            continue
        yield _written(title, dialect, Plan(thought, parts, False))
    yield from _marked(dialect)
    if dialect.has_calls:
        yield from _no_calls(dialect)
        yield from _cut_calls(dialect)
    yield from _cut_thinking(dialect)


def _written(title: str, dialect: Dialect, plan: Plan) -> _Made:
    """Return what the dialect's writer makes of a message."""
    utterance = dialect.utterance(plan)
    texts = [part for part in utterance.parts if isinstance(part, str)]
    calls = [part for part in utterance.parts if isinstance(part, WrittenCall)]
    return _Made(
        title=title,
        text=_without_opening(dialect, dialect.write(utterance)),
        reasoning=utterance.reasoning or "",
        content="\n\n".join(texts),
        calls=[{"name": call.name, "arguments": call.arguments} for call in calls],
        tools="types" if dialect.has_calls else "none",
    )


def _without_opening(dialect: Dialect, text: str) -> str:
    """Remove the marker that the prompt has already written."""
    reasoning = dialect.reasoning
    if reasoning is None or not reasoning.starts_inside or not text.startswith(reasoning.open[0]):
        return text
    return text.removeprefix(reasoning.open[0]).removeprefix("\n")


def _appended(dialect: Dialect) -> Iterator[_Made]:
    """Yield outputs of a dialect that leaves the thinking in the text, with its beginning that the prompt has."""
    reasoning = dialect.reasoning
    assert reasoning is not None
    for title, thought, text in _thoughts():
        output = f"{thought}\n{reasoning.close[0]}\n\n{text}"
        yield _Made(title=title, text=output, content=f"{reasoning.open[0]}\n{output}", tools="none")
    for number, text in enumerate(("Grüße", "a < b", "{}", "[x]", "one\n\ntwo", "1")):
        content = f"{reasoning.open[0]}\n{text}"
        yield _Made(title=f"no end, {number + 1}", text=text, content=content, finish="length", tools="none")


def _thinking_before(dialect: Dialect) -> tuple[str, str]:
    """Return the thinking that every output of the dialect begins with, and how it is written."""
    reasoning = dialect.reasoning
    if reasoning is None or not reasoning.starts_inside:
        return "", ""
    return "hm", f"hm{reasoning.close[0]}"


def _marked(dialect: Dialect) -> Iterator[_Made]:
    """Yield prose that names a marker: it stays prose."""
    if (dialect.tool is not None and dialect.tool.messages) or dialect.bare:
        return
    markers = Markers(dialect.tool, dialect.reasoning)
    thought, written = _thinking_before(dialect)
    for marker in sorted(markers.sections)[:3]:
        content = f"the text {marker} there."
        yield _Made(
            title="prose with a marker", text=f"{written}{content}", reasoning=thought, content=content,
            tools="types" if dialect.has_calls else "none",
        )  # fmt: skip


def _no_calls(dialect: Dialect) -> Iterator[_Made]:
    """Yield a call of a tool that the request does not have, which is text, and one without tools."""
    tool, reasoning = dialect.tool, dialect.reasoning
    if tool is None or tool.messages or tool.answer_key or tool.silent or tool.headed:
        return  # Of such a call, what is markup of a message is no text.
    thought, _ = _thinking_before(dialect)
    written = dialect.write(Utterance((WrittenCall("remove_all", '{"city": "Rome"}'),), thought or None))
    text = written
    if thought and reasoning is not None:
        written = _without_opening(dialect, written)
        before, _, text = written.partition(reasoning.close[0])
        assert before.strip() == thought, written
    for title, tools, rule in (
        ("a call of a tool that is not in the request", "types", "TOOL-02"),
        ("a call where the request has no tools", "none", "TOOL-03"),
    ):
        yield _Made(
            title=title, text=written, reasoning=thought, content=text.strip(), tools=tools, rules=[rule]
        )


def _cut_calls(dialect: Dialect) -> Iterator[_Made]:
    """Yield calls that the token limit cuts inside a string: the client gets the call up to there."""
    thought, _ = _thinking_before(dialect)
    for before in ((), (WrittenCall("ping", "{}"),)):
        call = WrittenCall("get_weather", json.dumps(CUT))
        text = _without_opening(dialect, dialect.write(Utterance((*before, call), thought or None)))
        for place in _CUT_AT:
            end = text.index(place) + len(place)
            arguments = call.arguments[: call.arguments.index(place) + len(place)]
            calls: list[dict[str, Any]] = [{"name": one.name, "arguments": one.arguments} for one in before]
            calls.append({"name": "get_weather", "arguments": arguments, "complete": False})
            yield _Made(
                title="a call that the token limit cuts", text=text[:end], reasoning=thought, calls=calls,
                finish="length",
            )  # fmt: skip


def _cut_thinking(dialect: Dialect) -> Iterator[_Made]:
    """Yield thinking that the token limit cuts."""
    if dialect.reasoning is None:
        return
    text = _without_opening(dialect, dialect.write(Utterance(("It is 4.",), "Two and two make four.")))
    for place in ("Two and", "make"):
        end = text.index(place) + len(place)
        thought = "Two and two make four."
        yield _Made(
            title="thinking that the token limit cuts", text=text[:end],
            reasoning=thought[: thought.index(place) + len(place)], finish="length",
            tools="types" if dialect.has_calls else "none",
        )  # fmt: skip
