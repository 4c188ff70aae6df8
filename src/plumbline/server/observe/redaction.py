"""Leave secrets out of the beginning of a body: it may be cut anywhere, be no JSON, or several documents of a stream.

A scan over the tokens of JSON knows the key of each value, however its letters are escaped, and drops the values of
secret keys whole, be they strings, lists or objects. Of URLs it keeps the scheme and the host: the rest may be a
credential, such as a token in the path of an MCP server, or a signed query.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

__all__ = ["redacted"]

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^"{}\[\],:]+', re.DOTALL)
_SECRET = re.compile(
    r"(?:api[_-]?key|authorization|secret|password|passwd|cookie|(?:access|auth|bearer|id|refresh)_?token|cache_salt|extra_key|cache_key)\Z|\Aheaders\Z",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}:/+", re.IGNORECASE)
_TO_SPACE = re.compile(r"\S*")
_TO_PATH = re.compile(r"[^/?#]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{256,}=*")


def redacted(text: str) -> str:
    """Return a text without the values of secret keys, without paths of URLs and without files."""
    return _BASE64.sub(lambda found: f"…({len(found[0])} characters)", "".join(_kept(text)))


def _kept(text: str) -> Iterator[str]:
    objects: list[bool] = []
    """For each value that is open, whether it is an object."""
    dropped = 0
    """The depth of the list or object that is left out; 0 outside of one."""
    last = key = ""
    for found in _TOKEN.finditer(text):
        token = found[0]
        if token in "{[":
            objects.append(token == "{")
            if not dropped and _SECRET.search(key):
                dropped = len(objects)
                yield "{…}" if token == "{" else "[…]"
            elif not dropped:
                yield token
            key = ""
        elif token in "}]":
            if not dropped:
                yield token
            if objects:
                dropped = 0 if dropped == len(objects) else dropped
                objects.pop()
            key = ""
        elif dropped:
            continue
        elif token == ":":
            key = _decoded(last) if objects and objects[-1] else ""
            yield token
        elif token == ",":
            key = ""
            yield token
        elif not token.isspace() and _SECRET.search(key):
            yield '"…"'
        else:
            yield _url(token, key) if token.startswith('"') else token
        if not token.isspace():
            last = token


def _decoded(token: str) -> str:
    """Return the text of a string; of what is none, nothing."""
    try:
        found = json.loads(token, strict=False)
    except ValueError:
        return ""
    return found if isinstance(found, str) else ""


def _url(token: str, key: str) -> str:
    """Return the string of a value with a URL cut after its host; `server_url` needs no scheme to be one."""
    ends = len(token) > 1 and token.endswith('"')
    text = _decoded(token if ends else f'{token}"') or token[1:]
    scheme = _SCHEME.match(text)
    if scheme is None and key != "server_url":
        return token
    # Step by step: one regex for a URL takes a time that grows with the square of what is no URL.
    start = 0 if scheme is None else scheme.end()
    address = _TO_SPACE.match(text, start)[0]  # type: ignore[index]
    if key != "server_url" and start + len(address) < len(text):
        return token
    authority = _TO_PATH.match(address)[0]  # type: ignore[index]
    # What is cut before the host ends may be a user's name and password.
    host = authority.rpartition("@")[2] if ends or len(authority) < len(address) else ""
    shown = text[:start] + host
    if ends and text in (shown, f"{shown}/"):
        return token
    return json.dumps(f"{shown}…", ensure_ascii=False) if ends else f'"{shown}…'
