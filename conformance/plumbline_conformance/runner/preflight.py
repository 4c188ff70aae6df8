"""One right request before all others: is there an API at the address that knows the model and takes the key?

Without it, a typing error in a model's name or in an address looks like a hundred violations. It is no part of a run's
recording, whose exchanges are evidence about rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from plumbline_conformance.client.http import Send, sender
from plumbline_conformance.recording.redaction import concealed, redacted_url
from plumbline_conformance.runner.budget import spent_on
from plumbline_conformance.suite.model import Request, Scenario, Target
from plumbline_conformance.transcript.model import Exchange

__all__ = ["Api", "Found", "apis_of", "discovered", "found_by"]

Api = Literal["chat", "responses", "completions"]
_APIS: tuple[Api, ...] = ("chat", "responses", "completions")
_PATHS: dict[Api, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
}
_ROOM = 4
_MORE = 16
"""The least that some servers allow."""
_SHOWN = 10
"""Names of models that are told."""
_ABSENT = (404, 405, 501)
_KEY = (401, 403, 407)
_BUSY = (429, 503)
_UNKNOWN = ("model_not_found", "invalid_model", "unknown_model")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    target: Target
    """The target, with what was learnt of it."""
    why: str | None = None
    """Why nothing can be judged, in a sentence that says what to do next; None if it can."""
    tokens: int = 0
    """What it did cost."""


def apis_of(scenarios: Sequence[Scenario]) -> list[Api]:
    """The APIs of these scenarios, those first that are meant; none if they generate nothing."""
    surfaces = {scenario.id.partition("/")[0] for scenario in scenarios} - {"models"}
    if not surfaces:
        return []
    first: Api = "chat"
    if surfaces == {"completions"}:
        first = "completions"
    elif surfaces <= {"responses", "state", "websocket"}:
        first = "responses"
    return [first, *(api for api in _APIS if api != first)]


async def discovered(target: Target, apis: Sequence[Api] = _APIS, *, patience: float = 60.0) -> Found:
    """Ask a server that nothing is known of. It never raises.

    Args:
        target: whom.
        apis: what is tried in this order until one of them answers.
        patience: seconds for one exchange.
    """
    async with sender(target, patience) as send:
        return await found_by(send, target, apis)


async def found_by(send: Send, target: Target, apis: Sequence[Api] = _APIS) -> Found:
    """The same, by a sender that is open already."""
    seen: list[Exchange] = []
    tokens = 0
    for api in apis:
        exchange, limit = await _send_request(send, target, api)
        # What each try did cost is counted; a refusal costs nothing.
        tokens += spent_on(exchange, _MORE)
        if exchange.status == 200 and limit != target.limit:
            return Found(target=msgspec.structs.replace(target, limit=limit), tokens=tokens)
        if exchange.status == 200 or _is_there(exchange, target, seen):
            return Found(target=target, tokens=tokens)
        seen.append(exchange)
        if exchange.status in _BUSY:
            break
    if not seen:
        return Found(target=target)
    # The names of models and the time to wait are the server's words, and a server may repeat a key anywhere.
    why = concealed(await _why(send, target, seen), [target.api_key] if target.api_key else [])
    return Found(target=target, why=why, tokens=tokens)


async def _send_request(send: Send, target: Target, api: Api) -> tuple[Exchange, Any]:
    path = _PATHS[api]
    if api == "responses":
        body: dict[str, object] = {"model": target.model, "input": "Hi", "max_output_tokens": _MORE}
        return await send(Request(path=path, json=body)), target.limit
    if api == "completions":
        body = {"model": target.model, "prompt": "Hi", "max_tokens": _ROOM}
        return await send(Request(path=path, json=body)), target.limit
    messages = [{"role": "user", "content": "Hi"}]
    body = {"model": target.model, "messages": messages, "max_tokens": _ROOM}
    first = await send(Request(path=path, json=body))
    if not _refuses_the_limit(first):
        return first, target.limit
    # It may be the number that is refused, or the name.
    more = await send(Request(path=path, json={**body, "max_tokens": _MORE}))
    if more.status == 200:
        return more, target.limit
    del body["max_tokens"]
    renamed = await send(Request(path=path, json={**body, "max_completion_tokens": _MORE}))
    return (renamed, "max_completion_tokens") if renamed.status == 200 else (first, target.limit)


def _refuses_the_limit(exchange: Exchange) -> bool:
    if exchange.status not in (400, 422):
        return False
    error = _error(exchange)
    return error.get("param") == "max_tokens" or "max_tokens" in str(error.get("message"))


def _error(exchange: Exchange) -> dict[str, Any]:
    """The error object, or the whole answer of a server that writes it without an envelope."""
    body = exchange.json if isinstance(exchange.json, dict) else {}
    held = body.get("error")
    return held if isinstance(held, dict) else body


def _of_the_model(exchange: Exchange, target: Target) -> bool:
    """Whether a refusal says that the model is not known, in one of the ways in which servers say so."""
    if not 400 <= exchange.status < 500:
        return False
    error = _error(exchange)
    if error.get("code") in _UNKNOWN:
        return True
    if exchange.status not in (400, 404, 422):
        return False
    said = str(error.get("message") or error.get("detail") or "")
    if exchange.status == 404:
        return bool(re.search(r"\bmodel\b", said, re.IGNORECASE))
    return error.get("param") == "model" or (f"model={target.model}" in said and "nvalid model" in said)


def _hopeless(exchange: Exchange, target: Target) -> bool:
    return exchange.status in (*_ABSENT, *_KEY, *_BUSY) or _of_the_model(exchange, target)


def _is_there(exchange: Exchange, target: Target, seen: Sequence[Exchange]) -> bool:
    """Whether an answer that is no success shows an API all the same: one that fails, or refuses what is right."""
    if _hopeless(exchange, target):
        return False
    if not seen:
        return True
    # Of several APIs one is as good as another, unless the model or the key is what the others complained of.
    return (exchange.status >= 500 or exchange.status in (400, 422)) and all(
        other.status in _ABSENT and not _of_the_model(other, target) for other in seen
    )


async def _why(send: Send, target: Target, seen: Sequence[Exchange]) -> str:
    """The sentence; of several reasons the one that the reader has to do something about first."""
    address = redacted_url(target.base_url)
    if any(_of_the_model(exchange, target) for exchange in seen):
        return f"The server does not know the model {target.model!r}; {await _listed(send)}."
    for exchange in seen:
        if exchange.status in _KEY:
            said = "The API key is refused" if target.api_key else "The server wants an API key"
            return (
                f"{said}: {address} answers with status {exchange.status}. Give the right one with --api-key."
            )
        if exchange.status in _BUSY:
            waits = exchange.header("retry-after")
            asks = f" It asks to wait for {waits}." if waits else ""
            return f"The server is busy and stays so: {address} answers with status {exchange.status}.{asks}"
    statuses = ", ".join(str(status) for status in dict.fromkeys(exchange.status for exchange in seen))
    paths = ", ".join(_PATHS[api] for api in _APIS)
    return (
        f"There is no API at {address}: status {statuses} to {paths}. "
        "Does the address end with /v1, such as http://127.0.0.1:8000/v1?"
    )


async def _listed(send: Send) -> str:
    body = (await send(Request(path="/models", method="GET"))).json
    data = body.get("data") if isinstance(body, dict) else None
    names = (
        [one["id"] for one in data if isinstance(one, dict) and isinstance(one.get("id"), str)]
        if isinstance(data, list)
        else []
    )
    if not names:
        return "it lists none that it knows"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it lists: {', '.join(names[:_SHOWN])}{more}"
