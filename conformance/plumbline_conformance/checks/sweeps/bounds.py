"""Check each bound of the contract: a value at it is taken, and one beyond it is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from plumbline_conformance.checks.common import accepted, at, follow_up_accepted, refused
from plumbline_conformance.checks.messages.texts import message
from plumbline_conformance.checks.responses.shared_laws import create_response
from plumbline_conformance.checks.sample_requests import chat
from plumbline_conformance.suite.scenario import Problem, Request, Target, check, scenario
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Fields = dict[str, Any]
Steps = Generator[Request, Exchange, None]
Edge = tuple[Fields, Fields]
"""The fields at a bound, and beyond it."""
STOPS = ["\u2603a", "\u2603b", "\u2603c", "\u2603d", "\u2603e"]
PENALTIES: dict[str, Edge] = {
    f"{name} {side}": ({name: value}, {name: beyond})
    for name in ("frequency_penalty", "presence_penalty")
    for side, value, beyond in (("least", -2, -2.01), ("most", 2, 2.01))
}
TEMPERATURE: dict[str, Edge] = {
    "temperature least": ({"temperature": 0}, {"temperature": -0.01}),
    "temperature most": ({"temperature": 2}, {"temperature": 2.01}),
    "top_p most": ({"top_p": 1}, {"top_p": 1.01}),
    "top_p least": ({"top_p": 0.01}, {"top_p": -0.01}),
}
CHAT: dict[str, Edge] = {
    **TEMPERATURE,
    **PENALTIES,
    "n least": ({"n": 1}, {"n": 0}),
    "stop most": ({"stop": STOPS[:4]}, {"stop": STOPS}),
    "top_logprobs least": ({"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": -1}),
    "logit_bias least": ({"logit_bias": {"1": -100}}, {"logit_bias": {"1": -101}}),
    "logit_bias most": ({"logit_bias": {"1": 100}}, {"logit_bias": {"1": 101}}),
}
COMPLETIONS: dict[str, Edge] = {
    **TEMPERATURE,
    **PENALTIES,
    "n least": ({"n": 1}, {"n": 0}),
    "best_of least": ({"best_of": 1}, {"best_of": -1}),
    "stop most": ({"stop": STOPS[:4]}, {"stop": STOPS}),
    "logprobs least": ({"logprobs": 0}, {"logprobs": -1}),
    "logprobs most": ({"logprobs": 5}, {"logprobs": 6}),
    "max_tokens least": ({"max_tokens": 1}, {"max_tokens": -1}),
}
RESPONSES: dict[str, Edge] = {
    **TEMPERATURE,
    "max_output_tokens least": ({"max_output_tokens": 16}, {"max_output_tokens": 15}),
    "top_logprobs most": ({"top_logprobs": 20}, {"top_logprobs": 21}),
    "top_logprobs least": ({"top_logprobs": 0}, {"top_logprobs": -1}),
    "metadata pairs": (
        {"metadata": {f"k{n}": "x" for n in range(16)}},
        {"metadata": {f"k{n}": "x" for n in range(17)}},
    ),
    "metadata key": ({"metadata": {"k" * 64: "x"}}, {"metadata": {"k" * 65: "x"}}),
    "metadata value": ({"metadata": {"k": "x" * 512}}, {"metadata": {"k": "x" * 513}}),
}
MESSAGES: dict[str, Edge] = {
    "temperature least": ({"temperature": 0}, {"temperature": -0.01}),
    "temperature most": ({"temperature": 1}, {"temperature": 2.01}),
    "top_p most": ({"top_p": 1}, {"top_p": 1.01}),
    "max_tokens least": ({"max_tokens": 1}, {"max_tokens": -1}),
    "top_k least": ({"top_k": 1}, {"top_k": -1}),
}
OPTIONAL = frozenset(
    {
        "best_of",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "metadata",
        "presence_penalty",
        "top_k",
        "top_logprobs",
    }
)
"""Fields that a server may lack, and then ignores whatever they are."""
BASE = "base"


WRONG: dict[str, Any] = {"logit_bias": "x", "metadata": "x", "stop": {"x": 1}}
"""Values of a wrong type, by field; a list of texts is one for the others."""


def edges(
    api: str,
    path: str,
    base: Callable[[Target], Fields],
    rows: dict[str, Edge],
    rule: str,
    needs: tuple[str, ...] = (),
    *,
    milder: bool = False,
) -> None:
    """Register the scenario `API/bounds`: a request, and each row at its bound and beyond it.

    Args:
        api: the first part of the id.
        path: the path of the requests.
        base: returns a request that the server answers.
        rows: the fields at a bound and beyond it.
        rule: the rule that a server breaks which takes a value beyond a bound.
        needs: required capabilities.
        milder: a SHOULD, because the rule's source does not state these bounds.
    """
    slug = f"{api}/bounds"

    def steps(target: Target) -> Steps:
        yield Request(name=BASE, path=path, json=base(target))
        for name, (inside, beyond) in rows.items():
            yield Request(name=name, path=path, json={**base(target), **inside})
            yield Request(name=f"{name}, beyond", path=path, json={**base(target), **beyond})
        for field in dict.fromkeys(next(reversed(beyond)) for _, beyond in rows.values()):
            wrong = {field: WRONG.get(field, ["x"])}
            yield Request(name=f"{field}, of another type", path=path, json={**base(target), **wrong})

    scenario(slug, "Each bound of a field: a value at it, and one beyond it", needs=needs)(steps)

    @check(f"{slug}/refused", "Refuse a value beyond a bound", rule, milder=milder)
    def beyond_refused(seen: Transcript) -> Iterator[Problem]:
        accepted(at(seen, BASE))
        for exchange in seen.exchanges:
            if exchange.name.endswith(", beyond"):
                field = next(reversed(rows[exchange.name.removesuffix(", beyond")][1]))
                if not _lacks_the_field(seen, exchange) and not _ignores(seen, field):
                    yield from refused(exchange, 400, 422)

    @check(f"{slug}/taken", "Take a value at a bound", rule, milder=True)
    def inside_taken(seen: Transcript) -> Iterator[Problem]:
        """Report a warning only: a server may lack the field, and refuse every value but the default."""
        for name in rows:
            yield from follow_up_accepted(seen, BASE, name)


def _lacks_the_field(seen: Transcript, exchange: Exchange) -> bool:
    """Return whether the server refuses the field whatever its value is, by a status of its own."""
    inside = at(seen, exchange.name.removesuffix(", beyond"))
    return exchange.status in (404, 415, 501) and inside.status == exchange.status


def _ignores(seen: Transcript, field: str) -> bool:
    """Return whether the server answers even a value of a wrong type: it does not know the field (HTTP-09)."""
    found = [one for one in seen.exchanges if one.name == f"{field}, of another type"]
    return field in OPTIONAL and any(one.status == 200 for one in found)


def _chat(target: Target) -> Fields:
    return chat(target, max_tokens=1)


def _completion(target: Target) -> Fields:
    return {"model": target.model, "prompt": "Hi", "max_tokens": 1}


def _response(target: Target) -> Fields:
    return create_response(target, "Hi", max_output_tokens=16)


def _message(target: Target) -> Fields:
    return message(target, max_tokens=1)


edges("chat", "/chat/completions", _chat, CHAT, "ERR-07")
edges("completions", "/completions", _completion, COMPLETIONS, "ERR-07", needs=("completions",))
edges("responses", "/responses", _response, RESPONSES, "ERR-07", needs=("responses",))
edges("messages", "/messages", _message, MESSAGES, "MSG-11", needs=("messages",), milder=True)
