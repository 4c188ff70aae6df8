"""Check API keys (HTTP-06)."""

from __future__ import annotations

import hashlib
import hmac

__all__ = ["KeyRing"]


class KeyRing:
    """The keys that the server accepts. Without keys it accepts every request."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        # Digests have one length, so the time of a comparison does not depend on the length of a key.
        self._digests = [_digest(key) for key in keys]

    @property
    def open(self) -> bool:
        """Whether the server checks no keys."""
        return not self._digests

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header has one of the keys, in a time that does not depend on which."""
        if self.open:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        return self.has(token.strip()) and scheme.lower() == "bearer"

    def has(self, key: str) -> bool:
        """Return whether this is one of the keys, in a time that does not depend on which."""
        given = _digest(key)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
