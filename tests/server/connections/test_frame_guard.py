"""Frames reach the parser in slices of little work, and a message only when there is room for it.

Laws:
    1. However bytes are cut, the parser gets all of them, in slices of `SLICE_FRAMES` frames at most.
    2. Nothing of a message passes before it is admitted, and a message is never larger than what was reserved.
    3. A message has `MAX_SMALL_FRAGMENTS` small fragments at most, whatever its fragments have.
    4. A client sends so many frames a second in the long run, over all its connections.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.laws import EXPLORED

from plumbline.server.start.connections.frame_guard import (
    MAX_SMALL_FRAGMENTS,
    SLICE_FRAMES,
    SMALL,
    FrameGuard,
    TooManyFragmentsError,
)
from plumbline.server.start.connections.pace import FRAMES, ClientPace

MOST = 100_000


def frame(opcode: int, data: bytes, *, last: bool = True, compressed: bool = False) -> bytes:
    """Write a frame with a mask of zeros."""
    first = last << 7 | compressed << 6 | opcode
    if len(data) < 126:
        size = bytes([0x80 | len(data)])
    elif len(data) < 65_536:
        size = b"\xfe" + len(data).to_bytes(2, "big")
    else:
        size = b"\xff" + len(data).to_bytes(8, "big")
    return bytes([first]) + size + bytes(4) + data


PAYLOADS = st.one_of(st.binary(max_size=6), st.sampled_from([130, SMALL, 70_000]).map(bytes))
MESSAGES = st.lists(PAYLOADS, min_size=1, max_size=5)
PINGS = st.lists(st.binary(max_size=5), max_size=2)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Legal frames, and the sizes of their messages."""
    sent, sizes = b"", []
    for _ in range(draw(st.integers(1, 12))):
        parts = draw(MESSAGES)
        for index, part in enumerate(parts):
            sent += b"".join(frame(9, data) for data in draw(PINGS))
            sent += frame(0 if index else 1, part, last=index == len(parts) - 1)
        sizes.append(sum(map(len, parts)))
    return sent, sizes


@settings(max_examples=EXPLORED or 100, deadline=None)
@given(conversations(), st.lists(st.integers(1, 50_000), min_size=1, max_size=8))
def test_frames_pass_in_slices_when_their_message_is_admitted(
    conversation: tuple[bytes, list[int]], cuts: list[int]
) -> None:
    """Laws 1 and 2."""
    sent, sizes = conversation
    guard, passed, reserved, at, turn = FrameGuard(10 * MOST), [], [], 0, 0
    while at < len(sent):
        piece = sent[at : at + cuts[turn % len(cuts)]]
        at, turn = at + len(piece), turn + 1
        guard.add(piece)
        while True:
            before = guard.frames
            taken = guard.take()
            assert guard.frames - before <= SLICE_FRAMES
            if taken is not None:
                passed.append(taken)
            elif guard.wanted is not None:
                reserved.append(guard.wanted)
                guard.admit()
            else:
                break
    assert b"".join(passed) == sent
    assert guard.held == 0
    assert len(reserved) == len(sizes)
    assert all(room >= size for room, size in zip(reserved, sizes, strict=True))


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (frame(1, bytes(500)), 500),
        (frame(2, bytes(70_000)), 70_000),
        (frame(1, b"a", last=False), MOST),
        (frame(1, b"a", compressed=True), MOST),
        (frame(1, bytes(MOST + 1)), MOST),
    ],
)
def test_what_a_message_may_have_is_known_before_it_passes(data: bytes, wanted: int) -> None:
    """Law 2; the parser refuses a message that is too large, at its header."""
    guard = FrameGuard(MOST)
    guard.add(frame(9, b"") + data)
    assert guard.take() == frame(9, b"")
    assert guard.take() is None
    assert guard.wanted == wanted


@pytest.mark.parametrize("payload", [b"", b"a", bytes(SMALL - 1)])
def test_a_message_has_few_small_fragments(payload: bytes) -> None:
    """Law 3."""
    guard = FrameGuard(MOST)
    guard.admit()
    guard.add(frame(1, b"", last=False) + frame(0, payload, last=False) * (MAX_SMALL_FRAGMENTS - 1))
    while guard.take() is not None:
        pass
    guard.add(frame(0, payload, last=False))
    with pytest.raises(TooManyFragmentsError):
        guard.take()


def test_large_fragments_are_not_counted() -> None:
    guard = FrameGuard(MOST)
    guard.admit()
    guard.add(frame(1, b"", last=False) + frame(0, bytes(SMALL), last=False) * (3 * MAX_SMALL_FRAGMENTS))
    while guard.take() is not None:
        pass
    assert guard.held == 0


@settings(max_examples=EXPLORED or 100)
@given(st.lists(st.tuples(st.integers(0, 3 * SLICE_FRAMES), st.floats(0, 0.2)), max_size=60))
def test_a_client_sends_so_many_frames_a_second(slices: list[tuple[int, float]]) -> None:
    """Law 4."""
    now = 0.0
    pace = ClientPace(FRAMES, lambda: now)
    sent = 0
    for frames, idle in slices:
        now += idle
        sent += frames
        now += pace.take(frames)
        assert sent <= FRAMES[1] + FRAMES[0] * now + 1e-6
