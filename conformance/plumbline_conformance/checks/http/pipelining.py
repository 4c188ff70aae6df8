"""Check requests that a client sends on one connection without waiting for answers."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.sample_requests import JSON, chat
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import PIPE_CLOSED, PIPE_SILENT, Exchange, Transcript

Steps = Generator[Request, Exchange, None]
MEMBERS = {"answer": "data", "refusal": "choices"}
"""The member of the second answer, by what the first one is."""


@scenario("chat/pipelined", "Models requested behind a completion, and a completion behind a refusal")
def pipelined(target: Target) -> Steps:
    path = "/chat/completions"
    slow = Request(path=path, json=chat(target, max_tokens=16))
    broken = Request(path=path, content=b'{"model": "x", "messages": [', headers=JSON)
    yield Request(name="answer", path="/models", method="GET", behind=slow)
    yield Request(name="refusal", path=path, json=chat(target), behind=broken)


@check(
    "chat/pipelined/in-order",
    "Answer requests of one connection in their order, or close it",
    "HTTP-23",
)
def in_order(seen: Transcript) -> Iterator[Problem]:
    """A server that does not answer several requests of a connection closes it after the first answer."""
    closed = []
    for name, member in MEMBERS.items():
        found = at(seen, name)
        if (found.error or "").startswith(PIPE_CLOSED):
            closed.append(name)
            continue
        wanted = f"an answer with {member}, or the end of the connection"
        if (found.error or "").startswith(PIPE_SILENT):
            shown = found.error or ""
            yield Problem(expected=wanted, actual=shown, pointer="connection", exchange=name)
            continue
        body = accepted(found).json
        if not isinstance(body, dict) or not isinstance(body.get(member), list):
            yield Problem(expected=wanted, actual=as_json(body)[:200], pointer="body", exchange=name)
    if len(closed) == len(MEMBERS):
        raise Inconclusive("the server closes the connection after the first answer")
