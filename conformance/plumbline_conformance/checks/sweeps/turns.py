"""Check that each turn of a conversation reaches the model as a turn of its own, whatever stands beside it.

The walks have every pair of neighbours of a user's and an assistant's message, a system message, and a call with its
result. Each is sent with short texts and with long ones, so that a turn that is dropped shows in the count of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.checks.messages.fold import prompt_tokens
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import (
    Broken,
    Inconclusive,
    Problem,
    Rejected,
    Request,
    Target,
    check,
    scenario,
)
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Turn = dict[str, Any]
Writer = Callable[[str, str, str], list[Turn]]
"""Writes a turn: its kind, its text, and an id for a call."""
Steps = Generator[Request, Exchange, None]
WALKS = {
    "ordinary": "uautu",
    "of one role": "uuaattu",
    "instructed": "ususastssu",
    "a result, then a text": "utau",
}
"""The neighbours: u is a user's message, a an assistant's, s a system message, and t a call with its result."""
TEXT = "It is warm."
COPIES = 12
"""Copies of the text in each long turn."""
ROLES = {"u": "user", "a": "assistant", "s": "system"}
COMPARED = ("ordinary", "instructed", "a result, then a text")
"""Walks that are the same turns in two APIs: two calls in a row may be one turn of chat completions or two."""


def _in_chat(kind: str, text: str, name: str) -> list[Turn]:
    if kind != "t":
        return [{"role": ROLES[kind], "content": text}]
    call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [message, {"role": "tool", "tool_call_id": name, "content": text}]


def _in_responses(kind: str, text: str, name: str) -> list[Turn]:
    if kind != "t":
        return [{"role": ROLES[kind], "content": text}]
    call = {"type": "function_call", "call_id": name, "name": "look", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": name, "output": text}]


def _in_messages(kind: str, text: str, name: str) -> list[Turn]:
    if kind != "t":
        return [{"role": ROLES[kind], "content": text}]
    call = {"type": "tool_use", "id": name, "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": name, "content": text}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def written(walk: str, writer: Writer, copies: int) -> list[Turn]:
    """Return the turns of a walk, each with so many copies of the text."""
    text = " ".join([TEXT] * copies)
    return [turn for place, kind in enumerate(walk) for turn in writer(kind, text, f"call_{place}")]


def turns(
    api: str, path: str, body: Callable[[Target, list[Turn]], Turn], writer: Writer, count: Callable[[Exchange], int],
    rule: str, needs: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Register the scenario `API/turns`.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        body: returns a request with these turns.
        writer: writes a turn.
        count: returns the tokens of the prompt of an answer.
        rule: the rule about what the model sees.
        needs: required capabilities.
    """
    slug = f"{api}/turns"

    def steps(target: Target) -> Steps:
        for size, copies in (("short", 1), ("long", 1 + COPIES)):
            one = user(" ".join([TEXT] * copies))
            yield Request(name=size, path=path, json=body(target, one))
        for name, walk in WALKS.items():
            for size, copies in (("short", 1), ("long", 1 + COPIES)):
                sent = body(target, written(walk, writer, copies))
                yield Request(name=f"{name}, {size}", path=path, json=sent)
            if api == "responses" and name in COMPARED:
                same = chat(target, messages=written(walk, _in_chat, 1), temperature=0)
                yield Request(name=f"{name}, chat", path="/chat/completions", json=same)

    scenario(
        slug, "Conversations with every pair of neighbours, with short and with long texts", needs=needs
    )(steps)

    @check(f"{slug}/read", "Show the model every turn, whatever stands beside it", rule, milder=True)
    def read(seen: Transcript) -> Iterator[Problem]:
        """Detect a turn that is dropped: longer texts then cost fewer tokens than there are turns.

        A template may show no system message within a conversation, so these walks need the other turns only.
        """
        short, long = (count(accepted(at(seen, size))) for size in ("short", "long"))
        for name, walk in WALKS.items():
            try:
                fewer, more = (count(accepted(at(seen, f"{name}, {size}"))) for size in ("short", "long"))
            except (Broken, Inconclusive, Rejected):
                continue
            wanted = (len(walk) - walk.count("s")) * (long - short)
            if more - fewer < wanted - (long - short) // 2:
                shown = f"about {wanted} tokens more than with short texts"
                yield Problem(
                    expected=shown, actual=str(more - fewer), pointer="usage", exchange=f"{name}, long"
                )


def _usage_of(key: str) -> Callable[[Exchange], int]:
    def count(exchange: Exchange) -> int:
        return usage_count(exchange, key)

    return count


turns(
    "chat",
    "/chat/completions",
    lambda target, found: chat(target, messages=found, temperature=0),
    _in_chat,
    _usage_of("prompt_tokens"),
    "CHAT-13",
)
turns(
    "responses",
    "/responses",
    lambda target, found: create_response(target, found, max_output_tokens=16),
    _in_responses,
    _usage_of("input_tokens"),
    "R-13",
    ("responses",),
)
turns(
    "messages",
    "/messages",
    lambda target, found: message(target, messages=found, max_tokens=4),
    _in_messages,
    prompt_tokens,
    "MSG-02",
    ("messages",),
)


@check("responses/turns/as-chat", "Show the model the same turns as chat completions do", "R-15")
def as_chat(seen: Transcript) -> Iterator[Problem]:
    """Detect turns that are joined with their neighbours, which costs fewer tokens than two turns."""
    unread: Exception | None = None
    compared = 0
    for name in COMPARED:
        try:
            wanted = usage_count(at(seen, f"{name}, chat"), "prompt_tokens")
            found = usage_count(at(seen, f"{name}, short"), "input_tokens")
        except (Broken, Inconclusive, Rejected) as error:
            unread = error
            continue
        compared += 1
        if found != wanted:
            shown = f"{wanted}, as the same turns of chat completions"
            yield Problem(
                expected=shown, actual=str(found), pointer="usage.input_tokens", exchange=f"{name}, short"
            )
    if unread is not None and not compared:
        raise unread
