"""Nothing that opens a door is ever written: a credential becomes its fingerprint before it reaches a file.

A fingerprint tells two keys apart and opens nothing. Inside bodies a key is covered by as many bytes as it had, so that
the frames of a recording keep their edges and the checks see what they saw.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import msgspec

from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = ["concealed", "fingerprint", "redacted", "redacted_exchange", "redacted_url", "secrets_of"]

_SECRET = re.compile(
    r"(?i)key|token(?!s|iz|[-_](?:count|limit|usage))|secret|signature|passw|passphrase|credential|cookie|jwt|assertion"
    r"|auth(?!or(?!i[sz]a)|enticate$)|^sig$"
)
"""Names of headers and of members of a query whose values open something: nobody can list them all."""
_HARMLESS = re.compile(r"(?i)^access-control-|rate-?limit|(?:cache|idempotency|surrogate|websocket)[-_]key$")
"""Names that sound alike: counts, the keys of caches and of repeated requests, the greeting of a WebSocket."""
_PROTOCOL = re.compile(r"(?i)(insecure-api-key\.)([^\s,;]+)")
"""A browser can give a WebSocket no header but its protocols, so its key stands among them."""
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
        place = f"{_printed(user)}@{host}"
    query = "&".join(
        f"{name}={_printed(value)}" if equals and _is_secret(unquote(name)) else f"{name}{equals}{value}"
        for name, equals, value in (member.partition("=") for member in parts.query.split("&"))
    )
    return urlunsplit(parts._replace(netloc=place, query=query))


def redacted(transcript: Transcript, secrets: Iterable[str] = ()) -> Transcript:
    """The transcript as it may be written: credentials of its headers, and these wherever they stand, are covered."""
    known = tuple(secrets)
    exchanges, *again = (
        [redacted_exchange(exchange, known) for exchange in attempt]
        for attempt in (transcript.exchanges, *transcript.again)
    )
    skipped = transcript.skipped and concealed(transcript.skipped, known)
    return msgspec.structs.replace(transcript, exchanges=exchanges, again=again, skipped=skipped)


def redacted_exchange(exchange: Exchange, secrets: Iterable[str] = ()) -> Exchange:
    """The same of one exchange."""
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
    """The secrets of an exchange, the longest first: what is known, and what its headers and its address bring.

    What the server repeats of them is as secret as they are. What is too short to be told from a word is left out.
    """
    found = [secret.strip() for secret in known]
    found += _of_headers(exchange.request_headers.items())
    found += _of_address(exchange.url)
    long = {secret for secret in found if len(secret) >= _SHORTEST and not _PRINT.fullmatch(secret)}
    return sorted(long, key=lambda secret: (-len(secret), secret))


def concealed(text: str, secrets: Iterable[str]) -> str:
    """A text in which these are fingerprints; of one that the text's end cuts, so is the beginning."""
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
    """A secret as it is, and as JSON, Python and addresses write it."""
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
            # A header that was sent twice has its values side by side.
            found += [part.strip().rpartition(" ")[2] for part in (value, *value.split(","))]
    return found


def _of_address(url: str) -> list[str]:
    """The password of an address, as it stands there and as it is sent, and the keys of its query."""
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
    """What was read from a recording is a fingerprint already, and stays the same one; nothing hides nothing."""
    return value if not value or _PRINT.fullmatch(value) else fingerprint(value)


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
