"""Addresses and keys as they are given: what no request could be sent with is refused before any is sent."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

import httpx

from plumbline_conformance.recording.redaction import redacted_url
from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.model import CAPABILITIES, Target

__all__ = ["UnusableInput", "base_url_of", "capabilities_of", "clients_of", "joined", "key_of", "target_of"]


class UnusableInput(Exception):  # noqa: N818 - it says what was given
    """What was given on the command line cannot be used; the text says why, and what to give instead."""


def target_of(base_url: str, model: str, api_key: str | None, option: str = "--api-key") -> Target:
    """The server under judgement.

    Args:
        base_url: the API's root; a query in it is part of every request.
        model: the name to ask for.
        api_key: None or nothing but white space for none.
        option: where the key was given, for what is said of it.

    Raises:
        UnusableInput: no request can be sent with these.
    """
    return Target(base_url=base_url_of(base_url), model=model, api_key=key_of(api_key, option))


def key_of(text: str | None, option: str = "--api-key") -> str | None:
    """The key without the white space around it, which a file or a variable brings along; None for an empty one.

    Raises:
        UnusableInput: it has a character that is not sent in a header. The key is not in what is said.
    """
    key = (text or "").strip()
    for place, char in enumerate(key):
        if not (char.isascii() and char.isprintable()):
            raise UnusableInput(
                f"The API key ({option} or OPENAI_API_KEY) cannot be sent in a header: its character {place + 1} "
                f"is U+{ord(char):04X}, and only printable ASCII is. Look at where it was copied from."
            )
    return key or None


def capabilities_of(text: str) -> dict[str, bool]:
    """What a target is said to have, and with a minus in front to lack: `tools,-key`.

    Raises:
        UnusableInput: nothing is called so, or something is said to be both.
    """
    said: dict[str, bool] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        name = word.removeprefix("-")
        if name not in CAPABILITIES:
            raise UnusableInput(f"--capabilities: there is no {name}. There are {', '.join(CAPABILITIES)}.")
        if said.setdefault(name, not word.startswith("-")) == word.startswith("-"):
            raise UnusableInput(f"--capabilities: {name} cannot be there and be missing. Say one of the two.")
    return said


def clients_of(text: str) -> list[str]:
    """The clients of a list such as `openai`, each once.

    Raises:
        UnusableInput: there is none of this name.
    """
    names = list(dict.fromkeys(filter(None, (part.strip() for part in text.split(",")))))
    for name in names:
        if name not in CLIENTS:
            raise UnusableInput(f"--sdk: there is no client {name}. There are {', '.join(CLIENTS)}.")
    return names


def base_url_of(text: str) -> str:
    """The address of an API, such as `http://127.0.0.1:8000/v1`.

    Raises:
        UnusableInput: it is no http address, or has a fragment, which is never sent.
    """
    url = text.strip()
    why = _unusable(url)
    if why is not None:
        # Nobody knows which part of it was meant to be a password: nothing before the last @ is shown.
        shown = re.sub("//.*@", "//…@", redacted_url(url), flags=re.DOTALL).partition("#")[0]
        raise UnusableInput(f"The base URL {shown} {why}. Give one such as http://127.0.0.1:8000/v1.")
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
            return "has the port 0, where nobody listens"
    except ValueError:
        return "has a port that is no number from 1 to 65535"
    if "#" in url:
        return "has a fragment (#…), which is never sent: leave it out"
    try:
        httpx.URL(url)
    except httpx.InvalidURL:
        return "has a host that no name server could know"
    return None


def joined(base_url: str, path: str) -> str:
    """The address of a path below a base URL: the path stands before the base's query, and both queries are sent."""
    try:
        parts = urlsplit(base_url)
    except ValueError:
        return base_url.rstrip("/") + path
    below, _, asked = path.partition("?")
    query = "&".join(part for part in (parts.query, asked) if part)
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + below, query=query, fragment=""))
