"""Differences between our answers and a reference server's, each with its explanation, as a page."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from plumbline_conformance.reports.markdown import cell

__all__ = ["Difference", "Run", "differences_markdown", "read_run", "reasons"]

_SHOWN = 3
"""Examples of one cause."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One facet of one request in which the two differ."""

    rule: str
    facet: str
    probe: str
    a: str
    b: str

    @property
    def name(self) -> str:
        """What an explanation calls it."""
        return f"{self.facet}: {self.probe}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What `plumbline diff --json` wrote of ours and another."""

    compared: int
    unclear: dict[str, str]
    differences: list[Difference]


class _Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    why: str
    differences: list[str]


class _Reasons(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: list[_Reason]


def read_run(path: Path) -> Run:
    """Read what a differential run wrote; the requests are left out, because their seed gives them again."""
    return msgspec.json.decode(path.read_bytes(), type=Run)


def reasons(path: Path) -> dict[str, list[str]]:
    """What is said of which differences; a request that is unclear is `unclear: …`."""
    found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _Reasons)
    return {reason.why: reason.differences for reason in found.reason}


def differences_markdown(runs: dict[str, tuple[str, Run, dict[str, list[str]]]]) -> str:
    """The page.

    Args:
        runs: by name: the title of the server, what was found, and why.
    """
    lines = [
        "# Ours and theirs with the same weights",
        "",
        "`nox -s peers -- --diff` asks our server (A) and each reference server (B) the same 100 right and 17 wrong",
        "requests, one at a time and greedy. Statuses, errors, texts, finish reasons, token counts, logprobs and the",
        "order of events are compared. Every difference was looked at; what belongs to one cause stands together.",
        "",
    ]
    for title, run, why in runs.values():
        lines += [f"## {cell(title)}", ""]
        lines += [f"{run.compared} requests compared, {len(run.differences)} differences.", ""]
        for sentence, names in why.items():
            lines += [*_reason(run, sentence, names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _reason(run: Run, sentence: str, names: list[str]) -> Iterator[str]:
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
