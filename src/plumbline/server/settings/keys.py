"""Read a line of a key file: a key or its hash, a name, and what its requests may use."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from plumbline_conformance.console.sizes import parse_size

__all__ = ["Key", "digest_of", "read_key"]

_HASH = "sha256:"
_RATES = ("requests", "tokens", "streams")
_WORDS = ("name", *_RATES, "models", "stored", "metrics")
_NAME = re.compile(r"[\w.@-]{1,64}")
_WORD = re.compile(r"([a-z]+)=(.*)", re.DOTALL)


class Key(NamedTuple):
    """A key that the server accepts. A limit of 0 means no limit."""

    digest: bytes
    """SHA-256 of the key."""
    name: str = ""
    """For logs and messages, which never have the key; nothing if the operator gave none."""
    requests: int = 0
    """Requests a minute."""
    tokens: int = 0
    """Tokens of prompts and answers a minute."""
    streams: int = 0
    """Requests that are answered at the same time."""
    stored: int = 0
    """Bytes that the key may have in the store."""
    models: tuple[str, ...] = ()
    """Models and adapters that its requests may name; all if there are none."""
    metrics: bool = False
    """Whether it sees what the server does for all keys."""

    @property
    def is_limited(self) -> bool:
        """Whether the key has a limit of requests or tokens."""
        return bool(self.requests or self.tokens or self.streams)

    def may_use(self, model: str) -> bool:
        """Return whether a request with the key may name a model."""
        return not self.models or model in self.models


def digest_of(key: str) -> bytes:
    """Return the hash of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def read_key(text: str) -> Key:
    """Read `KEY` or `sha256:HEX`, and after it words in any order.

    The words are `name=NAME`, `requests=N`, `tokens=N`, `streams=N`, `stored=SIZE`, `models=NAME,NAME` and
    `metrics=yes`. Words of another form belong to the key, which may have spaces.

    Raises:
        ValueError: what is wrong, to follow the name of the option; it does not have the key.
    """
    words = text.split(" ")
    given: dict[str, str] = {}
    while len(words) > 1 and (found := _WORD.fullmatch(words[-1]) or not words[-1]):
        words.pop()
        if isinstance(found, re.Match):
            name, value = found.groups()
            if name not in _WORDS or name in given:
                known = ", ".join(_WORDS)
                raise ValueError(f"has a key with '{name[:32]}=': it takes {known}, each once")
            given[name] = value
    name = given.pop("name", "")
    if name and not _NAME.fullmatch(name):
        raise ValueError("has a key whose name is not 1 to 64 letters, digits, '.', '@', '-' or '_'")
    models = tuple(given.pop("models", "").split(",")) if "models" in given else ()
    if not all(models):
        raise ValueError("has a key with an empty name among its models")
    size = given.pop("stored", None)
    stored = 0 if size is None else parse_size(size) or 0
    if size is not None and not stored:
        raise ValueError("has a key whose stored is no size above 0, such as 1048576 or 1GiB")
    metrics = "metrics" in given
    if given.pop("metrics", "yes") != "yes":
        raise ValueError("has a key with 'metrics=' that is not 'metrics=yes'")
    limits = {}
    for each, value in given.items():
        if not re.fullmatch(r"[1-9]\d{0,11}", value):
            raise ValueError(f"has a key whose {each} are no number from 1")
        limits[each] = int(value)
    return Key(_digest(" ".join(words)), name, **limits, stored=stored, models=models, metrics=metrics)


def _digest(key: str) -> bytes:
    if not key.startswith(_HASH):
        return digest_of(key)
    if not re.fullmatch(r"[0-9a-fA-F]{64}", key.removeprefix(_HASH)):
        raise ValueError("has a hash that is not 'sha256:' with 64 hexadecimal digits")
    return bytes.fromhex(key.removeprefix(_HASH))
