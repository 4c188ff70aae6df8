"""Test how our runner of vectors joins the frames of a WebSocket (RFC 6455, section 5.4)."""

from __future__ import annotations

from typing import Any

import pytest

from own_server.runner import _unframed


def frames(*rows: tuple[str, str, bool]) -> list[dict[str, Any]]:
    return [{"opcode": opcode, "text": text, "fin": fin} for opcode, text, fin in rows]


@pytest.mark.parametrize(
    ("given", "messages", "framed"),
    [
        ([("text", "a", True), ("text", "b", True)], [b"a", b"b"], True),
        ([("text", "a", False), ("ping", "", True), ("continuation", "b", True)], [b"ab"], True),
        ([("text", "", False), ("continuation", "", False), ("continuation", "b", True)], [b"b"], True),
        ([("text", "a", True), ("text", "b", False)], [b"a"], False),
        ([("text", "a", False), ("text", "b", True)], [], False),
        ([("continuation", "a", True)], [], False),
        ([("text", "a", True), ("continuation", "b", True)], [b"a"], False),
    ],
)
def test_a_message_ends_with_its_last_frame(
    given: list[tuple[str, str, bool]], messages: list[bytes], framed: bool
) -> None:
    assert _unframed(frames(*given)) == (messages, False, framed)


def test_the_first_frame_says_whether_a_message_is_binary() -> None:
    given = [("binary", "a", False), ("continuation", "b", True)]
    assert _unframed(frames(*given)) == ([b"ab"], True, True)
