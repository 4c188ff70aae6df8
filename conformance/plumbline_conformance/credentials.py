"""Nothing that opens a door is ever written: a credential becomes its fingerprint before it reaches a file.

A fingerprint tells two keys apart and opens nothing. Inside bodies a key is covered by as many bytes as it had, so that
the frames of a recording keep their edges and the checks see what they saw.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from urllib.parse import urlsplit, urlunsplit

import msgspec

from plumbline_conformance.transcript import Exchange, Transcript

__all__ = ["fingerprint", "redacted", "redacted_url"]

_HEADERS = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "ocp-apim-subscription-key",
        "proxy-authorization",
        "set-cookie",
        "x-api-key",
        "x-goog-api-key",
    }
)
_QUERY = re.compile(r"(?i)(^|&)([^=&]*(?:key|token|secret|signature|password)[^=&]*)=([^&]*)")
_PRINT = re.compile(r"sha256:[0-9a-f]{12}")
_SHORTEST = 6
"""A shorter key is a word like any other: covering it in bodies would cover half of an answer."""


def fingerprint(secret: str) -> str:
    """Twelve hexadecimal digits of the SHA-256: enough to recognise, too little to guess from."""
    return f"sha256:{hashlib.sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def redacted_url(url: str) -> str:
    """The URL without the password of its user and without keys in its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an address that cannot be read)"
    place = parts.netloc
    if "@" in place:
        user, _, host = place.rpartition("@")
        place = f"{fingerprint(user)}@{host}"
    query = _QUERY.sub(lambda found: f"{found[1]}{found[2]}={fingerprint(found[3])}", parts.query)
    return urlunsplit(parts._replace(netloc=place, query=query))


def redacted(transcript: Transcript, secrets: Iterable[str] = ()) -> Transcript:
    """The transcript as it may be written: credentials of its headers, and these wherever they stand, are covered."""
    known = tuple(secrets)
    exchanges, *again = (
        [_exchange(exchange, known) for exchange in attempt]
        for attempt in (transcript.exchanges, *transcript.again)
    )
    return msgspec.structs.replace(transcript, exchanges=exchanges, again=again)


def _exchange(exchange: Exchange, secrets: tuple[str, ...]) -> Exchange:
    # What the server repeats of a header is as secret as the header.
    found = [*secrets, *_of_headers(exchange.request_headers.items())]
    covers = [(secret.encode("utf-8", "surrogatepass")) for secret in found if len(secret) >= _SHORTEST]
    error = exchange.error
    for cover in covers:
        text = cover.decode("utf-8", "surrogatepass")
        error = error and error.replace(text, fingerprint(text))
    return msgspec.structs.replace(
        exchange,
        url=_covered(redacted_url(exchange.url), covers),
        request_headers=dict(_headers(exchange.request_headers.items(), covers)),
        request_body=_cover(exchange.request_body, covers),
        headers=_headers(exchange.headers, covers),
        frames=_frames(exchange, covers),
        packed=msgspec.UNSET if _in_body(exchange, covers) else exchange.packed,
        error=error,
    )


def _of_headers(headers: Iterable[tuple[str, str]]) -> list[str]:
    values = [value for name, value in headers if name.lower() in _HEADERS]
    return [value.rpartition(" ")[2] for value in values if not _PRINT.fullmatch(value)]


def _headers(headers: Iterable[tuple[str, str]], covers: list[bytes]) -> list[tuple[str, str]]:
    return [
        (name, _printed(value) if name.lower() in _HEADERS else _covered(value, covers))
        for name, value in headers
    ]


def _printed(value: str) -> str:
    """What was read from a recording is a fingerprint already, and stays the same one."""
    return value if _PRINT.fullmatch(value) else fingerprint(value)


def _frames(exchange: Exchange, covers: list[bytes]) -> list[tuple[float, bytes]]:
    """The same frames of the covered body: a key may lie across the edge of two."""
    if not _in_body(exchange, covers):
        return exchange.frames
    body = _cover(exchange.body, covers)
    cut: list[tuple[float, bytes]] = []
    start = 0
    for moment, frame in exchange.frames:
        cut.append((moment, body[start : start + len(frame)]))
        start += len(frame)
    return cut


def _in_body(exchange: Exchange, covers: list[bytes]) -> bool:
    """Whether there is something to cover: packed bytes cannot be, so that they are not kept then."""
    return any(cover in exchange.body for cover in covers)


def _cover(content: bytes, covers: list[bytes]) -> bytes:
    for cover in covers:
        mask = fingerprint(cover.decode("utf-8", "surrogatepass")).encode()
        content = content.replace(cover, mask[: len(cover)].ljust(len(cover), b"*"))
    return content


def _covered(text: str, covers: list[bytes]) -> str:
    return _cover(text.encode("utf-8", "surrogatepass"), covers).decode("utf-8", "surrogatepass")
