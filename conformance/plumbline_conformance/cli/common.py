"""Share what several commands print and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape

from plumbline_conformance.console.options import UnusableInput
from plumbline_conformance.judge.redacted_findings import redact_findings
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.redaction import redacted
from plumbline_conformance.sdk.client_reading import claims_of, read_again, why_not
from plumbline_conformance.suite.aliases import notes
from plumbline_conformance.transcript.defects import summary_of, traceback_of
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["findings_of_clients", "note", "require_clients"]


def require_clients(clients: Sequence[str]) -> None:
    """Raise UnusableInput if one of these clients cannot be used."""
    if why := next((why for client in clients if (why := why_not(client))), None):
        raise UnusableInput(why)


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
