"""Talk to a model at the terminal (`plumbline run`)."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx2
from rich.console import Console

from plumbline.base.gguf_file import title_of
from plumbline.chat.conversation import ChatSession
from plumbline.chat.own_server import own_server
from plumbline.chat.terminal import Terminal, field_value
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError, Texts, UnusableInput

__all__ = ["RunCommand"]

_DEFAULT_URL = "http://127.0.0.1:8000/v1"
_PROBE = 5.0
"""Seconds for a server to list its models."""
_talk = partial(Describe, "conversation")
_server = partial(Describe, "server")


class RunCommand(Command, frozen=True, kw_only=True):
    """Talk to a model, or ask it one thing. The running server is used if it has the model, or else an own one."""

    example = "plumbline run Qwen/Qwen3-0.6B-GGUF:Q8_0 'Why is the sky blue?'"
    extra = "serve"

    name: Annotated[
        str,
        _talk(
            "the model: a folder, a GGUF file, a name on the hub, or one that the running server has",
            "NAME",
            positional=True,
            default="the running server's first model, or the pocket model",
        ),
    ] = ""
    prompt: Annotated[
        Texts, _talk("ask this and end; what is piped in follows it", "PROMPT", positional=True)
    ] = ()
    system: Annotated[str, _talk("instructions for the model", "TEXT")] = ""
    tools: Annotated[
        Path | None, _talk("JSON file with a list of tools, whose results you type", "FILE", reads=True)
    ] = None
    set: Annotated[Texts, _talk("a field of the requests, as temperature=0; repeatable", "FIELD=VALUE")] = ()
    url: Annotated[
        str | None, _server("talk to this server only", "URL", default=f"{_DEFAULT_URL}, or an own server")
    ] = None
    api_key: Annotated[
        str | None, _server("its API key", "KEY", default="the variable OPENAI_API_KEY", secret=True)
    ] = None

    def run(self, out: Console) -> int:
        """Talk until the end of the input, or print one answer."""
        fields = self._fields()
        with self._client() as (client, model):
            conversation = ChatSession(model=model, fields=fields)
            conversation.system = self.system
            terminal = Terminal(conversation, client)
            piped = "" if sys.stdin.isatty() else sys.stdin.read()
            prompt = "\n\n".join(filter(None, [" ".join(self.prompt), piped.strip()]))
            if not prompt and not sys.stdin.isatty():
                raise UnusableInput("nothing was asked: give PROMPT, or pipe a text in")
            return terminal.ask_once(prompt) if prompt else terminal.talk()

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for text in self.set:
            name, equals, value = text.partition("=")
            if not equals or not name.isidentifier():
                raise OptionError("--set", f"must be FIELD=VALUE such as temperature=0, got {text[:80]}")
            fields[name] = field_value(value)
        if self.tools is not None:
            try:
                tools = json.loads(self.tools.read_text("utf-8"))
            except (ValueError, RecursionError) as error:
                raise OptionError("--tools", f"names {self.tools}, which is not JSON: {error}") from error
            if not isinstance(tools, list):
                raise OptionError("--tools", f"names {self.tools}, which has no list of tools")
            fields["tools"] = tools
        return fields

    @contextlib.contextmanager
    def _client(self) -> Iterator[tuple[httpx2.Client, str]]:
        """Yield a client of the server to talk to, and the name of its model."""
        with _remote(self.url or _DEFAULT_URL, self.api_key) as client:
            names = _models(client)
            if self.url is not None and not names:
                raise UnusableInput(_no_server(self.url))
            wanted = _served_names(self.name) if self.name else set(names[:1])
            served = [name for name in names if name in wanted]
            if served or self.url is not None:
                yield client, served[0] if served else self.name
                return
        if self.name:
            from plumbline.hub.pull import fetch_missing

            try:
                fetch_missing(self.name, yes=False)
            except FileNotFoundError as error:
                raise UnusableInput(str(error)) from error
        with (
            Console(stderr=True).status(
                f"Starting a server of {self.name or 'the pocket model'} …"
            ) as status,
            own_server(self.name) as client,
        ):
            status.stop()
            yield client, _models(client)[0]


def _no_server(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return f"--url must begin with http:// or https://, such as {_DEFAULT_URL}, got {url}"
    return (
        f"no server of the API answers at {url}, or it lists no model: start it, give another --url such as "
        f"{_DEFAULT_URL}, or leave --url out to start an own server"
    )


def _served_names(name: str) -> set[str]:
    """Return the names that a server may give a model: the file's, if NAME on the hub stands for a file."""
    from plumbline.hub.names import read_name
    from plumbline.hub.repository import cached

    hub_name = None if Path(name).exists() else read_name(name)
    file = cached(hub_name) if hub_name is not None else None
    return {name, title_of(Path(name)), title_of(file or Path(name))}


def _remote(url: str, api_key: str | None) -> httpx2.Client:
    key = os.environ.get("OPENAI_API_KEY") if api_key is None else api_key
    try:
        return httpx2.Client(
            base_url=f"{url.rstrip('/')}/",
            headers={"authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
        )
    except (httpx2.InvalidURL, UnicodeEncodeError) as error:
        raise UnusableInput(f"the server's address or key cannot be used: {error}") from error


def _models(client: httpx2.Client) -> list[str]:
    """Return the names of a server's models; none if no server answers."""
    try:
        answer = client.get("models", timeout=_PROBE)
        return [str(model["id"]) for model in answer.json()["data"]] if answer.is_success else []
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError, TypeError, RecursionError):
        return []
