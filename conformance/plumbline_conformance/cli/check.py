"""Judge a server: send the requests of the chosen checks, record them, judge the answers, report."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console
from rich.markup import escape

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from plumbline_conformance.cli.common import findings_of_clients, note, require_clients
from plumbline_conformance.cli.dispatch import complain
from plumbline_conformance.cli.progress import progress
from plumbline_conformance.client.first_model import with_model
from plumbline_conformance.client.options import Concurrency, Sdk, Server
from plumbline_conformance.client.target_input import capabilities_of, clients_of, reachable
from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import (
    Amount,
    AtLeastOne,
    Count,
    Describe,
    OptionError,
    Positive,
    Texts,
    UnusableInput,
)
from plumbline_conformance.console.terminal import INTERRUPTED, console
from plumbline_conformance.judge.redacted_findings import judge_redacted
from plumbline_conformance.recording.file import (
    RESTART_WAIT,
    TIMEOUT,
    TRIALS,
    Options,
    Recorder,
    Recording,
    RecordingHeader,
    read_recording,
)
from plumbline_conformance.recording.redaction import redacted_exchange, secrets_of
from plumbline_conformance.reports.baseline import Baseline
from plumbline_conformance.reports.conclude import STATUSES, File, Outputs, conclude
from plumbline_conformance.reports.standing import UNASKED
from plumbline_conformance.runner.budget import Budget
from plumbline_conformance.runner.preflight import PreflightResult, apis_of, discovered
from plumbline_conformance.runner.run import exchange_of, record
from plumbline_conformance.suite.scenario import CHECKS, SEED, Request, Scenario, Target
from plumbline_conformance.suite.selection import Selection, scenarios_of
from plumbline_conformance.transcript.exchange import Transcript

__all__ = ["CheckCommand", "check"]

_server = partial(Describe, "server")
_limit = partial(Describe, "requests and limits")
_report = partial(Describe, "reports")


class CheckCommand(Command, frozen=True, kw_only=True):
    """Test a server."""

    example = "plumbline check http://127.0.0.1:8000/v1 --html report.html"
    statuses = STATUSES

    under_test: Server
    capabilities: Annotated[
        str,
        _server(
            "capabilities that the server has, or with a minus lacks, instead of probing: tools,stored,-key",
            "NAMES",
        ),
    ] = ""
    mcp: Annotated[
        str | None,
        _server(
            "where to run an MCP server that the server may call, for its scenarios",
            "HOST:PORT",
            default="skip them",
        ),
    ] = None
    selection: Selection = Selection()
    concurrency: Concurrency = 4
    timeout: Annotated[Positive, _limit("time limit of one request", "SECONDS")] = TIMEOUT
    trials: Annotated[Count, _limit("repetitions of a scenario that broke a MUST", "N")] = TRIALS
    seed: Annotated[int, _limit("seed of requests that send one", "N")] = SEED
    max_tokens_total: Annotated[
        AtLeastOne | None,
        _limit("skip scenarios if the run could cost more tokens than this", "N", default="no limit"),
    ] = None
    max_tokens_each: Annotated[
        AtLeastOne | None,
        _limit("skip scenarios if one could cost more tokens than this", "N", default="no limit"),
    ] = None
    max_seconds: Annotated[
        Positive | None,
        _limit("end all requests after this time and report what was judged", "SECONDS", default="no limit"),
    ] = None
    restart_wait: Annotated[
        Amount, _limit("how long to wait for a server that died to return", "SECONDS")
    ] = RESTART_WAIT
    outputs: Outputs = Outputs()
    sdk: Sdk = ""
    record: Annotated[File, _report("write a recording: every byte with its time", "FILE", writes=True)] = (
        None
    )
    resume: Annotated[
        File,
        _report(
            "go on with a recording of an interrupted run: what had ended in it is not sent again",
            "FILE",
            reads=True,
        ),
    ] = None
    server: Annotated[str, _report("name and version of the server, for reports", "TEXT")] = ""
    conceal: Annotated[
        Texts,
        _report("another text to redact in everything that is written, such as a path; repeatable", "TEXT"),
    ] = ()

    def files(self) -> tuple[dict[Path, str], dict[str, Path]]:
        """Return the files that are read, with the options that name them, and those that are written."""
        read, written = Command.files(self)
        if self.record == self.resume:
            written.pop("--record", None)  # It is read before it is written anew.
        return read, written

    def run(self, out: Console) -> int:
        """Test the server; return the exit status."""
        target = self.under_test.target()
        mcp = None if self.mcp is None else reachable(self.mcp)
        return _run(out, self, msgspec.structs.replace(target, seed=self.seed, mcp=mcp))


def check(
    target: Target,
    ids: Sequence[str] = (),
    *,
    timeout: float = TIMEOUT,
    strict: bool = False,
    trials: int = 0,
    json_file: Path | None = None,
) -> int:
    """Run these checks on a target, print those that do not pass, and return the exit status."""
    command = CheckCommand(
        under_test=Server(url=target.base_url),
        selection=Selection(ids=ids),
        outputs=Outputs(strict=strict, json=json_file),
        timeout=timeout,
        trials=trials,
    )
    try:
        return _run(console(), command, target)
    except UnusableInput as error:
        complain(str(error))
        return 2


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run before anything is sent."""

    checks: list[str]
    scenarios: list[Scenario]
    baseline: Baseline
    capabilities: Mapping[str, bool]
    clients: Sequence[str]
    resumed: Recording | None
    secrets: Sequence[str]


class _Sent(msgspec.Struct):
    """The transcripts of a run, in the order of the scenarios."""

    transcripts: list[Transcript] = msgspec.field(default_factory=list)
    interrupted: bool = False


def _run(out: Console, command: CheckCommand, target: Target) -> int:
    began = time.monotonic()
    plan = _plan(out, command, target)
    target = with_model(target)
    known = asyncio.run(discovered(target, apis_of(plan.scenarios), patience=command.timeout))
    if known.why is not None:
        raise UnusableInput(known.why)
    header = _header(known.target, plan, command)
    kept = {} if plan.resumed is None else _kept(command.resume, plan.resumed, header)
    recorder = Recorder(command.record, header, secrets=plan.secrets) if command.record else nullcontext(None)
    with recorder as file, progress(out, len(plan.scenarios)) as shown:
        listeners = [shown, *([file.add] if file else [])]
        sent = _send(command, plan, known, listeners, kept)
    if why := _unreachable(sent, plan.secrets):
        raise UnusableInput(f"URL {header.base_url} cannot be reached: {why}")
    wanted = set(plan.checks)
    findings = [
        finding
        for seen in sent.transcripts
        for finding in judge_redacted(seen, plan.secrets)
        if finding.check in wanted
    ]
    if not sent.interrupted:
        findings += findings_of_clients(plan.clients, sent.transcripts, plan.secrets)
    status = conclude(
        out,
        command.outputs,
        header,
        sent.transcripts,
        findings,
        seconds=time.monotonic() - began,
        secrets=plan.secrets,
        baseline=plan.baseline,
        profile=command.selection.profile,
    )
    if not sent.interrupted:
        return status
    ended = sum(seen.skipped != UNASKED for seen in sent.transcripts)
    out.print(
        f"Interrupted: {ended} of {len(sent.transcripts)} scenarios had ended, and only they were judged."
    )
    if command.record is not None:
        out.print(
            f"The same command with --resume {escape(str(command.record))} sends the others.", soft_wrap=True
        )
    return INTERRUPTED


def _plan(out: Console, command: CheckCommand, target: Target) -> _Plan:
    """Choose the checks and read the files, before anything is sent.

    Raises:
        UnusableInput: a client is missing, a file is malformed, or a check does not exist, or none is chosen.
    """
    capabilities = capabilities_of(command.capabilities)
    if capabilities.get("mcp") and target.mcp is None:
        raise OptionError("--capabilities", "mcp needs --mcp HOST:PORT: the judge runs the MCP server there.")
    clients = clients_of(command.sdk)
    require_clients(clients)
    chosen = command.selection.checks()
    baseline = command.outputs.read_baseline()
    note(out, [*command.selection.ids, *baseline.former])
    if not chosen:
        raise UnusableInput("These options select no check. `plumbline checks` lists the checks.")
    # Redaction finds a key in one of the user's headers by the name of the header.
    named = secrets_of(exchange_of(target, Request(path="/", method="GET")))
    wanted = set(chosen)
    return _Plan(
        checks=chosen,
        scenarios=scenarios_of([name for name in CHECKS if name in wanted]),
        baseline=baseline,
        capabilities=capabilities,
        clients=clients,
        resumed=None if command.resume is None else read_recording(command.resume),
        secrets=[*command.conceal, *named, *([target.api_key] if target.api_key else [])],
    )


def _header(target: Target, plan: _Plan, command: CheckCommand) -> RecordingHeader:
    options = Options(
        trials=command.trials,
        concurrency=command.concurrency,
        timeout=command.timeout,
        max_tokens_total=command.max_tokens_total,
        max_tokens_each=command.max_tokens_each,
        max_seconds=command.max_seconds,
        capabilities=[name if there else f"-{name}" for name, there in plan.capabilities.items()],
        profile=command.selection.profile,
        limit=target.limit,
        seed=target.seed,
    )
    # The recording lists the chosen checks, so that judging it again looks at the same ones.
    listed = plan.checks if len(plan.checks) < len(CHECKS) else []
    return RecordingHeader.of(
        target.base_url, target.model, target.api_key, listed, server=command.server, options=options
    )


def _kept(path: Path | None, found: Recording, header: RecordingHeader) -> dict[str, Transcript]:
    """Return the transcripts of the scenarios that had ended in a recording of the same server and model.

    Raises:
        OptionError: it is of another server, another model or other checks.
    """
    for name in ("base_url", "model", "suite"):
        mine, other = getattr(header, name), getattr(found.header, name)
        if mine != other:
            raise OptionError(
                "--resume", f"{path} cannot be resumed: its {name} is {other}, and that of this run {mine}."
            )
    return {seen.scenario: seen for seen in found.transcripts if seen.skipped is None and not seen.defect}


def _send(
    command: CheckCommand,
    plan: _Plan,
    known: PreflightResult,
    listeners: Sequence[Callable[[Transcript], None]],
    kept: Mapping[str, Transcript],
) -> _Sent:
    """Run the scenarios that are not kept; after Ctrl-C or SIGTERM those that have not ended are skipped."""
    sent = _Sent()
    ended: dict[str, Transcript] = {}
    left = [found for found in plan.scenarios if found.id not in kept]
    budget = Budget(
        tokens=command.max_tokens_total, tokens_each=command.max_tokens_each, seconds=command.max_seconds
    )

    def end(seen: Transcript) -> None:
        ended[seen.scenario] = seen
        for listener in listeners:
            listener(seen)

    async def run() -> None:
        _ = await record(
            left,
            known.target,
            concurrency=command.concurrency,
            patience=command.timeout,
            trials=command.trials,
            budget=budget.after(known.tokens),
            wanted=set(plan.checks),
            ended=end,
            declared=plan.capabilities,
            restart_wait=command.restart_wait,
        )

    # The coroutine returns None: asyncio.run() formats the finished task with its result when it restores the signal
    # handler, and all transcripts as text take seconds.
    for found in plan.scenarios:
        if found.id in kept:
            end(kept[found.id])
    leads = threading.current_thread() is threading.main_thread()  # Others cannot handle signals.
    before = (signal.signal(signal.SIGTERM, _interrupt), signal.getsignal(signal.SIGINT)) if leads else None
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        sent.interrupted = True
        # Record the other scenarios as skipped, so that an interrupted run does not look complete.
        for found in plan.scenarios:
            if found.id not in ended:
                end(Transcript(scenario=found.id, exchanges=[], skipped=UNASKED))
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before[0])
            signal.signal(signal.SIGINT, before[1])
    sent.transcripts = [ended[found.id] for found in plan.scenarios]
    return sent


def _interrupt(*_: object) -> None:
    """Interrupt the run at SIGTERM, also of a background job, whose SIGINT a shell script has set to be ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _unreachable(sent: _Sent, secrets: Sequence[str]) -> str | None:
    """Return the first error if no request got any answer."""
    exchanges = [exchange for seen in sent.transcripts for exchange in seen.exchanges]
    if sent.interrupted or not exchanges or any(exchange.status != 0 for exchange in exchanges):
        return None
    return redacted_exchange(exchanges[0], secrets).error or "no answer"
