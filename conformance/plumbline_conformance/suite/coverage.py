"""Which check observes which rule, and why a rule has none: nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from plumbline_conformance.suite.aliases import current
from plumbline_conformance.suite.contract import rules
from plumbline_conformance.suite.model import CHECKS

__all__ = ["REVISION", "UNCHECKED", "as_markdown", "as_published", "manifest", "published", "revisions"]

REVISION = "2026-12"
"""The dated set of checks that this release publishes. It only grows: a check that changes its mind is another one."""

_FREE = "a model is free to do it, and no request forces it"
_LONG = "it takes a prompt that fills the window, whose size no answer says and whose cost is the owner's"
_FAULT = "it takes a fault within the server, which no client can cause on purpose"

UNCHECKED: Mapping[str, str] = {
    "CHAT-07": "both outcomes, the larger and the smaller limit, are documented by servers of good repute",
    "CHAT-11": "a SHOULD of best effort: batches of another size add numbers in another order",
    "CHAT-12": "it takes the ids of tokens, which no operation of the API gives",
    "CHAT-18": "it takes a model that sees, and nothing says which one does",
    "CMP-07": "support and refusal are both right",
    "CS-16": _FREE,
    "ERR-04": "codes are checked where a rule of their own names one",
    "ERR-10": "what is accepted and then fails is a failure of every check of that stream",
    "ERR-11": _FAULT,
    "ERR-12": _FAULT,
    "HTTP-04": "both headers are the service's own and say nothing of an answer",
    "HTTP-05": "it takes a server that is busy, and to make it so is no judge's business",
    "HTTP-11": "it takes times, which a busy machine makes up",
    "HTTP-13": "it is what the checks of each refusal say",
    "HTTP-17": "every check that needs an answer tells of it, instead of the rules that it could not look at",
    "HTTP-14": "all scenarios run side by side: cross-talk breaks the checks of ids, of sameness and of what is forced",
    "MOD-04": "aliases are allowed, so that nothing is forbidden",
    "R-04": _FAULT,
    "R-06": _FREE,
    "R-09": "the schema says it, and `shape` holds every answer to it",
    "R-18": _LONG,
    "R-19": "what has no effect can be refused or accepted, and both are documented",
    "R-20": "it binds clients and asks nothing of servers",
    "RS-13": _FREE,
    "RS-18": "the schema says that a delta is a string, and `sums` that all of them are the text",
    "SDK-01": "it takes the official client, which `--sdk openai` lets read what was recorded",
    "SDK-02": "it takes the official client, which `--sdk openai` lets read what was recorded",
    "SO-03": "a wider subset is allowed, so that acceptance and refusal are both right",
    "SO-06": "both answers are right",
    "SO-08": _FREE,
    "SSE-08": "a comment is no event to the reader: what is no comment breaks `framing`",
    "SSE-09": "a lone half of a character breaks the sum of deltas, and U+FFFD may be what the model wrote",
    "SSE-10": "an `error` key in a stream is a failure of every check of that stream",
    "SSE-11": "a MAY whose absence is the rule",
    "ST-12": "that a stream is resumed is RS-20's, and what a disconnect does takes times that no answer says",
    "ST-17": "it takes a server that encrypts, and nothing forces one to",
    "TOOL-13": "both a text and null are allowed",
    "TOOL-15": "acceptance and refusal are both right",
    "TOOL-17": "it takes hosted tools, which no server but the service has",
    "WS-08": "it takes a connection that is open for an hour",
}
"""Rules without a check."""


def manifest() -> dict[str, list[str] | str]:
    """Of every rule: the ids of its checks, or why it has none."""
    found: dict[str, list[str] | str] = {}
    for rule in rules():
        observed = [check.id for check in CHECKS.values() if rule in check.rules]
        found[rule] = observed or UNCHECKED.get(rule, "")
    return found


def as_markdown() -> str:
    """The manifest as a page: `docs/rules.md` is this text."""
    lines = [
        "# Rules and their checks",
        "",
        f"Revision {REVISION}: {len(CHECKS)} checks. Written by `plumbline list --rules --markdown`.",
        "",
        "| rule | level | checks, or why there is none |",
        "|---|---|---|",
    ]
    for rule, observed in manifest().items():
        level = rules()[rule]["level"]
        said = ", ".join(f"`{name}`" for name in observed) if isinstance(observed, list) else f"*{observed}*"
        lines.append(f"| {rule} | {level} | {said} |")
    return "\n".join(lines) + "\n"


def published(revision: str = REVISION) -> list[str]:
    """The ids of the checks of a revision, as they are called today."""
    return [current(name) for name in as_published(revision)]


def as_published(revision: str) -> list[str]:
    """The same as they were called then."""
    text = files("plumbline_conformance.suite.requirements").joinpath(f"{revision}.txt").read_text("utf-8")
    return text.split()


def revisions() -> list[str]:
    """The revisions that were published, the oldest first."""
    found = (entry.name for entry in files("plumbline_conformance.suite.requirements").iterdir())
    return sorted(name.removesuffix(".txt") for name in found if name.endswith(".txt"))
