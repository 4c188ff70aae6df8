"""Check an answer of one token beside a longer one: its count, and the reason that the limit gives."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import WITHHELD
from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.messages.fold import message_of, text_of
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
COUNTING = "1, 2, 3,"
"""A text that every model goes on with."""
QUESTION = "Which of the four seasons do you like best, and why is it that one?"
ONE, MORE = "one", "more"
LIMITS = {ONE: 1, MORE: 8}


def _object(exchange: Exchange) -> Fields:
    body = accepted(exchange).json
    return body if isinstance(body, dict) else {}


def _choice(exchange: Exchange) -> Fields:
    return next(iter(objects_in(_object(exchange).get("choices"))), {})


def _chat_text(exchange: Exchange) -> str:
    found = _choice(exchange).get("message")
    return str(found.get("content") or "") if isinstance(found, dict) else ""


def one_token(
    api: str, path: str, body: Callable[[Target, int], Fields], text: Callable[[Exchange], str],
    reason: Callable[[Exchange], Any], counted: str, wanted: str, rules: tuple[str, str],
) -> None:  # fmt: skip
    """Register the scenario `API/one-token`.

    Args:
        api: the first part of the id, and the capability; chat needs none.
        path: the path of the requests.
        body: returns a greedy request with this limit.
        text: returns the text of an answer.
        reason: returns why the answer ended.
        counted: the member of the usage that counts the answer.
        wanted: the reason of an answer that the limit ends.
        rules: the rules about the count and about the reason.
    """
    slug = f"{api}/one-token"

    def steps(target: Target) -> Steps:
        for name, limit in LIMITS.items():
            yield Request(name=name, path=path, json=body(target, limit))

    scenario(
        slug, "A question with a limit of one token, and with more", needs=() if api == "chat" else (api,)
    )(steps)

    def count(exchange: Exchange) -> int:
        usage = _object(exchange).get("usage")
        found = usage.get(counted) if isinstance(usage, dict) else None
        if not isinstance(found, int):
            raise Inconclusive("the answer has no usage; another check reports this")
        return found

    @check(f"{slug}/counted", "Write no more tokens than the limit", rules[0])
    def within(seen: Transcript) -> Iterator[Problem]:
        for name, limit in LIMITS.items():
            if (found := count(at(seen, name))) > limit:
                where = {"pointer": f"usage.{counted}", "exchange": name}
                yield Problem(expected=f"at most {limit}", actual=str(found), **where)

    @check(f"{slug}/reason", "Say that the limit ended an answer of one token", rules[1], request=ONE)
    def ended(seen: Transcript) -> Iterator[Problem]:
        """Look at an answer that goes on in the longer one: its only token is then not its end."""
        one, more = at(seen, ONE), at(seen, MORE)
        written = text(accepted(one))
        if not written or count(one) != 1 or count(more) < 2 or not text(accepted(more)).startswith(written):
            raise Inconclusive("the answer of one token is not the beginning of the longer one")
        if reason(one) not in (wanted, *WITHHELD):
            yield Problem(expected=as_json(wanted), actual=as_json(reason(one)), pointer="reason")


def _reason(exchange: Exchange) -> Any:
    return _choice(exchange).get("finish_reason")


one_token(
    "chat",
    "/chat/completions",
    lambda target, limit: chat(target, messages=user(QUESTION), temperature=0, max_tokens=limit),
    _chat_text,
    _reason,
    "completion_tokens",
    "length",
    ("CHAT-06", "CHAT-05"),
)
one_token(
    "completions",
    "/completions",
    lambda target, limit: {"model": target.model, "prompt": COUNTING, "temperature": 0, "max_tokens": limit},
    lambda exchange: str(_choice(exchange).get("text") or ""),
    _reason,
    "completion_tokens",
    "length",
    ("CMP-03", "CMP-01"),
)
one_token(
    "messages",
    "/messages",
    lambda target, limit: message(target, messages=user(QUESTION), max_tokens=limit),
    text_of,
    lambda exchange: message_of(exchange).get("stop_reason"),
    "output_tokens",
    "max_tokens",
    ("MSG-10", "MSG-09"),
)
