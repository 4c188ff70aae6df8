"""Split and join the URIs of references (RFC 3986)."""

from __future__ import annotations

import re
from urllib.parse import unquote

from plumbline.answer.structured_output.grammar.errors import ConstraintError

__all__ = ["MAX_REFERENCE", "joined_uri", "split_reference"]

MAX_REFERENCE = 4096
"""Characters of an identifier or a reference, also after it is resolved."""
_URI = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(\?[^#]*)?", re.DOTALL)
"""Scheme, authority, path and query (RFC 3986, appendix B)."""


def split_reference(reference: str, where: str) -> tuple[str, str]:
    """Split a reference into its URI and its fragment, which loses its percent-encoding.

    Args:
        reference: as a schema has it.
        where: the pointer to the schema, for errors.

    Raises:
        ConstraintError: the reference is too long.
    """
    _check_length(reference, where)
    uri, _, fragment = reference.partition("#")
    return uri, unquote(fragment)


def joined_uri(base: str, reference: str, where: str) -> str:
    """Resolve a reference without a fragment (RFC 3986, section 5.2.2), also for URNs, which `urljoin` leaves out.

    Args:
        base: what the reference is relative to.
        reference: a relative or absolute URI.
        where: the pointer to the schema, for errors.

    Raises:
        ConstraintError: the result is too long.
    """
    found = _URI.match(reference)
    above = _URI.match(base)
    assert found is not None, "the expression matches every text"
    assert above is not None, "the expression matches every text"
    scheme, authority, path, query = found.groups()
    if scheme is None:
        scheme = above[1]
        if authority is None:
            authority = above[2]
            if not path:
                path, query = above[3], query or above[4]
            elif not path.startswith("/"):
                slash = above[3].rfind("/")
                path = f"/{path}" if authority is not None and not above[3] else above[3][: slash + 1] + path
    joined = "".join(
        (
            f"{scheme.lower()}:" if scheme else "",
            f"//{authority.lower()}" if authority is not None else "",
            _without_dots(path),
            query or "",
        )
    )
    _check_length(joined, where)
    return joined


def _check_length(reference: str, where: str) -> None:
    if len(reference) > MAX_REFERENCE:
        raise ConstraintError(f"'{where[:200]}' has a reference of more than {MAX_REFERENCE} characters.")


def _without_dots(path: str) -> str:
    """Remove `.` and `..` from a path (RFC 3986, section 5.2.4)."""
    if "." not in path:
        return path
    kept: list[str] = []
    steps = path.split("/")
    for index, step in enumerate(steps):
        if step == "..":
            if len(kept) > 1 or (kept and kept[0]):
                kept.pop()
        elif step != ".":
            kept.append(step)
            continue
        if index == len(steps) - 1:
            kept.append("")  # The path names a folder.
    return "/".join(kept)
