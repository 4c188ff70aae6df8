"""Send one valid request before a run, to check the address, the model and the API key.

Without it, a typo in the model's name or the address looks like a hundred violations. The request is not part of the
recording, which contains evidence about rules only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from plumbline_conformance.client.http import Send, sender
from plumbline_conformance.recording.redaction import concealed, redacted_url, secrets_of
from plumbline_conformance.runner.budget import spent_on
from plumbline_conformance.suite.scenario import Request, Scenario, Target
from plumbline_conformance.transcript.exchange import LATER, Exchange

__all__ = ["Api", "PreflightResult", "apis_of", "discovered", "found_by", "simple_requests"]

Api = Literal["chat", "responses", "completions"]
_APIS: tuple[Api, ...] = ("chat", "responses", "completions")
_PATHS: dict[Api, str] = {
    "chat": "/chat/completions",
    "responses": "/responses",
    "completions": "/completions",
}
_TOKENS = 4
_MORE_TOKENS = 16
"""The smallest limit that some servers allow."""
_SHOWN = 10
"""Names of models that the message lists."""
_ABSENT = (404, 405, 501)
_KEY = (401, 403, 407)
_UNKNOWN = ("model_not_found", "invalid_model", "unknown_model")


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the request."""

    target: Target
    """The target, with the name of the token limit that it accepts."""
    why: str | None = None
    """Why nothing can be judged and what to do next; None if the server answers."""
    tokens: int = 0
    """Tokens spent."""


def apis_of(scenarios: Sequence[Scenario]) -> list[Api]:
    """Return the APIs to try for these scenarios, the likeliest first; an empty list if they generate no text."""
    surfaces = {scenario.id.partition("/")[0] for scenario in scenarios} - {"models"}
    if not surfaces:
        return []
    first: Api = "chat"
    if surfaces == {"completions"}:
        first = "completions"
    elif surfaces <= {"responses", "state", "websocket"}:
        first = "responses"
    return [first, *(api for api in _APIS if api != first)]


async def discovered(
    target: Target, apis: Sequence[Api] = _APIS, *, patience: float = 60.0
) -> PreflightResult:
    """Send the request to a server. It never raises.

    Args:
        target: the server.
        apis: tried in this order until one of them answers.
        patience: seconds for one exchange.
    """
    async with sender(target, patience) as send:
        return await found_by(send, target, apis)


async def found_by(send: Send, target: Target, apis: Sequence[Api] = _APIS) -> PreflightResult:
    """Send the request with an open sender; see `discovered`."""
    seen: list[Exchange] = []
    tokens = 0
    for api in apis:
        exchange, limit = await _send_request(send, target, api)
        tokens += spent_on(exchange, _MORE_TOKENS)
        if exchange.status == 200 and limit != target.limit:
            return PreflightResult(target=msgspec.structs.replace(target, limit=limit), tokens=tokens)
        if exchange.status == 200 or _is_there(exchange, target, seen):
            return PreflightResult(target=target, tokens=tokens)
        seen.append(exchange)
        if exchange.status in LATER:
            break
    if not seen:
        return PreflightResult(target=target)
    # The message quotes the server, which may repeat the key anywhere.
    secrets = secrets_of(seen[0], [target.api_key] if target.api_key else [])
    why = concealed(await _why(send, target, seen), secrets)
    return PreflightResult(target=target, why=why, tokens=tokens)


def simple_requests(target: Target) -> list[Request]:
    """Return a short valid request to each API that generates text, the likeliest first.

    Every server that the first request of a run has found accepts them: they have the name of the token limit that it
    accepted, and a number that is not too small for any.
    """
    return [_simple(target, api, target.limit, _MORE_TOKENS) for api in _APIS]


def _simple(target: Target, api: Api, limit: str = "max_tokens", tokens: int = _TOKENS) -> Request:
    if api == "responses":
        body: dict[str, object] = {"model": target.model, "input": "Hi", "max_output_tokens": _MORE_TOKENS}
    elif api == "completions":
        body = {"model": target.model, "prompt": "Hi", "max_tokens": tokens}
    else:
        messages = [{"role": "user", "content": "Hi"}]
        body = {"model": target.model, "messages": messages, limit: tokens}
    return Request(path=_PATHS[api], json=body)


async def _send_request(send: Send, target: Target, api: Api) -> tuple[Exchange, Any]:
    request = _simple(target, api)
    if api != "chat":
        return await send(request), target.limit
    path, body = request.path, dict(request.json)
    first = await send(request)
    if not _refuses_the_limit(first):
        return first, target.limit
    # The server may refuse the number or the name of the limit.
    more = await send(Request(path=path, json={**body, "max_tokens": _MORE_TOKENS}))
    if more.status == 200:
        return more, target.limit
    del body["max_tokens"]
    renamed = await send(Request(path=path, json={**body, "max_completion_tokens": _MORE_TOKENS}))
    return (renamed, "max_completion_tokens") if renamed.status == 200 else (first, target.limit)


def _refuses_the_limit(exchange: Exchange) -> bool:
    if exchange.status not in (400, 422):
        return False
    error = _error(exchange)
    return error.get("param") == "max_tokens" or "max_tokens" in str(error.get("message"))


def _error(exchange: Exchange) -> dict[str, Any]:
    """Return the error object, or the whole body of a server that sends it without an envelope."""
    body = exchange.json if isinstance(exchange.json, dict) else {}
    error = body.get("error")
    return error if isinstance(error, dict) else body


def _of_the_model(exchange: Exchange, target: Target) -> bool:
    """Return whether the server refuses an unknown model; servers word that differently."""
    if not 400 <= exchange.status < 500:
        return False
    error = _error(exchange)
    if error.get("code") in _UNKNOWN:
        return True
    if exchange.status not in (400, 404, 422):
        return False
    message = str(error.get("message") or error.get("detail") or "")
    if exchange.status == 404:
        return bool(re.search(r"\bmodel\b", message, re.IGNORECASE))
    return error.get("param") == "model" or (f"model={target.model}" in message and "nvalid model" in message)


def _hopeless(exchange: Exchange, target: Target) -> bool:
    return exchange.status in (*_ABSENT, *_KEY, *LATER) or _of_the_model(exchange, target)


def _is_there(exchange: Exchange, target: Target, seen: Sequence[Exchange]) -> bool:
    """Return whether an answer other than 200 still shows an API: a failure, or the refusal of a valid request."""
    if _hopeless(exchange, target):
        return False
    if not seen:
        return True
    # After other APIs were tried, only if those are absent and did not complain about the model or the key.
    return (exchange.status >= 500 or exchange.status in (400, 422)) and all(
        other.status in _ABSENT and not _of_the_model(other, target) for other in seen
    )


async def _why(send: Send, target: Target, seen: Sequence[Exchange]) -> str:
    """Return the message about the cause that the user must fix first."""
    address = redacted_url(target.base_url)
    if any(_of_the_model(exchange, target) for exchange in seen):
        return f"The server does not know the model {target.model!r}; {await _listed(send)}."
    for exchange in seen:
        if exchange.status in _KEY:
            cause = "The server refuses the API key" if target.api_key else "The server requires an API key"
            return (
                f"{cause}: {address} answers with status {exchange.status}. Set the right one with --api-key."
            )
        if exchange.status in LATER:
            waits = exchange.header("retry-after")
            asks = f" It asks to wait for {waits}." if waits else ""
            return f"The server stays busy: {address} answers with status {exchange.status}.{asks} Try again later."
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
        return "it lists no models"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"it lists: {', '.join(names[:_SHOWN])}{more}"
