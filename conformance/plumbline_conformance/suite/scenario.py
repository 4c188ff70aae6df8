"""Define scenarios, which send requests, and checks, which judge the answers.

A scenario sends requests; the exchanges are its transcript. A check is a pure function of that transcript: it yields
the problems it finds, and nothing if its rule is kept. No check does I/O, so a recording can be judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Literal

import msgspec

from plumbline_conformance.suite.contract import rules
from plumbline_conformance.transcript.exchange import Exchange, Transcript

__all__ = [
    "CAPABILITIES",
    "CHECKS",
    "DIED",
    "FAILED",
    "GONE",
    "MUTE",
    "SAMPLED",
    "SCENARIOS",
    "SEED",
    "SURVIVED",
    "UNKNOWN",
    "WRONG_KEY",
    "AnswerKind",
    "Broken",
    "Capability",
    "Check",
    "CheckSummary",
    "Inconclusive",
    "Law",
    "NotRequested",
    "Problem",
    "Rejected",
    "Request",
    "Scenario",
    "Target",
    "Unsteady",
    "Untestable",
    "about",
    "breaking",
    "broken_rules",
    "capability",
    "check",
    "checks_of",
    "scenario",
]

Level = Literal["MUST", "SHOULD", "MAY"]
"""A MUST NOT counts as a MUST."""
SAMPLED = frozenset(name for name, rule in rules().items() if rule.get("sampled"))
"""Rules about content that a model writes. A sampled answer may break one by chance, so their checks are worth further
attempts. Framing, shapes, sums and refusals are the same in every attempt."""

GONE = "not kept"
"""The value of `Problem.exchange` if `plumbline watch` did not keep the exchange. Reports then show no evidence."""
SEED = 1
"""The seed in the requests of scenarios; the target's own seed replaces it."""
WRONG_KEY = "Bearer wrong-key-0f3a"
"""The authorization of scenarios that send a wrong key on purpose. It is not a secret, so it is shown."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The server under judgement."""

    base_url: str
    """The root of the API, such as `http://127.0.0.1:8000/v1`."""
    model: str
    api_key: str | None = None
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name of the token limit of chat completions: some models refuse `max_tokens`, as the contract allows."""
    seed: int = SEED
    """The seed of requests that send one."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    """Further headers of every request, by lower-case name, such as headers that a gateway needs."""
    mcp: str | None = None
    """Where the judge runs an MCP server that the target may call, such as `127.0.0.1:8765`."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request of a scenario, or one turn on a WebSocket."""

    name: str = ""
    """Unique within the scenario; may be left out if the scenario sends only one request. The requests of a
    group, such as polls, are `poll/1`, `poll/2` and so on, or `whole`, `whole/2` if one of them is the first choice."""
    path: str
    """Below the base URL, such as `/chat/completions`."""
    method: Literal["GET", "POST", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "WEBSOCKET"] = "POST"
    json: Any = None
    content: bytes | None = None
    """Raw bytes instead of `json`, for bodies that are not JSON on purpose."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    pause: float = 0.0
    """Seconds to wait before sending, for requests that poll."""
    socket: str = ""
    """The name of the WebSocket that carries the turn; it is opened at its first use. Requests of HTTP with the same
    name share a connection, as long as the server keeps it open."""
    version: Literal["1.1", "1.0"] = "1.1"
    """The version of HTTP."""
    behind: Request | None = None
    """A request that is sent on the same connection right before this one, without waiting; its answer is not kept."""
    turns: int = 1
    """How many answers to wait for. If `json` is a list, each element is sent as a message, all at once."""


Steps = Callable[[Target], Generator[Request, Exchange, None]]
"""A generator, so that later requests can use earlier answers."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a rule was broken."""

    expected: str
    actual: str
    pointer: str = ""
    """Where: `event 7, choices[0].delta.role`."""
    exchange: str | None = None
    """The name of the exchange, or `GONE` if it was not kept. A check may leave it out if it was registered with a
    `request` or if the scenario has one exchange; the judge fills it in, and refuses a problem without one."""
    rule: str = ""
    """The broken rule: a rule of the check, or `FAILED`. May be left out if the check has one rule."""
    scenario: str = ""
    """The scenario of the exchange, if it is not the check's own."""


def breaking(rule: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems with this rule as the broken one."""
    for problem in problems:
        yield msgspec.structs.replace(problem, rule=rule)


def about(exchange: Exchange, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems with this exchange, unless they name another one."""
    for problem in problems:
        if problem.exchange is None:
            problem = msgspec.structs.replace(problem, exchange=exchange.name)
        yield problem


def broken_rules(problems: Iterable[Problem]) -> list[str]:
    """Return the rules that these problems name, each once."""
    return list(dict.fromkeys(problem.rule for problem in problems if problem.rule))


class Inconclusive(Exception):  # noqa: N818 - it is a verdict, not an error
    """The transcript does not contain what this check looks at, and the server is not at fault."""


class Unsteady(Inconclusive):
    """The server answered the same request in different ways.

    Batches of other sizes round differently, so a run repeats the scenario alone.

    Args:
        reason: which answers differ.
    """

    def __init__(self, reason: str = "the server answered the same request differently each time") -> None:
        super().__init__(reason)


class NotRequested(Inconclusive):
    """The request does not ask for the feature of a law. `plumbline watch` does not report it."""


class Rejected(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server refused the request, which it may do if the feature is optional."""


class Untestable(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server accepted a request that forces what this check needs, such as a tool call, and did not deliver it."""


class Broken(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server accepted the request and then failed.

    Args:
        problem: the failure that came instead of an answer.
        own: whether the check's own rule requires an answer; if not, `FAILED` is the broken rule.
    """

    def __init__(self, problem: Problem, *, own: bool = False) -> None:
        super().__init__(problem.actual)
        self.problem = problem
        self.own = own


Probe = Callable[[Target], Generator[Request, Exchange, str | None]]
"""Sends requests; returns why the target lacks the capability, or None if it may have it."""


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """A feature that a target may lack. It is probed once, before the scenarios that need it."""

    id: str
    title: str
    probe: Probe


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with one purpose."""

    id: str
    """Two segments, such as `chat/stream-text`; never reused."""
    title: str
    steps: Steps
    core: bool = False
    """No server may refuse it; a server may reject the requests of other scenarios."""
    needs: tuple[str, ...] = ()
    """Ids of capabilities. If the target lacks one, nothing is sent and the checks are skipped."""

    @property
    def hostile(self) -> bool:
        """Whether it sends requests that a server must refuse; they run last and alone, because they may kill it."""
        return self.id.startswith("errors/")

    @property
    def lethal(self) -> bool:
        """Whether one of its checks requires that the server survives; it comes last, because nothing may follow."""
        return any(SURVIVED in found.rules for found in self._checks)

    @property
    def sampled(self) -> bool:
        """Whether one of its checks depends on sampling, so that another attempt may pass it."""
        return any(found.sampled for found in self._checks)

    @property
    def _checks(self) -> list[Check]:
        return checks_of(self.id)


Judge = Callable[[Transcript], Iterator[Problem]]
Law = Callable[[Exchange], Iterator[Problem]]
"""A check of one exchange from any client. It derives the expected answer from the request."""


AnswerKind = Literal["", "whole", "stream", "either", "refusal"]
"""The answers that a law is about; `either` is whole answers and streams. Empty for a check that is not a law."""


class CheckSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a check that reports show. The checks of official clients (`sdk`) have only this part."""

    id: str
    """The scenario's id and a slug, such as `chat/stream-text/usage-last`."""
    title: str
    """An imperative sentence, printed as it is."""
    level: Level
    rules: tuple[str, ...]
    """Ids of the rules that the check observes; each problem names one of them. The first rule sets the level,
    unless the check is milder."""
    sampled: bool = False
    """Whether the result depends on sampling, so that it is worth further attempts."""


class Check(CheckSummary, frozen=True, kw_only=True):
    """One claim about the transcript of a scenario."""

    judge: Judge
    law: Law | None = None
    """The check as a function of one exchange, if it looks at one only. It applies to any exchange of that kind."""
    request: str | None = None
    """The name of the request that its problems are about, unless they name another one. For a law: the request or
    group of requests that it looks at."""
    of: AnswerKind = ""
    """For a law: which kind of answer it is about."""


SURVIVED = "HTTP-16"
"""Rule broken by a server that crashes on a request it must refuse."""
FAILED = "HTTP-17"
"""The rule that a check reports as broken if the server failed and there is no answer to look at."""
CAPABILITIES: dict[str, Capability] = {}
UNKNOWN = "could not be found out"
"""The start of the reason for a skipped scenario, if a probe does not show whether the server has a capability."""
DIED = "the server died"
"""The start of the reason for a skipped scenario, if an earlier request had killed the server."""
MUTE = "the server stopped serving"
"""The same, if the server is still running but refuses a request that it had answered."""
SCENARIOS: dict[str, Scenario] = {}
CHECKS: dict[str, Check] = {}
_CHECKS_OF: dict[str, list[str]] = {}
"""The ids of the checks of each scenario."""


def checks_of(scenario: str) -> list[Check]:
    """Return the checks of the exchanges of a scenario, in the order of the suite."""
    return [CHECKS[name] for name in _CHECKS_OF.get(scenario, ())]


def capability(slug: str, title: str) -> Callable[[Probe], Probe]:
    """Register a capability."""

    def register(probe: Probe) -> Probe:
        CAPABILITIES[slug] = Capability(id=slug, title=title, probe=probe)
        return probe

    return register


def scenario(
    slug: str, title: str, *, core: bool = False, needs: tuple[str, ...] = ()
) -> Callable[[Steps], Steps]:
    """Register a scenario; its capabilities must be registered first."""

    def register(steps: Steps) -> Steps:
        if slug in SCENARIOS:
            raise ValueError(f"scenario {slug} is registered twice")
        if unknown := set(needs) - set(CAPABILITIES):
            raise ValueError(f"scenario {slug} needs {unknown}, but no such capability is registered")
        SCENARIOS[slug] = Scenario(id=slug, title=title, steps=steps, core=core, needs=needs)
        return steps

    return register


def check(
    slug: str,
    title: str,
    *observed: str,
    milder: bool = False,
    law: Law | None = None,
    request: str | None = None,
    of: AnswerKind = "",
) -> Callable[[Judge], Judge]:
    """Register a check of the scenario that its id begins with.

    Args:
        slug: the check's id.
        title: an imperative sentence.
        observed: the rules; the first one gives the level.
        milder: a SHOULD although the rule is a MUST, for rules on which major servers disagree.
        law: the check as a function of one exchange, if it looks at one only.
        request: the name of the request that its problems are about, unless they name another one.
        of: for a law, which kind of answer it is about.
    """
    level = rules()[observed[0]]["level"].removesuffix(" NOT")

    def register(judge: Judge) -> Judge:
        scenario = slug.rpartition("/")[0]
        if slug in CHECKS or scenario not in SCENARIOS:
            raise ValueError(f"check {slug} is registered twice, or before its scenario")
        CHECKS[slug] = Check(
            id=slug,
            title=title,
            level="SHOULD" if milder else level,
            rules=observed,
            judge=judge,
            sampled=observed[0] in SAMPLED,
            law=law,
            request=request,
            of=of,
        )
        _CHECKS_OF.setdefault(scenario, []).append(slug)
        return judge

    return register
