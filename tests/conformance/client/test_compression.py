"""Test compressed bodies: decompressed for checks, recorded as received, reported if invalid."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from example_servers.hostile_servers import hostile
from example_servers.proxied_servers import GET, between, replays, talk
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline_conformance.client.compression import Unpacked
from plumbline_conformance.client.http import sender
from plumbline_conformance.recording.file import Recorder, RecordingHeader, read_recording
from plumbline_conformance.suite.scenario import Request, Target
from plumbline_conformance.transcript.exchange import Exchange, Transcript

LIMIT = 1000


def _gzip(data: bytes) -> bytes:
    """Compress without a time stamp, which would differ between test processes."""
    return gzip.compress(data, mtime=0)


def _deflate_without_header(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    " GZip ": _gzip,
    "deflate": zlib.compress,
    "Deflate": _deflate_without_header,
}


def empty() -> Exchange:
    return Exchange(method="GET", url="http://h/", request_headers={}, request_body=b"")


@given(
    st.sampled_from(sorted(CODINGS)), st.binary(max_size=LIMIT), st.lists(st.integers(0, 1200), max_size=5)
)
@example("Deflate", b"", [1])
def test_any_cutting_unpacks_to_the_same_and_is_kept(coding: str, content: bytes, cuts: list[int]) -> None:
    packed = CODINGS[coding](content)
    edges = [0, *sorted(min(cut, len(packed)) for cut in cuts), len(packed)]
    body, exchange = Unpacked(coding, 2 * LIMIT), empty()

    for place, (start, stop) in enumerate(itertools.pairwise(edges)):
        if start < stop:
            body.keep(exchange, float(place), packed[start:stop])
    body.settle(exchange)

    assert body.why is None
    assert exchange.body == content
    assert isinstance(exchange.packed, list)
    assert b"".join(part for _, part in exchange.packed) == packed
    assert {moment for moment, _ in exchange.frames} <= {moment for moment, _ in exchange.packed}


@pytest.mark.parametrize("coding", [None, "", "identity"])
def test_what_is_not_packed_is_kept_once(coding: str | None) -> None:
    body, exchange = Unpacked(coding, LIMIT), empty()

    body.keep(exchange, 1.0, b"plain")
    body.settle(exchange)

    assert exchange.frames == [(1.0, b"plain")]
    assert not isinstance(exchange.packed, list)


@pytest.mark.parametrize(
    ("coding", "packed", "reason"),
    [
        ("gzip", b"nope", "packed as gzip"),
        ("br", b"anything", "packed as br"),
        ("gzip, br", _gzip(b"x"), "packed as gzip, br"),
        ("deflate", b"\xff\xff\xff", "packed as deflate"),
        ("gzip", _gzip(b"x" * 10_000_000), f"longer than {LIMIT}"),
        ("gzip", _gzip(b"") + bytes(2 * LIMIT), f"longer than {LIMIT}"),
    ],
    ids=["nope", "br", "two codings", "no deflate", "a bomb", "nothing for ever"],
)
def test_what_cannot_be_unpacked_is_reported_and_not_kept(coding: str, packed: bytes, reason: str) -> None:
    body, exchange = Unpacked(coding, LIMIT), empty()

    body.keep(exchange, 0.0, packed)
    body.keep(exchange, 1.0, b"more")
    body.settle(exchange)

    assert reason in str(body.why)
    assert len(exchange.body) <= LIMIT
    assert not isinstance(exchange.packed, list)


@pytest.mark.parametrize("cuts", [[], [3], [-9], [-30], [10, -30, -9]])
def test_bytes_after_the_first_gzip_stream_are_reported(cuts: list[int]) -> None:
    """Most clients stop there, so the answer is unknown."""
    packed = _gzip(b"content") + _gzip(b"and more")
    edges = [0, *sorted(cut % len(packed) for cut in cuts), len(packed)]
    body, exchange = Unpacked("gzip", LIMIT), empty()

    for start, stop in itertools.pairwise(edges):
        body.keep(exchange, 0.0, packed[start:stop])
    body.settle(exchange)

    assert "goes on" in str(body.why)
    assert exchange.body == b"content"


@pytest.mark.parametrize("behind", [b"", b"behind"])
@pytest.mark.parametrize("cut", [0, 4])
def test_packed_bytes_are_kept_if_all_of_them_are_known(behind: bytes, cut: int) -> None:
    """Bytes that were not decompressed are not written, because they may contain a key."""
    packed = _gzip(b"content")
    body, exchange = Unpacked("gzip", LIMIT), empty()

    body.keep(exchange, 0.0, packed[: len(packed) - cut])
    if behind:
        body.keep(exchange, 1.0, behind)
    body.settle(exchange)

    assert isinstance(exchange.packed, list) == (not behind and not cut)


KEY = "sk-not-to-be-written"


@pytest.mark.parametrize("text", [b'{"object": "list", "data": []}', f'{{"error": "{KEY}"}}'.encode()])
def test_a_recording_has_a_body_as_it_came_unless_a_key_is_in_it(tmp_path: Path, text: bytes) -> None:
    packed = _gzip(text)

    async def packs(writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
        writer.write(head + packed)

    async def ask(base_url: str) -> Exchange:
        async with sender(Target(base_url=base_url, model="m"), 5.0) as send:
            return await send(Request(path="/models", method="GET"))

    with hostile(packs) as base_url:
        exchange = asyncio.run(ask(base_url))
    with Recorder(tmp_path / "run.jsonl", RecordingHeader.of("http://h/v1", "m"), secrets=[KEY]) as recorder:
        recorder.add(Transcript(scenario="models/list", exchanges=[exchange]))
    [found] = read_recording(tmp_path / "run.jsonl").transcripts[0].exchanges

    assert exchange.body == text
    if KEY.encode() in text:
        assert not isinstance(found.packed, list)
        assert KEY.encode() not in found.body
    else:
        assert found.body == text
        assert isinstance(found.packed, list)
        assert b"".join(part for _, part in found.packed) == packed


def test_what_passes_packed_is_kept_packed() -> None:
    packed = _gzip(b'{"object": "list"}')
    answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed

    with between(replays(answer)) as (port, _, seen):
        assert talk(port, GET) == answer

    assert seen[0].json == {"object": "list"}
    assert isinstance(seen[0].packed, list)
    assert b"".join(part for _, part in seen[0].packed) == packed
