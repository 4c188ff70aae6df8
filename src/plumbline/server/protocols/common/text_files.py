"""Read the files of a request that are text, such as Markdown, CSV, JSON and source code."""

from __future__ import annotations

import binascii
import codecs
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from msgspec import UnsetType

from plumbline.contract.wire.errors import (
    ApiError,
    invalid_request,
    missing_required_parameter,
    unsupported_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import or_default

__all__ = ["FileSource", "file_text", "titled_text"]

MAX_BYTES = 10 * 1024 * 1024
"""Bytes of a file at most, as many as the characters of a text part."""
MAX_ESCAPED = 1024 * 1024
"""Characters of a data URL without base64, whose escapes take 0.2 us each to decode."""
_BLANKS = re.compile(r"[\t\n\f\r ]+")
_NOT_TEXT = re.compile("[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""Control characters that no text has. Terminals' output has escapes and bells."""
_ENCODINGS: Mapping[str, str] = MappingProxyType(
    {
        "": "utf-8-sig",
        "utf-8": "utf-8-sig",
        "utf8": "utf-8-sig",
        "us-ascii": "utf-8-sig",
        "ascii": "utf-8-sig",
        "utf-16": "utf-16",
        "iso-8859-1": "latin-1",
        "latin1": "latin-1",
        "windows-1252": "cp1252",
    }
)
"""The codec of each `charset`. Others are refused, because some of Python's take quadratic time."""
_BINARY = ("image/", "audio/", "video/", "font/", "application/pdf", "application/zip")
_READS = "is not supported: of files only text is read, such as Markdown, CSV, JSON and source code"


class FileSource(NamedTuple):
    """A file as a request has it; each member may be absent or null."""

    file_data: str | UnsetType | None
    """Its bytes in base64, or a data URL."""
    filename: str | UnsetType | None
    file_id: str | UnsetType | None
    file_url: str | UnsetType | None = None


def titled_text(heads: tuple[object, ...], texts: list[str]) -> str:
    """Return a text after what the client says about it, each on a line of its own; what is no text is left out.

    >>> titled_text(("notes.md", None), ["# Monday"])
    'notes.md\\n# Monday'
    """
    return "\n".join([*(head for head in heads if isinstance(head, str) and head), *texts])


def file_text(file: FileSource, where: str) -> str:
    """Return the text of a file, after its name.

    Args:
        file: the file.
        where: the field that has its members.

    Raises:
        ApiError: 400 for a file that is not text or too large, or that the request only names.
    """
    if or_default(file.file_id, None) is not None:
        raise unsupported_parameter(
            f"{where}.file_id", "is not supported: this server keeps no files; send its bytes in 'file_data'"
        )
    if or_default(file.file_url, None) is not None:
        raise unsupported_parameter(
            f"{where}.file_url", "is not supported: send the bytes of the file in 'file_data'"
        )
    data, field = or_default(file.file_data, None), f"{where}.file_data"
    if data is None:
        raise missing_required_parameter(field)
    kind, charset, found = _bytes(data, field)
    if len(found) > MAX_BYTES:
        raise _too_large(field)
    if (kind.startswith(_BINARY) and not kind.endswith("+xml")) or found.startswith(b"%PDF-"):
        raise unsupported_value(field, kind or "application/pdf", _READS)
    return titled_text((or_default(file.filename, None),), [_decoded(found, kind, charset, field)])


def _bytes(data: str, field: str) -> tuple[str, str, bytes]:
    """Return the media type, the charset and the bytes of a data URL, or of plain base64, which names neither."""
    kind, charset, coded = "", "", True
    if data[:5].lower() == "data:":
        head, comma, data = data.partition(",")
        if not comma:
            raise invalid_request(f"'{field}' is not a data URL with a comma.", field, "invalid_value")
        kind, *options = (option.strip() for option in head[5:].lower().split(";"))
        coded = "base64" in options
        charset = next((o[8:].strip("\"' ") for o in options if o.startswith("charset=")), "")
    if len(data) > (2 * MAX_BYTES if coded else MAX_ESCAPED):  # Base64 may be cut into short lines.
        raise _too_large(field)
    if not coded:
        return kind, charset, unquote_to_bytes(data)
    data = _BLANKS.sub("", data)
    try:
        padded = data if data[-1:] == "=" else data + "=" * (-len(data) % 4)
        return kind, charset, binascii.a2b_base64(padded, strict_mode=True)
    except (ValueError, UnicodeError):
        raise invalid_request(f"'{field}' is not valid base64.", field, "invalid_value") from None


def _decoded(data: bytes, kind: str, charset: str, field: str) -> str:
    encoding = _ENCODINGS.get(charset)
    if encoding is None:
        raise unsupported_value(field, f"charset={charset[:40]}", "is not supported; send the text in UTF-8")
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"  # As editors on Windows save it.
    try:
        text = data.decode(encoding)
    except UnicodeError:
        text = "\0"
    if _NOT_TEXT.search(text):
        raise unsupported_value(field, kind or "a binary file", _READS)
    return text


def _too_large(field: str) -> ApiError:
    return invalid_request(
        f"The file of '{field}' is too large: {MAX_BYTES} bytes in base64 are read, {MAX_ESCAPED} characters without.",
        field,
        "invalid_value",
    )
