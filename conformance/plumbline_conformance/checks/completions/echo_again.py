"""Check that the log probabilities of an echo are those that the same tokens had when they were written."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at
from plumbline_conformance.checks.completions.details import first
from plumbline_conformance.suite.scenario import Inconclusive, Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Steps = Generator[Request, Exchange, None]
PROMPT = "1, 2, 3,"
NEAR = 0.5
"""How far log probabilities of a prompt and of an answer may differ: kernels of both round in their own way."""


@scenario("completions/echo-again", "An answer with log probabilities, and its echo", needs=("completions",))
def echo_again(target: Target) -> Steps:
    asked = {"model": target.model, "temperature": 0, "logprobs": 1}
    written = yield Request(
        name="written", path="/completions", json={**asked, "prompt": PROMPT, "max_tokens": 8}
    )
    try:
        text = str(first(accepted(written)).get("text") or "")
    except Exception:
        return
    if text.strip():
        again = {**asked, "prompt": PROMPT + text, "max_tokens": 1, "echo": True}
        yield Request(name="echoed", path="/completions", json=again)


@check(
    "completions/echo-again/same",
    "Give the tokens of an echo the log probabilities that they had",
    "CMP-04",
    request="echoed",
    milder=True,
)
def same(seen: Transcript) -> Iterator[Problem]:
    """Detect lists that are shifted by a place, or computed without the tokens before.

    A SHOULD: a prompt may be computed with other kernels than an answer.
    """
    written = list(_tokens(at(seen, "written")))
    echoed = list(_tokens(at(seen, "echoed")))[:-1]  # The last one is new.
    if len(written) < 2 or [one for one, _ in echoed[-len(written) :]] != [one for one, _ in written]:
        raise Inconclusive("the tokens of the echo are not those of the answer")
    for place, ((token, wanted), (_, found)) in enumerate(zip(written, echoed[-len(written) :], strict=True)):
        if found is None or abs(found - wanted) > NEAR:
            where = f"choices[0].logprobs.token_logprobs[{len(echoed) - len(written) + place}]"
            yield Problem(
                expected=f"about {wanted:.2f} for {token!r}, as written", actual=str(found), pointer=where
            )


def _tokens(exchange: Exchange) -> Iterator[tuple[str, Any]]:
    lists = first(accepted(exchange)).get("logprobs")
    if not isinstance(lists, dict):
        raise Inconclusive("the answer has no log probabilities; another check reports this")
    tokens, values = lists.get("tokens"), lists.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(values, list):
        raise Inconclusive("the answer has no lists of log probabilities; another check reports this")
    for token, value in zip(tokens, values, strict=False):
        yield str(token), value if isinstance(value, int | float) else None
