"""Write calls that are nearly right, in every dialect: ends, JSON, Python and braces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from plumbline.answer.dialects.formats.json_calls import JsonCall
from plumbline.answer.dialects.formats.named_json import NamedJson
from plumbline.answer.dialects.formats.pythonic import PythonCall
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.spec.call_format import ArgumentSyntax, WrittenCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect

__all__ = [
    "PARIS",
    "ROME",
    "TOOLS",
    "Calls",
    "Defects",
    "around",
    "braces",
    "ends",
    "json_arguments",
    "meant",
    "python",
    "words",
]

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
    "shout": {"type": "object", "properties": {"text": TEXT}},
}
PARIS = WrittenCall("get", '{"city": "Paris", "days": 3}')
ROME = WrittenCall("get", '{"city": "Rome"}')

Calls = list[tuple[str, Any]]
Defects = Iterator[tuple[str, str, Calls]]
"""What is wrong, the output, and the calls that it is."""


def meant(*calls: WrittenCall) -> Calls:
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
    if section.open and section.array and any(other.array and not other.open for other in tool.sections):
        yield "no beginning", text.removeprefix(section.open[0]).lstrip(), meant(PARIS)
    if section.item_open:
        yield "no beginning of the item", text.replace(section.item_open, ""), meant(PARIS)
        yield "spaces in the item", text.replace(section.item_open, f"{section.item_open} "), meant(PARIS)
        yield "an item alone", text[text.index(section.item_open) :].replace(close, ""), meant(PARIS)
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
    (r'{"tags": \n["a"]\n, "days": 3\n}', {"tags": ["a"], "days": 3}),
    (r"{\"city\": \"Paris\", \"days\": 3}", {"city": "Paris", "days": 3}),
    ('{city": "Paris", days": 3}', {"city": "Paris", "days": 3}),
    ('{"city": "Paris", // where\n "days": 3 /* how long */}', {"city": "Paris", "days": 3}),
    ('{"tags": ["a", ...], "days": 3}', {"tags": ["a"], "days": 3}),
    ('{"tags": ["a", ..., "b"], "city": "Paris", ...}', {"tags": ["a", "b"], "city": "Paris"}),
    ('{"days": ..., "city": "so ..."}', {"days": None, "city": "so ..."}),
    ('{"city": "Pa" + "ris", "days": 3}', {"city": "Paris", "days": 3}),
    ('{"tags": ["a\n" +\n  \'b"c\', "d"]}', {"tags": ['a\nb"c', "d"]}),
    ('{"city": "x = "a" + "b"; y", "days": 3}', {"city": 'x = "a" + "b"; y', "days": 3}),
    ('{"city: "Paris", "days": 3}', {"city": "Paris", "days": 3}),
    ('{"city": "Paris", "days: 3}', {"city": "Paris", "days": 3}),
    ('{"days: 3, "ok : true, "city: "a: b"}', {"days": 3, "ok": True, "city": "a: b"}),
    ("{'city: 'Paris', 'days': 3}", {"city": "Paris", "days": 3}),
    ('{"tags: ["a", "b"], "opts: {"a: 1}}', {"tags": ["a", "b"], "opts": {"a": 1}}),
    ('{"city:Paris", "days:3"}', {"city": "Paris", "days": 3}),
    ('{"city": Paris", "days": 3", "tags": ["a", b"]}', {"city": "Paris", "days": 3, "tags": ["a", "b"]}),
    ('{"opts": {"a: b": "c: d", "e: ": 1}}', {"opts": {"a: b": "c: d", "e: ": 1}}),
    ('{"city": "http://a, /* b */ c", "days": 3}', {"city": "http://a, /* b */ c", "days": 3}),
]


def words(tool: ToolDialect) -> Defects:
    """The name of a tool and its parameters in words."""
    section = tool.sections[0]
    if not section.open or section.open[0][0] not in "<[" or section.recipient or section.array:
        return
    for written, value in (
        ("city=Paris days=3", {"city": "Paris", "days": 3}),
        ("city=New York, days=3", {"city": "New York", "days": 3}),
        ("city = Paris\ndays = 3\n", {"city": "Paris", "days": 3}),
        ("days: 3\ncity: x=y: z", {"days": 3, "city": "x=y: z"}),
        ('city="Paris, days=1" days=3', {"city": "Paris, days=1", "days": 3}),
        ("city='it's' ok=True", {"city": "it's", "ok": True}),
        ("tags=['a', 'b'], opts={\"a\": 1}", {"tags": ["a", "b"], "opts": {"a": 1}}),
    ):
        yield written, around(section, f"get {written}"), [("get", value)]
    yield "lines", around(section, "get\ncity=Paris\ndays=3"), meant(PARIS)


def json_arguments(tool: ToolDialect) -> Defects:
    """Arguments that are nearly JSON."""
    section = tool.sections[0]
    if section.call_format.argument_syntax is not ArgumentSyntax.JSON:
        return
    for written, value in JSON_DEFECTS:
        if tool.name == "generic_json" and written.startswith("{{"):
            continue  # Its answers are objects, so a brace more ends one.
        yield written, render_calls([WrittenCall("get", written)], section), [("get", value)]
    whole = render_calls([PARIS], section)
    yield (
        "no last quote",
        render_calls([WrittenCall("get", '{"days": 3, "city": "Paris}')], section),
        meant(PARIS),
    )
    opts = {"opts": {"a": ["f({})"]}}
    yield "no quote", whole.replace(PARIS.arguments, '{"opts": {"a": ["f({})]}}'), [("get", opts)]
    yield "a brace too many", whole.replace("3}", "3}}"), meant(PARIS)
    if isinstance(section.call_format, NamedJson) and not section.call_format.suffix:
        for before, after in (("```json\n", "\n```"), ("json\n", "")):
            yield before, whole.replace(PARIS.arguments, f"{before}{PARIS.arguments}{after}"), meant(PARIS)
    if isinstance(section.call_format, JsonCall) and section.open and section.open[0][0] in "<[":
        for changed in (
            '{"name": "get", "city": "Paris", "days": 3}',
            '{"name": "functions.get", "args": {"days": 3}}',
        ):
            arguments = {key: value for key, value in (("city", "Paris"), ("days", 3)) if key in changed}
            text = f"[{changed}]" if section.array else changed
            yield changed, around(section, text), [("get", arguments)]
        yield "no braces of the call", around(section, f"get({PARIS.arguments})"), meant(PARIS)
    if isinstance(section.call_format, JsonCall):
        if section.call_format.name_key in whole:
            for key in (section.call_format.name_key, section.call_format.arguments_key):
                yield f"no quote after {key}", whole.replace(f'"{key}":', f'"{key}:'), meant(PARIS)
        yield "no brace of the call", whole.replace("3}}", "3}"), meant(PARIS)
        yield "a comma after the arguments", whole.replace("3}}", "3},}"), meant(PARIS)
    if not isinstance(section.call_format, NamedJson) and section.open:
        python = str({"name": "get", "arguments": {"city": "Paris", "ok": True}})
        text = f"[{python}]" if section.array else python
        yield "Python", around(section, text), [("get", {"city": "Paris", "ok": True})]


def python(tool: ToolDialect) -> Defects:
    """Python that is nearly right."""
    section = tool.sections[0]
    if not isinstance(section.call_format, PythonCall):
        return
    text = render_calls([ROME], section)
    assert '"Rome"' in text
    for written, value in (
        ("'plot(x, c='red', label='')'", "plot(x, c='red', label='')"),
        ("'plot(x, c='red', label='')\nprint('done')'", "plot(x, c='red', label='')\nprint('done')"),
        ("'it's'", "it's"),
        ('"say "hi" now"', 'say "hi" now'),
        ('"f(a=1), g(b=2)"', "f(a=1), g(b=2)"),
        ('"""Rome"""', "Rome"),
        (r"r'a\d'", r"a\d"),
        ("'Ro' + \"me\"", "Rome"),
        ("'Ro' \"me\"", "Rome"),
        ("'R' 'o' 'me'", "Rome"),
        ("'say 'hi' 'ho' now'", "say 'hi' 'ho' now"),
    ):
        yield written, text.replace('"Rome"', written), [("get", {"city": value})]
    yield "a comma at the end", text.replace('"Rome"', '"Rome",'), meant(ROME)
    yield "no name", text.replace("city=", ""), meant(ROME)
    yield "JSON's words", text.replace('"Rome"', '"Rome", ok=true'), [("get", {"city": "Rome", "ok": True})]
    for after in (".strip()", ";", " # This is all."):
        yield after, text.replace('"Rome")', f'"Rome"){after}'), meant(ROME)
    for arguments in ("{'city': 'Rome'}", '**{"city": "Rome"}', "city: 'Rome'"):
        yield arguments, text.replace('city="Rome"', arguments), meant(ROME)
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
        (f"city:Paris, France{q},days:3", {"city": "Paris, France", "days": 3}),
        (f"days:3,city:f(a, {{b: 1}}){q}", {"days": 3, "city": "f(a, {b: 1})"}),
        (f"tags:[a{q},{q}b{q}]", {"tags": ["a", "b"]}),
        (f"tags:[{q}a{q},b c{q},d{q}],days:3", {"tags": ["a", "b c", "d"], "days": 3}),
        (f"city:Paris,tags:[{q}a{q}]", {"city": "Paris", "tags": ["a"]}),
        (f"tags:[{q}a{q},{q}b{q},]", {"tags": ["a", "b"]}),
        (f"city={q}a=b{q}, days = 3", {"city": "a=b", "days": 3}),
        (f'city:{q}x="y", z{q},tags=["a"],days=3', {"city": 'x="y", z', "days": 3, "tags": ["a"]}),
        ("city='a, b=1',tags=['c']", {"city": "a, b=1", "tags": ["c"]}),
        (f"city=Paris, France{q},days=3", {"city": "Paris, France", "days": 3}),
        (f"city:':\\s+\\w'{q},days:3", {"city": ":\\s+\\w", "days": 3}),
        (f"opts={{a={q}x{q},b={q}y{q},c=1}},days=3", {"opts": {"a": "x", "b": "y", "c": 1}, "days": 3}),
    ):
        yield inside, around(section, f"call:get{{{inside}}}"), [("get", value)]
    inside = f"city={q}a, b) c{q}, opts={{a:{q}x{q}}}, tags=[{q}y{q}], days=3, ok=true"
    value = {"city": "a, b) c", "opts": {"a": "x"}, "tags": ["y"], "days": 3, "ok": True}
    yield "parentheses", around(section, f"call:get({inside})"), [("get", value)]
    yield "empty parentheses", around(section, "call:ping()"), [("ping", {})]
    for start in ("get", ":get", "call: get", "call:get "):
        yield start, around(section, f"{start}{{days:3}}"), [("get", {"days": 3})]
    yield "no comma", around(section, f"call:get{{city:{q}Paris{q}days:3}}"), meant(PARIS)
    yield "a namespace", around(section, "call:ns:get{days:3}"), [("get", {"days": 3})]
    yield "no brace", around(section, "call:get{days:3"), [("get", {"days": 3})]
