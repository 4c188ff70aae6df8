"""Read a recorded exchange with openai-python as its users do, and report what it raises or gets wrong.

Only this module and `run.why_not` import the client, which is not a dependency of the judge.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import openai

from plumbline_conformance.sdk.calls import ClientCall
from plumbline_conformance.sdk.driver import NotSent, attribute_of, event_place, raised, sent
from plumbline_conformance.sdk.replay import Replay
from plumbline_conformance.sdk.sums import (
    Sum,
    chat_sum,
    completions_sum,
    differences,
    event_bodies,
    get_field,
    responses_sum,
    texts_of,
)
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["OpenAIClient"]

_SECONDS = 10.0
"""For one read from loopback; the replay never waits."""
_STATUSES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
}
_CUT_SHORT = {"LengthFinishReasonError": "length", "ContentFilterFinishReasonError": "content_filter"}
"""Errors that the helper raises at the end of a stream, with the finish reason that causes each."""
_ENDED_OTHERWISE = {"response.incomplete", "response.failed", "error"}
"""Events after which the helper has no completed response."""
_SUMS: dict[str, Callable[..., Sum]] = {
    "chat": chat_sum,
    "completions": completions_sum,
    "responses": responses_sum,
}


class OpenAIClient:
    """Drive the client against the replay.

    Args:
        replay: the server.
        tick: called at every event; raises `TimeoutError` if no time is left.
    """

    name = f"openai {openai.__version__}"
    surfaces = frozenset({"chat", "completions", "responses", "models"})

    def __init__(self, replay: Replay, tick: Callable[[], None]) -> None:
        self._replay = replay
        self._tick = tick
        # Neither a proxy from the environment nor a recorded redirect may lead off loopback.
        # It speaks plain HTTP, so it trusts no certificate: loading those of the system takes 25 ms.
        self._http = openai.DefaultHttpxClient(
            trust_env=False,
            follow_redirects=False,
            timeout=_SECONDS,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def read(self, exchange: Exchange, call: ClientCall) -> Iterator[tuple[str, list[Problem]]]:
        """Yield, for each claim about an answer, the last segment of its id and the problems.

        Nothing is yielded for a request that the client refuses to send.
        """
        if exchange.status >= 400:
            attempts: dict[str, Callable[[], list[Problem]]] = {
                "errors": lambda: self._refused(exchange, call)
            }
        elif not call.stream:
            attempts = {f"{call.surface}-whole": lambda: self._whole(exchange, call)}
        else:
            attempts = {f"{call.surface}-stream": lambda: self._streamed(exchange, call)}
            if call.helper:
                attempts[f"{call.surface}-stream-helper"] = lambda: self._with_helper(exchange, call)
        for slug, attempt in attempts.items():
            try:
                yield slug, attempt()
            except NotSent:
                continue

    def _sent(self, exchange: Exchange, place: tuple[str, ...], given: dict[str, Any]) -> Any:
        """Call a method of the client with the arguments that it knows.

        Raises:
            NotSent: it refuses the arguments and sends nothing.
        """
        base_url = self._replay.choose(exchange)
        client = openai.OpenAI(base_url=base_url, api_key="-", max_retries=0, http_client=self._http)
        return sent(client, place, given, self._replay)

    def _refused(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        wanted = _STATUSES.get(exchange.status)
        wanted = wanted or ("InternalServerError" if exchange.status >= 500 else "APIStatusError")
        given = {**call.given, "stream": True} if call.stream else call.given
        try:
            self._sent(exchange, call.method, given)
        except NotSent:
            raise
        except Exception as error:
            if type(error).__name__ == wanted or _is_cut(exchange, error):
                return []
            return [raised(error, "status", f"{wanted}, for status {exchange.status}")]
        return [Problem(expected=wanted, actual="an answer", pointer="status", rule="SDK-01")]

    def _whole(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        try:
            answer = self._sent(exchange, call.method, call.given)
            match call.method:
                case ("models", "list"):
                    _ = [model.id for model in answer]
                case ("models", _):
                    _ = answer.id
                case ("responses", _):
                    _ = answer.id, answer.status, answer.output_text, [item.type for item in answer.output]
                case ("completions", _):
                    _ = [(choice.text, choice.finish_reason) for choice in answer.choices]
                case _:
                    chat_sum([answer], attribute_of, "message")
        except NotSent:
            raise
        except Exception as error:
            return [] if _is_cut(exchange, error) else [raised(error, "body")]
        return []

    def _streamed(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        seen: list[Any] = []
        chunks = event_bodies(exchange.events)
        try:
            with self._sent(exchange, call.method, {**call.given, "stream": True}) as stream:
                for chunk in stream:
                    self._tick()
                    seen.append(chunk)
            found = _SUMS[call.surface](seen, attribute_of)
        except (NotSent, TimeoutError):
            raise
        except Exception as error:
            return (
                []
                if _is_reported(exchange, chunks, error)
                else [raised(error, event_place(len(seen), chunks))]
            )
        return (
            []
            if exchange.error is not None
            else list(differences(_SUMS[call.surface](chunks, get_field), found))
        )

    def _with_helper(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        chunks = event_bodies(exchange.events)
        sums = _SUMS[call.surface](chunks, get_field)
        count = 0
        try:
            stream = self._sent(exchange, call.helper, call.given)
            with stream:
                for event in stream:
                    self._tick()
                    count += call.surface == "responses" or event.type == "chunk"
            return self._final(exchange, call, stream, chunks, sums)
        except (NotSent, TimeoutError):
            raise
        except Exception as error:
            if _is_reported(exchange, chunks, error) or _is_cut_short(error, sums):
                return []
            return [raised(error, event_place(count, chunks))]

    def _final(
        self, exchange: Exchange, call: ClientCall, stream: Any, chunks: list[Any], sums: Sum
    ) -> list[Problem]:
        """Compare the helper's final object with the sums of the events."""
        if exchange.error is not None:
            return []
        if call.surface == "responses":
            try:
                final = stream.get_final_response()
            except RuntimeError as error:
                if any(get_field(chunk, "type") in _ENDED_OTHERWISE for chunk in chunks):
                    return []
                return [raised(error, "events")]
            return list(_lost(sums, final))
        try:
            final = stream.get_final_completion()
        except openai.OpenAIError as error:
            if not _is_cut_short(error, sums):
                raise
            final = stream.current_completion_snapshot
        found = chat_sum([final], attribute_of, "message")
        return list(differences(sums, found))


def _lost(sums: Sum, final: Any) -> Iterator[Problem]:
    """Yield texts and arguments of the deltas that the final response lacks, in the order of its items."""
    parts = [part for item in final.output if item.type == "message" for part in item.content]
    calls = [item for item in final.output if item.type == "function_call"]
    has = {
        "text": [part.text for part in parts if part.type == "output_text"],
        "arguments": [call.arguments for call in calls],
    }
    for kind, texts in has.items():
        left = iter(texts)
        for text in texts_of(sums, kind):
            # Items without deltas may be in between.
            if not any(text == other for other in left):
                place = f"{kind} of the final response"
                yield from differences({place: repr(text)}, {place: repr(texts)})
                break


def _is_cut(exchange: Exchange, error: Exception) -> bool:
    """Return whether the error is the client's error for a connection that was lost while recording."""
    lost = isinstance(error, openai.APIConnectionError) or type(error).__module__.startswith("http")
    return exchange.error is not None and lost


def _is_reported(exchange: Exchange, chunks: list[Any], error: Exception) -> bool:
    """Return whether the server sent an error event, or the connection was lost."""
    sent = any(get_field(chunk, "error") for chunk in chunks)
    return _is_cut(exchange, error) or (sent and type(error) is openai.APIError)


def _is_cut_short(error: Exception, sums: Sum) -> bool:
    """Return whether the helper's error is about the finish reason of the stream."""
    reason = _CUT_SHORT.get(type(error).__name__)
    return reason is not None and any(
        place.endswith(".finish_reason") and text == reason for place, text in sums.items()
    )
