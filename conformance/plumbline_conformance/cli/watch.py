"""Check live traffic (`plumbline watch`)."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from rich.console import Console

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.client.target_input import base_url_of
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import AtLeastOne, Describe
from plumbline_conformance.reports.conclude import STATUSES, File, Outputs
from plumbline_conformance.watch import run_watch

__all__ = ["WatchCommand"]

_proxy = partial(Describe, "proxy")


class WatchCommand(Command, frozen=True, kw_only=True):
    """Check live traffic, as a transparent proxy."""

    example = "plumbline watch http://127.0.0.1:8000 --listen :9000 --html live.html"
    statuses = STATUSES

    url: Annotated[
        str, _proxy("the server that gets the traffic, such as http://127.0.0.1:8000", "URL", positional=True)
    ]
    listen: Annotated[str, _proxy("address of the proxy; without a host, loopback", "[HOST]:PORT")] = ":9000"
    connections: Annotated[AtLeastOne, _proxy("concurrent connections", "N")] = 512
    outputs: Outputs = Outputs()
    record: Annotated[
        File, Describe("reports", "write a recording: every byte with its time", "FILE", writes=True)
    ] = None

    def run(self, out: Console) -> int:
        """Serve until interrupted, then report."""
        return run_watch(
            base_url_of(self.url),
            self.listen,
            self.outputs,
            out=out,
            recording=self.record,
            connections=self.connections,
        )
