"""Check API keys (HTTP-06) and admin keys."""

from __future__ import annotations

import hmac

from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import ApiError, invalid_admin_key, no_admin_keys
from plumbline.server.settings.keys import Key, digest_of, read_key

__all__ = ["KEYS", "KeyRing", "admin_error", "as_sent"]

KEYS = "keys"
"""Key of the application's state."""


class KeyRing:
    """The keys that the server accepts. Without keys it accepts every request."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.use(keys)

    def use(self, keys: tuple[str, ...]) -> None:
        """Replace the keys."""
        self.keys = tuple(map(read_key, keys))

    @property
    def open(self) -> bool:
        """Whether the server checks no keys."""
        return not self.keys

    def accepts(self, authorization: str | None) -> bool:
        """Return whether an `Authorization` header has one of the keys, in a time that does not depend on which."""
        if self.open:
            return True
        scheme, _, token = (authorization or "").partition(" ")
        return self.has(token.strip()) and scheme.lower() == "bearer"

    def find(self, key: str) -> Key:
        """Return what the operator wrote of a key; a key without name and limits if it is not one of the keys."""
        given = digest_of(key)
        return next((each for each in self.keys if each.digest == given), Key(given))

    def find_of(self, call: Call) -> Key:
        """Return what the operator wrote of the key of a request."""
        return self.find(as_sent(call.api_key or ""))

    def has(self, key: str) -> bool:
        """Return whether this is one of the keys, in a time that does not depend on which."""
        # Digests have one length, so the time of a comparison does not depend on the length of a key.
        given = digest_of(key)
        found = False
        for each in self.keys:
            found |= hmac.compare_digest(each.digest, given)
        return found


def admin_error(keys: KeyRing, authorization: str | None, admin_key: str | None) -> ApiError | None:
    """Return the error of a request that needs an admin key and has none.

    Args:
        keys: the admin keys.
        authorization: the header `Authorization`.
        admin_key: the header `x-admin-key`, TabbyAPI's.
    """
    if keys.open:
        return no_admin_keys()
    found = keys.has((admin_key or "").strip()) or keys.accepts(authorization)
    return None if found else invalid_admin_key()


def as_sent(key: str) -> str:
    """Return the key of a `Call`, whose headers are read as latin-1, as the UTF-8 text that the client sent."""
    return key.encode("latin-1", "replace").decode("utf-8", "surrogateescape")
