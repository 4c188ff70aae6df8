"""What a family's own format allows is read exactly as it stands: repairs come only where that reading has failed.

Laws:
    1. A string ends at its closing quote or tag, whatever keys, values or text follow.
    2. Text that only looks a little like markup stays text.
    3. Neither depends on how the output is cut.
    4. A model that is loaded again, and a request with the tools of an earlier one, build no pattern.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from support.parsing.dialects import Dialect, cut, fold, kept_dialect

from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from plumbline.answer.dialects.streams import marker_patterns
from plumbline.answer.events import TextDelta

TEXT = {"type": "string"}
TOOLS: dict[str, Any] = {
    "get": {
        "type": "object",
        "properties": {
            "city": TEXT,
            "days": {"type": "integer"},
            "opts": {"type": "object"},
            "x": {},
        },
    },
}


def read(name: str, output: str, tools: dict[str, Any] = TOOLS) -> tuple[str, list[tuple[str, str, bool]]]:
    """The text, and the calls with their names, their arguments and whether they are complete."""
    found = []
    for sizes in ([len(output)], [1], [3, 7]):
        parser = kept_dialect(TOOL_DIALECTS[name]).parser(tools=tools)
        events = [event for piece in cut(output, sizes) for event in parser.push(TextDelta(piece))]
        message = fold([*events, *parser.finish("stop")])
        found.append(
            (message.content, [(call.name, call.arguments, call.complete) for call in message.calls])
        )
    assert all(one == found[0] for one in found), found
    return found[0]


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("x:[QaQ,true]", '{"x": ["a", true]}'),
        ("x:[QaQ,null,QbQ],days:3", '{"x": ["a", null, "b"], "days": 3}'),
        ("opts:{a:QxQ,First Name:QyQ},days:0", '{"opts": {"a": "x", "First Name": "y"}, "days": 0}'),
        ("opts:{a:QxQ,姓 名:QyQ}", '{"opts": {"a": "x", "姓 名": "y"}}'),
        ("opts:{a:QxQ,a/b (c):QyQ}", '{"opts": {"a": "x", "a/b (c)": "y"}}'),
        ("opts:{a:QxQ,it's:true}", '{"opts": {"a": "x", "it\'s": true}}'),
        (f"opts:{{a:QxQ,{'k' * 70}:1}}", f'{{"opts": {{"a": "x", "{"k" * 70}": 1}}}}'),
        ("city:QaQ,zz:QbQ", '{"city": "a", "zz": "b"}'),
        ("city:QaQ,city:QbQ", '{"city": "a"}'),
    ],
)
def test_gemma(inside: str, arguments: str) -> None:
    output = f"<|tool_call>call:get{{{inside}}}<tool_call|>".replace("Q", '<|"|>')
    assert read("gemma4", output) == ("", [("get", arguments, True)])


@pytest.mark.parametrize(
    ("output", "text", "calls"),
    [
        ("[get(city='a', zz='b')]", "", [("get", '{"city": "a", "zz": "b"}', True)]),
        ("[get(city='a', zz=True)]", "", [("get", '{"city": "a", "zz": true}', True)]),
        ("[get(city='a', city='b')]", "", [("get", '{"city": "a"}', True)]),
        (
            "[get(city='x'); get(city='y')]",
            "; get(city='y')]",
            [("get", '{"city": "x"}', True)],
        ),
        ("[get(city='a' + 'b')]", "", [("get", '{"city": "ab"}', True)]),
    ],
)
def test_python(output: str, text: str, calls: list[tuple[str, str, bool]]) -> None:
    assert read("pythonic", output) == (text, calls)


@pytest.mark.parametrize("key", ["@type", "$ref", "//", "n" * 70, "größe"])
def test_python_with_unusual_names(key: str) -> None:
    tools = {"get": {"type": "object", "properties": dict.fromkeys(("city", key, "x"), TEXT)}}
    output = f"[get(city='a', {key}='b', x='c')]"
    expected = json.dumps({"city": "a", key: "b", "x": "c"}, ensure_ascii=False)
    assert read("pythonic", output, tools) == ("", [("get", expected, True)])


@pytest.mark.parametrize(
    ("name", "output", "text"),
    [
        ("mistral", '[TOOL_CALLS]get{"city": "x"}Done.', "Done."),
        ("mistral", '[TOOL_CALLS]get[ARGS]{"city": "x"}Some "a": "b"', 'Some "a": "b"'),
        ("functionary_v32", '>>>get\n{"city": "x"}Done.', "Done."),
    ],
)
def test_json_ends_with_its_last_bracket(name: str, output: str, text: str) -> None:
    assert read(name, output) == (text, [("get", '{"city": "x"}', True)])


@pytest.mark.parametrize("value", ["</parameter", "a</parameter", "x\\n</parameter\\n"])
def test_a_value_that_ends_like_its_end_tag(value: str) -> None:
    text = value.replace("\\n", "\n")
    output = f"<tool_call>\n<function=get>\n<parameter=city>\n{text}\n</parameter>\n</function>\n</tool_call>"
    assert read("qwen3_coder", output) == ("", [("get", f'{{"city": "{value}"}}', True)])


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("llama3_json", '{"tool": "get"}'),
        ("llama3_json", '{"function": "get"}'),
        ("llama3_json", '{"tool_name": "get"}'),
        ("xlam", 'Write this:\n```json\n{"name": "get", "arguments": {"city": "x"}}\n```\nand so on'),
        ("xlam", '```json\n{"name": "get", "arguments": {"city": "x"}}\n```\nis a call.'),
        # Definitions of tools, data, and fences without anything.
        ("hermes", '{"name": "get", "description": "a", "parameters": {"city": "x"}}'),
        ("hermes", '{"name": "get", "parameters": {\n "type": "object"}}'),
        ("hermes", 'Mine:\n<tools>\n{"name": "get", "parameters": {"properties": {}}}\n</tools>\nAll.'),
        ("hermes", '{"name": "get"}'),
        ("hermes", '{"name": "get", "city": "x"}'),
        ("hermes", "```json\n```"),
        ("xlam", "```\n```"),
        ("mistral", '[{"function": {"name": "get", "parameters": {"$schema": "x"}}}]'),
        ("llama3_json", '[{"function": {"name": "get", "description": "a", "parameters": {}}}]'),
        ("muse", "to="),
        ("muse", "to=functions.get"),
    ],
)
def test_text(name: str, output: str) -> None:
    assert read(name, output) == (output, [])


@pytest.mark.parametrize(
    ("name", "output"), [("hermes", '{"name": "my-app", "x": "'), ("mistral", '[{"name": "Bob", "x": "')]
)
def test_data_is_passed_on_while_it_comes(name: str, output: str) -> None:
    parser = kept_dialect(TOOL_DIALECTS[name]).parser(tools=TOOLS)
    assert fold(list(parser.push(TextDelta(output)))).content == output


@pytest.mark.parametrize("name", ["hermes", "apertus", "cohere_command3"])
def test_the_same_marker_again_and_again_in_a_string_is_not_held_back(name: str) -> None:
    """What is held back is read again with every piece, which took time with the square of the length."""
    section, dialect = TOOL_DIALECTS[name].sections[0], kept_dialect(TOOL_DIALECTS[name])
    begun = dialect.write(Utterance((WrittenCall("get", '{"city": "a'),))).partition('"a')[0] + '"a'
    parser: Any = dialect.parser(tools=TOOLS)
    for piece in cut(begun + section.close[0] * 100, [7]):
        parser.push(TextDelta(piece))
        assert len(parser._cursor.text) - parser._cursor.pos < 400, name


@pytest.mark.parametrize("name", TOOL_DIALECTS)
def test_the_next_parser_builds_no_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 4: patterns of 53 markers took 3 ms to build."""

    def load_and_read() -> None:
        parser = Dialect(TOOL_DIALECTS[name], None).parser(tools=TOOLS)
        for piece in cut("Text.", [1]):
            parser.push(TextDelta(piece))
        parser.finish("stop")

    load_and_read()
    built, pattern = list[object](), marker_patterns._whole_or_begun

    def build(markers: Iterable[str], size: int = 0) -> str:
        built.append(markers)
        return pattern(markers, size)

    monkeypatch.setattr(marker_patterns, "_whole_or_begun", build)
    load_and_read()
    assert not built
