"""Serve the files of the page with tags, so that a browser asks again and downloads only what has changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from litestar.response import Response

__all__ = ["NAMES", "SECURITY", "PageFile", "answer", "page_file"]

_KINDS = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "mjs": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
    "woff2": "font/woff2",
}
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data: blob:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "frame-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
# Mermaid writes styles into the pictures that it draws. It runs in a frame with an origin of its own, which can neither
# read the page nor fetch anything but its script.
_DIAGRAM_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'unsafe-inline'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'self'",
    "sandbox": "allow-scripts",
}


def _written(policy: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in policy.items())


SECURITY = {
    "content-security-policy": _written(_POLICY),
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
    policy: str = SECURITY["content-security-policy"]

    @classmethod
    def of(cls, body: bytes, kind: str, policy: str = SECURITY["content-security-policy"]) -> PageFile:
        """Return the file with the tag of its bytes."""
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:20]}"', policy)


def _names() -> frozenset[str]:
    folder = files(__package__).joinpath("assets")
    found = [file.name for file in folder.iterdir()]
    found += [f"{VENDOR}/{file.name}" for file in folder.joinpath(VENDOR).iterdir()]
    return frozenset(name for name in found if name.rpartition(".")[2] in _KINDS)


VENDOR = "vendor"
"""The folder in `assets/` with the libraries of others, as they were published (`nox -s libraries`)."""
NAMES = _names()
"""The files in `assets/`."""
DIAGRAM = "diagram.html"
"""The frame that draws diagrams."""


@cache
def page_file(name: str) -> PageFile | None:
    """Return one of the files in `assets/`, or None if there is no such file."""
    if name not in NAMES:
        return None
    body = files(__package__).joinpath("assets", name).read_bytes()
    policy = _written(_DIAGRAM_POLICY) if name == DIAGRAM else SECURITY["content-security-policy"]
    return PageFile.of(body, _KINDS[name.rpartition(".")[2]], policy)


def answer(file: PageFile, known: str | None) -> Response[bytes]:
    """Answer with a file, or with 304 if the client has it.

    Args:
        file: the file.
        known: the header `If-None-Match`.
    """
    # A new release changes files under the same names, so a browser must ask each time; a 304 costs 300 bytes.
    headers = {
        **SECURITY,
        "content-security-policy": file.policy,
        "etag": file.tag,
        "cache-control": "no-cache",
    }
    tags = {tag.strip().removeprefix("W/") for tag in (known or "").split(",")}
    if file.tag in tags or "*" in tags:
        return Response(b"", status_code=304, headers=headers, media_type=file.kind)
    return Response(file.body, headers=headers, media_type=file.kind)
