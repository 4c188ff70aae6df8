"""The event parser agrees with a simple one that reads byte by byte."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline_conformance.transcript.sse import Event, load_json, parse_blocks, parse_events

SETTINGS = settings(max_examples=EXPLORED or 60, deadline=None, database=None)
LINES = st.one_of(
    st.sampled_from(
        ["", "data", "data:", "data: ", "data:  x", ":", ": ping", "event: e", "id: 1", "retry: 2"]
    ),
    st.builds(
        "data: {}".format, st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=5)
    ),
    st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=5),
)
ENDS = st.sampled_from(["\n", "\r", "\r\n"])


def naive(body: bytes) -> list[tuple[str | None, str | None, tuple[str, ...], int, bool]]:
    """The WHATWG algorithm, one character at a time."""
    text = body.decode("utf-8", "replace")
    if text.startswith("\ufeff"):
        text = text[1:]
    lines, line, position = [], "", 0
    while position < len(text):
        char = text[position]
        position += 1
        if char not in "\r\n":
            line += char
            continue
        if char == "\r" and text[position : position + 1] == "\n":
            position += 1
        lines.append(line)
        line = ""
    found, block = [], []
    for complete in [*lines, None]:
        if complete is None:
            block += [line] if line else []
        elif complete:
            block.append(complete)
            continue
        pairs = [part.split(":", 1) if ":" in part else [part, ""] for part in block]
        fields = [(name, value[1:] if value[:1] == " " else value) for name, value in pairs]
        data = [value for name, value in fields if name == "data"]
        names = [value for name, value in fields if name == "event"]
        others = tuple(name for name, _ in fields if name not in ("", "data", "event"))
        if data or names or others:
            comments = sum(name == "" for name, _ in fields)
            joined = "\n".join(data) if data else None
            found.append((joined, names[-1] if names else None, others, comments, complete is not None))
        block = []
    return found


def read(body: bytes) -> list[tuple[str | None, str | None, tuple[str, ...], int, bool]]:
    return [(e.data, e.name, e.fields, e.comments, e.closed) for e in parse_blocks(body)]


@SETTINGS
@given(st.lists(st.tuples(LINES, ENDS), max_size=12), LINES, st.booleans())
@example([("data: a", "\r"), ("", "\n")], "", False)
@example([("data: a", "\r\n"), ("", "\r\n")], "", True)
def test_streams_of_lines_are_read_by_the_standard(
    lines: list[tuple[str, str]], rest: str, marked: bool
) -> None:
    """SSE-01, SSE-02: any line end, a byte order mark or none, a last line with or without an end."""
    body = ("\ufeff" * marked + "".join(line + end for line, end in lines) + rest).encode()

    assert read(body) == naive(body)


@SETTINGS
@given(st.lists(st.sampled_from([b"data: a", b"\n", b"\r", b":", b"\xef\xbb\xbf", b"\xc3", b"\xb6", b" "])))
def test_any_bytes_are_read_by_the_standard(parts: list[bytes]) -> None:
    body = b"".join(parts)

    assert read(body) == naive(body)


@SETTINGS
@given(st.lists(st.text(st.characters(exclude_characters="\r", codec="utf-8")), min_size=1), ENDS)
def test_data_fields_are_read_as_data(texts: list[str], end: str) -> None:
    """Line feeds in data become several `data` lines and come back as line feeds."""
    events = ["".join(f"data: {line}{end}" for line in text.split("\n")) + end for text in texts]

    found = parse_blocks("".join(events).encode())

    assert [event.data for event in found] == texts
    assert all(event.closed for event in found)


@SETTINGS
@given(st.lists(st.sampled_from(["data: a", "data: b", "event: e"]), min_size=1), st.lists(st.integers(0, 6)))
def test_comments_between_events_change_nothing(lines: list[str], places: list[int]) -> None:
    """SSE-08: keep-alives are comments, and no events."""
    blocks = [f"{line}\n\n" for line in lines]
    talking = list(blocks)
    for place in places:
        talking.insert(place, ": ping\n\n")

    assert read("".join(talking).encode()) == read("".join(blocks).encode())


@SETTINGS
@given(st.lists(st.sampled_from(["data: a", "data:", "data", "id: 1", "retry: 2", "x", "event: e", ": c"])))
def test_blocks_that_no_client_dispatches_are_no_events(lines: list[str]) -> None:
    """Only data is dispatched; a name without data is kept, because clients decode it (SSE-03)."""
    body = "".join(f"{line}\n\n" for line in lines).encode()

    kept = [line for line in lines if line in ("data: a", "event: e")]
    assert parse_events(body) == parse_blocks("".join(f"{line}\n\n" for line in kept).encode())


def test_an_event_without_a_blank_line_is_noted() -> None:
    """SSE-01."""
    assert parse_events(b"data: a\n") == [Event(data="a", closed=False)]
    assert parse_events(b"data: a") == [Event(data="a", closed=False)]
    assert parse_events(b"data: a\n\n") == [Event(data="a", closed=True)]
    assert parse_events(b"data: a\n\n: bye") == [Event(data="a", closed=True)]


def test_what_is_not_json_is_none() -> None:
    for text in ("", "NaN", "[Infinity]", "{", "[" * 100_000, "1 2", b"\xff"):
        assert load_json(text) is None
    assert load_json('{"a": [1]}') == {"a": [1]}
