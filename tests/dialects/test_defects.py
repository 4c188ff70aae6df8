"""Calls that are nearly right, in every dialect.

Laws:
    1. A call with a small defect is the call that the model evidently meant, and nothing of its markup is text.
    2. The result does not depend on how the output is cut.
    3. Valid JSON is passed on unchanged, and whatever else is read as JSON becomes JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.about import about
from support.parsing.defects import TOOLS, Defects, braces, ends, json_arguments, python, words
from support.parsing.dialects import Folded, cut, fold, kept_dialect
from support.parsing.tag_defects import elements, tags

from plumbline.answer.dialects.formats.json_calls import KeyedJson
from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import ToolDialect
from plumbline.answer.dialects.spec.markers import Markers, is_control, is_markup
from plumbline.answer.dialects.streams.cursor import Finder
from plumbline.answer.dialects.streams.json_scanner import JsonScanner
from plumbline.answer.dialects.streams.json_stream import readable_object
from plumbline.answer.events import FinishReason, TextDelta

DIALECTS = [tool for tool in dict.fromkeys(TOOL_DIALECTS.values()) if not tool.messages]


def read(tool: ToolDialect, text: str, reason: FinishReason = "stop") -> Folded:
    """The message, which does not depend on how the text was cut."""
    found = []
    for sizes in ([len(text)], [1], [3, 7]):
        parser = kept_dialect(tool).parser(tools=TOOLS)
        events = [event for piece in cut(text, sizes) for event in parser.push(TextDelta(piece))]
        found.append(fold([*events, *parser.finish(reason)]))
    assert all(one == found[0] for one in found), found
    return found[0]


KINDS: list[Callable[[ToolDialect], Defects]] = [ends, json_arguments, tags, elements, python, braces, words]


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
        ("hermes", "<function=ping>\n</function>\n</tool_call>"),
        ("gemma4", "<|tool_call>ping{}<tool_call|>"),
        ("deepseek_v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>ping<｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
        (
            "deepseek_v31",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜>",
        ),
        ("hermes", "<tool_call>\n<tool_call>\nping\n{}\n</tool_call>"),
        ("hermes", '```json\n{"name": "ping", "arguments": "null"}\n```'),
        ("hermes", '{"name": "ping", "arguments": {}}'),
        ("llama3_json", '<|python_start|>{"name": "ping", "parameters": {}}<|python_end|>'),
        ("llama3_json", '[{"name": "ping", "parameters": {}}]'),
        ("mistral", '[{"name": "ping", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS] [{"name": "ping", "arguments": {}}] [/TOOL_CALLS]'),
        ("minimax_m2", '[TOOL_CALL] {"tool": "ping", "args": {}} [/TOOL_CALL]'),
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


WRAPPERS = ["tool_calls", "function_calls", "calls", "toolcalls", "tool_call", "function_call", "tool"]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("bars", ["｜DSML｜", "|DSML|", ""])
@pytest.mark.parametrize("tool", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_tags_of_deepseek_are_read_whatever_their_wrapper_and_bars(
    tool: str, bars: str, wrapper: str
) -> None:
    call = (
        f'<{bars}invoke name="get">\n<{bars}parameter name="city" string="true">Paris</{bars}parameter>\n'
        f"</{bars}invoke>"
    )
    for before, after in ((f"<{bars}{wrapper}>\n", f"\n</{bars}tool_calls>"), ("", ""), ("So:\n\n", "")):
        message = read(TOOL_DIALECTS[tool], f"{before}{call}{after}")
        assert [(c.name, json.loads(c.arguments), c.complete) for c in message.calls] == [
            ("get", {"city": "Paris"}, True)
        ]
        assert message.content.strip() == ("So:" if before.startswith("So") else "")


BARS = ["｜DSML｜", "｜DSML｜ ", "|DSML|", "‖DSML‖", "｜｜DSML｜｜", "｜｜DSML｜｜ "]


@settings(max_examples=60)
@given(
    st.sampled_from(["deepseek_v32", "deepseek_v4", "deepseek_v41"]),
    st.tuples(*[st.sampled_from(BARS)] * 4),
    st.sampled_from(["ls 2>/dev/null", "a</parameter>b", "a\n"]),
)
def test_end_tags_of_deepseek_may_have_other_bars_than_the_tags_that_they_end(
    tool: str, bars: tuple[str, ...], text: str
) -> None:
    """Such an end was part of the value, so a command ran with markup behind it."""
    begun, value, call, section = bars
    output = (
        f'<{begun}tool_calls>\n<{begun}invoke name="get">\n'
        f'<{begun}parameter name="city" string="true">{text}</{value}parameter>\n'
        f'<{begun}parameter name="days" string="false">3</{value}parameter>\n'
        f"</{call}invoke>\n</{section}tool_calls>"
    )
    message = read(TOOL_DIALECTS[tool], output)
    assert message.content == ""
    assert [(c.name, json.loads(c.arguments), c.complete) for c in message.calls] == [
        ("get", {"city": text, "days": 3}, True)
    ]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("tool", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
def test_plain_tags_with_nothing_in_them_are_text(tool: str, wrapper: str) -> None:
    """An answer may have XML with elements of these names."""
    for inside in ("", "\n", "[]"):
        output = f"So:\n<{wrapper}>{inside}</{wrapper}>\nThat is it."
        assert read(TOOL_DIALECTS[tool], output).content == output


@pytest.mark.parametrize("wrapped", [True, False])
def test_minimax_m3_may_write_the_tags_of_m2(wrapped: bool) -> None:
    call = '<invoke name="get">\n<parameter name="city">Paris</parameter>\n</invoke>'
    output = f"<minimax:tool_call>\n{call}\n</minimax:tool_call>" if wrapped else call
    message = read(TOOL_DIALECTS["minimax_m3"], output)
    assert (message.content, [(c.name, json.loads(c.arguments)) for c in message.calls]) == (
        "",
        [("get", {"city": "Paris"})],
    )


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_an_end_in_control_tokens_that_ends_nothing_is_nothing(tool: ToolDialect) -> None:
    """Unless it is set off, as in a text about calls."""
    for end in sorted(Markers(tool, None).stray_ends)[:8]:
        with about(end):
            for text in (f"{end}\nSo it is.", f"So it is.{end}", f"So it is.\n{end}", f"So{end} it is."):
                message = read(tool, text)
                assert (message.content.split(), message.calls) == (["So", "it", "is."], [])
            for text in (f"It ends with {end} and so on.", f"It ends with `{end}`, I think."):
                assert read(tool, text).content == text


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_a_call_in_code_within_a_sentence_is_text(tool: ToolDialect) -> None:
    section = tool.sections[0]
    if section.open and not is_control(section.open[0]) and is_markup(section.open[0]):
        text = f"A call is `{render_calls([WrittenCall('ping', '{}')], section).strip()}` here."
        assert (read(tool, text).content, read(tool, text).calls) == (text, [])


LISTS = [
    (tool.name, section.open[0], "".join(section.close[:1]))
    for tool in DIALECTS
    for section in tool.sections
    if section.array and section.open and is_markup(section.open[0])
]


@pytest.mark.parametrize(("tool", "opened", "closed"), LISTS)
def test_an_empty_list_of_calls_is_nothing(tool: str, opened: str, closed: str) -> None:
    for inside in ("[]", "[ ]", " []\n"):
        for before in ("", "So.\n"):
            message = read(TOOL_DIALECTS[tool], f"{before}{opened}{inside}{closed}")
            assert (message.content.strip(), message.calls) == (before.strip(), [])
    unlike = f"{opened}[x]{closed}"
    assert read(TOOL_DIALECTS[tool], unlike).content == unlike


@pytest.mark.parametrize(
    "name", ["functionsget5", "functions.get6", "functions_get_7", "get:0", "functions.get", "a.b.get:1"]
)
@pytest.mark.parametrize("nameless", ["call00003", "call_abc123", "7"])
def test_an_id_of_kimi_in_another_form_names_the_tool(name: str, nameless: str) -> None:
    tool, given = TOOL_DIALECTS["kimi_k2"], '{"city": "Paris", "days": 3}'
    named = json.dumps({"name": "get", "arguments": json.loads(given)})
    beside = json.dumps({"name": "get", **json.loads(given)})
    for call in (f"{name}|{given}", *(f"{nameless}|{one}" for one in (given, named, beside))):
        inside = call.replace("|", "<|tool_call_argument_begin|>")
        message = read(tool, f"<|tool_call_begin|>{inside}<|tool_call_end|>")
        assert [(c.name, json.loads(c.arguments), c.complete) for c in message.calls] == [
            ("get", json.loads(given), True)
        ]
        assert message.content == ""
    # No tool, or several, may be meant.
    unknown = f"<|tool_call_begin|>{nameless}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    assert read(tool, unknown).content == unknown


@pytest.mark.parametrize("output", ["[TOOL_CALLS]print", "[TOOL_CALLS]ping me", "<tool_call>", "get(", "{}"])
@pytest.mark.parametrize("tool", ["mistral", "hermes", "gemma4", "qwen3_coder", "lfm2", "glm47"])
def test_what_is_no_call_is_text_as_a_whole(tool: str, output: str) -> None:
    assert read(TOOL_DIALECTS[tool], output).content == output


@pytest.mark.parametrize("tool", ["hermes", "xlam"])
@pytest.mark.parametrize("call", ['{"name": "ping", "arguments": {}}', '{"name": "ping"}'])
def test_json_in_a_fence_is_a_call_only_as_the_whole_answer(tool: str, call: str) -> None:
    fence = f"```json\n{call}\n```"
    for text in (f"So:\n{fence}", f"{fence}\nThis is how.", f"So:\n{fence}\nThis is how."):
        assert read(TOOL_DIALECTS[tool], text).content == text


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_of_a_call_that_the_limit_cuts_nothing_is_text(tool: ToolDialect) -> None:
    """And what was read of its arguments can be read by others."""
    text = render_calls(
        [WrittenCall("get", '{"city": "Par\\"is", "tags": ["a", "b"], "days": 3}')], tool.sections[0]
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


@given(
    texts=st.lists(
        st.tuples(st.from_regex(r"[a-z][a-z .]{0,9}[a-z]", fullmatch=True), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_texts_of_a_list_may_lack_their_opening_quotes(texts: list[tuple[str, bool]]) -> None:
    tool, q = TOOL_DIALECTS["gemma4"], '<|"|>'
    inside = ",".join(f"{q * opened}{text}{q}" for text, opened in texts)
    message = read(tool, f"<|tool_call>call:get{{tags:[{inside}],days:3}}<tool_call|>")
    assert [json.loads(call.arguments) for call in message.calls] == [
        {"tags": [text for text, _ in texts], "days": 3}
    ]


@pytest.mark.parametrize("flood", ['"', "'", '", "', '"}', "[", ",", "\\", '"a" ', "a ", '"]'])
def test_a_flood_is_read_in_linear_time(flood: str) -> None:
    """Each character is looked at a bounded number of times, so that this ends within the suite's time."""
    for begin in ('{"a": "', '{"a": ["x", '):
        json.loads(scanned(begin + flood * (8000 // len(flood)), [64]) if flood != "[" else "{}")
    assert isinstance(KeyedJson(), KeyedJson)


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
@given(data=st.data())
@settings(max_examples=3)
def test_a_long_run_of_markers_in_a_value_is_read_alike_however_it_is_cut(
    tool: ToolDialect, data: st.DataObject
) -> None:
    """Readers look ahead at 256 characters of markers: a run that ends an answer is its end, a longer one is text."""
    written = render_calls(
        [WrittenCall("get", '{"city": "Paris"}')], data.draw(st.sampled_from(tool.sections))
    )
    head, _, tail = written.partition("Paris")
    markers = [marker.strip() for marker in (*re.findall(r"<[^<>\s]+>|`{3}|\[[A-Z_/]+\]", written), "`")]
    unit = data.draw(st.sampled_from(markers)) + data.draw(st.sampled_from(["", "", " ", "\n"]))
    run = unit * (data.draw(st.integers(1, 600)) // len(unit) + 1)
    read(tool, head + run + data.draw(st.sampled_from(["", "x", tail, "x" + tail])))


@pytest.mark.parametrize("begin", ['{"a": "', '{"a": ', '{"a'])
@pytest.mark.parametrize("sizes", [[4], [256], [100_000]])
def test_a_long_run_of_markers_costs_a_bounded_look_ahead_for_each_piece(
    begin: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, at = 0, Finder.at

    def counted(finder: Finder, text: str, start: int, closed: bool) -> tuple[bool, str | None]:
        nonlocal looks
        looks += 1
        return at(finder, text, start, closed)

    monkeypatch.setattr(Finder, "at", counted)
    parser = kept_dialect(TOOL_DIALECTS["hermes"]).parser(tools=TOOLS)
    text = '<tool_call>{"name": "get", "arguments": ' + begin + "`" * 8_000
    for piece in cut(text, sizes):
        parser.push(TextDelta(piece))

    assert looks <= 400 * len(text) / min(sizes[0], 256)


def _markers(tool: ToolDialect) -> set[str]:
    """What a call of this dialect begins with and ends with, and its parts."""
    section = tool.sections[0]
    own = section.call_format
    found = (*section.open, *section.close, section.item_open, section.item_close, own.begins, *own.ends)
    return {marker for marker in (*found, *own.markers) if marker}


@pytest.mark.parametrize("tool", DIALECTS, ids=[tool.name for tool in DIALECTS])
def test_a_marker_may_come_as_often_as_the_model_likes(tool: ToolDialect) -> None:
    """At every place of a call. A reader that calls itself for each one would end in a RecursionError."""
    text = render_calls([WrittenCall("get", '{"city": "Paris"}')], tool.sections[0])
    places = [
        (0, ""),
        (text.index("get") + 3, ""),
        (text.index("Paris") + 2, ""),
        (text.index("Paris") + 2, " "),
    ]
    for marker in sorted(_markers(tool)):
        for place, gap in places:
            output = text[:place] + f"{marker}{gap}" * 1100 + text[place:]
            with about(f"{marker!r} at {text[:place]!r}"):
                parser = kept_dialect(tool).parser(tools=TOOLS)
                events = [event for piece in cut(output, [256]) for event in parser.push(TextDelta(piece))]
                for call in fold([*events, *parser.finish("stop")]).calls:
                    json.loads(readable_object(call.arguments) or "{}")


@pytest.mark.parametrize("size", [1, 1000, 30_000, 40_000])
@pytest.mark.parametrize("text", ["city=Paris ", "days=3 ", "x "])
def test_a_call_in_words_is_bounded(text: str, size: int) -> None:
    """It is read when all of it has come, so a long one would keep other requests waiting."""
    words = text * (size // len(text))
    message = read(TOOL_DIALECTS["hermes"], f"<tool_call>get city=Paris {words}</tool_call>So.")
    assert [(call.name, call.complete) for call in message.calls] == [("get", size < 32_768)]
    assert message.content == "So."
    if size < 32_768 and text != "x ":
        assert json.loads(message.calls[0].arguments)["city"] == "Paris"
