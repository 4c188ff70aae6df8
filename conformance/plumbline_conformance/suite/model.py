"""What the suite is made of: scenarios cost requests, checks cost none.

A scenario sends requests and yields a transcript. A check is a pure function of that transcript: it yields the
problems it sees, and yielding nothing means that its rule held. No check does I/O, so a recording can be judged again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Literal

import msgspec

from plumbline_conformance.suite.contract import rules
from plumbline_conformance.transcript.model import Exchange, Transcript

__all__ = [
    "CAPABILITIES",
    "CHECKS",
    "FAILED",
    "GONE",
    "SAMPLED",
    "SCENARIOS",
    "SEED",
    "UNKNOWN",
    "WRONG_KEY",
    "AnswerKind",
    "Broken",
    "Capability",
    "Check",
    "Claim",
    "Inconclusive",
    "Law",
    "NotRequested",
    "Problem",
    "Rejected",
    "Request",
    "Scenario",
    "Target",
    "Untestable",
    "breaking",
    "broken_rules",
    "capability",
    "check",
    "scenario",
]

Level = Literal["MUST", "SHOULD", "MAY"]
"""A MUST NOT is a MUST."""
_SAMPLED = {
    "CHAT": (5, 6, 10, 19, 20),
    "CS": (12, 13, 15, 17),
    "LP": (3,),
    "R": (2,),
    "RS": (16,),
    "SO": (1, 2, 5, 9, 11, 12),
    "ST": (19,),
    "TOOL": (1, 2, 3, 4, 5, 6, 7, 14, 18, 19),
}
SAMPLED = frozenset(f"{family}-{number:02}" for family, numbers in _SAMPLED.items() for number in numbers)
"""Rules about what a model wrote. One draw may break what another one keeps, so that their checks are worth further
attempts; framing, shapes, sums of one answer and refusals are the same however often one asks."""


GONE = -1
"""The place of an exchange that was seen and not kept: no other one is evidence in its stead."""
SEED = 1
"""The seed that scenarios write into their requests; a target's own is sent in its stead."""
WRONG_KEY = "Bearer wrong-key-0f3a"
"""The authorization of scenarios that send a wrong key on purpose. It opens nothing, so that it may be shown."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The server under judgement."""

    base_url: str
    """Ends with the API's root, such as `http://127.0.0.1:8000/v1`."""
    model: str
    api_key: str | None = None
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Which name of the limit chat completions take: there are models that refuse the old one, as the contract says."""
    seed: int = SEED
    """What requests say that send a seed."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One HTTP request of a scenario, or one turn on a WebSocket."""

    path: str
    """Below the base URL, such as `/chat/completions`."""
    method: Literal["GET", "POST", "DELETE", "PUT", "WEBSOCKET"] = "POST"
    json: Any = None
    content: bytes | None = None
    """Raw bytes instead of `json`, for what is not JSON on purpose."""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    pause: float = 0.0
    """Seconds to wait before it is sent, for what is looked at again."""
    socket: str = ""
    """Which of the scenario's WebSockets carries the turn; one is opened where there is none of that name yet."""
    turns: int = 1
    """How many answers to wait for; a list as `json` is sent as so many messages at once."""


Steps = Callable[[Target], Generator[Request, Exchange, None]]
"""A generator, so that later requests may use what earlier ones were answered."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One way in which a rule was broken."""

    expected: str
    actual: str
    pointer: str = ""
    """Where: `event 7, choices[0].delta.role`."""
    exchange: int | None = None
    """Which exchange of the scenario, where it has several and the pointer does not say; `GONE` if it was not kept."""
    rule: str = ""
    """The rule that was broken: one of the check's, or `FAILED`. A check of one rule does not have to say it."""
    scenario: str = ""
    """Whose exchange it is, where that is not the scenario of the check itself."""


def breaking(rule: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Problems of a claim that several rules share, said of this one."""
    for problem in problems:
        yield msgspec.structs.replace(problem, rule=rule)


def broken_rules(problems: Iterable[Problem]) -> list[str]:
    """The rules that these problems name, each once."""
    return list(dict.fromkeys(problem.rule for problem in problems if problem.rule))


class Inconclusive(Exception):  # noqa: N818 - it is a verdict, not an error
    """The transcript does not show what this check looks at, through no fault of the server."""


class NotRequested(Inconclusive):
    """The request does not ask for what a law is about. Of other people's traffic that is not worth a word."""


class Rejected(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server refused the request, which is an honest answer wherever the feature is optional."""


class Untestable(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server accepted what forces a prerequisite of this check, and did not deliver it. That is no way to pass."""


class Broken(Exception):  # noqa: N818 - it is a verdict, not an error
    """The server accepted the request and then failed: whatever the rule is, it was not kept.

    Args:
        problem: what came instead of an answer.
        own: whether the check's own rule is that there is an answer; else `FAILED` is what was broken.
    """

    def __init__(self, problem: Problem, *, own: bool = False) -> None:
        super().__init__(problem.actual)
        self.problem = problem
        self.own = own


Probe = Callable[[Target], Generator[Request, Exchange, str | None]]
"""Asks, and returns why the target has not got the capability, or None if it may have it."""


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """What a target may honestly lack. It is found out once, before the scenarios that need it."""

    id: str
    title: str
    probe: Probe


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Requests with one purpose."""

    id: str
    """A slug of two segments, `chat/stream-text`; never reused."""
    title: str
    steps: Steps
    core: bool = False
    """No server may refuse it; what is not core may be rejected without shame."""
    needs: tuple[str, ...] = ()
    """Ids of capabilities: a target without one of them is not asked, and the checks are skipped."""

    @property
    def sampled(self) -> bool:
        """Whether one of its checks may be kept by another draw of the model."""
        return any(found.sampled for name, found in CHECKS.items() if name.startswith(f"{self.id}/"))


Judge = Callable[[Transcript], Iterator[Problem]]
Law = Callable[[Exchange], Iterator[Problem]]
"""What holds of one exchange, whoever asked: it reads off the request what it has to know of it."""


AnswerKind = Literal["", "whole", "stream", "either", "refusal"]
"""Answers in one piece, streams, both, or what was refused."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a report says of a check, and of what a client makes of the recorded answers (`sdk`)."""

    id: str
    """The scenario's id and a slug of its own: `chat/stream-text/usage-last`."""
    title: str
    """An imperative sentence, printed as it is."""
    level: Level
    rules: tuple[str, ...]
    """Ids of the rules that it observes, of which each of its problems names one. The first one's level is the
    check's, unless the check is milder."""
    sampled: bool = False
    """Whether another draw of the model may keep the rule that this one broke, so that it is worth further attempts."""


class Check(Claim, frozen=True, kw_only=True):
    """One claim about the transcript of a scenario."""

    judge: Judge
    law: Law | None = None
    """Where the check looks at one exchange alone: what it says of that exchange, or of any that asks for as much."""
    place: int = 0
    """Of a law: which exchange of the scenario it looks at."""
    of: AnswerKind = ""
    """Of a law: which exchanges it holds of."""


FAILED = "HTTP-17"
"""The rule that every check observes which needs an answer: where there is none, its own rules could not be seen."""
CAPABILITIES: dict[str, Capability] = {}
UNKNOWN = "could not be found out"
"""How the reason begins where a probe shows neither that a capability is there nor that it is lacking."""
SCENARIOS: dict[str, Scenario] = {}
CHECKS: dict[str, Check] = {}


def capability(slug: str, title: str) -> Callable[[Probe], Probe]:
    """Register a capability."""

    def register(probe: Probe) -> Probe:
        CAPABILITIES[slug] = Capability(id=slug, title=title, probe=probe)
        return probe

    return register


def scenario(
    slug: str, title: str, *, core: bool = False, needs: tuple[str, ...] = ()
) -> Callable[[Steps], Steps]:
    """Register a scenario, after the capabilities that it needs."""

    def register(steps: Steps) -> Steps:
        if slug in SCENARIOS:
            raise ValueError(f"scenario {slug} is registered twice")
        if unknown := set(needs) - set(CAPABILITIES):
            raise ValueError(f"scenario {slug} needs {unknown}, which nobody looks for")
        SCENARIOS[slug] = Scenario(id=slug, title=title, steps=steps, core=core, needs=needs)
        return steps

    return register


def check(
    slug: str,
    title: str,
    *observed: str,
    milder: bool = False,
    law: Law | None = None,
    place: int = 0,
    of: AnswerKind = "",
) -> Callable[[Judge], Judge]:
    """Register a check of the scenario that its id begins with.

    Args:
        slug: the check's id.
        title: an imperative sentence.
        observed: the rules; the first one gives the level.
        milder: a SHOULD although the rule is a MUST, for rules on which servers of good repute disagree.
        law: what it says of one exchange, if that is all it looks at.
        place: of a law, which exchange of the scenario.
        of: of a law, which exchanges it holds of.
    """
    level = rules()[observed[0]]["level"].removesuffix(" NOT")

    def register(judge: Judge) -> Judge:
        if slug in CHECKS or slug.rsplit("/", 1)[0] not in SCENARIOS:
            raise ValueError(f"check {slug} is registered twice, or before its scenario")
        CHECKS[slug] = Check(
            id=slug,
            title=title,
            level="SHOULD" if milder else level,
            rules=observed,
            judge=judge,
            sampled=observed[0] in SAMPLED,
            law=law,
            place=place,
            of=of,
        )
        return judge

    return register
