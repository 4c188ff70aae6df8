"""Check what stays the same and what differs over several answers: names, ids and times."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.answers import is_stream
from plumbline_conformance.checks.common import accepted
from plumbline_conformance.checks.responses.shared_laws import create_response, response
from plumbline_conformance.checks.sample_requests import chat, user
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
TIMES = 6
"""Answers of a run; every second one is streamed."""


def repeated(
    api: str,
    path: str,
    base: Callable[[Target, str], Fields],
    read: Callable[[Exchange], Fields],
    rules: tuple[str, str, str],
    needs: tuple[str, ...] = (),
) -> None:
    """Register the scenario `API/repeats`.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        base: returns the request with a text: a cache of whole answers would repeat the id of an equal one.
        read: returns the members of an answer that are about the whole of it.
        rules: the rules about ids, about times and about the name of the model.
        needs: required capabilities.
    """
    slug = f"{api}/repeats"
    of_ids, of_times, of_names = rules

    def steps(target: Target) -> Steps:
        for number in range(TIMES):
            fields = {"stream": True} if number % 2 else {}
            yield Request(name=f"answer/{number}", path=path, json={**base(target, f"Hi {number}"), **fields})

    scenario(slug, "One request after the other, whole and streamed", needs=needs)(steps)

    def answers(seen: Transcript) -> Iterator[tuple[Exchange, Fields]]:
        if not seen.exchanges:
            raise Inconclusive("this request was not sent")
        for exchange in seen.exchanges:
            yield exchange, read(accepted(exchange))

    @check(f"{slug}/ids", "Give every answer an id of its own", of_ids)
    def ids(seen: Transcript) -> Iterator[Problem]:
        met: dict[str, str] = {}
        for exchange, found in answers(seen):
            name = as_json(found.get("id"))
            if name in met:
                wanted = f"another id than that of {met[name]}"
                yield Problem(expected=wanted, actual=name[:200], pointer="id", exchange=exchange.name)
            met[name] = exchange.name

    @check(f"{slug}/times", "Never let the time of creation go back", of_times, milder=True)
    def times(seen: Transcript) -> Iterator[Problem]:
        """Report a warning only: the clocks of two replicas may differ."""
        last: float | None = None
        for exchange, found in answers(seen):
            made = found.get("created", found.get("created_at"))
            if not isinstance(made, int | float):
                continue  # Its schema reports it.
            if last is not None and made < last - 1:
                wanted = f"{last} or later"
                yield Problem(expected=wanted, actual=str(made), pointer="created", exchange=exchange.name)
            last = max(made, last or made)

    @check(f"{slug}/model", "Name the model in the same way in every answer", of_names, milder=True)
    def model(seen: Transcript) -> Iterator[Problem]:
        first: str | None = None
        for exchange, found in answers(seen):
            name = as_json(found.get("model"))
            if first is not None and name != first:
                yield Problem(
                    expected=first[:200], actual=name[:200], pointer="model", exchange=exchange.name
                )
            first = first or name


def _of_chunks(exchange: Exchange) -> Fields:
    if not is_stream(exchange):
        return exchange.json if isinstance(exchange.json, dict) else {}
    found = objects_in(exchange.chunks)
    if not found:
        raise Inconclusive("the stream has no chunk; another check reports that")
    return found[0]


def _chat(target: Target, text: str) -> Fields:
    return chat(target, messages=user(text))


def _response(target: Target, text: str) -> Fields:
    return create_response(target, text, max_output_tokens=16)


repeated("chat", "/chat/completions", _chat, _of_chunks, ("CHAT-01", "CHAT-01", "CS-01"))
repeated("responses", "/responses", _response, response, ("R-01", "R-01", "R-01"), needs=("responses",))
