"""Let a client read every recorded answer that it has a method for, and report findings (`--sdk`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from plumbline_conformance.judge.verdicts import Finding, Verdict
from plumbline_conformance.sdk.calls import call_of
from plumbline_conformance.sdk.driver import Driver, quiet
from plumbline_conformance.sdk.replay import Replay, replaying
from plumbline_conformance.suite.client_claims import CLAIMS
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = ["claims_of", "read_again", "why_not"]

_LONGEST = 1 << 19
"""Bytes of an answer. The client copies its snapshot at every event, so its time is quadratic."""
_MOST_EVENTS = 5_000
_SECONDS = 120.0
"""For all answers together; after that, reading stops."""
_MAX_PROBLEMS = 50
"""Per claim."""
_MOST_OF_ONE = 3
"""Per claim and answer."""
_NONE = "the client has no method for any of the recorded requests"


class _Tally(msgspec.Struct):
    """The results of one claim."""

    read: int = 0
    """Answers that were read."""
    wrong: int = 0
    problems: list[Problem] = msgspec.field(default_factory=list)


def why_not(client: str) -> str | None:
    """Return why the client cannot be used, or None."""
    try:
        if client == "anthropic":
            import anthropic
        else:
            import openai
    except ImportError as error:
        return f"--sdk {client} needs the package {client} ({error}). Install it with: pip install {client}"
    if client == "anthropic":
        with anthropic.Anthropic(base_url="http://127.0.0.1:9", api_key="-") as other:
            return None if hasattr(other.messages, "stream") else _too_old(client, anthropic.__version__)
    with openai.OpenAI(base_url="http://127.0.0.1:9", api_key="-") as unused:
        places = (unused.chat.completions, getattr(unused, "responses", None))
    if not all(hasattr(place, "stream") for place in places):
        return _too_old(client, openai.__version__)
    return None


def _too_old(client: str, version: str) -> str:
    return (
        f"--sdk {client} needs a newer {client} than {version}. "
        f"Install it with: pip install --upgrade {client}"
    )


def _driver(client: str, replay: Replay, tick: Callable[[], None]) -> Driver:
    # The clients are not dependencies of the judge, so only the one that is used is imported.
    if client == "anthropic":
        from plumbline_conformance.sdk.anthropic_client import AnthropicClient

        return AnthropicClient(replay, tick)
    from plumbline_conformance.sdk.openai_client import OpenAIClient

    return OpenAIClient(replay, tick)


def claims_of(client: str) -> list[str]:
    """Return the ids of the claims about a client."""
    return [name for name in CLAIMS if name.startswith(f"sdk/{client}/")]


def read_again(client: str, transcripts: Sequence[Transcript]) -> list[Finding]:
    """Let a client read recorded answers; return a finding for each claim. It never raises.

    Args:
        client: one for which `why_not` returns None.
        transcripts: the redacted transcripts.
    """
    tallies = {name: _Tally() for name in claims_of(client)}
    end = time.monotonic() + _SECONDS
    late = long = 0

    def tick() -> None:
        if time.monotonic() > end:
            raise TimeoutError

    with replaying() as replay, quiet(client):
        driver = _driver(client, replay, tick)
        for scenario, exchange in _answers(transcripts):
            call = call_of(exchange)
            if call is None or call.surface not in driver.surfaces:
                continue
            if len(exchange.body) > _LONGEST or len(exchange.events) > _MOST_EVENTS:
                long += 1
                continue
            try:
                tick()
                for slug, problems in driver.read(exchange, call):
                    tally = tallies[f"sdk/{client}/{slug}"]
                    tally.read += 1
                    tally.wrong += bool(problems)
                    tally.problems += [
                        msgspec.structs.replace(problem, scenario=scenario, exchange=exchange.name)
                        for problem in problems[:_MOST_OF_ONE]
                    ]
            except TimeoutError:
                late += 1
        driver.close()
    left = [f"{long} were too long to read again"] * bool(long)
    left += [f"{late} were left out after {_SECONDS:g} seconds"] * bool(late)
    return [_finding(name, tally, driver.name, left) for name, tally in tallies.items()]


def _answers(transcripts: Sequence[Transcript]) -> Iterator[tuple[str, Exchange]]:
    """Yield every exchange with an answer or an error, after its scenario."""
    for seen in transcripts:
        for exchange in seen.everything if seen.skipped is None else ():
            if exchange.status == 200 or 400 <= exchange.status < 600:
                yield seen.scenario, exchange


def _finding(name: str, tally: _Tally, client: str, left: list[str]) -> Finding:
    if not tally.read:
        return Finding(check=name, verdict="skipped", reason="; ".join([_NONE, *left]))
    count = f"{tally.wrong} of {tally.read} answers" if tally.wrong else f"{tally.read} answers"
    reason = "; ".join([f"{client}, {count}", *left])
    if not tally.wrong:
        return Finding(check=name, verdict="pass", reason=reason)
    verdict: Verdict = "fail" if CLAIMS[name].level == "MUST" else "warn"
    return Finding(check=name, verdict=verdict, problems=tally.problems[:_MAX_PROBLEMS], reason=reason)
