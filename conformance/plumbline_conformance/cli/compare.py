"""Compare a server with the same weights elsewhere (`plumbline compare`): a server, scripts, or recorded rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from rich.console import Console

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.client.options import Server
from plumbline_conformance.client.target_input import target_of
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import (
    AtLeastOne,
    Describe,
    OptionError,
    Positive,
    options_of,
)
from plumbline_conformance.differential.comparison import Servers, run_diff
from plumbline_conformance.exact import run_exact
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.verify.causes import Readers
from plumbline_conformance.verify.verification import VerifiedRows, run_verify

__all__ = ["CompareCommand"]

Kind = Literal["server", "scripts", "rows"]
_KINDS: dict[Kind, str] = {"server": "another server", "scripts": "scripts", "rows": "rows"}
_reports = partial(Describe, "reports")
_offline = partial(Describe, "against scripts or rows")


class CompareCommand(Command, frozen=True, kw_only=True):
    """Compare a server with another one that has the same weights."""

    example = "plumbline compare http://127.0.0.1:8000/v1 http://127.0.0.1:8001/v1 --model my-model"
    statuses = (
        "exit status: 0 no difference, and no figure that is worse than the baseline's; 1 some, or the temperature is "
        "ignored; 2 nothing could be compared. "
    )

    under_test: Server
    reference: Annotated[
        str,
        Describe(
            "server",
            "what to compare it with: the URL of another server, the folder or scripts.json of a scripted checkpoint, "
            "or rows: bodies of chat completions, one a line, as K2-Vendor-Verifier has them (SAMPLES.jsonl)",
            "REFERENCE",
            positional=True,
        ),
    ]
    timeout: Annotated[
        Positive | None,
        Describe("server", "time limit of one request", "SECONDS", default="60, or 600 against rows"),
    ] = None
    json: Annotated[File, _reports("write what was found", "FILE", writes=True)] = None
    servers: Servers = Servers()
    concurrency: Annotated[AtLeastOne, _offline("concurrent requests", "N")] = 4
    rows: VerifiedRows = VerifiedRows()

    @property
    def kind(self) -> Kind:
        """What the server is compared with."""
        if "://" in self.reference:
            return "server"
        return "rows" if self.reference.endswith(".jsonl") else "scripts"

    def files(self) -> tuple[dict[Path, str], dict[str, Path]]:
        """Return the files that are read, with the options that name them, and those that are written."""
        read, written = Command.files(self)
        if self.kind != "server" and not (self.reference and Path(self.reference).exists()):
            raise OptionError(
                "REFERENCE",
                f"names {self.reference!r}, which is neither a URL with http:// nor a file. Give one such as "
                "http://127.0.0.1:8000/v1, a scripted checkpoint, or rows (SAMPLES.jsonl)",
            )
        if self.kind == "rows":
            read[Path(self.reference)] = "REFERENCE"
        return read, written

    def run(self, out: Console, readers: Readers | None = None) -> int:
        """Compare, and print and write the differences.

        Args:
            out: where to print.
            readers: makes what reads raw texts of models.
        """
        for group in (self, self.servers, self.rows):
            for option in options_of(type(group), deep=False):
                title = option.about.group
                given = getattr(group, option.field) != option.default
                if given and title.startswith("against") and self.kind not in title:
                    raise OptionError(
                        option.label, f"is for comparisons {title}, and REFERENCE names {_KINDS[self.kind]}"
                    )
        target = self.under_test.target()
        timeout = self.timeout or (600.0 if self.kind == "rows" else 60.0)
        if self.kind == "server":
            other = target_of(
                self.reference,
                self.servers.reference_model,
                self.servers.reference_api_key,
                "--reference-api-key",
            )
            return run_diff(target, other, self.servers, out=out, patience=timeout, json_file=self.json)
        path = Path(self.reference)
        if self.kind == "scripts":
            return run_exact(
                target, path, out=out, concurrency=self.concurrency, patience=timeout, json_file=self.json
            )
        return run_verify(
            target,
            path,
            self.rows,
            readers,
            out=out,
            concurrency=self.concurrency,
            patience=timeout,
            json_file=self.json,
        )
