"""Serve the files of the page with tags, so that a browser asks again and downloads only what has changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from litestar.response import Response

__all__ = ["NAMES", "SECURITY", "PageFile", "answer", "page_file"]

_KINDS = {"css": "text/css", "html": "text/html", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
SECURITY = {
    "content-security-policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of all answers of the page. A model's text can neither run code nor fetch anything from elsewhere."""


@dataclass(frozen=True)
class PageFile:
    """The bytes of a file, and what a browser needs to know about them."""

    body: bytes
    kind: str
    tag: str
    """The entity tag, with its quotes."""

    @classmethod
    def of(cls, body: bytes, kind: str) -> PageFile:
        """Return the file with the tag of its bytes."""
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"')


def _names() -> frozenset[str]:
    found = files(__package__).joinpath("assets").iterdir()
    return frozenset(file.name for file in found if file.name.rpartition(".")[2] in _KINDS)


NAMES = _names()
"""The files in `assets/`."""


@cache
def page_file(name: str) -> PageFile | None:
    """Return one of the files in `assets/`, or None if there is no such file."""
    if name not in NAMES:
        return None
    body = files(__package__).joinpath("assets", name).read_bytes()
    return PageFile.of(body, _KINDS[name.rpartition(".")[2]])


def answer(file: PageFile, known: str | None) -> Response[bytes]:
    """Answer with a file, or with 304 if the client has it.

    Args:
        file: the file.
        known: the header `If-None-Match`.
    """
    # A new release changes files under the same names, so a browser must ask each time; a 304 costs 300 bytes.
    headers = {**SECURITY, "etag": file.tag, "cache-control": "no-cache"}
    tags = {tag.strip().removeprefix("W/") for tag in (known or "").split(",")}
    if file.tag in tags or "*" in tags:
        return Response(b"", status_code=304, headers=headers, media_type=file.kind)
    return Response(file.body, headers=headers, media_type=file.kind)
