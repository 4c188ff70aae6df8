"""Options that several of the judge's commands have."""

from __future__ import annotations

import os
from functools import partial
from typing import Annotated, Any

import msgspec

from plumbline_conformance.client.target_input import headers_of, target_of
from plumbline_conformance.console.command import OptionGroup
from plumbline_conformance.console.options import AtLeastOne, Describe, OptionError, Texts, shown
from plumbline_conformance.suite.client_claims import CLIENTS
from plumbline_conformance.suite.scenario import Target

__all__ = ["Concurrency", "Sdk", "Server", "fields_of", "key_or_variable"]

_server = partial(Describe, "server")
Concurrency = Annotated[AtLeastOne, Describe("requests and limits", "concurrent requests", "N")]
Sdk = Annotated[
    str,
    Describe(
        "reports",
        f"let these official clients read the recorded answers as well: {', '.join(CLIENTS)}",
        "CLIENTS",
    ),
]


class Server(OptionGroup, frozen=True, kw_only=True):
    """The server under test."""

    url: Annotated[
        str, _server("the root of its API, such as http://127.0.0.1:8000/v1", "URL", positional=True)
    ]
    model: Annotated[
        str, _server("model name to request", "NAME", default="the first that the server lists")
    ] = ""
    api_key: Annotated[
        str | None, _server("API key", "KEY", default="the variable OPENAI_API_KEY", secret=True)
    ] = None
    headers: Annotated[
        Texts,
        _server(
            "a further header of every request, such as one that a gateway needs; repeatable",
            "'NAME: VALUE'",
            name="header",
        ),
    ] = ()

    def target(self) -> Target:
        """Return the server and the model that was named, if any. Nothing is sent.

        Raises:
            UnusableInput: no request can be sent with these values.
        """
        found = target_of(self.url, self.model, key_or_variable(self.api_key))
        return msgspec.structs.replace(found, headers=headers_of(self.headers))


def key_or_variable(key: str | None) -> str | None:
    """Return an API key, or that of the environment if none was given."""
    return os.environ.get("OPENAI_API_KEY") if key is None else key


def fields_of(text: str) -> dict[str, Any]:
    """Read the JSON object of `--body`.

    Raises:
        UnusableInput: it is none.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise OptionError("--body", f"must be a JSON object, got {shown(text)}") from None
