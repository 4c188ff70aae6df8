"""List models (`plumbline list`)."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["ListCommand"]

_server = partial(Describe, "server")
_supported = partial(Describe, "what can be served")


class ListCommand(Command, frozen=True, kw_only=True):
    """List models: served, downloaded, or all that can be served."""

    example = "plumbline list http://127.0.0.1:8000/v1"
    extra = "serve"

    url: Annotated[str, _server("the server whose models are listed", "URL", positional=True)] = (
        "http://127.0.0.1:8000/v1"
    )
    api_key: Annotated[
        str | None, _server("its API key", "KEY", default="the variable OPENAI_API_KEY", secret=True)
    ] = None
    supported: Annotated[bool, _supported("list what each engine runs instead")] = False
    markdown: Annotated[bool, _supported("with --supported: print docs/reference/models.md")] = False

    def run(self, out: Console) -> int:
        """Print the list."""
        from plumbline.server.loading.overview.available import available_models
        from plumbline.server.loading.overview.page import page
        from plumbline.server.loading.overview.supported import overview

        if self.markdown and not self.supported:
            raise OptionError("--markdown", "needs --supported: use `list --supported --markdown`")
        if self.supported:
            print(page().rstrip("\n") if self.markdown else overview())
            return 0
        key = os.environ.get("OPENAI_API_KEY") if self.api_key is None else self.api_key
        print(available_models(self.url, key))
        return 0
