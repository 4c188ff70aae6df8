"""Judge a server: send the requests of the chosen checks, record them, judge the answers, report."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from plumbline_conformance.cli.common import cannot, findings_of_clients, note, why_no_client
from plumbline_conformance.console.terminal import INTERRUPTED, console
from plumbline_conformance.judge.redacted_findings import judge_redacted
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.recording.file import (
    RESTART_WAIT,
    Header,
    Options,
    Recorder,
    UnreadableRecording,
    read_recording,
)
from plumbline_conformance.recording.redaction import redacted_exchange, secrets_of
from plumbline_conformance.reports.baseline import Baseline, UnreadableBaseline
from plumbline_conformance.reports.conclude import STYLES, Outputs, conclude
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.runner.preflight import apis_of, discovered
from plumbline_conformance.runner.run import exchange_of, record
from plumbline_conformance.suite.model import CHECKS, Request, Scenario, Target
from plumbline_conformance.suite.selection import Selection, UnknownChoice, scenarios_of
from plumbline_conformance.transcript.model import Transcript

__all__ = ["check", "run_check"]

_SAY = 10.0
"""Seconds between two lines about the progress of a run whose output is not a terminal."""


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


class _CannotRun(Exception):  # noqa: N818 - it is a reason, not an error
    """The command cannot run, for the reason in the message."""


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The checks and scenarios of a run, and its baseline."""

    checks: list[str]
    scenarios: list[Scenario]
    baseline: Baseline


class _Sent(msgspec.Struct):
    """The transcripts of a run, in the order of the scenarios."""

    transcripts: list[Transcript] = msgspec.field(default_factory=list)
    interrupted: bool = False


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
    restart_wait: float = RESTART_WAIT,
    capabilities: Mapping[str, bool] | None = None,
    sdk: Sequence[str] = (),
    resumed: Path | None = None,
) -> int:
    """Judge a server, let these clients read its answers, and return the exit status.

    With `resumed`, the scenarios that had ended in this recording are judged by it and are not sent again.
    """
    out = console()
    began = time.monotonic()
    # Redaction finds a key in one of the user's headers by the name of the header.
    named = secrets_of(exchange_of(target, Request(path="/", method="GET")))
    secrets = [*conceal, *named, *([target.api_key] if target.api_key else [])]
    try:
        _require_address(target, capabilities)
        plan = _plan(out, selection, outputs, recording, sdk)
        known = asyncio.run(discovered(target, apis_of(plan.scenarios), patience=timeout))
        if known.why is not None:
            return cannot(out, known.why)
        limits = budget or Budget()
        options = Options(
            trials=trials,
            concurrency=concurrency,
            timeout=timeout,
            max_tokens_total=limits.tokens,
            max_tokens_each=limits.tokens_each,
            max_seconds=limits.seconds,
            capabilities=[name if there else f"-{name}" for name, there in (capabilities or {}).items()],
            profile=selection.profile,
            limit=known.target.limit,
            seed=known.target.seed,
        )
        header = _header(known.target, plan, server, options)
        kept = _kept(resumed, header) if resumed is not None else {}
        recorder = Recorder(recording, header, secrets=secrets) if recording else nullcontext(None)
        with recorder as file, _progress(out, len(plan.scenarios)) as shown:
            sent = _send(
                plan,
                known.target,
                options,
                limits.after(known.tokens),
                capabilities,
                [shown, *([file.add] if file else [])],
                restart_wait,
                kept,
            )
    except UnicodeEncodeError:
        return cannot(out, "The API key cannot be sent: it is not ASCII.")
    except (_CannotRun, UnknownChoice, UnreadableBaseline, UnreadableRecording, OSError) as error:
        return cannot(out, str(error))
    if why := _unreachable(sent, secrets):
        return cannot(out, f"{header.base_url} cannot be reached: {why}")
    wanted = set(plan.checks)
    findings = [
        finding
        for seen in sent.transcripts
        for finding in judge_redacted(seen, secrets)
        if finding.check in wanted
    ]
    if not sent.interrupted:
        findings += findings_of_clients(sdk, sent.transcripts, secrets)
    status = conclude(
        out,
        outputs,
        header,
        sent.transcripts,
        findings,
        seconds=time.monotonic() - began,
        secrets=secrets,
        baseline=plan.baseline,
        profile=selection.profile,
    )
    if not sent.interrupted:
        return status
    ended = sum(seen.skipped != UNASKED for seen in sent.transcripts)
    out.print(
        f"Interrupted: {ended} of {len(sent.transcripts)} scenarios had ended, and only they were judged."
    )
    return INTERRUPTED


def _require_address(target: Target, capabilities: Mapping[str, bool] | None) -> None:
    """Refuse a declared capability of which the judge does not know where to run its MCP server."""
    if (capabilities or {}).get("mcp") and target.mcp is None:
        raise _CannotRun("--capabilities mcp needs --mcp HOST:PORT: the judge runs the MCP server there.")


def _plan(
    out: Console, selection: Selection, outputs: Outputs, recording: Path | None, sdk: Sequence[str]
) -> _Plan:
    """Choose the checks and read the baseline, before anything is sent.

    Raises:
        _CannotRun: a client is missing, a file cannot be written, or no check is chosen.
        UnknownChoice: a check or profile does not exist.
        UnreadableBaseline: the baseline is malformed.
    """
    if why := why_no_client(sdk):
        raise _CannotRun(why)
    chosen = selection.checks()
    baseline = outputs.read_baseline()
    note(out, [*selection.ids, *baseline.former])
    if why := outputs.unwritable(record=recording):
        raise _CannotRun(why)
    if not chosen:
        raise _CannotRun("These options select no check. `plumbline list` lists the checks.")
    wanted = set(chosen)
    return _Plan(
        checks=chosen, scenarios=scenarios_of([name for name in CHECKS if name in wanted]), baseline=baseline
    )


def _header(target: Target, plan: _Plan, server: str, options: Options) -> Header:
    # The recording lists the chosen checks, so that judging it again looks at the same ones.
    listed = plan.checks if len(plan.checks) < len(CHECKS) else []
    return Header.of(target.base_url, target.model, target.api_key, listed, server=server, options=options)


def _kept(recording: Path, header: Header) -> dict[str, Transcript]:
    """Return the transcripts of the scenarios that had ended in a recording of the same server and model.

    Raises:
        _CannotRun: it is of another server, another model or other checks.
        UnreadableRecording: it is no whole recording.
    """
    found = read_recording(recording)
    for name in ("base_url", "model", "suite"):
        mine, other = getattr(header, name), getattr(found.header, name)
        if mine != other:
            raise _CannotRun(
                f"{recording} cannot be resumed: its {name} is {other}, and that of this run {mine}."
            )
    return {seen.scenario: seen for seen in found.transcripts if seen.skipped is None and not seen.defect}


def _send(
    plan: _Plan,
    target: Target,
    options: Options,
    budget: Budget,
    capabilities: Mapping[str, bool] | None,
    listeners: Sequence[Callable[[Transcript], None]],
    restart_wait: float,
    kept: Mapping[str, Transcript],
) -> _Sent:
    """Run the scenarios that are not kept; after Ctrl-C or SIGTERM those that have not ended are skipped."""
    sent = _Sent()
    ended: dict[str, Transcript] = {}
    left = [found for found in plan.scenarios if found.id not in kept]

    def end(seen: Transcript) -> None:
        ended[seen.scenario] = seen
        for listener in listeners:
            listener(seen)

    async def run() -> None:
        _ = await record(
            left,
            target,
            concurrency=options.concurrency,
            patience=options.timeout,
            trials=options.trials,
            budget=budget,
            wanted=set(plan.checks),
            ended=end,
            declared=capabilities,
            restart_wait=restart_wait,
        )

    # The coroutine returns None: asyncio.run() formats the finished task with its result when it restores the signal
    # handler, and all transcripts as text take seconds.
    for found in plan.scenarios:
        if found.id in kept:
            end(kept[found.id])
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        sent.interrupted = True
        # Record the other scenarios as skipped, so that an interrupted run does not look complete.
        for found in plan.scenarios:
            if found.id not in ended:
                end(Transcript(scenario=found.id, exchanges=[], skipped=UNASKED))
    finally:
        signal.signal(signal.SIGTERM, before)
    sent.transcripts = [ended[found.id] for found in plan.scenarios]
    return sent


def _unreachable(sent: _Sent, secrets: Sequence[str]) -> str | None:
    """Return the first error if no request got any answer."""
    exchanges = [exchange for seen in sent.transcripts for exchange in seen.exchanges]
    if sent.interrupted or not exchanges or any(exchange.status != 0 for exchange in exchanges):
        return None
    return redacted_exchange(exchanges[0], secrets).error or "no answer"


@contextmanager
def _progress(out: Console, count: int) -> Iterator[Callable[[Transcript], None]]:
    """Show a progress bar and the counts of verdicts on a terminal; elsewhere write a line now and then."""
    if not out.is_terminal:
        said = time.monotonic()
        ended = 0

        def told(_: Transcript) -> None:
            nonlocal said, ended
            ended += 1
            if time.monotonic() - said >= _SAY:
                said = time.monotonic()
                print(f"{ended} of {count} scenarios have ended", file=sys.stderr, flush=True)

        yield told
        return
    counts: Counter[str] = Counter()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task("", total=count)

        def shown(seen: Transcript) -> None:
            counts.update(finding.verdict for finding in judge(seen))
            counted = " ".join(f"[{STYLES[name]}]{counts[name]} {name}[/]" for name in STYLES if counts[name])
            bar.update(task, advance=1, description=counted)

        yield shown
