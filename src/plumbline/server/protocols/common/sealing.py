"""Seal texts for clients that keep them and send them back: authenticated encryption with a key of the server.

The format is `pl1.` and, in unpadded URL-safe base64, a nonce of 12 bytes and the ciphertext of AES-256-GCM with its
tag of 16 bytes. Only a server with the same secret opens it, and a change of one bit is found.
"""

from __future__ import annotations

import base64
import binascii
import copy
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["MAX_SEALED", "Sealer", "UnsealError"]

MAX_SEALED = 8 * 1024 * 1024
"""Maximum number of characters of sealed text that is opened. Opening as many takes a few milliseconds."""

_PREFIX = "pl1."
_CONTEXT = b"plumbline sealing 1"
_NONCE_BYTES = 12


class UnsealError(ValueError):
    """A sealed text was not sealed with this secret, or is damaged or too long; the message states which."""


class Sealer:
    """Seals texts with a key derived from a secret.

    Args:
        secret: the server's secret; empty takes a random one, so that a restart makes sealed texts unreadable.
    """

    def __init__(self, secret: str = "") -> None:
        self._owner = b""
        self._ciphers: list[AESGCM] = []
        """The one that is used; a list, because the sealers of all clients share it."""
        self.use(secret.encode() or secrets.token_bytes(32))

    def use(self, secret: bytes) -> None:
        """Take a key derived from another secret from now on."""
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_CONTEXT).derive(secret)
        self._ciphers[:] = [AESGCM(key)]

    def of(self, client: str) -> Sealer:
        """Return a sealer whose texts open for this client only."""
        found = copy.copy(self)
        found._owner = client.encode("utf-8", "surrogateescape")
        return found

    def _bound_to(self, purpose: str) -> bytes:
        """Return what is not in a sealed text and must be the same when it is opened."""
        return purpose.encode() + (b"\0" + self._owner if self._owner else b"")

    def seal(self, text: str, purpose: str = "reasoning") -> str:
        """Return the text in sealed form. It opens for the same purpose only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        # A model may write half of a surrogate pair as an escape; the text must come back as it was.
        sealed = nonce + self._ciphers[0].encrypt(
            nonce, text.encode("utf-8", "surrogatepass"), self._bound_to(purpose)
        )
        return _PREFIX + base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, sealed: str, purpose: str = "reasoning") -> str:
        """Return the text that was sealed.

        Raises:
            UnsealError: the text was not sealed with this secret, for this client and for this purpose, or is damaged
                or too long.
        """
        if len(sealed) > MAX_SEALED:
            raise UnsealError(f"it is longer than {MAX_SEALED} characters")
        if not sealed.startswith(_PREFIX):
            raise UnsealError("it does not come from this server")
        encoded = sealed[len(_PREFIX) :]
        try:
            raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
            text = self._ciphers[0].decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], self._bound_to(purpose))
        except (InvalidTag, binascii.Error, ValueError):
            raise UnsealError(
                "it is damaged, or sealed with another key, for another client or for another purpose"
            ) from None
        return text.decode("utf-8", "surrogatepass")
