"""Judge a recording again, and convert it (`plumbline judge`, `plumbline export`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.common import findings_of_clients, note, require_clients
from plumbline_conformance.client.options import Sdk
from plumbline_conformance.client.target_input import clients_of
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import Describe, OptionError, UnusableInput
from plumbline_conformance.console.streams import put
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import Recording, RecordingHeader, read_recording
from plumbline_conformance.reports.conclude import STATUSES, File, Outputs, conclude
from plumbline_conformance.reports.formats.har import har
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.reports.submission import problems
from plumbline_conformance.suite.contract import suite
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.suite.selection import PROFILES, Selection
from plumbline_conformance.transcript.exchange import Transcript
from plumbline_conformance.watch.live import Tally, judge_live

__all__ = ["ExportCommand", "JudgeCommand"]

_recording = partial(Describe, "recording")
_Run = Annotated[
    Path, _recording("a recording of `plumbline check --record`", "RUN.JSONL", positional=True, reads=True)
]


class JudgeCommand(Command, frozen=True, kw_only=True):
    """Run the current checks on a recording; then let clients read it."""

    example = "plumbline judge run.jsonl --html report.html"
    statuses = STATUSES

    recording: _Run
    submission: Annotated[
        bool,
        _recording("say instead what is missing before the recording can be a row of the table of servers"),
    ] = False
    selection: Selection = Selection()
    outputs: Outputs = Outputs()
    sdk: Sdk = ""

    def run(self, out: Console) -> int:
        """Print and write the verdicts, or what is missing."""
        if self.submission:
            return _submission(self.recording, out)
        clients = clients_of(self.sdk)
        require_clients(clients)
        found = read_recording(self.recording)
        wanted = set(self.selection.checks())
        if not self.selection.ids and found.header.chosen:
            wanted &= set(found.header.chosen)
        baseline = self.outputs.read_baseline()
        note(out, [*self.selection.ids, *baseline.former])
        if found.header.by == "watch":
            if clients:
                raise OptionError("--sdk", "needs a recording of `plumbline check`; this one is live traffic")
            tally = _watched(found)
            findings = [finding for finding in tally.findings() if finding.check in wanted]
            return conclude(out, self.outputs, found.header, tally.transcripts(), findings, baseline=baseline)
        # The verdicts are of today's suite, so that they can be compared with those of a run of today.
        header = msgspec.structs.replace(found.header, suite=suite())
        transcripts = _in_order(out, found.transcripts)
        findings = [finding for seen in transcripts for finding in judge(seen) if finding.check in wanted]
        if not findings:
            raise UnusableInput(f"RUN.JSONL {self.recording} has no exchange for these checks")
        looked = {finding.check.rsplit("/", 1)[0] for finding in findings}
        findings += findings_of_clients(clients, [seen for seen in transcripts if seen.scenario in looked])
        profile = _profile_of(found.header, self.selection)
        return conclude(out, self.outputs, header, transcripts, findings, baseline=baseline, profile=profile)


class ExportCommand(Command, frozen=True, kw_only=True):
    """Convert a recording for other tools."""

    example = "plumbline export run.jsonl --har run.har"

    recording: _Run
    har: Annotated[
        File, _recording("write HAR 1.2 to FILE", "FILE", default="standard output", writes=True)
    ] = None

    def run(self, out: Console) -> int:
        """Write the recording as HAR."""
        text = har(read_recording(self.recording))
        if self.har is None:
            put(text, end="")
        else:
            self.har.write_text(text, "utf-8")
        return 0


def _submission(path: Path, out: Console) -> int:
    """Print what is missing before a recording can be a row of the table; return 1 if anything is."""
    found = read_recording(path)
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


def _profile_of(header: RecordingHeader, selection: Selection) -> str:
    """Return the chosen profile; without one, the profile of the run."""
    recorded = header.options.profile if header.options is not None else "full"
    return recorded if selection.profile == "full" and recorded in PROFILES else selection.profile


def _watched(found: Recording) -> Tally:
    tally = Tally()
    for seen in found.transcripts:
        for exchange in seen.exchanges:
            tally.add(Transcript(scenario=seen.scenario, exchanges=[exchange]), judge_live(exchange))
    return tally
