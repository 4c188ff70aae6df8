"""Implement the commands; each returns the exit status."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from textwrap import fill

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plumbline_conformance.cli.explain import explain
from plumbline_conformance.console.output_files import why_unwritable
from plumbline_conformance.console.terminal import INTERRUPTED, console, put
from plumbline_conformance.judge.redacted_findings import judge_redacted, redact_findings
from plumbline_conformance.judge.verdicts import Finding, judge
from plumbline_conformance.recording.file import (
    Header,
    Options,
    Recorder,
    Recording,
    UnreadableRecording,
    read_recording,
)
from plumbline_conformance.recording.redaction import redacted, redacted_exchange
from plumbline_conformance.reports.baseline import Baseline, UnreadableBaseline
from plumbline_conformance.reports.conclude import STYLES, Outputs, conclude
from plumbline_conformance.reports.har import har
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.reports.text import printable
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.runner.preflight import apis_of, discovered
from plumbline_conformance.runner.run import record
from plumbline_conformance.sdk.run import read_again, why_not
from plumbline_conformance.suite.aliases import notes
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.coverage import as_markdown, manifest
from plumbline_conformance.suite.model import CHECKS, SCENARIOS, Target
from plumbline_conformance.suite.selection import PROFILES, Selection, UnknownChoice, scenarios_of
from plumbline_conformance.transcript.model import Transcript
from plumbline_conformance.watch.live import Tally, judge_live

__all__ = [
    "check",
    "console",
    "run_check",
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


def check(
    target: Target,
    ids: Sequence[str] = (),
    *,
    concurrency: int = 4,
    timeout: float = 60.0,
    strict: bool = False,
    trials: int = 0,
    json_file: Path | None = None,
) -> int:
    """Run these checks on a target, print those that do not pass, and return the exit status."""
    outputs = Outputs(strict=strict, json=json_file)
    return run_check(
        target, Selection(ids=ids), outputs, concurrency=concurrency, timeout=timeout, trials=trials
    )


def run_check(
    target: Target,
    selection: Selection,
    outputs: Outputs,
    *,
    concurrency: int = 4,
    timeout: float = 60.0,
    recording: Path | None = None,
    server: str = "",
    conceal: Sequence[str] = (),
    trials: int = 0,
    budget: Budget | None = None,
    capabilities: Mapping[str, bool] | None = None,
    sdk: Sequence[str] = (),
) -> int:
    """Judge a server; afterwards these clients read what it answered."""
    out = console()
    if why := _why_no_client(sdk):
        return _cannot(out, why)
    wanted: set[str] = set()
    transcripts: list[Transcript] = []
    interrupted = False
    secrets = [*conceal, *([target.api_key] if target.api_key else [])]
    began = time.monotonic()
    try:
        chosen = selection.checks()
        wanted = set(chosen)
        # The recording says what was looked at, so that judging it again looks at the same.
        listed = chosen if len(chosen) < len(CHECKS) else []
        limits = budget or Budget()
        baseline = outputs.read_baseline()
        _note(out, [*selection.ids, *baseline.former])
        if said := outputs.unwritable(record=recording):
            return _cannot(out, said)
        if not wanted:
            return _cannot(out, "No check is left by these choices.")
        scenarios = scenarios_of([name for name in CHECKS if name in wanted])
        known = asyncio.run(discovered(target, apis_of(scenarios), patience=timeout))
        if known.why is not None:
            return _cannot(out, known.why)
        target = known.target
        options = Options(
            trials=trials,
            concurrency=concurrency,
            timeout=timeout,
            max_tokens_total=limits.tokens,
            max_tokens_each=limits.tokens_each,
            max_seconds=limits.seconds,
            capabilities=[name if there else f"-{name}" for name, there in (capabilities or {}).items()],
            profile=selection.profile,
            limit=target.limit,
            seed=target.seed,
        )
        header = Header.of(
            target.base_url, target.model, target.api_key, listed, server=server, options=options
        )
        recorder = Recorder(recording, header, secrets=secrets) if recording else nullcontext(None)
        with recorder as file, _progress(out, len(scenarios)) as shown:
            over: dict[str, Transcript] = {}

            def ended(seen: Transcript) -> None:
                over[seen.scenario] = seen
                shown(seen)
                if file is not None:
                    file.add(seen)

            async def ask() -> None:
                transcripts.extend(
                    await record(
                        scenarios,
                        target,
                        concurrency=concurrency,
                        patience=timeout,
                        trials=trials,
                        budget=limits.after(known.tokens),
                        wanted=wanted,
                        ended=ended,
                        said=capabilities,
                    )
                )

            # Not as the coroutine's result: Python writes that out in full at the end, to ask who handles signals.
            try:
                asyncio.run(ask())
            except KeyboardInterrupt:
                interrupted = True
                # What has not ended is written as skipped: a part of a run must never pass for all of it.
                for left in [found.id for found in scenarios if found.id not in over]:
                    ended(Transcript(scenario=left, exchanges=[], skipped=UNASKED))
                transcripts = [over[found.id] for found in scenarios]
    except UnicodeEncodeError:
        return _cannot(out, "The API key cannot be sent: it is not ASCII.")
    except (UnknownChoice, UnreadableBaseline, OSError) as error:
        return _cannot(out, str(error))
    exchanges = [exchange for transcript in transcripts for exchange in transcript.exchanges]
    if not interrupted and exchanges and all(exchange.status == 0 for exchange in exchanges):
        why = redacted_exchange(exchanges[0], secrets).error or ""
        return _cannot(out, f"{header.base_url} cannot be reached: {why}")
    findings = [
        finding
        for seen in transcripts
        for finding in judge_redacted(seen, secrets)
        if finding.check in wanted
    ]
    if not interrupted:
        findings += _of_clients(sdk, transcripts, secrets)
    seconds = time.monotonic() - began
    status = conclude(
        out,
        outputs,
        header,
        transcripts,
        findings,
        seconds=seconds,
        secrets=secrets,
        baseline=baseline,
        profile=selection.profile,
    )
    if not interrupted:
        return status
    ended_before = sum(seen.skipped != UNASKED for seen in transcripts)
    out.print(
        f"Interrupted: {ended_before} of {len(transcripts)} scenarios had ended, and only they were judged."
    )
    return INTERRUPTED


def run_judge(path: Path, selection: Selection, outputs: Outputs, sdk: Sequence[str] = ()) -> int:
    """Run the current checks on a recording; then let these clients read it."""
    out = console()
    if why := _why_no_client(sdk):
        return _cannot(out, why)
    try:
        found = read_recording(path)
        wanted = set(selection.checks())
        if not selection.ids and found.header.chosen:
            wanted &= set(found.header.chosen)
        baseline = outputs.read_baseline()
        _note(out, [*selection.ids, *baseline.former])
    except (UnknownChoice, UnreadableBaseline, UnreadableRecording, OSError) as error:
        return _cannot(out, str(error))
    if said := outputs.unwritable(read=path):
        return _cannot(out, said)
    if found.header.by == "watch" and sdk:
        return _cannot(out, "--sdk needs a recording of `plumbline check`; this one is live traffic.")
    if found.header.by == "watch":
        return _judge_watched(out, found, wanted, outputs, baseline)
    strange = [seen.scenario for seen in found.transcripts if seen.scenario not in SCENARIOS]
    for name in strange:
        out.print(f"skipped {escape(printable(name))}: this suite does not have the scenario")
    # A recording has scenarios in the order in which they ended; print them in the order of the suite.
    order = {name: place for place, name in enumerate(SCENARIOS)}
    transcripts = sorted(found.transcripts, key=lambda seen: order.get(seen.scenario, len(order)))
    findings = [finding for seen in transcripts for finding in judge(seen) if finding.check in wanted]
    if not findings:
        return _cannot(out, "The recording has no exchange for these checks.")
    looked = {finding.check.rsplit("/", 1)[0] for finding in findings}
    findings += _of_clients(sdk, [seen for seen in transcripts if seen.scenario in looked])
    # A recording made with a profile is judged by that profile by default.
    recorded = found.header.options.profile if found.header.options is not None else "full"
    profile = recorded if selection.profile == "full" and recorded in PROFILES else selection.profile
    return conclude(out, outputs, found.header, transcripts, findings, baseline=baseline, profile=profile)


def run_export(path: Path, har_file: Path | None) -> int:
    """Write a recording as HAR."""
    out = console()
    try:
        text = har(read_recording(path))
        if said := why_unwritable({"--har": har_file}, {"the recording": path}):
            return _cannot(out, said)
        if har_file is not None:
            har_file.write_text(text, "utf-8")
    except (UnreadableRecording, OSError) as error:
        return _cannot(out, str(error))
    if har_file is None:
        put(text, end="")
    return 0


def _judge_watched(
    out: Console, found: Recording, wanted: Collection[str], outputs: Outputs, baseline: Baseline
) -> int:
    tally = Tally()
    for seen in found.transcripts:
        tally.add(seen, judge_live(seen.last))
    findings = [finding for finding in tally.findings() if finding.check in wanted]
    return conclude(out, outputs, found.header, tally.transcripts(), findings, baseline=baseline)


def run_rules(*, markdown: bool) -> int:
    """Print every rule with its checks, or why it has none."""
    if markdown:
        put(as_markdown(), end="")
        return 0
    for rule, observed in manifest().items():
        text = ", ".join(observed) if isinstance(observed, list) else f"not checked: {observed}"
        put(f"{rule:9} {rules()[rule]['level']}")
        put(fill(text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False))
    return 0


def run_list(selection: Selection) -> int:
    """List the chosen checks."""
    try:
        _note(console(), selection.ids)
        for name in selection.checks():
            found = CHECKS[name]
            put(f"{found.id:42} {found.level:6} {', '.join(found.rules):18} {found.title}")
    except UnknownChoice as error:
        return _cannot(console(), str(error))
    return 0


def run_explain(names: Sequence[str]) -> int:
    """Explain checks, scenarios and rules."""
    out = console()
    for name in names:
        lines = explain(name)
        if lines is None:
            return _cannot(out, f"There is no check, scenario or rule {name}. `plumbline list` lists them.")
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
    """Fuzz a server, and run these phases of schemathesis if there are any; returns the worse status of the two.

    Hypothesis and schemathesis are optional dependencies, so they are imported here.
    """
    out = console()
    try:
        from plumbline_conformance.fuzz.run import search
        from plumbline_conformance.fuzz.schemathesis_run import run_schemathesis, why_not
    except ModuleNotFoundError as error:
        return _cannot(
            out,
            f"plumbline fuzz needs the package {error.name}. Install it with: pip install 'plumbline[fuzz]'",
        )
    if phases is not None and (why := why_not(target)) is not None:
        return _cannot(out, why)
    status = search(
        target, examples=examples, seed=seed, out=out, only=operations, patience=patience, json_file=json_file
    )
    if phases is None or status not in (0, 1):
        return status
    found = run_schemathesis(
        target, examples=examples, seed=seed, phases=phases, operations=operations, patience=patience
    )
    return max(status, found)


def _why_no_client(clients: Sequence[str]) -> str | None:
    """Return the reason why one of these clients cannot be used, or None."""
    return next((why for client in clients if (why := why_not(client))), None)


def _of_clients(
    clients: Sequence[str], transcripts: Sequence[Transcript], secrets: Sequence[str] = ()
) -> list[Finding]:
    """Return the findings of these clients on redacted answers."""
    covered = [redacted(seen, secrets) for seen in transcripts] if clients else []
    return [
        finding for client in clients for finding in redact_findings(read_again(client, covered), (), secrets)
    ]


def _note(out: Console, names: Iterable[str]) -> None:
    """Print which of these are former ids, and the current ones."""
    for note in notes(names):
        out.print(escape(note))


def _cannot(out: Console, why: str) -> int:
    out.print(escape(printable(why)))
    return 2


@contextmanager
def _progress(out: Console, count: int) -> Iterator[Callable[[Transcript], None]]:
    """Show a progress bar with counts on a terminal; print nothing in a pipe."""
    if not out.is_terminal:
        yield lambda seen: None
        return
    counts: Counter[str] = Counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=count)

        def shown(seen: Transcript) -> None:
            counts.update(finding.verdict for finding in judge(seen))
            text = " ".join(f"[{STYLES[name]}]{counts[name]} {name}[/]" for name in STYLES if counts[name])
            bar.update(task, advance=1, description=text)

        yield shown
