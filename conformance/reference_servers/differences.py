"""Write the page about differences between our server and the reference servers, with an explanation for each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from plumbline_conformance.reports.formats.markdown import cell

__all__ = ["DiffRun", "RecordedDifference", "differences_markdown", "read_run", "reasons"]

_SHOWN = 3
"""Examples of one cause."""


class RecordedDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One facet of one request in which the two servers differ."""

    rule: str
    facet: str
    probe: str
    a: str
    b: str

    @property
    def name(self) -> str:
        """Return the name that explanations use."""
        return f"{self.facet}: {self.probe}"


class DiffRun(msgspec.Struct, frozen=True, kw_only=True):
    """The output of `plumbline compare --json` for our server and another one."""

    compared: int
    unclear: dict[str, str]
    differences: list[RecordedDifference]


class _Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: str
    differences: list[str]


class _Reasons(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: list[_Reason]


def read_run(path: Path) -> DiffRun:
    """Read the output of a differential run, without the requests, which the seed reproduces."""
    return msgspec.json.decode(path.read_bytes(), type=DiffRun)


def reasons(path: Path) -> dict[str, list[str]]:
    """Return the differences by their explanation; an unclear request is named `unclear: …`."""
    found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Reasons)
    return {reason.why: reason.differences for reason in found.reason}


def differences_markdown(runs: dict[str, tuple[str, DiffRun, dict[str, list[str]]]]) -> str:
    """Return the page.

    Args:
        runs: by name: the title of the server, the run, and the differences by explanation.
    """
    lines = [
        "# Ours and theirs with the same weights",
        "",
        "`nox -s peers -- --diff` sends our server (A) and each reference server (B) the same 100 valid and 17 invalid",
        "requests, one at a time and greedy, and compares statuses, errors, texts, finish reasons, token counts,",
        "logprobs and the order of events. Every difference has an explanation; differences are grouped by cause.",
        "",
    ]
    for title, run, why in runs.values():
        lines += [f"## {cell(title)}", ""]
        lines += [f"{run.compared} requests compared, {len(run.differences)} differences.", ""]
        for sentence, names in why.items():
            lines += [*_reason(run, sentence, names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _reason(run: DiffRun, sentence: str, names: list[str]) -> Iterator[str]:
    found = [difference for difference in run.differences if difference.name in names]
    facets = ", ".join(sorted({difference.facet for difference in found} or {"unclear"}))
    yield f"**{cell(facets)}, {len(names)} times.** {sentence}"
    yield ""
    for difference in found[:_SHOWN]:
        yield f"- {cell(difference.probe)} ({difference.rule})"
        yield f"  - A {cell(_short(difference.a))}"
        yield f"  - B {cell(_short(difference.b))}"


def _short(text: str) -> str:
    return text if len(text) <= 160 else f"{text[:160]} …"
