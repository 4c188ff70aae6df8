"""Compressed bodies: what they unpack to, as they come, and the packed bytes beside it."""

from __future__ import annotations

import zlib

import msgspec

from plumbline_conformance.transcript.model import Exchange

__all__ = ["ACCEPTED", "Unpacked"]

ACCEPTED = "gzip, deflate"
"""What the judge asks for: the codings that the SDKs ask for and that Python can unpack by itself."""
_EITHER_HEAD, _NO_HEAD = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS


class Unpacked:
    """The content of a body, as far as it is wanted."""

    def __init__(self, coding: str | None, limit: int) -> None:
        self._coding = (coding or "identity").strip().lower() or "identity"
        self._readable = self._coding in ("identity", "gzip", "x-gzip", "deflate")
        packed = self._readable and self._coding != "identity"
        self._inflate = zlib.decompressobj(_EITHER_HEAD) if packed else None
        self._limit = self._left = self._room = limit
        self._begun = False
        self._more = False
        self.cut = False

    def feed(self, data: bytes) -> bytes:
        """The content of these bytes; a few kilobytes can be gigabytes, so what is over the limit is not unpacked."""
        if self.ended:
            return b""
        self._room -= len(data)
        if self._inflate is not None:
            try:
                data = self._unpack(data)
            except zlib.error:
                self._readable = False
                return b""
        if len(data) > self._left or self._room < 0:
            self.cut = True
            data = data[: self._left]
        self._left -= len(data)
        return data

    def _unpack(self, data: bytes) -> bytes:
        assert self._inflate is not None
        first, self._begun = not self._begun, True
        if self._inflate.eof:
            self._more = True
            return b""
        try:
            return self._inflate.decompress(data, self._left + 1)
        except zlib.error:
            if self._coding != "deflate" or not first:
                raise
        # Half of the world takes "deflate" for the format without zlib's head, and clients read both.
        self._inflate = zlib.decompressobj(_NO_HEAD)
        return self._inflate.decompress(data, self._left + 1)

    @property
    def _behind(self) -> bool:
        """Whether something follows the first member of a packed body: legal for gzip, and lost on most clients."""
        return self._more or (self._inflate is not None and bool(self._inflate.unused_data))

    @property
    def packed(self) -> bool:
        """Whether what comes is not the content itself."""
        return self._inflate is not None

    @property
    def ended(self) -> bool:
        """Whether nothing more of the body is wanted."""
        return self.cut or not self._readable

    @property
    def why(self) -> str | None:
        """Why the content is not the whole, if it is not."""
        if self.cut:
            return f"the body is longer than {self._limit} bytes"
        if self._behind:
            return (
                f"the body goes on where what is packed as {self._coding} ends, and clients read no further"
            )
        return None if self._readable else f"the body is packed as {self._coding}, and cannot be unpacked"

    def keep(self, exchange: Exchange, moment: float, data: bytes) -> None:
        """Add what came to the exchange: its content, and the packed bytes where it was packed."""
        content = self.feed(data)
        if content:
            exchange.frames.append((moment, content))
        if self._inflate is not None:
            packed = [] if exchange.packed is msgspec.UNSET else exchange.packed
            packed.append((moment, data))
            exchange.packed = packed

    def settle(self, exchange: Exchange) -> None:
        """Keep the packed bytes only if all of them were unpacked: who covers a key has to know what is in them."""
        seen = self._inflate is not None and self._inflate.eof
        if self.ended or not seen or self._behind:
            exchange.packed = msgspec.UNSET
