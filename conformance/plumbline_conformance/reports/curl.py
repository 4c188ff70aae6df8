"""Write the request of an exchange as a curl command."""

from __future__ import annotations

import shlex
from bisect import bisect_left

from plumbline_conformance.recording.redaction import fingerprint, redacted_url
from plumbline_conformance.suite.scenario import WRONG_KEY
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["curl"]

_LONGEST = 20_000
"""A longer body is abbreviated: terminals do not accept lines of megabytes."""
_LONGEST_PIECE = 256
_ENOUGH = 1024
"""Bytes of a repeated piece that are needed to recognise the repetition."""
_LEFT_OUT = {
    "authorization",
    "content-length",
    "host",
    "connection",
    "accept-encoding",
    "user-agent",
    "accept",
}
"""Headers that curl writes itself, and the key, which the command takes from the environment."""

_MADE_UP: dict[str | None, str] = {
    form: value for value in ("", WRONG_KEY) for form in (value, fingerprint(value))
}
"""Invalid keys of scenarios, as sent and as redacted in recordings."""


def curl(exchange: Exchange, *, key: bool = False) -> str:
    """Return a command that sends the same bytes; with `key`, it sends OPENAI_API_KEY of the environment as well.

    A deliberately invalid key is sent unchanged.
    """
    if exchange.method == "WEBSOCKET":
        return _websocat(exchange, key)
    parts = ["curl -sS -N -i"]
    if exchange.method != ("POST" if exchange.request_body else "GET"):
        parts.append(f"-X {shlex.quote(exchange.method)}")
    if exchange.version:
        parts.append(f"--http{exchange.version}")
    parts.append(_quoted(redacted_url(exchange.url)))
    for name, value in exchange.request_headers.items():
        if name.lower() not in _LEFT_OUT:
            parts.append(f"-H {_header(name, value)}")
    if authorization := _authorization(exchange, key):
        parts.append(f"-H {authorization}")
    body = exchange.request_body
    if body and not any(name.lower() == "content-type" for name in exchange.request_headers):
        parts.append("-H 'content-type:'")  # Without a content type, curl would add the type of an HTML form.
    if not body:
        return " ".join(parts)
    if len(body) > _LONGEST:
        if (made := _made(body)) is not None:
            return f"{made} | " + " ".join([*parts, "--data-binary @-"])
        return " ".join([*parts, f"--data-binary @-  # and a body of {len(body)} bytes"])
    if (text := _text(body)) is not None and not text.startswith("@"):
        return " ".join([*parts, f"--data-binary {shlex.quote(text)}"])
    # Bytes that are not plain text are octal escapes, which every shell's printf supports.
    escaped = "".join(_octal(byte) for byte in body)
    return f"printf -- '{escaped}' | " + " ".join([*parts, "--data-binary @-"])


def _text(body: bytes) -> str | None:
    """Return a body of printable characters; None if it has control characters or is not UTF-8."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _made(body: bytes) -> str | None:
    """Return a command that writes a long body with a repeated piece; None if nothing repeats.

    The repetition is searched in the middle of the body, where deliberately long bodies have it.
    """
    middle = len(body) // 2
    for size in range(1, _LONGEST_PIECE + 1):
        piece = body[middle : middle + size]
        # Require enough repetitions; comparing bytes at once is fast even for megabytes.
        if not body.startswith(piece * -(-_ENOUGH // size), middle):
            continue
        start = middle - _alike(body[:middle][::-1], piece[::-1])
        stop = middle + _alike(body[middle:], piece)
        count = (stop - start) // size
        rest = start + count * size
        written = [f"{body[start : start + size]!r} * {count}"]
        if start:
            written.insert(0, repr(body[:start]))
        if rest < len(body):
            written.append(repr(body[rest:]))
        program = f"import sys; sys.stdout.buffer.write({' + '.join(written)})"
        command = f"python3 -c {shlex.quote(program)}"
        return command if len(command) <= _LONGEST else None
    return None


def _alike(text: bytes, piece: bytes) -> int:
    """Return how many leading bytes of a text repeat the piece."""
    tiled = piece * (len(text) // len(piece) + 1)
    if tiled.startswith(text):
        return len(text)
    return bisect_left(range(len(text)), True, key=lambda count: text[: count + 1] != tiled[: count + 1])


def _websocat(exchange: Exchange, key: bool) -> str:
    """Return a websocat command, because curl has no WebSockets; a message is a line."""
    authorization = _authorization(exchange, key)
    header = f" -H={authorization}" if authorization else ""
    texts = exchange.request_body.split(b"\n")
    escaped = "\\n".join(
        "".join(map(_octal, text)) if (plain := _text(text)) is None else _escaped(plain) for text in texts
    )
    return f"printf -- '{escaped}\\n' | websocat -n{header} {_quoted(redacted_url(exchange.url))}"


def _authorization(exchange: Exchange, key: bool) -> str | None:
    """Return the header as a shell word, if there is one."""
    headers = exchange.request_headers.items()
    own = next((value for name, value in headers if name.lower() == "authorization"), None)
    if own in _MADE_UP:
        return _header("authorization", _MADE_UP[own])
    return '"authorization: Bearer $OPENAI_API_KEY"' if key or own is not None else None


def _header(name: str, value: str) -> str:
    """Return a header as a shell word; curl needs a semicolon for one without a value."""
    return _quoted(f"{name}: {value}" if value else f"{name};")


def _octal(byte: int) -> str:
    if byte in b"%\\":
        return 2 * chr(byte)  # printf's own escapes.
    return chr(byte) if 0x20 <= byte < 0x7F and byte != 0x27 else f"\\{byte:03o}"


def _escaped(text: str) -> str:
    """Return printable text for printf, between single quotes."""
    return text.replace("\\", "\\\\").replace("%", "%%").replace("'", "\\047")


def _quoted(text: str) -> str:
    return shlex.quote("".join(char for char in text if char.isprintable()))
