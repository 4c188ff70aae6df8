"""Test finding the end of HTTP/1.1 messages, however they are cut, and refusing malformed ones."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from plumbline_conformance.watch.http1 import BodyFramer, Malformed, MessageHead


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=5),
    st.sets(st.integers(0, 300)),
    st.binary(max_size=9),
)
def test_chunks_end_where_they_end_however_they_are_read(
    parts: list[bytes], cuts: set[int], rest: bytes
) -> None:
    wire = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\nx: y\r\n\r\n" + rest
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    body = BodyFramer(chunked=True)
    payload = after = b""
    for start, stop in pairwise(edges):
        found, left = body.feed(wire[start:stop]) if not body.done else (b"", wire[start:stop])
        payload += found
        after += left

    assert (payload, after, body.done) == (b"".join(parts), rest, True)


@given(st.binary(max_size=50), st.integers(0, 60), st.integers(0, 60))
def test_a_body_ends_after_its_content_length(data: bytes, length: int, cut: int) -> None:
    body = BodyFramer(length=length)

    first = body.feed(data[:cut])
    second = body.feed(data[cut:])

    assert first[0] + second[0] == data[:length]
    assert first[1] + second[1] == data[length:]
    assert body.done == (len(data) >= length)


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else(data: bytes) -> None:
    for act in (lambda: BodyFramer(chunked=True).feed(data), lambda: MessageHead(data)):
        try:
            act()
        except Malformed:
            continue


def test_the_head_is_handed_on_but_for_the_host() -> None:
    raw = b"POST /v1/x HTTP/1.1\r\nHoSt: here\r\nX-A:  citt\xc3\xa0 \r\nx-a:c\t\r\n\r\n"

    assert MessageHead(raw).encode([("host", "there")]) == raw.replace(b"here", b"there")
    assert MessageHead(raw).get("x-a") == "citt\xc3\xa0"
