"""Check base URLs, keys and names from the command line before any request is sent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit, urlunsplit

import httpx2

from plumbline_conformance.console.options import OptionError, UnusableInput
from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.scenario import CAPABILITIES, Target

__all__ = [
    "base_url_of",
    "capabilities_of",
    "clients_of",
    "headers_of",
    "joined",
    "key_of",
    "reachable",
    "target_of",
]


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_FRAMING = ("content-length", "transfer-encoding", "connection", "content-type", "accept-encoding", "upgrade")
"""Headers that belong to the body and the connection of one request."""


def target_of(base_url: str, model: str, api_key: str | None, option: str = "--api-key") -> Target:
    """Return the server under test.

    Args:
        base_url: the root of the API; its query is part of every request.
        model: the model name to request.
        api_key: the key; None or white space means no key.
        option: the option that the key was given by, for error messages.

    Raises:
        UnusableInput: no request can be sent with these values.
    """
    return Target(base_url=base_url_of(base_url), model=model, api_key=key_of(api_key, option))


def key_of(text: str | None, option: str = "--api-key") -> str | None:
    """Return the key without white space around it, which files and variables often add; None if it is empty.

    Raises:
        UnusableInput: it has a character that headers cannot carry. The message does not contain the key.
    """
    key = (text or "").strip()
    for place, char in enumerate(key):
        if not (char.isascii() and char.isprintable()):
            raise OptionError(
                option,
                f"(or OPENAI_API_KEY) cannot be sent in a header: character {place + 1} is U+{ord(char):04X}, and only "
                "printable ASCII is allowed. Copy the key again.",
            )
    return key or None


def headers_of(lines: Sequence[str]) -> dict[str, str]:
    """Parse headers such as `x-tenant: acme`; names become lower case.

    Raises:
        UnusableInput: a line is not a header that can be sent, or a name is given twice. The message has no value.
    """
    found: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name, value = name.strip(" ").lower(), value.strip(" \t")
        if not colon or not _HEADER_NAME.fullmatch(name):
            raise OptionError("--header", "must be 'NAME: VALUE', such as --header 'x-tenant: acme'")
        if name in _FRAMING:
            raise OptionError("--header", f"names {name}, which the judge sets itself: leave it out")
        if not all(char.isascii() and (char.isprintable() or char == "\t") for char in value):
            raise OptionError("--header", f"has a value of {name} that is not printable ASCII: copy it again")
        if name in found:
            raise OptionError("--header", f"has {name} twice: join the values with a comma")
        found[name] = value
    return found


def capabilities_of(text: str) -> dict[str, bool]:
    """Parse capabilities such as `tools,-key`, where a minus means that the target lacks one.

    Raises:
        UnusableInput: a name is unknown, or given with and without minus.
    """
    chosen: dict[str, bool] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name = word.removeprefix("-")
        if name not in CAPABILITIES:
            raise OptionError(
                "--capabilities", f"has the unknown name {name}: choose from {', '.join(CAPABILITIES)}"
            )
        if chosen.setdefault(name, not word.startswith("-")) == word.startswith("-"):
            raise OptionError("--capabilities", f"has {name} with and without a minus: keep one of the two")
    return chosen


def clients_of(text: str) -> list[str]:
    """Parse a list of clients such as `openai`.

    Raises:
        UnusableInput: a name is unknown.
    """
    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in CLIENTS:
            raise OptionError("--sdk", f"has the unknown name {name}: choose from {', '.join(CLIENTS)}")
    return names


def base_url_of(text: str) -> str:
    """Check the base URL of an API, such as `http://127.0.0.1:8000/v1`.

    Raises:
        UnusableInput: it is not an HTTP URL, or has a fragment, which is never sent.
    """
    url = text.strip()
    why = _unusable(url)
    if why is not None:
        # The URL may contain a password, so nothing before the last @ is shown.
        shown = re.sub("//.*@", "//…@", redacted_url(url), flags=re.DOTALL).partition("#")[0]
        raise UnusableInput(f"URL {shown} {why}. Give one such as http://127.0.0.1:8000/v1.")
    return url


def _unusable(url: str) -> str | None:
    if any(char.isspace() or not char.isprintable() for char in url):
        return "has white space or control characters in it"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "cannot be read"
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return "does not begin with http:// or https:// and a host"
    try:
        if not parts.hostname:
            return "names no host"
        if parts.port == 0:
            return "has port 0, which no server can use"
    except ValueError:
        return "has a port that is not a number from 1 to 65535"
    if "#" in url:
        return "has a fragment (#…), which is never sent: leave it out"
    try:
        httpx2.URL(url)
    except httpx2.InvalidURL:
        return "has a host that is not a valid domain name or address"
    return None


def joined(base_url: str, path: str) -> str:
    """Return the URL of a path below a base URL; the queries of both are sent."""
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return base_url.rstrip("/") + path
    below, _, asked = path.partition("?")
    query = "&".join(part for part in (parts.query, asked) if part)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + below, query=query, fragment=""))


def reachable(text: str) -> str:
    """Return a host and a port that another process can connect to.

    Raises:
        OptionError: it is anything else.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise OptionError("--mcp", f"{text} is not HOST:PORT, such as 127.0.0.1:8765")
    if host.strip("[]") in ("0.0.0.0", "::", "*"):  # noqa: S104 - to refuse it
        raise OptionError(
            "--mcp",
            f"{text} is every address of this machine: name the one at which the judged server reaches the judge, "
            "such as 127.0.0.1:8765",
        )
    return text
