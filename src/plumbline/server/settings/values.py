"""Read values of options that name models, adapters and files with secrets."""

from __future__ import annotations

import logging
import os
from typing import Any

import msgspec

from plumbline_conformance.console.options import Option, OptionError, shown

__all__ = [
    "read_bounded",
    "read_loras",
    "read_models",
    "read_value_file",
    "reason_of",
]

_log = logging.getLogger("plumbline.server")

_MAX_FILE_BYTES = 1024**2
"""Bytes of a configuration file or a file with keys."""


def read_value_file(option: Option, path: str, origin: str) -> Any:
    """Read the value of an option from a file: a list has one text a line, and `#` begins a comment.

    Raises:
        OptionError: the file cannot be read or has no value.
    """
    label = option.file_option.flag
    try:
        text = read_bounded(path).decode().strip()
        if option.about.secret and _is_open(os.path.expanduser(path)):
            _log.warning("%s names %s, which other users may read: run chmod 600 on it", label, path)
    except UnicodeDecodeError:
        raise OptionError(label, f"names {path}, which is not UTF-8 text", origin) from None
    except (OSError, ValueError) as error:
        raise OptionError(label, f"names {path}, which cannot be read: {reason_of(error)}", origin) from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    value = tuple(lines) if option.basic is tuple else text
    if not value:
        raise OptionError(label, f"names {path}, which is empty", origin)
    return value


def _is_open(path: str) -> bool:
    """Return whether other users may read a file, as far as its mode says.

    Credentials of systemd have an access list for the user of the unit, which the mode shows as a right of the group.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    if folder and os.path.dirname(os.path.abspath(path)) == os.path.abspath(folder):
        return False
    return bool(os.stat(path).st_mode & 0o077)


def read_bounded(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or its path is impossible.
    """
    with open(os.path.expanduser(path), "rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
    return data


def read_loras(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read the `NAME=PATH` texts of `--lora`.

    Raises:
        OptionError: one has no name or no path, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not name or not path or name in found:
            raise OptionError("--lora", f"must be NAME=PATH with a name of its own, got {text!r}")
        found[name] = os.path.expanduser(path)
    return tuple(found.items())


def read_processors(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read the `NAME=MODULE:CLASS` texts of `--logits-processor`.

    Raises:
        OptionError: one has no name or no class, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, _, place = text.partition("=")
        module, _, attribute = place.partition(":")
        if not name or not module or not attribute or name in found:
            raise OptionError(
                "--logits-processor", f"must be NAME=MODULE:CLASS with a name of its own, got {text!r}"
            )
        found[name] = place
    return tuple(found.items())


def read_sampling_defaults(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read the `[NAME=]JSON` texts of `--sampling-defaults`; one for all models has an empty name.

    Raises:
        OptionError: one is no JSON object.
    """
    found = []
    for text in given:
        has_name = "=" in text and not text.lstrip().startswith(("{", "["))
        name, value = text.split("=", 1) if has_name else ("", text)
        try:
            msgspec.json.decode(value, type=dict[str, float | int])
        except msgspec.DecodeError as error:
            raise OptionError(
                "--sampling-defaults",
                f'must be a JSON object of numbers such as {{"temperature": 0.7}}: {error}',
            ) from error
        found.append((name, value))
    return tuple(found)


def read_models(given: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Read the `[NAME=]MODEL` texts of `--model`; a model without a name has an empty one.

    Raises:
        OptionError: one has no path, or a name comes twice.
    """
    found: list[tuple[str, str]] = []
    for text in filter(None, given):
        name, separator, path = text.partition("=")
        if not separator or name.startswith((".", "/", "~")) or os.path.exists(text):
            name, path = "", text
        elif not name or not path or name in dict(found):
            raise OptionError(
                "--model", f"must be a path, a hub id or NAME=PATH with a name of its own, got {shown(text)}"
            )
        found.append((name, path))
    return tuple(found)


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read, without its path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
