"""Check that optional objects and lists without members are taken as if they were left out.

Clients fill objects member by member and send them all, so a server that requires a member of `text: {}` refuses
ordinary requests of them (lmstudio-bug-tracker#1576).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import follow_up_accepted
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
BASE = "base"
STREAMED: Fields = {"stream": True, "stream_options": {}}
CHAT: tuple[Fields, ...] = ({"logit_bias": {}}, {"metadata": {}}, STREAMED)
COMPLETIONS: tuple[Fields, ...] = ({"logit_bias": {}}, STREAMED)
RESPONSES: tuple[Fields, ...] = (
    {"text": {}},
    {"reasoning": {}},
    {"metadata": {}},
    {"include": []},
    {"tools": []},
    STREAMED,
)
MESSAGES: tuple[Fields, ...] = ({"metadata": {}}, {"stop_sequences": []}, {"tools": []})
"""Only what the documents allow without members: chat's `tools`, for instance, need one."""


def empty(
    api: str,
    path: str,
    base: Callable[[Target], Fields],
    rows: tuple[Fields, ...],
    needs: tuple[str, ...] = (),
) -> None:
    """Register the scenario `API/empty`.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        base: returns the request without these fields.
        rows: the fields of each further request.
        needs: required capabilities.
    """
    slug = f"{api}/empty"
    named = {next(reversed(row)): row for row in rows}

    def steps(target: Target) -> Steps:
        for name, row in {BASE: {}, **named}.items():
            yield Request(name=name, path=path, json={**base(target), **row})

    scenario(slug, "Optional objects and lists without members", needs=needs)(steps)

    @check(f"{slug}/taken", "Take objects and lists without members as if left out", "HTTP-10")
    def taken(seen: Transcript) -> Iterator[Problem]:
        for name in named:
            yield from follow_up_accepted(seen, BASE, name)


empty("chat", "/chat/completions", lambda target: chat(target, messages=user("Hi")), CHAT)
empty(
    "completions",
    "/completions",
    lambda target: {"model": target.model, "prompt": "1, 2, 3,", "max_tokens": 4},
    COMPLETIONS,
    needs=("completions",),
)
empty(
    "responses",
    "/responses",
    lambda target: create_response(target, "Hi", max_output_tokens=16),
    RESPONSES,
    needs=("responses",),
)
empty("messages", "/messages", message, MESSAGES, needs=("messages",))
