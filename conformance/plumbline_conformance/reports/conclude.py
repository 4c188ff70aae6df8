"""Conclude a run: print the result, write the report files, return the exit status."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape

from plumbline_conformance.console.command import OptionGroup
from plumbline_conformance.console.options import Describe, UnusableInput
from plumbline_conformance.judge.verdicts import Finding
from plumbline_conformance.recording.file import RecordingHeader
from plumbline_conformance.reports.baseline import Baseline
from plumbline_conformance.reports.causes import groups, with_causes
from plumbline_conformance.reports.conformance_classes import classes_line
from plumbline_conformance.reports.formats.badge import badge_json, badge_svg
from plumbline_conformance.reports.formats.html import html
from plumbline_conformance.reports.formats.junit import junit
from plumbline_conformance.reports.formats.markdown import markdown
from plumbline_conformance.reports.formats.sarif import sarif
from plumbline_conformance.reports.formats.text import failure_lines, printable, same_cause, scores
from plumbline_conformance.reports.guard import render_all
from plumbline_conformance.reports.repairs import new_lines, repair_lines
from plumbline_conformance.reports.report import VERDICTS, Report, Result, report_of
from plumbline_conformance.reports.skips import skip_lines
from plumbline_conformance.reports.standing import lacking, refused, status_of, unjudged
from plumbline_conformance.suite.scenario import DIED, MUTE, SCENARIOS, UNKNOWN
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["STATUSES", "STYLES", "File", "Outputs", "conclude", "show"]

STATUSES = (
    "exit status: 0 the server conforms; 1 it broke a MUST (with --strict, a SHOULD), or the baseline names what it no "
    "longer breaks; 2 nothing could be judged; 3 a defect of the judge; 130 interrupted. "
)

STYLES = {
    "pass": "green",
    "fail": "bold red",
    "warn": "yellow",
    "flaky": "red",
    "untestable": "red",
    "rejected": "blue",
    "inconclusive": "cyan",
    "skipped": "dim",
    "error": "magenta",
}


_report = partial(Describe, "reports")
File = Path | None


class Outputs(OptionGroup, frozen=True, kw_only=True):
    """Report files to write, and the baseline to compare with."""

    strict: Annotated[bool, _report("exit with 1 for broken SHOULD rules as well")] = False
    json: Annotated[File, _report("write the report as JSON", "FILE", writes=True)] = None
    junit: Annotated[File, _report("write the report as JUnit XML", "FILE", writes=True)] = None
    sarif: Annotated[File, _report("write the report as SARIF, for code scanning", "FILE", writes=True)] = (
        None
    )
    markdown: Annotated[File, _report("write the report as Markdown", "FILE", writes=True)] = None
    html: Annotated[File, _report("write the report as one self-contained page", "FILE", writes=True)] = None
    badge: Annotated[
        File,
        _report("write a badge: SVG if the name ends in .svg, else JSON for shields.io", "FILE", writes=True),
    ] = None
    baseline: Annotated[
        File,
        _report("file of known violations", "FILE", also=("--expected-failures",), reads=True),
    ] = None
    update_baseline: Annotated[bool, _report("write the current violations to the baseline")] = False

    def files(self) -> tuple[dict[Path, str], dict[str, Path]]:
        """Return the files that are read, with the options that name them, and those that are written."""
        read, written = OptionGroup.files(self)
        if self.update_baseline:
            if self.baseline is None:
                raise UnusableInput("--update-baseline needs --baseline FILE, the file to write.")
            del read[self.baseline]
            written["--baseline"] = self.baseline
        return read, written

    def read_baseline(self) -> Baseline:
        """Return the baseline; an empty one if the file does not exist and is to be created.

        Raises:
            UnreadableBaseline: the file is not a baseline.
            OSError: the file cannot be read.
        """
        if self.baseline is None or (self.update_baseline and not self.baseline.exists()):
            return Baseline()
        return Baseline.read(self.baseline)

    def renderers(self) -> Iterator[tuple[Path, Callable[[Report], str]]]:
        """Yield the path of each chosen report, and the function that returns its text."""
        if self.json is not None:
            yield self.json, Report.to_json
        if self.junit is not None:
            yield self.junit, partial(junit, strict=self.strict)
        if self.sarif is not None:
            yield self.sarif, partial(sarif, strict=self.strict)
        if self.markdown is not None:
            yield self.markdown, markdown
        if self.html is not None:
            yield self.html, html
        if self.badge is not None:
            drawn = badge_svg if self.badge.suffix == ".svg" else badge_json
            yield self.badge, partial(drawn, strict=self.strict)


def conclude(
    console: Console,
    outputs: Outputs,
    run: RecordingHeader,
    transcripts: Sequence[Transcript],
    findings: Sequence[Finding],
    *,
    seconds: float | None = None,
    secrets: Sequence[str] = (),
    baseline: Baseline | None = None,
    profile: str = "full",
) -> int:
    """Write the files, print checks that do not pass, return the exit status."""
    known = baseline or Baseline()
    if outputs.update_baseline:
        known = known.updated(findings)
    report = with_causes(
        report_of(
            run, transcripts, findings, baseline=known, seconds=seconds, secrets=secrets, profile=profile
        )
    )
    # Write the files first, because a closed pipe may end the output.
    unwritten: list[OSError] = []
    chosen = list(outputs.renderers())
    report, [*texts, _] = render_all(report, [*(render for _, render in chosen), _terminal])
    for (path, _), text in zip(chosen, texts, strict=True):
        try:
            path.write_text(text, "utf-8")
        except OSError as error:
            unwritten.append(error)
    if outputs.update_baseline and outputs.baseline is not None:
        try:
            known.write(outputs.baseline)
        except OSError as error:
            unwritten.append(error)
    for line in _circumstances(run, transcripts):
        console.print(line, markup=False)
    show(console, report)
    for name in () if _stopped_by_death(transcripts) else unjudged(report):
        who = "every server" if SCENARIOS[name].core else f"profile {report.profile}"
        console.print(f"No check of {name} reached a verdict, but {who} requires the scenario.", markup=False)
    for sentence in (*lacking(report), *refused(report)):
        console.print(printable(sentence), markup=False)
    if unknown := sum((result.reason or "").startswith(UNKNOWN) for result in report.results):
        amount = "1 check was" if unknown == 1 else f"{unknown} checks were"
        console.print(
            f"{amount} skipped because the server's capabilities could not be determined: "
            "run again, or name them with --capabilities.",
            markup=False,
        )
    for why in unwritten:
        console.print(f"A report cannot be written: {escape(printable(str(why)))}")
    if unwritten:
        return 2
    return status_of(report, strict=outputs.strict)


def _terminal(report: Report) -> str:
    """Return the terminal's text about the checks, to find out whether it can be written."""
    return "\n".join(line for result in report.results for line in failure_lines(report, result))


def _circumstances(run: RecordingHeader, transcripts: Sequence[Transcript]) -> Iterator[str]:
    """Yield notes about the run: another token limit, requests that were sent again."""
    if run.options is not None and run.options.limit != "max_tokens":
        yield f"The server refuses `max_tokens` on chat completions, and was given `{run.options.limit}`."
    for seen in transcripts:
        if seen.died is not None:
            after = "The run stopped there." if _stopped_by_death(transcripts) else "It came back."
            if seen.mute is not None:
                yield f"The server stopped serving in {seen.scenario}, and the run stopped there."
            else:
                yield f"The server died in {seen.scenario}. {after}"
    asked = [exchange for seen in transcripts if seen.skipped is None for exchange in seen.everything]
    again = sum(bool(exchange.busy) for exchange in asked)
    if again:
        amount = "1 request was" if again == 1 else f"{again} requests were"
        yield f"The server was busy: {amount} sent again."


def _stopped_by_death(transcripts: Sequence[Transcript]) -> bool:
    return any((seen.skipped or "").startswith((DIED, MUTE)) for seen in transcripts)


def show(console: Console, report: Report) -> None:
    """Print the number of causes and what to repair first, the checks that do not pass, and the counts."""
    for line in (*new_lines(report), *repair_lines(report)):
        console.print(escape(printable(line)), highlight=False)
    for line in skip_lines(report):
        console.print(f"[{STYLES['skipped']}]skipped[/] {escape(printable(line))}")
    for group in groups(report):
        result = group.result
        console.print(
            f"[{STYLES.get(result.verdict, 'bold')}]{result.verdict}[/] {escape(_headline(result))}"
        )
        for line in failure_lines(report, result):
            console.print(f"    {escape(line)}")
        if group.others:
            console.print(f"    {escape(printable(same_cause(group.others)))}")
    for name in report.stale:
        console.print(
            f"[yellow]stale[/] {escape(printable(name))}  This violation no longer occurs as listed."
        )
    if report.stale:
        console.print("Correct the baseline by --update-baseline; with --strict the run fails until then.")
    console.print(f"by class: {classes_line(report)}", highlight=False)
    console.print(f"checks that pass, of those with a verdict: {scores(report)}")
    summary = ", ".join(f"{report.counts[name]} {name}" for name in VERDICTS if report.counts[name])
    accepted = sum(result.expected is not None for result in report.results)
    of_these = f" ({accepted} in the baseline)" if accepted else ""
    checks = "1 check" if len(report.results) == 1 else f"{len(report.results)} checks"
    console.print(f"{checks}: {summary}{of_these}")


def _headline(result: Result) -> str:
    return f"{result.check}  {result.title}"
