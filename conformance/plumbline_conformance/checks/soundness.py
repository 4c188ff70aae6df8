"""Judge all answers of scenarios that look at one effect: each must still be a sound answer of its API.

A scenario about a stop string or a seed has checks of that effect. Without the check `sound`, a server could leave the
usage out of exactly these answers, or break the order of their events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from plumbline_conformance.checks.answers import is_stream
from plumbline_conformance.checks.chat import shared_laws as chat
from plumbline_conformance.checks.common import (
    accepted,
    answered,
    at,
    done_last,
    framing_without_names,
    has_no_route,
    usage_adds_up,
    valid_body,
)
from plumbline_conformance.checks.completions.basics import CHUNKS, chunks_valid, lists
from plumbline_conformance.checks.identity import at_no_time
from plumbline_conformance.checks.messages import shared_laws as messages
from plumbline_conformance.checks.request_reader import features, requested_choices
from plumbline_conformance.checks.responses import shared_laws as responses
from plumbline_conformance.checks.responses.states import STATES
from plumbline_conformance.suite.scenario import (
    CHECKS,
    SCENARIOS,
    Inconclusive,
    Law,
    Problem,
    about,
    breaking,
    check,
)
from plumbline_conformance.suite.wording import as_json
from plumbline_conformance.transcript.answer_fold import objects_in
from plumbline_conformance.transcript.exchange import Exchange, Transcript

Row = tuple[str, tuple[str, ...], Law]
"""The name of a law, its rules, and the law."""


def _completion_usage(exchange: Exchange) -> Iterator[Problem]:
    body = exchange.json
    found = body.get("usage") if isinstance(body, dict) else None
    yield from usage_adds_up(found, prompt="prompt_tokens", completion="completion_tokens")


def _completion_shape(exchange: Exchange) -> Iterator[Problem]:
    yield from valid_body(exchange, "CreateCompletionResponse")
    body = exchange.json if isinstance(exchange.json, dict) else {}
    for key in ("id", "model"):
        if body.get(key) == "":
            yield Problem(expected=f"a {key}", actual="''", pointer=key)
    yield from at_no_time(body, "", "CMP-01")
    yield from _counted_choices(exchange, body)
    for place, one in enumerate(objects_in(body.get("choices"))):
        found = one.get("logprobs")
        lists = (
            [value for value in found.values() if isinstance(value, list)] if isinstance(found, dict) else []
        )
        if len({len(value) for value in lists}) > 1:
            shown = ", ".join(str(len(value)) for value in lists)
            where = f"choices[{place}].logprobs"
            yield Problem(expected="lists of one length", actual=shown, pointer=where, rule="CMP-01")


def _counted_choices(exchange: Exchange, body: dict[str, Any]) -> Iterator[Problem]:
    """Check that there is a choice for each prompt and each of `n`, with indexes from 0."""
    prompt = (exchange.request_json or {}).get("prompt")
    several = isinstance(prompt, list) and not all(isinstance(one, int) for one in prompt)
    wanted = list(
        range((len(prompt) if isinstance(prompt, list) and several else 1) * requested_choices(exchange))
    )
    found = [as_json(one.get("index")) for one in objects_in(body.get("choices"))]
    if sorted(found) != sorted(map(repr, wanted)):
        shown = ", ".join(found)[:200]
        yield Problem(expected=f"indexes {wanted}"[:200], actual=shown, pointer="choices", rule="CMP-02")


LAWS: dict[tuple[str, str], tuple[Row, ...]] = {
    ("chat", "whole"): (("shape", chat.SHAPE, chat.shape), ("usage", ("CHAT-08",), chat.usage)),
    ("chat", "stream"): (
        ("wire", (*chat.UNNAMED, "SSE-07", "HTTP-02"), chat.wire),
        ("chunks", chat.CHUNKS, chat.shapes),
        ("role-once", ("CS-02",), chat.same_role),
        ("finish-once", ("CS-03",), chat.finish_once),
    ),
    ("completions", "whole"): (
        ("shape", ("CMP-01", "CMP-02"), _completion_shape),
        ("usage", ("CHAT-08",), _completion_usage),
        ("lists", ("CMP-05", "CMP-04"), lists),
    ),
    ("completions", "stream"): (
        ("wire", chat.UNNAMED, framing_without_names),
        ("done", ("SSE-05", "SSE-07"), done_last),
        ("chunks", CHUNKS, chunks_valid),
    ),
    ("responses", "whole"): (
        ("shape", responses.SHAPE, responses.shape),
        ("usage", ("R-10",), responses.usage),
        ("state", STATES, responses.states_agree),
    ),
    ("responses", "stream"): (
        ("wire", (*responses.NAMED, "SSE-07", "HTTP-02"), responses.wire),
        ("event-shapes", ("RS-21",), responses.event_shapes),
        ("lifecycle", responses.LIFECYCLE, responses.lifecycle),
        ("nesting", responses.NESTING, responses.nesting),
        ("sums", responses.SUMS, responses.summed),
        ("snapshots", responses.SNAPSHOTS, responses.snapshots_agree),
        ("state", STATES, responses.states_agree),
    ),
    ("messages", "whole"): (
        ("shape", ("MSG-01",), messages.shape),
        ("usage", ("MSG-10",), messages.usage),
        ("ending", ("MSG-09",), messages.ending),
    ),
    ("messages", "stream"): (
        ("wire", ("MSG-07",), messages.wire),
        ("event-shapes", ("MSG-07",), messages.event_shapes),
        ("lifecycle", ("MSG-07",), messages.lifecycle),
        ("blocks", ("MSG-08",), messages.blocks),
        ("folded", ("MSG-01",), messages.folded),
        ("usage", ("MSG-10",), messages.usage),
        ("ending", ("MSG-09",), messages.ending),
    ),
}
"""The laws of every answer, by API and kind of answer."""
STREAMED = ("wire", "done", "chunks", "role-once", "finish-once")
OWN: dict[str, tuple[str, ...]] = {
    "chat/stream-text": STREAMED,
    "chat/stream-choices": ("finish-once",),
    "responses/stream-text": ("wire",),
    "completions/echo": ("lists",),
    "completions/logprobs": (*STREAMED, "lists"),
    "completions/stop": ("chunks",),
}
"""Laws of streams that these scenarios have as checks under other names."""


OTHER_SHAPES = (
    "chat/logprobs",
    "completions/stop",
    "responses/compact",
    "responses/pages",
    "responses/reasoning-round",
)
"""Scenarios with checks `shape` and `usage` that are about something else, or about some of the answers."""
OTHER_API = {"responses/inputs": ("chat",), "responses/turns": ("chat",)}
"""Further APIs that a scenario asks."""
BESIDE = {"chat/stop": ("plain",), "responses/inputs": ("chat",)}
"""Requests of these scenarios with answers that their check `shape` does not look at."""


def sound(slug: str) -> Callable[[Transcript], Iterator[Problem]]:
    """Return the check of a scenario; it leaves out what other checks of the scenario look at."""
    own = {name.rpartition("/")[2] for name in CHECKS if name.rpartition("/")[0] == slug}
    own |= set(OWN.get(slug, ()))
    if slug.startswith("chat/stream-") or slug in OTHER_SHAPES:
        own -= {"shape", "usage"}

    apis = _apis(slug)

    def judge(seen: Transcript) -> Iterator[Problem]:
        """Apply the laws of its API to every answer that was accepted; refusals have checks of their own."""
        laws = [(exchange, _laws_of(exchange, apis)) for exchange in seen.exchanges]
        for exchange, rows in laws:
            others = own - ({"shape"} if exchange.name in BESIDE.get(slug, ()) else set())
            yield from about(exchange, _flaws(exchange, [row for row in rows if row[0] not in others]))
        if not any(rows for _, rows in laws):
            for exchange in seen.exchanges:
                accepted(exchange)  # It was refused, it failed, or the connection broke.
            raise Inconclusive("no request was answered")

    return judge


def _flaws(exchange: Exchange, rows: Sequence[Row]) -> Iterator[Problem]:
    """Apply laws, the schema first; answers that a later law cannot read are already reported by the schema."""
    flawed = False
    for _, rules, law in rows:
        try:
            for problem in law(exchange):
                flawed = True
                yield from breaking(problem.rule or rules[0], [problem])
        except Inconclusive:
            continue
        except (LookupError, TypeError, AttributeError):
            if not flawed:
                raise


def _apis(slug: str) -> tuple[str, ...]:
    """Return the APIs that a scenario asks."""
    return (slug.partition("/")[0].replace("errors", "chat"), *OTHER_API.get(slug, ()))


def _laws_of(exchange: Exchange, apis: tuple[str, ...]) -> tuple[Row, ...]:
    """Return the laws of an answer of these APIs; empty for a refusal, a failure or another operation."""
    if exchange.status != 200 or exchange.error is not None or exchange.failure is not None:
        return ()
    kinds = features(exchange.method, exchange.url, exchange.request_json)
    form = "stream" if is_stream(exchange) else "whole"
    return next((LAWS[api, form] for api in apis if api in kinds), ())


def _rules(slug: str) -> tuple[str, ...]:
    apis = _apis(slug)
    found = [rule for (api, _), rows in LAWS.items() if api in apis for _, rules, _ in rows for rule in rules]
    return tuple(dict.fromkeys(found))


def _complete(slug: str) -> bool:
    """Return whether the scenario has the laws as checks of their own, as scenarios registered by `pair` do."""
    return {f"{slug}/shape", f"{slug}/usage"} <= CHECKS.keys() and (
        f"{slug}/wire" in CHECKS or slug in ("chat/text", "completions/text")
    )


NOTHING = (
    *("responses/background-unkept", "responses/background", "responses/conversation-deleted"),
    *("responses/conversation-item", "responses/conversation-items", "responses/stored-function"),
    *("completions/stream", "messages/refused"),
    *("chat/pairs", "completions/pairs", "responses/pairs", "messages/pairs"),
)
"""Scenarios in which the laws of every answer are already checks, or that generate no answer."""
ACCEPTED = ("errors/functions", "errors/methods")
"""Scenarios of `errors/` with a request that a server may answer; no check looks at the body of their refusals."""
ANSWERED = ("errors/hostile", "errors/rare-fields")
"""Scenarios of refusals in which some requests are valid."""
REFUSED = {
    "chat/stored": "created",
    "models/list": "list",
    "responses/compact": "compacted",
    "responses/conversation": "created",
    "responses/conversation-deleted": "created",
    "responses/stored": "created",
    "responses/two-parents": "created",
    "responses/unkept": "created",
    "responses/unkept-stream": "stream",
}
"""Scenarios of answers in which some requests must be refused, with the request that must be answered."""


def _of_the_key(seen: Transcript, exchange: Exchange) -> bool:
    return seen.scenario == "errors/key" and exchange.status == 401 and exchange.error is None


def refused_soundly(seen: Transcript) -> Iterator[Problem]:
    """Check the error object of every refusal (ERR-01), including refusals of a wrong key."""
    exchanges = [one if _of_the_key(seen, one) else answered(one) for one in seen.exchanges]
    refusals = [one for one in exchanges if 400 <= one.status < 500]
    if first := REFUSED.get(seen.scenario):
        # A server may report in its own way that it lacks the feature of the scenario.
        accepted(at(seen, first))
        refusals = [one for one in refusals if not has_no_route(one)]
    if not refusals:
        raise Inconclusive("the server refused nothing")
    for exchange in refusals:
        yield from breaking("ERR-01", valid_body(exchange, "ErrorResponse"))


for _slug in list(SCENARIOS):
    _refuses = _slug.startswith("errors/") and _slug not in ACCEPTED
    if (_refuses or _slug in REFUSED) and f"{_slug}/envelope" not in CHECKS:
        check(f"{_slug}/envelope", "Refuse with the error object", "ERR-01")(refused_soundly)

for _slug in list(SCENARIOS):
    _surface = _slug.partition("/")[0]
    _open = _surface in ("chat", "completions", "responses", "messages") or _slug in ANSWERED
    if _open and not _complete(_slug) and _slug not in NOTHING:
        check(f"{_slug}/sound", "Answer every request of the scenario as its API requires", *_rules(_slug))(
            sound(_slug)
        )
