"""Implement the commands; each returns the exit status."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.markup import escape

from plumbline_conformance.cli.common import cannot, findings_of_clients, note, why_no_client
from plumbline_conformance.cli.explain import clause_lines, explain
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.streams import put
from plumbline_conformance.console.terminal import console
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import (
    Header,
    Recording,
    UnreadableRecording,
    read_recording,
)
from plumbline_conformance.reports.baseline import Baseline, UnreadableBaseline
from plumbline_conformance.reports.conclude import Outputs, conclude
from plumbline_conformance.reports.formats.har import har
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.reports.submission import problems
from plumbline_conformance.suite.clauses import clauses_of
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import as_markdown, manifest
from plumbline_conformance.suite.model import CHECKS, SCENARIOS, Target
from plumbline_conformance.suite.selection import PROFILES, Selection, UnknownChoice
from plumbline_conformance.transcript.model import Transcript
from plumbline_conformance.watch.live import Tally, judge_live

__all__ = [
    "console",
    "run_explain",
    "run_export",
    "run_fuzz",
    "run_judge",
    "run_list",
    "run_rules",
]

_WIDTH = 100
"""Columns of a line of `list --rules`."""
_INDENT = " " * 10


def run_judge(path: Path, selection: Selection, outputs: Outputs, sdk: Sequence[str] = ()) -> int:
    """Run the current checks on a recording; then let these clients read it."""
    out = console()
    if why := why_no_client(sdk):
        return cannot(out, why)
    try:
        found = read_recording(path)
        wanted = set(selection.checks())
        if not selection.ids and found.header.chosen:
            wanted &= set(found.header.chosen)
        baseline = outputs.read_baseline()
        note(out, [*selection.ids, *baseline.former])
    except (UnknownChoice, UnreadableBaseline, UnreadableRecording, OSError) as error:
        return cannot(out, str(error))
    if why := outputs.unwritable(read=path):
        return cannot(out, why)
    if found.header.by == "watch" and sdk:
        return cannot(out, "--sdk needs a recording of `plumbline check`; this one is live traffic.")
    if found.header.by == "watch":
        return _judge_watched(out, found, wanted, outputs, baseline)
    transcripts = _in_order(out, found.transcripts)
    findings = [finding for seen in transcripts for finding in judge(seen) if finding.check in wanted]
    if not findings:
        return cannot(out, "The recording has no exchange for these checks.")
    looked = {finding.check.rsplit("/", 1)[0] for finding in findings}
    findings += findings_of_clients(sdk, [seen for seen in transcripts if seen.scenario in looked])
    profile = _profile_of(found.header, selection)
    return conclude(out, outputs, found.header, transcripts, findings, baseline=baseline, profile=profile)


def run_submission(path: Path) -> int:
    """Print what is missing before a recording can be a row of the table; return 1 if anything is."""
    out = console()
    try:
        found = read_recording(path)
    except (UnreadableRecording, OSError) as error:
        return cannot(out, str(error))
    missing = list(dict.fromkeys(problems(path, found)))
    for sentence in missing:
        out.print(printable(sentence), markup=False, soft_wrap=True)
    if not missing:
        out.print(f"The recording of {printable(found.header.server)} can be taken.", markup=False)
    return int(bool(missing))


def _in_order(out: Console, recorded: Sequence[Transcript]) -> list[Transcript]:
    """Return transcripts in the order of the suite; a recording has them in the order in which they ended."""
    order = {name: place for place, name in enumerate(SCENARIOS)}
    for seen in recorded:
        if seen.scenario not in order:
            name = escape(printable(seen.scenario))
            out.print(f"skipped {name}: this suite does not have the scenario")
    return sorted(recorded, key=lambda seen: order.get(seen.scenario, len(order)))


def _profile_of(header: Header, selection: Selection) -> str:
    """Return the chosen profile; without one, the profile of the run."""
    recorded = header.options.profile if header.options is not None else "full"
    return recorded if selection.profile == "full" and recorded in PROFILES else selection.profile


def run_export(path: Path, har_file: Path | None) -> int:
    """Write a recording as HAR."""
    out = console()
    try:
        text = har(read_recording(path))
        if why := why_unwritable({"--har": har_file}, {"the recording": path}):
            return cannot(out, why)
        if har_file is not None:
            har_file.write_text(text, "utf-8")
    except (UnreadableRecording, OSError) as error:
        return cannot(out, str(error))
    if har_file is None:
        put(text, end="")
    return 0


def _judge_watched(
    out: Console, found: Recording, wanted: Collection[str], outputs: Outputs, baseline: Baseline
) -> int:
    tally = Tally()
    for seen in found.transcripts:
        for exchange in seen.exchanges:
            tally.add(Transcript(scenario=seen.scenario, exchanges=[exchange]), judge_live(exchange))
    findings = [finding for finding in tally.findings() if finding.check in wanted]
    return conclude(out, outputs, found.header, tally.transcripts(), findings, baseline=baseline)


def run_rules(*, markdown: bool, clauses: bool = False) -> int:
    """Print every rule with its checks, or the reason why it has no check, and with its clauses if wanted."""
    if markdown:
        put(as_markdown(), end="")
        return 0
    for rule, observed in manifest().items():
        text = ", ".join(observed) if isinstance(observed, list) else f"not checked: {observed}"
        put(f"{rule:9} {rules()[rule]['level']}")
        put(_indented(text))
        for clause in clauses_of(rule) if clauses else ():
            for line in clause_lines(clause):
                put(_indented(line))
    return 0


def _indented(text: str) -> str:
    return fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False)


def run_list(selection: Selection) -> int:
    """List the chosen checks."""
    try:
        note(console(), selection.ids)
        for name in selection.checks():
            found = CHECKS[name]
            put(f"{found.id:42} {found.level:6} {', '.join(found.rules):18} {found.title}")
    except UnknownChoice as error:
        return cannot(console(), str(error))
    return 0


def run_explain(names: Sequence[str]) -> int:
    """Explain checks, scenarios and rules."""
    out = console()
    for name in names:
        lines = explain(name)
        if lines is None:
            return cannot(out, f"There is no check, scenario or rule {name}. `plumbline list` lists them.")
        for line in lines:
            out.print(escape(line))
        if name != names[-1]:
            out.print()
    return 0


def run_fuzz(
    target: Target,
    operations: Sequence[str],
    *,
    examples: int,
    seed: int,
    patience: float,
    json_file: Path | None,
    phases: str | None = None,
) -> int:
    """Fuzz a server, and run these phases of schemathesis if there are any; returns the worse exit status.

    Hypothesis and schemathesis are optional dependencies, so they are imported here.
    """
    out = console()
    try:
        from plumbline_conformance.fuzz.run import search
        from plumbline_conformance.fuzz.schemathesis_run import run_schemathesis, why_not
    except ModuleNotFoundError as error:
        return cannot(
            out,
            f"plumbline fuzz needs the package {error.name}. In a clone, run: pip install '.[fuzz]'",
        )
    if phases is not None and (why := why_not(target)) is not None:
        return cannot(out, why)
    status = search(
        target, examples=examples, seed=seed, out=out, only=operations, patience=patience, json_file=json_file
    )
    if phases is None or status not in (0, 1):
        return status
    found = run_schemathesis(
        target, examples=examples, seed=seed, phases=phases, operations=operations, patience=patience
    )
    return max(status, found)
