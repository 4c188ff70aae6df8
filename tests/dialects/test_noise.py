"""Words and ends around calls that mean nothing, in every dialect.

Laws:
    1. Words between the marker of calls and a call are text; the marker belongs to the call. Between two control tokens
       they may be of any form.
    2. Ends of calls that end none are nothing, after prose and before a call or the end of the answer.
    3. What an answer shows, quotes or explains of its markers is text, to the letter.
    4. A call begins with the name of its tool where the model leaves out the marker, at the beginning of a line only.
    5. Where nothing follows it to the end of the answer, the beginning or end of a call behind a call is nothing.
    6. None of this depends on how the output is cut.
"""

from __future__ import annotations

import json

import pytest
from dialects.test_defects import DIALECTS, read
from hypothesis import given
from hypothesis import strategies as st
from support.about import about

from plumbline.answer.dialects.parsers.render import render_calls
from plumbline.answer.dialects.registry import TOOL_DIALECTS
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Section, ToolDialect
from plumbline.answer.dialects.spec.markers import Markers, is_control, is_tag

PARIS = WrittenCall("get", '{"city": "Paris", "days": 3}')
PING = WrittenCall("ping", "{}")
_words = st.lists(st.sampled_from(["Let", "me", "look", "now", "at", "Paris", "3"]), min_size=1).map(" ".join)


def _begins_with_tag(tool: ToolDialect) -> bool:
    section = tool.sections[0]
    return bool(section.open) and is_tag(section.open[0]) and not section.recipient


MARKED = [tool for tool in DIALECTS if _begins_with_tag(tool)]
NUMBERED = [tool for tool in MARKED if is_control(tool.sections[0].open[0]) and tool.sections[0].item_open]
CLOSED = [tool for tool in DIALECTS if Markers(tool, None).plain_closers]
NAMED = [tool for tool in DIALECTS if Markers(tool, None).named]


@given(words=_words, before=st.sampled_from(["", "So.\n", "So:\n\n"]), data=st.data())
def test_words_between_a_marker_and_its_call_are_text(words: str, before: str, data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(MARKED))
    begin, end = data.draw(
        st.sampled_from([("", ".\n"), ("\n", ":\n"), ("\n", "\n"), ("", "! "), ("\n\n", ".\n\n")])
    )
    section, opened = tool.sections[0], tool.sections[0].open[0]
    output = before + render_calls([PARIS], section).replace(opened, f"{opened}{begin}{words}{end}", 1)
    with about(f"{tool.name}: {output!r}"):
        message = read(tool, output)
        assert message.content.split() == f"{before}{words}{end}".split()
        assert [(c.name, json.loads(c.arguments), c.complete) for c in message.calls] == [
            ("get", json.loads(PARIS.arguments), True)
        ]


@given(
    words=_words,
    before=st.sampled_from(["", "So. ", "So:\n\n"]),
    gaps=st.tuples(*[st.sampled_from(["", " ", "\n"])] * 2),
    data=st.data(),
)
def test_words_between_two_control_tokens_are_text(
    words: str, before: str, gaps: tuple[str, str], data: st.DataObject
) -> None:
    tool = data.draw(st.sampled_from(NUMBERED))
    section, opened = tool.sections[0], tool.sections[0].open[0]
    text = render_calls([PARIS, PING], section)
    output = before + text.replace(opened, f"{opened}{gaps[0]}{words}{gaps[1]}", 1)
    with about(f"{tool.name}: {output!r}"):
        message = read(tool, output)
        assert message.content.split() == f"{before} {words}".split()
        assert [(c.name, c.complete) for c in message.calls] == [("get", True), ("ping", True)]


BEGUN = [tool for tool in DIALECTS if Markers(tool, None).begins]


@given(gap=st.sampled_from(["", "\n", "\n\n"]), after=st.sampled_from(["", "\n"]), data=st.data())
def test_what_begins_or_ends_a_call_is_nothing_at_the_end_of_an_answer_with_calls(
    gap: str, after: str, data: st.DataObject
) -> None:
    tool = data.draw(st.sampled_from(BEGUN))
    markers, whole = Markers(tool, None), render_calls([PARIS], tool.sections[0])
    marker = data.draw(st.sampled_from([*markers.begins, *(["</_call>"] if markers.in_tags else [])]))
    sizes = st.integers(1, len(marker)) if is_control(marker) else st.just(len(marker))
    begun = marker[: data.draw(sizes)]
    with about(f"{tool.name}: {begun!r}"):
        message = read(tool, f"{whole}{gap}{begun}{after}")
        assert message.content.strip() == ("" if begun == marker or is_control(begun) else begun)
        assert [(c.name, c.complete) for c in message.calls] == [("get", True)]
        assert read(tool, f"{whole}\n\nUse {marker} for it.").content == f"Use {marker} for it."


@pytest.mark.parametrize("tool", MARKED, ids=[tool.name for tool in MARKED])
def test_words_about_a_marker_are_text_with_it(tool: ToolDialect) -> None:
    opened = tool.sections[0].open[0]
    for output in (
        f"{opened} begins a call. Then comes its name.",
        f"{opened}\nbegins a call:\n",
        f"{opened}Let me look.",
        f"So it is.\n{opened}\nNothing follows.",
        f"{opened}Let me look.\nget the book (by hand).",
    ):
        with about(output):
            assert read(tool, output).content == output


@given(
    words=_words, gap=st.sampled_from(["", "\n", "\n\n"]), after=st.sampled_from(["", "\n"]), data=st.data()
)
def test_ends_that_end_no_call_are_nothing(words: str, gap: str, after: str, data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(CLOSED))
    markers = Markers(tool, None)
    inner = data.draw(st.lists(st.sampled_from(markers.plain_ends.markers), max_size=2))
    closer = data.draw(st.sampled_from(sorted(markers.plain_closers)))
    output = f"{words}.{gap}{after.join([*inner, closer])}{after}"
    with about(f"{tool.name}: {output!r}"):
        assert (read(tool, output).content, read(tool, output).calls) == (f"{words}.", [])
        followed = read(tool, output + render_calls([PING], tool.sections[0]))
        assert (followed.content, [c.name for c in followed.calls]) == (f"{words}.", ["ping"])


@given(words=_words, data=st.data())
def test_ends_that_are_shown_are_text(words: str, data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(CLOSED))
    closer = data.draw(st.sampled_from(sorted(Markers(tool, None).plain_closers)))
    opened = f"<{closer[2:]}"
    for output in (
        closer,
        f"{words} {closer}",
        f"{words} `{closer}`",
        f"{words}:\n{closer}",
        f"{words}:{closer}",
        f"{words}\n{closer}\n{words}",
        f"{words}\n{closer} {words}",
        f"```xml\n<a>\n{closer}\n```",
        f"{opened}\n{words}\n{closer}",
        f"{words} `{opened}` {words}\n{closer}",
        f"{words} {opened} {words}\n{closer}",
    ):
        with about(f"{tool.name}: {output!r}"):
            assert read(tool, output).content == output


def _without_beginning(section: Section, call: WrittenCall) -> str:
    text = render_calls([call], section)
    for opened in (section.open[0], section.item_open):
        text = text.replace(opened, "", 1)
    return text.lstrip()


@given(words=_words, call=st.sampled_from([PARIS, PING]), data=st.data())
def test_a_call_without_its_beginning_is_one_at_the_beginning_of_a_line(
    words: str, call: WrittenCall, data: st.DataObject
) -> None:
    tool = data.draw(st.sampled_from(NAMED))
    text, whole = _without_beginning(tool.sections[0], call), render_calls([PING], tool.sections[0])
    meant = (call.name, json.loads(call.arguments), True)
    for output, content, calls in (
        (text, "", [meant]),
        (f"{words}\n{text}", words, [meant]),
        (f"{text}\n{words}", words, [meant]),
        (f"{text}\n{text}", "", [meant, meant]),
        (f"{words}.\n\n{text}\n{whole}", f"{words}.", [meant, ("ping", {}, True)]),
    ):
        with about(f"{tool.name}: {output!r}"):
            message = read(tool, output)
            assert message.content == content
            assert [(c.name, json.loads(c.arguments), c.complete) for c in message.calls] == calls
    for output in (f"{words}: `{text}` {words}", f"```\n{text}\n```\n{words}", f"a{text}"):
        with about(f"{tool.name}: {output!r}"):
            assert read(tool, output).calls == []


@pytest.mark.parametrize(
    "text",
    ["get", "ping", "get\n", "get {city}", "ping me", "get <b>it</b>", "So\nget it\nping", "<arg_key>"],
)
@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize("tool", ["glm45", "glm47", "hy_v3", "k2_horizon"])
def test_a_line_that_begins_with_the_name_of_a_tool_is_text(tool: str, text: str, reason: str) -> None:
    assert read(TOOL_DIALECTS[tool], text, reason).content == text  # type: ignore[arg-type]
