"""The best of several continuations, by the logprob per token that each of them shows."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, counted
from plumbline_conformance.suite.model import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.model import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
CANDIDATES, WANTED = 4, 2
SLACK = 1e-3
"""Two means that are nearer than this may be in either order: servers add them up in their own precision."""
Candidate = tuple[str, float]
"""A text, and the mean of the logprobs of its tokens."""


@scenario(
    "completions/best-of", "Four continuations, and the two best of four drawn alike", needs=("completions",)
)
def best_of(target: Target) -> Steps:
    drawn = {"prompt": "One two", "max_tokens": 8, "temperature": 1, "seed": 7, "logprobs": 1}
    body = {"model": target.model, **drawn}
    yield Request(path="/completions", json={**body, "n": CANDIDATES})
    yield Request(path="/completions", json={**body, "n": WANTED, "best_of": CANDIDATES})


def _choices(exchange: Exchange) -> list[Any]:
    body = accepted(exchange).json
    held = body.get("choices") if isinstance(body, dict) else None
    return held if isinstance(held, list) else []


@check("completions/best-of/n", "Give n continuations of a prompt", "CMP-02")
def best_of_n(seen: Transcript) -> Iterator[Problem]:
    found = [one.get("index") for one in _choices(at(seen, 0)) if isinstance(one, dict)]
    if sorted(map(repr, found)) != sorted(map(repr, range(CANDIDATES))):
        wanted = repr(list(range(CANDIDATES)))
        yield Problem(expected=wanted, actual=repr(found)[:200], pointer="choices[].index")


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
            raise Inconclusive("a choice has no logprobs; another check says so")
        found.append((str(one.get("text")), sum(values) / len(values)))
    return found


def _drawn(seen: Transcript) -> tuple[list[Candidate], list[Candidate]]:
    """What there was to choose from, and what was chosen: known only where the seed drew the same texts twice."""
    every, chosen = _candidates(at(seen, 0)), _candidates(at(seen, 1))
    texts = [text for text, _ in every]
    if len(set(texts)) < CANDIDATES or not {text for text, _ in chosen} <= set(texts):
        raise Inconclusive("the seed did not draw the same texts, each once: nobody knows the candidates")
    return every, chosen


@check("completions/best-of/count", "Return n of the candidates", "CMP-06")
def best_of_count(seen: Transcript) -> Iterator[Problem]:
    if len(_choices(at(seen, 0))) != CANDIDATES:
        raise Inconclusive("the number of choices is not kept; another check says so")
    found = len(_choices(at(seen, 1)))
    if found != WANTED:
        yield Problem(expected=str(WANTED), actual=str(found), pointer="choices")


@check("completions/best-of/best", "Return the candidates whose tokens are likeliest in the mean", "CMP-06")
def best_of_best(seen: Transcript) -> Iterator[Problem]:
    every, chosen = _drawn(seen)
    means = dict(every)
    texts = {text for text, _ in chosen}
    worst = min(means[text] for text in texts)
    better = [f"{mean:.3f} {text!r}" for text, mean in every if text not in texts and mean > worst + SLACK]
    if better:
        wanted = f"{', '.join(better)} before one of {worst:.3f}"
        yield Problem(expected=wanted[:300], actual=repr(sorted(texts))[:200], pointer="choices", exchange=1)


@check("completions/best-of/counted", "Count the tokens of all candidates", "CMP-06")
def best_of_counted(seen: Transcript) -> Iterator[Problem]:
    _drawn(seen)
    wanted, found = (counted(at(seen, place), "completion_tokens") for place in (0, 1))
    if found != wanted:
        where = "usage.completion_tokens"
        yield Problem(expected=str(wanted), actual=str(found), pointer=where, exchange=1)
