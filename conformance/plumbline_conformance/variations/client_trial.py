"""Run a client's program for every case, and report which ones break it (`plumbline client`)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from rich.console import Console
from rich.markup import escape

from plumbline_conformance.console.command import Command
from plumbline_conformance.console.options import AtLeastOne, Describe, OptionError, Positive, Texts
from plumbline_conformance.console.terminal import INTERRUPTED
from plumbline_conformance.reports.conclude import File
from plumbline_conformance.reports.formats.text import printable
from plumbline_conformance.variations.cases import CASES, LegalAnswer
from plumbline_conformance.variations.http import VariationServer, serving
from plumbline_conformance.variations.script import EXPECTED, MODEL

__all__ = ["ClientCommand", "ClientOutcome", "markdown"]

_KEY = "sk-none"
_MOST_PRINTED = 64 * 1024
"""Bytes that are kept of what a program prints."""
_MOST_SHOWN = 500
_PATIENCE = 2.0
"""Seconds for the last words of a program that has ended."""


class ClientOutcome(msgspec.Struct, frozen=True):
    """What a client did in one case."""

    case: str
    name: str
    allowed_by: str
    error: str
    """Why it is broken; empty if it is not."""


_cases = partial(Describe, "cases")
_runs = partial(Describe, "program")


class ClientCommand(Command, frozen=True, kw_only=True):
    """Test a client: answer it in every legal way."""

    example = "plumbline client python my_client.py"
    statuses = (
        "exit status: 0 no case breaks the client; 1 some do; 2 the program fails without a variation, or asks for "
        "nothing. "
    )

    program: Annotated[
        Texts,
        _runs(
            "the program and its arguments: it asks OPENAI_BASE_URL, and exits with an error if what it reads is not "
            "PLUMBLINE_EXPECTED; without one, only listen",
            "PROGRAM",
            positional=True,
            rest=True,
        ),
    ] = ()
    once: Annotated[
        bool,
        _runs("run the program once: it takes the cases from PLUMBLINE_CASES, and posts each outcome"),
    ] = False
    jobs: Annotated[AtLeastOne, _runs("programs at a time", "N")] = 2
    port: Annotated[
        Annotated[int, Meta(ge=0, le=65535)], _runs("port to listen on", "N", default="a free one")
    ] = 0
    timeout: Annotated[Positive, _runs("time limit of one run of the program", "SECONDS")] = 60.0
    list: Annotated[bool, _cases("list the cases")] = False
    cases: Annotated[Texts, _cases("only this case; repeatable", "NAME", name="case")] = ()
    json: Annotated[File, Describe("reports", "write the outcomes", "FILE", writes=True)] = None

    @property
    def words(self) -> tuple[str, ...]:
        """The program and its arguments; `--` may stand before them."""
        return self.program[1:] if self.program[:1] == ("--",) else self.program

    def run(self, out: Console) -> int:
        """List the cases, or run the program for them, and print and write the outcomes."""
        if self.list:
            for case in CASES:
                line = f"{case.slug:50} {case.name} ({case.allowed_by})"
                out.print(line, highlight=False, soft_wrap=True, markup=False)
            return 0
        cases = _chosen(self.cases)
        try:
            found = asyncio.run(_outcomes(self, cases, out))
        except KeyboardInterrupt:
            return INTERRUPTED
        if found is None:
            return 2
        broken = [one for one in found if one.error]
        for one in broken:
            line = escape(printable(f"  {one.name} ({one.allowed_by}): {one.error}"))
            out.print(line, highlight=False, soft_wrap=True)
        out.print(f"{len(found)} cases, {len(broken)} of them break the client", highlight=False)
        if self.json is not None:
            self.json.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n", "utf-8")
        return int(bool(broken))


def _chosen(names: Sequence[str]) -> list[LegalAnswer]:
    """Return the cases of these names, and the one without a variation first; all if there are no names."""
    known = {case.slug: case for case in CASES}
    for name in names:
        if name not in known:
            raise OptionError("--case", f"{name} is no case: --list shows them")
    return list(dict.fromkeys([CASES[0], *(known[name] for name in names)])) if names else list(CASES)


async def _outcomes(
    command: ClientCommand, cases: Sequence[LegalAnswer], out: Console
) -> list[ClientOutcome] | None:
    async with _listening(command.port) as server:
        if not command.words:
            out.print(f"Listening on {server.root}. The cases: {server.root}/cases", highlight=False)
            await asyncio.Event().wait()
        first, *others = cases
        if command.once:
            output = await _program(command, server, first)
            if not server.outcomes:
                out.print(
                    f"The program has posted no outcome: {escape(printable(output or 'it ended with 0'))}"
                )
                return None
            if why := server.outcomes.get(first.slug):
                out.print(f"The program fails without a variation: {escape(printable(why))}")
                return None
            lost = output or "the program posted no outcome"
            return [_outcome(case, server.outcomes.get(case.slug, lost)) for case in cases]
        if why := await _program(command, server, first):
            out.print(f"The program fails without a variation: {escape(printable(why))}")
            return None
        if not server.asked:
            out.print("The program has asked for nothing: let it use OPENAI_BASE_URL.")
            return None
        turn = asyncio.Semaphore(command.jobs)

        async def one(case: LegalAnswer) -> ClientOutcome:
            async with turn:
                return _outcome(case, await _program(command, server, case))

        return [_outcome(first, ""), *await asyncio.gather(*map(one, others))]


@asynccontextmanager
async def _listening(port: int) -> AsyncIterator[VariationServer]:
    async with AsyncExitStack() as stack:
        try:
            server = await stack.enter_async_context(serving(port))
        except OSError as error:
            raise OptionError("--port", f"{port} cannot be used: {error.strerror or error}") from None
        yield server


def _outcome(case: LegalAnswer, error: str) -> ClientOutcome:
    return ClientOutcome(case.slug, case.name, case.allowed_by, error)


async def _program(command: ClientCommand, server: VariationServer, case: LegalAnswer) -> str:
    """Run the program for a case; return why it fails, in one line."""
    variables = {
        **os.environ,
        "OPENAI_BASE_URL": server.url(case),
        "OPENAI_API_KEY": _KEY,
        "ANTHROPIC_BASE_URL": server.url(case).removesuffix("/v1"),
        "ANTHROPIC_API_KEY": _KEY,
        "PLUMBLINE_MODEL": MODEL,
        "PLUMBLINE_EXPECTED": json.dumps({**EXPECTED, "error": case.fails}),
        "PLUMBLINE_CASES": f"{server.root}/cases",
    }
    try:
        process = await asyncio.create_subprocess_exec(
            *command.words,
            env=variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise OptionError("PROGRAM", f"{command.words[0]} cannot be run: {error.strerror or error}") from None
    assert process.stdout is not None
    printed = bytearray()
    reading = asyncio.create_task(_read(process.stdout, printed))
    try:
        await asyncio.wait_for(_ended(process), command.timeout)
    except TimeoutError:
        return f"it did not end in {command.timeout:g} s"
    finally:
        with suppress(ProcessLookupError):  # Also its children.
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        with suppress(TimeoutError):  # A child in a session of its own may keep the pipe.
            await asyncio.wait_for(reading, _PATIENCE)
    if posted := server.outcomes.get(case.slug):
        return posted
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    return (
        ""
        if process.returncode == 0
        else f"{lines[-1][:_MOST_SHOWN] if lines else 'no words'} (status {process.returncode})"
    )


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Return when a program has ended. `wait` also waits for its pipe, which a child that it leaves keeps open."""
    while process.returncode is None:  # noqa: ASYNC110 - nothing tells of the end before `wait` does
        await asyncio.sleep(0.02)


async def _read(stream: asyncio.StreamReader, last: bytearray) -> None:
    """Read all that a program prints, and keep the last bytes."""
    while read := await stream.read(_MOST_PRINTED):
        last += read
        del last[:-_MOST_PRINTED]


def markdown(found: Sequence[tuple[str, Sequence[ClientOutcome]]]) -> str:
    """Return a table of the cases that break a client, with a column for each client."""
    errors = {name: {one.case: one.error for one in outcomes} for name, outcomes in found}
    cases = {one.case: one for _, outcomes in found for one in outcomes}
    rows = [
        f"| {one.name} | {one.allowed_by} | "
        + " | ".join(_cell(errors[name].get(case)) for name, _ in found)
        + " |"
        for case, one in cases.items()
        if any(errors[name].get(case) for name, _ in found)
    ]
    whole = " | ".join(
        f"{sum(not one.error for one in outcomes)} of {len(outcomes)}" for _, outcomes in found
    )
    head = [
        f"| case | allowed by | {' | '.join(name for name, _ in found)} |",
        f"|---|---|{'---|' * len(found)}",
        f"| all cases |  | {whole} |",
    ]
    return "\n".join([*head, *rows]) + "\n"


def _cell(error: str | None) -> str:
    if error is None:
        return "—"
    return "breaks" if error else "reads"
