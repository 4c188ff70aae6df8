"""Bound the cost of decoding a request body, by counting its values first.

A body of 10 MB can be one text, which costs 10 MB, or three million empty lists, which cost 250 MB and stop every
stream for a second. A body is counted without decoding it: brackets, colons and commas outside strings.
"""

from __future__ import annotations

from .errors import ApiError

__all__ = ["MAX_CONTAINERS", "MAX_MEMBERS", "MAX_VALUES", "check_size"]

MAX_CONTAINERS = 100_000
"""Objects and lists of a body. A conversation of 16,000 messages with tool calls has 65,000."""
MAX_MEMBERS = 300_000
"""Members of all objects of a body together."""
MAX_VALUES = 1_500_000
"""Items and members together. A prompt of a million token ids has a million."""

_PIECE = 1 << 20
"""Bytes that are examined at a time, so that counting needs little memory."""


def check_size(body: bytes) -> None:
    """Refuse a body with too many values.

    Raises:
        ApiError: 413 that names the limit that the body exceeds.
    """
    # These counts include brackets in strings. They are fast, and nearly every body passes here.
    containers = body.count(b"[") + body.count(b"{")
    members, items = body.count(b":"), body.count(b",")
    if containers <= MAX_CONTAINERS and members <= MAX_MEMBERS and items <= MAX_VALUES:
        return
    containers, members, items = _outside_strings(body)
    for found, most, noun in (
        (containers, MAX_CONTAINERS, "lists and objects"),
        (members, MAX_MEMBERS, "members of objects"),
        (items, MAX_VALUES, "values"),
    ):
        if found > most:
            raise ApiError(
                413,
                f"The request body has {found} {noun}; this server accepts at most {most}. Send less in one request.",
                code="request_too_large",
            )


def _outside_strings(body: bytes) -> tuple[int, int, int]:
    """Return the numbers of brackets, colons and commas outside strings; arbitrary for a malformed body."""
    # An escaped quote does not end a string. Outside strings, valid JSON has no backslash.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    import numpy as np  # Few bodies are so large, and it takes 0.1 s and 20 MB.

    inside = False
    containers = members = items = 0
    for start in range(0, len(plain), _PIECE):
        piece = np.frombuffer(plain, np.uint8, min(_PIECE, len(plain) - start), start)
        within = np.logical_xor.accumulate(piece == ord('"'))
        if inside:
            within = ~within
        bare = piece[~within]
        containers += int(np.count_nonzero((bare == ord("[")) | (bare == ord("{"))))
        members += int(np.count_nonzero(bare == ord(":")))
        items += int(np.count_nonzero(bare == ord(",")))
        inside = bool(within[-1])
    return containers, members, items
