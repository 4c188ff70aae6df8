"""Cut the frames of a WebSocket (RFC 6455, section 5.2) into slices of little work, before the parser gets them.

The parser needs about 25 µs for a frame, and a slice of 64 KiB can have 11,000 of 6 bytes. Thousands of empty
fragments make one message, and pings cost as much as messages. The guard counts frames without reading payloads or
doing I/O, and stops before each message, so that the room for it can be reserved.
"""

from __future__ import annotations

__all__ = [
    "MAX_SMALL_FRAGMENTS",
    "SLICE_FRAMES",
    "SMALL",
    "FrameGuard",
    "TooManyFragmentsError",
]

SLICE_FRAMES = 32
"""Frames that are parsed before other connections have their turn: 1 ms."""
SMALL = 1024
"""Bytes of payload; fragments with fewer are small."""
MAX_SMALL_FRAGMENTS = 256
"""Of one message. Clients cut messages by the size of a buffer, which is larger than `SMALL`."""
_CONTROL = 8
"""The least opcode of frames that are not parts of messages."""


class TooManyFragmentsError(Exception):
    """A message has too many small fragments."""


class FrameGuard:
    """The bytes of one connection that the parser has not got.

    Args:
        most: bytes that a message may have.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the payload that have not come."""
        self._small = 0
        """Small fragments of the current message."""
        self._admitted = False
        self.wanted: int | None = None
        """Bytes to reserve for the message that comes next, or None; `admit` lets it pass."""
        self.frames = 0
        """Frames in the pieces that `take` has returned."""

    @property
    def held(self) -> int:
        """The bytes that wait."""
        return len(self._buffer)

    def add(self, data: bytes) -> None:
        """Append what the client sent."""
        self._buffer += data

    def rest(self) -> bytes:
        """Return what waits; nothing waits then."""
        found = bytes(self._buffer)
        self._buffer.clear()
        return found

    def admit(self) -> None:
        """Let the next message pass."""
        self.wanted = None
        self._admitted = True

    def take(self) -> bytes | None:
        """Return the next bytes for the parser, or None until more have come or the next message is admitted.

        Raises:
            TooManyFragmentsError: the message must not be continued.
        """
        buffer, at, size, frames = self._buffer, 0, len(self._buffer), 0
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
                continue
            if frames == SLICE_FRAMES or size - at < 2:
                break
            first, second = buffer[at], buffer[at + 1] & 0x7F
            extended = {126: 2, 127: 8}.get(second, 0)
            header = 2 + extended + (4 if buffer[at + 1] & 0x80 else 0)
            if size - at < header:
                break
            length = int.from_bytes(buffer[at + 2 : at + 2 + extended], "big") if extended else second
            if not self._may_pass(first, length):
                break
            self._left = length
            at += header
            frames += 1
        self.frames += frames
        if not at:
            return None
        found = bytes(buffer[:at])
        del buffer[:at]
        return found

    def _may_pass(self, first: int, length: int) -> bool:
        opcode, is_last = first & 0x0F, bool(first & 0x80)
        if opcode >= _CONTROL:
            return True
        if opcode and not self._admitted:
            # What a message in fragments, or a compressed one (RSV1), will have is not known.
            self.wanted = min(length, self._most) if is_last and not first & 0x40 else self._most
            return False
        self._admitted = False
        if is_last:
            self._small = 0
        elif length < SMALL:
            self._small += 1
            if self._small > MAX_SMALL_FRAGMENTS:
                raise TooManyFragmentsError
        return True
