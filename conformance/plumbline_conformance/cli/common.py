"""Share what several commands print and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.client.target_input import UnusableInput
from plumbline_conformance.judge.redacted_findings import redact_findings
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.redaction import redacted
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.sdk.run import claims_of, read_again, why_not
from plumbline_conformance.suite.aliases import notes
from plumbline_conformance.transcript.defects import summary_of, traceback_of
from plumbline_conformance.transcript.model import Transcript

__all__ = ["cannot", "fields_of", "findings_of_clients", "note", "why_no_client"]


def why_no_client(clients: Sequence[str]) -> str | None:
    """Return why one of these clients cannot be used, or None."""
    return next((why for client in clients if (why := why_not(client))), None)


def findings_of_clients(
    clients: Sequence[str], transcripts: Sequence[Transcript], secrets: Sequence[str] = ()
) -> list[Finding]:
    """Let these clients read the answers, without the secrets in them, and return their findings."""
    return [
        finding
        for client in clients
        for finding in redact_findings(_read(client, transcripts, secrets), (), secrets)
    ]


def _read(client: str, transcripts: Sequence[Transcript], secrets: Sequence[str]) -> list[Finding]:
    """Let one client read the answers. A defect of the judge becomes the verdict `error` of each claim."""
    try:
        return read_again(client, [redacted(seen, secrets) for seen in transcripts])
    except Exception as error:
        text = traceback_of(error)
        return [
            Finding(check=name, verdict="error", reason=summary_of(error), traceback=text)
            for name in claims_of(client)
        ]


def note(out: Console, names: Iterable[str]) -> None:
    """Print which of these ids are former ones, and the current ids."""
    for line in notes(names):
        out.print(escape(line))


def cannot(out: Console, why: str) -> int:
    """Print why a command cannot run, and return its exit status."""
    out.print(escape(printable(why)))
    return 2


def fields_of(text: str) -> dict[str, Any]:
    """Read the JSON object of `--body`.

    Raises:
        UnusableInput: it is none.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        raise UnusableInput(f"--body: {text[:80]!r} is not a JSON object.") from None
