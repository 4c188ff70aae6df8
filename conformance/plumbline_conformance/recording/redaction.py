"""Replace credentials by fingerprints before anything is written to a file.

A fingerprint tells two keys apart without revealing them. In bodies the replacement has as many bytes as the key, so
that the frames of a recording keep their boundaries and checks give the same verdicts.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["concealed", "fingerprint", "redacted", "redacted_exchange", "redacted_url", "secrets_of"]

_SECRET = re.compile(
    r"(?i)key|token(?!s|iz|[-_](?:count|limit|usage))|secret|signature|passw|passphrase|credential|cookie|jwt|assertion"
    r"|auth(?!or(?!i[sz]a)|enticate$)|^sig$"
)
"""Names of headers and query parameters with secret values. No list is complete, so this is a pattern."""
_HARMLESS = re.compile(r"(?i)^access-control-|rate-?limit|(?:cache|idempotency|surrogate|websocket)[-_]key$")
"""Names that match and are not secret: rate limits, cache and idempotency keys, the handshake of a WebSocket."""
_PROTOCOL = re.compile(r"(?i)(insecure-api-key\.)([^\s,;]+)")
"""Browsers cannot set headers of a WebSocket, so clients send the key as a subprotocol."""
_PRINT = re.compile(r"sha256:[0-9a-f]{12}")
_SHORTEST = 6
"""Characters. A shorter key may be an ordinary word, and replacing it in bodies would replace half of an answer."""


def fingerprint(secret: str) -> str:
    """Return twelve hexadecimal digits of the SHA-256: enough to recognise a key, too few to guess it."""
    return f"sha256:{hashlib.sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"


def redacted_url(url: str) -> str:
    """Return the URL without its password and the keys in its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(an address that cannot be read)"
    place = parts.netloc
    if "@" in place:
        user, _, host = place.rpartition("@")
        place = f"{_printed(user)}@{host}"
    query = "&".join(
        f"{name}={_printed(value)}" if equals and _is_secret(unquote(name)) else f"{name}{equals}{value}"
        for name, equals, value in (member.partition("=") for member in parts.query.split("&"))
    )
    return urlunsplit(parts._replace(netloc=place, query=query))


def redacted(transcript: Transcript, secrets: Iterable[str] = ()) -> Transcript:
    """Return the transcript without the credentials of its headers and addresses, and without these secrets."""
    known = tuple(secrets)
    exchanges, *again = (
        [redacted_exchange(exchange, known) for exchange in attempt]
        for attempt in (transcript.exchanges, *transcript.again)
    )
    skipped = transcript.skipped and concealed(transcript.skipped, known)
    defect = concealed(transcript.defect, known)
    return msgspec.structs.replace(
        transcript,
        exchanges=exchanges,
        again=again,
        skipped=skipped,
        beside=[concealed(request, known) for request in transcript.beside],
        defect=defect,
    )


def redacted_exchange(exchange: Exchange, secrets: Iterable[str] = ()) -> Exchange:
    """Return the exchange without credentials; see `redacted`."""
    found = secrets_of(exchange, secrets)
    covers = [
        encoding.encode("utf-8", "surrogatepass") for secret in found for encoding in _encodings(secret)
    ]
    return msgspec.structs.replace(
        exchange,
        url=_covered(redacted_url(exchange.url), covers),
        request_headers=dict(_headers(exchange.request_headers.items(), covers)),
        request_body=_cover(exchange.request_body, covers),
        headers=_headers(exchange.headers, covers),
        frames=_frames(exchange, covers),
        packed=msgspec.UNSET if _in_body(exchange, covers) else exchange.packed,
        error=exchange.error and concealed(exchange.error, found),
    )


def secrets_of(exchange: Exchange, known: Iterable[str] = ()) -> list[str]:
    """Return the known secrets and the secrets in the headers and address of an exchange, the longest first.

    Secrets that are too short to distinguish from ordinary words are left out.
    """
    found = [secret.strip() for secret in known]
    found += _of_headers(exchange.request_headers.items())
    found += _of_address(exchange.url)
    long = {secret for secret in found if len(secret) >= _SHORTEST and not _PRINT.fullmatch(secret)}
    return sorted(long, key=lambda secret: (-len(secret), secret))


def concealed(text: str, secrets: Iterable[str]) -> str:
    """Replace secrets in a text by fingerprints, also one that is cut at the end of the text."""
    long = (secret for secret in secrets if len(secret) >= _SHORTEST)
    for secret in sorted(long, key=len, reverse=True):
        mask = fingerprint(secret)
        for encoding in _encodings(secret):
            text = text.replace(encoding, mask)
            bare = text.rstrip("…")
            cut = next(
                (n for n in range(len(encoding) - 1, _SHORTEST - 1, -1) if bare.endswith(encoding[:n])), 0
            )
            if cut:
                text = bare[:-cut] + mask + text[len(bare) :]
    return text


def _is_secret(name: str) -> bool:
    return _SECRET.search(name) is not None and _HARMLESS.search(name) is None


def _encodings(secret: str) -> list[str]:
    """Return the secret as it is, and as JSON, Python and URLs encode it."""
    written = json.dumps(secret)[1:-1]
    encodings = (secret, written, written.replace("/", "\\/"), repr(secret)[1:-1], _quoted(secret))
    return list(dict.fromkeys(encodings))


def _quoted(secret: str) -> str:
    return quote(secret, safe="", errors="surrogatepass")


def _of_headers(headers: Iterable[tuple[str, str]]) -> list[str]:
    found: list[str] = []
    for name, value in headers:
        found += [match[2] for match in _PROTOCOL.finditer(value)]
        if name.lower() == "cookie":
            found += [(cookie.partition("=")[2] or cookie).strip() for cookie in value.split(";")]
        elif _is_secret(name):
            # The values of a repeated header are joined with commas.
            found += [part.strip().rpartition(" ")[2] for part in (value, *value.split(","))]
    return found


def _of_address(url: str) -> list[str]:
    """Return the password of a URL, also in its Basic encoding, and the keys of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return []
    members = (member.partition("=") for member in parts.query.split("&"))
    found = [value for name, _, value in members if _is_secret(unquote(name))]
    user, at, _ = parts.netloc.rpartition("@")
    if at and not _PRINT.fullmatch(user):
        name, _, password = user.partition(":")
        sent = f"{unquote(name)}:{unquote(password)}".encode()
        found += [password, base64.b64encode(sent).decode()]
    return [*found, *(unquote(value) for value in found)]


def _headers(headers: Iterable[tuple[str, str]], covers: list[bytes]) -> list[tuple[str, str]]:
    return [
        (name, _printed(value) if _is_secret(name) else _covered(_without_protocol(value), covers))
        for name, value in headers
    ]


def _without_protocol(value: str) -> str:
    return _PROTOCOL.sub(lambda found: found[1] + _printed(found[2]), value)


def _printed(value: str) -> str:
    """Return the fingerprint of a value; a fingerprint from a recording and an empty value stay the same."""
    return value if not value or _PRINT.fullmatch(value) else fingerprint(value)


def _frames(exchange: Exchange, covers: list[bytes]) -> list[tuple[float, bytes]]:
    """Cut the redacted body like the original one; a key may be split over two frames."""
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
    """Return whether the body contains a secret. Compressed bytes cannot be redacted, so they are dropped then."""
    return any(cover in exchange.body for cover in covers)


def _cover(content: bytes, covers: list[bytes]) -> bytes:
    for cover in covers:
        mask = fingerprint(cover.decode("utf-8", "surrogatepass")).encode()
        content = content.replace(cover, mask[: len(cover)].ljust(len(cover), b"*"))
    return content


def _covered(text: str, covers: list[bytes]) -> str:
    return _cover(text.encode("utf-8", "surrogatepass"), covers).decode("utf-8", "surrogatepass")
