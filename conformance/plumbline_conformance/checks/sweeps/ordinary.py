"""Check that a server takes the ordinary forms of a request, which clients send without being asked.

Other checks let a server refuse them, because they judge what a form does. A server that refuses `cache_control` or a
system prompt of parts breaks no other rule, and no coding agent can use it (vllm#57324).
"""

from __future__ import annotations

from collections.abc import Iterator

from plumbline_conformance.checks.common import accepted, answered, at
from plumbline_conformance.checks.laws import WHOLE
from plumbline_conformance.suite.scenario import Inconclusive, Problem, check
from plumbline_conformance.transcript.exchange import Exchange, Transcript

TITLE = "Take the ordinary forms of a request"
REFUSED = (400, 404, 415, 422, 501)
CHAT = {
    "user parts": "CHAT-13",
    "system parts": "CHAT-13",
    "developer parts": "CHAT-13",
    "names": "CHAT-13",
    "a call beside an empty text": "CHAT-13",
    "two results": "TOOL-10",
    "a name of 64 characters": "TOOL-02",
    "response_format text": "HTTP-10",
}
RESPONSES = {
    "user": "R-19",
    "safety_identifier": "R-19",
    "service_tier auto": "R-19",
    "service_tier default": "R-19",
    "text format": "HTTP-10",
    "parts": "R-13",
}
MESSAGES = {
    "user_id": "MSG-02",
    "a cached part": "MSG-02",
    "no citations": "MSG-02",
    "thinking off": "MSG-02",
    "a cached system": "MSG-02",
    "a cached tool": "MSG-02",
    "a result of blocks": "MSG-05",
}
"""The requests of a scenario, and the rule that a server breaks which refuses one."""


def ordinary(slug: str, base: str, rows: dict[str, str]) -> None:
    """Register the check that a server takes some requests of a scenario.

    Args:
        slug: the id of the scenario.
        base: the name of the plainest request, or empty: a server that refuses it lacks more than a form.
        rows: the names of the others, and their rules.
    """

    @check(f"{slug}/ordinary", TITLE, *dict.fromkeys(rows.values()), milder=True)
    def taken(seen: Transcript) -> Iterator[Problem]:
        if base:
            _ = accepted(at(seen, base))
        yield from _taken([(one, rows[one.name]) for one in seen.exchanges if one.name in rows])


def _taken(asked: list[tuple[Exchange, str]]) -> Iterator[Problem]:
    """Check exchanges, each with the rule that its refusal breaks."""
    refused = [(one, rule) for one, rule in asked if answered(one).status in REFUSED]
    for one, rule in refused:
        shown = f"status {one.status}"
        yield Problem(expected="an answer", actual=shown, pointer="status", exchange=one.name, rule=rule)
    if not refused and any(one.status != 200 for one, _ in asked):
        raise Inconclusive("a request is neither answered nor refused; another check reports this")


@check("messages/members/ordinary", TITLE, "MSG-02", milder=True)
def ordinary_members(seen: Transcript) -> Iterator[Problem]:
    """Check the requests with a system prompt of blocks."""
    asked = [(one, one.request_json) for one in seen.exchanges]
    yield from _taken(
        [
            (one, "MSG-02")
            for one, body in asked
            if isinstance(body, dict) and isinstance(body.get("system"), list)
        ]
    )


ordinary("chat/fields", "base", CHAT)
ordinary("responses/fields", "base", RESPONSES)
ordinary("messages/fields", "base", MESSAGES)
ordinary("messages/inputs", "plain", {"block": "MSG-02", "neighbours": "MSG-02", "system": "MSG-02"})
ordinary("messages/tool", WHOLE, {"none": "MSG-04"})
ordinary("completions/id-lists", "", {"one_list": "CMP-02"})
ordinary("completions/limits", "default", {"none": "CMP-03"})
ordinary("chat/completion-limit", "", {WHOLE: "CHAT-06"})
