"""Calls that are nearly right, in every dialect.

Laws:
    1. A call with a small defect is the call that the model evidently meant, and nothing of its markup is text.
    2. The result does not depend on how the output is cut.
    3. Valid JSON is passed on unchanged, and whatever else is read as JSON becomes JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.about import about
from support.parsing.dialects import Dialect, Folded, cut, fold

from plumbline.dialects.formats.json_calls import JsonCall, KeyedJson, NamedJson
from plumbline.dialects.formats.pythonic import PythonCall
from plumbline.dialects.formats.tagged import TaggedCall
from plumbline.dialects.parsers.render import render_calls
from plumbline.dialects.registry import TOOL_DIALECTS
from plumbline.dialects.spec.call_format import ArgumentSyntax, Call
from plumbline.dialects.spec.dialect import Section, ToolDialect
from plumbline.dialects.streams.json_scanner import JsonScanner
from plumbline.dialects.streams.json_stream import readable_object
from plumbline.events import FinishReason, TextDelta

TEXT = {"type": "string"}
TOOLS: dict[str, Any] = {
    "ping": {"type": "object", "properties": {}},
    "get": {
        "type": "object",
        "properties": {
            "city": TEXT,
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": TEXT},
            "ok": {"type": ["boolean", "null"]},
            "opts": {"type": "object"},
        },
    },
}
PARIS = Call("get", '{"city": "Paris", "days": 3}')
ROME = Call("get", '{"city": "Rome"}')

Calls = list[tuple[str, Any]]
Defects = Iterator[tuple[str, str, Calls]]
"""What is wrong, the output, and the calls that it is."""

DIALECTS = [tool for tool in dict.fromkeys(TOOL_DIALECTS.values()) if not tool.messages]


def read(tool: ToolDialect, text: str, reason: FinishReason = "stop") -> Folded:
    """The message, which does not depend on how the text was cut."""
    found = []
    for sizes in ([len(text)], [1], [3, 7]):
        parser = Dialect(tool, None).parser(tools=TOOLS)
        events = [event for piece in cut(text, sizes) for event in parser.push(TextDelta(piece))]
        found.append(fold([*events, *parser.finish(reason)]))
    assert all(one == found[0] for one in found), found
    return found[0]


def meant(*calls: Call) -> Calls:
    return [(call.name, json.loads(call.arguments)) for call in calls]


def around(section: Section, inside: str) -> str:
    """Any text between the markers of a section."""
    opened = section.recipient.replace("{name}", "get") + section.open[0] + section.after_open
    return (
        opened
        + section.item_open
        + inside
        + section.item_close
        + section.before_close
        + "".join(section.close[:1])
    )


def ends(tool: ToolDialect) -> Defects:
    """Ends that are missing, or come twice; calls that share a wrapper."""
    section = tool.sections[0]
    text = render_calls([PARIS], section)
    close = "".join(section.close[:1])
    if close:
        yield "no end", text.removesuffix(close), meant(PARIS)
        if close[0] in "<[":
            yield "the end twice", f"{text}\n{close}", meant(PARIS)
            yield "text before the end", f"{text.removesuffix(close)}{close}", meant(PARIS)
    if section.item_close:
        yield "no end of the item", text.replace(section.item_close, ""), meant(PARIS)
        yield "no end at all", text.replace(section.item_close, "").removesuffix(close), meant(PARIS)
    if section.open and close and not section.recipient and section.call_format.begins not in ("", 'name="'):
        shared = msgspec.structs.replace(section, single=False, between="\n", item_open="", item_close="")
        if not section.item_open:
            yield "two in one wrapper", render_calls([PARIS, ROME], shared), meant(PARIS, ROME)
    if section.open and section.open[0][0] in "<[" and not section.recipient:
        yield from swapped(section)


def swapped(section: Section) -> Defects:
    """JSON in the place of another format, a list for one call and one call for a list."""
    one = json.dumps({"name": "get", "arguments": json.loads(PARIS.arguments)})
    other = json.dumps({"name": "get", "arguments": json.loads(ROME.arguments)})
    yield "an object", around(section, one), meant(PARIS)
    yield (
        "arguments in a string",
        around(section, json.dumps({"name": "get", "arguments": PARIS.arguments})),
        meant(PARIS),
    )
    if not section.item_open:
        yield "a list", around(section, f"[{one}, {other}]"), meant(PARIS, ROME)
        yield "objects in lines", around(section, f"{one}\n{other}"), meant(PARIS, ROME)
        yield "objects with commas", around(section, f"{one},\n{other},"), meant(PARIS, ROME)


JSON_DEFECTS: list[tuple[str, Any]] = [
    ('{"city": "Paris", "days": 3,}', {"city": "Paris", "days": 3}),
    ('{"tags": ["a", "b", ], "days": 3}', {"tags": ["a", "b"], "days": 3}),
    ('{"tags": [, "a"], "days": 3}', {"tags": ["a"], "days": 3}),
    ('{"city": "Paris",, "days": 3}', {"city": "Paris", "days": 3}),
    ('{"city": "Paris" "days": 3}', {"city": "Paris", "days": 3}),
    ("{'city': 'Paris', 'ok': True}", {"city": "Paris", "ok": True}),
    ("{'city': 'it's', 'ok': None}", {"city": "it's", "ok": None}),
    ("{'city': 'say \"hi\"'}", {"city": 'say "hi"'}),
    ('{"city": \'Paris\', "ok": False}', {"city": "Paris", "ok": False}),
    ('{\u201ccity\u201d: \u201cParis\u201d, "days": 3}', {"city": "Paris", "days": 3}),
    ('{city: "Paris", days: 3}', {"city": "Paris", "days": 3}),
    ('{"city": Paris, "days": 3}', {"city": "Paris", "days": 3}),
    (r'{"city": "It\'s \d+ C:\Users \(x\)"}', {"city": r"It's \d+ C:\Users \(x\)"}),
    ('{"city": "say "hi" now", "days": 3}', {"city": 'say "hi" now', "days": 3}),
    ('{"city": "print("a", "b")", "days": 3}', {"city": 'print("a", "b")', "days": 3}),
    ('{"city": "x = d["key"]; y", "days": 3}', {"city": 'x = d["key"]; y', "days": 3}),
    ('{"city": "f() { return "a" }"}', {"city": 'f() { return "a" }'}),
    ('{"city": "a, "b""}', {"city": 'a, "b"'}),
    ('{"tags": ["echo "hi"", "ls"]}', {"tags": ['echo "hi"', "ls"]}),
    ('{"city": "two\nlines\tand\r"}', {"city": "two\nlines\tand\r"}),
    ('{"city": """Paris"""}', {"city": "Paris"}),
    ('{"tags": ["a", "b"}', {"tags": ["a", "b"]}),
    ('{"opts": {"a": [1, 2}, "days": 3}', {"opts": {"a": [1, 2]}, "days": 3}),
    ('{"opts": {"a": (1, 2)}, "days": +3}', {"opts": {"a": [1, 2]}, "days": 3}),
    ('{"days" => 3, "city"= "Paris"}', {"city": "Paris", "days": 3}),
    ('{"ok": , "days": 3}', {"ok": None, "days": 3}),
    ('{{"city": "Paris"}}', {"city": "Paris"}),
]


def json_arguments(tool: ToolDialect) -> Defects:
    """Arguments that are nearly JSON."""
    section = tool.sections[0]
    if section.call_format.argument_syntax is not ArgumentSyntax.JSON:
        return
    for written, value in JSON_DEFECTS:
        if tool.name == "generic_json" and written.startswith("{{"):
            continue  # Its answers are objects, so a brace more ends one.
        yield written, render_calls([Call("get", written)], section), [("get", value)]
    whole = render_calls([PARIS], section)
    yield "a brace too many", whole.replace("3}", "3}}"), meant(PARIS)
    if isinstance(section.call_format, JsonCall):
        yield "no brace of the call", whole.replace("3}}", "3}"), meant(PARIS)
        yield "a comma after the arguments", whole.replace("3}}", "3},}"), meant(PARIS)
    if not isinstance(section.call_format, NamedJson) and section.open:
        python = str({"name": "get", "arguments": {"city": "Paris", "ok": True}})
        text = f"[{python}]" if section.array else python
        yield "Python", around(section, text), [("get", {"city": "Paris", "ok": True})]


def tags(tool: ToolDialect) -> Defects:
    """Tags that are nearly right."""
    section = tool.sections[0]
    if not isinstance(section.call_format, TaggedCall):
        return
    tag = section.call_format
    text = render_calls([PARIS], section)
    last = text.rindex(tag.end)
    yield "no end of the last value", text[:last].rstrip("\n") + text[last + len(tag.end) :], meant(PARIS)
    if tag.end.endswith(">") and tag.end.startswith("</"):
        yield "a cut end", f"{text[: last + len(tag.end) - 1]}\n{text[last + len(tag.end) :]}", meant(PARIS)
    if not tag.typed:
        first = text.index(tag.end)
        after = tag.newline or "\n"
        before = text[:first].rstrip("\n") if tag.wrapped or not tag.newline else text[:first]
        yield "no end of the first value", before + text[first + len(tag.end) :], meant(PARIS)
        del after
    if tag.close:
        yield "no end of the call", text.replace(tag.close, ""), meant(PARIS)
        yield "the end of the call twice", text.replace(tag.close, f"{tag.close}\n{tag.close}"), meant(PARIS)
        if tag.close.startswith("</"):
            yield (
                "an end of another element",
                text.replace(tag.close, f"{tag.close}\n</function_invocation>"),
                meant(PARIS),
            )
    inner = render_calls([Call("get", json.dumps({"city": f"a{tag.end}b", "days": 3}))], section)
    yield "an end inside a value", inner, [("get", {"city": f"a{tag.end}b", "days": 3})]
    for written, key in ((tag.open, "get"), (tag.key, "city"), (tag.key, "days")):
        if written.endswith('="') and written.startswith("<") and "|>" not in written:
            for quotes in ("''", "\u201c\u201d", "  "):
                changed = text.replace(f'{written}{key}"', f"{written[:-1]}{quotes[0]}{key}{quotes[1]}")
                yield f"{quotes} around {key}", changed, meant(PARIS)
        elif written.endswith("=") and written.startswith("<"):
            for shape in ('"{}"', "'{}'", ' "{}"'):
                yield shape, text.replace(f"{written}{key}", written + shape.format(key)), meant(PARIS)
            named = text.replace(f"{written}{key}>", f'{written[:-1]} name="{key}">')
            yield "an attribute", named, meant(PARIS)
    if tag.value_open:
        yield "no beginning of a value", text.replace(tag.value_open, "", 1), meant(PARIS)
    if not tag.open and not tag.opened:
        yield "no beginning of a name", text.replace(tag.newline + tag.key, "", 1), meant(PARIS)
        yield "a space for it", text.replace(tag.newline + tag.key, " ", 1), meant(PARIS)
    begun = tag.write(Call("get", "{}")).removesuffix(tag.close)
    yield "JSON for the parameters", around(section, f"{begun}{PARIS.arguments}{tag.close}"), meant(PARIS)


def python(tool: ToolDialect) -> Defects:
    """Python that is nearly right."""
    section = tool.sections[0]
    if not isinstance(section.call_format, PythonCall):
        return
    text = render_calls([ROME], section)
    assert '"Rome"' in text
    for written, value in (
        ("'plot(x, c='red', label='')'", "plot(x, c='red', label='')"),
        ("'it's'", "it's"),
        ('"say "hi" now"', 'say "hi" now'),
        ('"f(a=1), g(b=2)"', "f(a=1), g(b=2)"),
        ('"""Rome"""', "Rome"),
    ):
        yield written, text.replace('"Rome"', written), [("get", {"city": value})]
    yield "a comma at the end", text.replace('"Rome"', '"Rome",'), meant(ROME)
    yield "no name", text.replace("city=", ""), meant(ROME)
    yield "JSON's words", text.replace('"Rome"', '"Rome", ok=true'), [("get", {"city": "Rome", "ok": True})]
    yield "no parenthesis", text.replace('"Rome")', '"Rome"'), meant(ROME)


def braces(tool: ToolDialect) -> Defects:
    """Gemma's braces with other quotes."""
    section = tool.sections[0]
    if section.call_format.argument_syntax is not ArgumentSyntax.BRACES:
        return
    q = section.call_format.markers[0]
    for inside, value in (
        ('city:"Paris",days:3', {"city": "Paris", "days": 3}),
        ("city:'it's',days:3", {"city": "it's", "days": 3}),
        ('"city":"Paris","days":3', {"city": "Paris", "days": 3}),
        ('tags:["a","b, c"]', {"tags": ["a", "b, c"]}),
        ('opts:{"a":"x","b":["y"]}', {"opts": {"a": "x", "b": ["y"]}}),
        (f"city:{q}f({q}a{q}, {q}b{q}){q},days:3", {"city": 'f("a", "b")', "days": 3}),
        (f"city:{q}{{a: {q}b{q}}} c{q}", {"city": '{a: "b"} c'}),
        (f"tags:[{q}say {q}hi{q}{q},{q}b{q}]", {"tags": ['say "hi"', "b"]}),
        (f"city:{q}Paris{q},days:3,", {"city": "Paris", "days": 3}),
        ("ok:True,days:3", {"ok": True, "days": 3}),
        (f"tags:[{q}a{q},{q}b{q},]", {"tags": ["a", "b"]}),
    ):
        yield inside, around(section, f"call:get{{{inside}}}"), [("get", value)]
    for start in ("get", ":get", "call: get", "call:get "):
        yield start, around(section, f"{start}{{days:3}}"), [("get", {"days": 3})]
    yield "no comma", around(section, f"call:get{{city:{q}Paris{q}days:3}}"), meant(PARIS)
    yield "a namespace", around(section, "call:ns:get{days:3}"), [("get", {"days": 3})]
    yield "no brace", around(section, "call:get{days:3"), [("get", {"days": 3})]


KINDS: list[Callable[[ToolDialect], Defects]] = [ends, json_arguments, tags, python, braces]


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_a_call_that_is_nearly_right_is_read_as_it_is_meant(tool: ToolDialect) -> None:
    for kind in KINDS:
        for title, output, calls in kind(tool):
            with about(f"{kind.__name__}: {title}: {output!r}"):
                message = read(tool, output)
                assert message.content == ""
                assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
                assert all(call.complete for call in message.calls)


@pytest.mark.parametrize(
    ("tool", "output"),
    [
        ("mistral", "[TOOL_CALLS]ping"),
        ("mistral", "[TOOL_CALLS]ping[ARGS]"),
        ("mistral", '[TOOL_CALLS]{"name": "ping", "arguments": {}}'),
        ("deepseek_v4", '<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>'),
        ("deepseek_v4", '<｜DSML｜invoke name="ping">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'),
        ("minimax_m2", '<invoke name="ping">\n</invoke>'),
        ("gemma4", "<|tool_call>ping{}<tool_call|>"),
        (
            "kimi_k2",
            "<|tool_call_begin|>functions_ping_1<|tool_call_argument_begin|>{}<|tool_call_end|>",
        ),
        ("kimi_k2", "<|tool_call_begin|>functions.ping:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
    ],
)
def test_markup_without_a_part_that_says_nothing_is_a_call(tool: str, output: str) -> None:
    message = read(TOOL_DIALECTS[tool], output)
    assert (message.content, [(c.name, c.arguments, c.complete) for c in message.calls]) == (
        "",
        [("ping", "{}", True)],
    )


@pytest.mark.parametrize("output", ["[TOOL_CALLS]print", "[TOOL_CALLS]ping me", "<tool_call>", "get(", "{}"])
@pytest.mark.parametrize("tool", ["mistral", "hermes", "gemma4", "qwen3_coder", "lfm2", "glm47"])
def test_what_is_no_call_is_text_as_a_whole(tool: str, output: str) -> None:
    assert read(TOOL_DIALECTS[tool], output).content == output


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_of_a_call_that_the_limit_cuts_nothing_is_text(tool: ToolDialect) -> None:
    """And what was read of its arguments can be read by others."""
    text = render_calls(
        [Call("get", '{"city": "Par\\"is", "tags": ["a", "b"], "days": 3}')], tool.sections[0]
    )
    for size in range(len(text) - 1, len(text) // 3, -13):
        with about(text[:size]):
            message = read(tool, text[:size], "length")
            assert tool.sections[0].starts or not message.content or tool.name == "generic_json"
            for call in message.calls:
                json.loads(readable_object(call.arguments) or "{}")


# JSON


def scanned(text: str, sizes: list[int]) -> str:
    """What a scanner passes on of a text that comes in pieces."""
    scanner, out, unread = JsonScanner(max_depth=64), list[str](), ""
    for piece in cut(text, sizes):
        unread += piece
        unread = unread[scanner.feed(unread, 0, out) :]
    scanner.feed(unread, 0, out, closed=True)
    if not scanner.done:
        scanner.complete(out)
    return "".join(out)


_texts = st.text("ab\"'\\,:{}[] \n1-tn", max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)
_sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(
    value=st.dictionaries(_texts, _json, max_size=3), indent=st.sampled_from([None, 0, 3, 90]), sizes=_sizes
)
def test_valid_json_is_passed_on_unchanged(value: Any, indent: int | None, sizes: list[int]) -> None:
    for escaped in (True, False):
        text = json.dumps(value, indent=indent, ensure_ascii=escaped)
        assert scanned(text, sizes) == text


@given(text=_texts | st.text("ab\"'\\,:{}[] \n", max_size=40), sizes=_sizes)
@example(text='{"a": "x" b', sizes=[1])
def test_whatever_begins_as_an_object_becomes_one_however_it_is_cut(text: str, sizes: list[int]) -> None:
    whole = scanned(f"{{{text}", [len(text) + 1])
    assert scanned(f"{{{text}", sizes) == whole
    assert isinstance(json.loads(whole), dict)


@pytest.mark.parametrize("flood", ['"', "'", '", "', '"}', "[", ",", "\\", '"a" ', "a ", '"]'])
def test_a_flood_is_read_in_linear_time(flood: str) -> None:
    """Each character is looked at a bounded number of times, so that this ends within the suite's time."""
    for begin in ('{"a": "', '{"a": ["x", '):
        json.loads(scanned(begin + flood * (8000 // len(flood)), [64]) if flood != "[" else "{}")
    assert isinstance(KeyedJson(), KeyedJson)
