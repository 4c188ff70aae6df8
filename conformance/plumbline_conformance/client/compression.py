"""Decompress bodies as they arrive, and keep the compressed bytes as well."""

from __future__ import annotations

import zlib

import msgspec

from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["ACCEPTED", "Unpacked"]

ACCEPTED = "gzip, deflate"
"""The `Accept-Encoding` of the judge: codings that SDKs request and Python can decompress."""
_EITHER_HEAD, _NO_HEAD = zlib.MAX_WBITS | 32, -zlib.MAX_WBITS


class Unpacked:
    """Decompress one body, up to a limit."""

    def __init__(self, coding: str | None, limit: int) -> None:
        self._coding = (coding or "identity").strip().lower() or "identity"
        self._readable = self._coding in ("identity", "gzip", "x-gzip", "deflate")
        packed = self._readable and self._coding != "identity"
        self._inflate = zlib.decompressobj(_EITHER_HEAD) if packed else None
        self._limit = self._left = self._room = limit
        self._before: bytes | None = b""
        self._more = False
        self.cut = False

    def feed(self, data: bytes) -> bytes:
        """Return the content of these bytes, up to the limit: a few kilobytes can decompress to gigabytes."""
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
        if self._inflate.eof:
            self._more = True
            return b""
        # zlib rejects a missing header at the second byte, so the first one may have come alone.
        before = self._before
        received = (before or b"") + data
        self._before = received if len(received) < 2 else None
        try:
            return self._inflate.decompress(data, self._left + 1)
        except zlib.error:
            if self._coding != "deflate" or before is None:
                raise
        # Many servers send "deflate" without the zlib header, and clients accept both.
        self._inflate = zlib.decompressobj(_NO_HEAD)
        return self._inflate.decompress(received, self._left + 1)

    @property
    def _behind(self) -> bool:
        """Whether data follows the first gzip member, which is legal but ignored by most clients."""
        return self._more or (self._inflate is not None and bool(self._inflate.unused_data))

    @property
    def packed(self) -> bool:
        """Whether the body is compressed."""
        return self._inflate is not None

    @property
    def ended(self) -> bool:
        """Whether the limit is reached."""
        return self.cut or not self._readable

    @property
    def damaged(self) -> bool:
        """Whether the body is not packed as its header says, in a coding that clients accept."""
        return self._inflate is not None and not self._readable

    @property
    def why(self) -> str | None:
        """The reason why the content is incomplete, or None."""
        if self.cut:
            return f"the body is longer than {self._limit} bytes"
        if self._behind:
            return (
                f"the body goes on where what is packed as {self._coding} ends, and clients read no further"
            )
        return None if self._readable else f"the body is packed as {self._coding}, and cannot be unpacked"

    def keep(self, exchange: Exchange, moment: float, data: bytes) -> None:
        """Add received bytes to the exchange: their content, and the compressed bytes if it is compressed."""
        content = self.feed(data)
        if content:
            exchange.frames.append((moment, content))
        if self._inflate is not None:
            packed = [] if exchange.packed is msgspec.UNSET else exchange.packed
            packed.append((moment, data))
            exchange.packed = packed

    def settle(self, exchange: Exchange) -> None:
        """Keep the compressed bytes only if all were decompressed, because redaction must see their content."""
        seen = self._inflate is not None and self._inflate.eof
        if self.ended or not seen or self._behind:
            exchange.packed = msgspec.UNSET
