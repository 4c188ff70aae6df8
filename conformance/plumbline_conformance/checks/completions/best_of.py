"""Check `best_of` by the mean logprob per token of each candidate."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, usage_count
from plumbline_conformance.suite.scenario import (
    Inconclusive,
    Problem,
    Request,
    Target,
    Unsteady,
    check,
    scenario,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
CANDIDATES, WANTED = 4, 2
SLACK = 1e-3
"""Means that differ by less may be in any order, because servers differ in precision."""
Candidate = tuple[str, float]
"""A text, and the mean logprob of its tokens."""


@scenario(
    "completions/best-of",
    "Four continuations, and the best two of four with the same seed",
    needs=("completions",),
)
def best_of(target: Target) -> Steps:
    sampling = {"prompt": "The sky is", "max_tokens": 8, "temperature": 1, "seed": 7, "logprobs": 1}
    body = {"model": target.model, **sampling}
    yield Request(name="candidates", path="/completions", json={**body, "n": CANDIDATES})
    best = {**body, "n": WANTED, "best_of": CANDIDATES}
    yield Request(name="best", path="/completions", json=best)


def _choices(exchange: Exchange) -> list[Any]:
    body = accepted(exchange).json
    choices = body.get("choices") if isinstance(body, dict) else None
    return choices if isinstance(choices, list) else []


@check("completions/best-of/n", "Give n continuations of a prompt", "CMP-02", request="candidates")
def best_of_n(seen: Transcript) -> Iterator[Problem]:
    found = [one.get("index") for one in _choices(at(seen, "candidates")) if isinstance(one, dict)]
    if sorted(map(repr, found)) != sorted(map(repr, range(CANDIDATES))):
        wanted = as_json(list(range(CANDIDATES)))
        yield Problem(expected=wanted, actual=as_json(found)[:200], pointer="choices[].index")


def _candidates(exchange: Exchange) -> list[Candidate]:
    found = []
    for one in _choices(exchange):
        lists = one.get("logprobs") if isinstance(one, dict) else None
        values = lists.get("token_logprobs") if isinstance(lists, dict) else None
        if (
            not isinstance(values, list)
            or not values
            or not all(isinstance(value, int | float) for value in values)
        ):
            raise Inconclusive("a choice has no logprobs; another check reports this")
        found.append((str(one.get("text")), sum(values) / len(values)))
    return found


def _drawn(seen: Transcript) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates and the returned texts; inconclusive unless the seed gave the same texts twice."""
    every, chosen = _candidates(at(seen, "candidates")), _candidates(at(seen, "best"))
    texts = [text for text, _ in every]
    # Two candidates may be the same, but there must be more different ones than are returned.
    if len(set(texts)) <= WANTED or not {text for text, _ in chosen} <= set(texts):
        raise Unsteady("the seed did not give the same different texts twice, so the candidates are unknown")
    return every, chosen


@check("completions/best-of/count", "Return n of the candidates", "CMP-06", request="best")
def best_of_count(seen: Transcript) -> Iterator[Problem]:
    if len(_choices(at(seen, "candidates"))) != CANDIDATES:
        raise Inconclusive("the number of choices is wrong; another check reports this")
    found = len(_choices(at(seen, "best")))
    if found != WANTED:
        yield Problem(expected=str(WANTED), actual=str(found), pointer="choices")


@check("completions/best-of/best", "Return the candidates with the highest mean logprob", "CMP-06")
def best_of_best(seen: Transcript) -> Iterator[Problem]:
    every, chosen = _drawn(seen)
    means = dict(every)
    texts = {text for text, _ in chosen}
    worst = min(means[text] for text in texts)
    better = [
        f"{mean:.3f} {as_json(text)}" for text, mean in every if text not in texts and mean > worst + SLACK
    ]
    if better:
        wanted = f"{', '.join(better)} before one of {worst:.3f}"
        yield Problem(
            expected=wanted[:300], actual=as_json(sorted(texts))[:200], pointer="choices", exchange="best"
        )


@check("completions/best-of/counted", "Count the tokens of all candidates", "CMP-06")
def best_of_counted(seen: Transcript) -> Iterator[Problem]:
    _drawn(seen)
    wanted, found = (usage_count(at(seen, name), "completion_tokens") for name in ("candidates", "best"))
    if found != wanted:
        where = "usage.completion_tokens"
        yield Problem(expected=str(wanted), actual=str(found), pointer=where, exchange="best")
