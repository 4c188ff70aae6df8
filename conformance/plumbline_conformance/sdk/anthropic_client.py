"""Read a recorded exchange of Messages with anthropic-sdk-python as its users do.

Only this module and `run.why_not` import the client, which is not a dependency of the judge.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from typing import Any

import anthropic

from plumbline_conformance.sdk.calls import ClientCall
from plumbline_conformance.sdk.driver import NotSent, attribute_of, event_place, raised, sent
from plumbline_conformance.sdk.replay import Replay
from plumbline_conformance.sdk.sums import differences, event_bodies, get_field, message_sum, messages_sum
from plumbline_conformance.suite.scenario import Problem
from plumbline_conformance.transcript.exchange import Exchange

__all__ = ["AnthropicClient"]

_SECONDS = 10.0
"""For one read from loopback; the replay never waits. Without a limit of its own the client refuses long answers."""
_STATUSES = {
    400: anthropic.BadRequestError,
    401: anthropic.AuthenticationError,
    403: anthropic.PermissionDeniedError,
    404: anthropic.NotFoundError,
    409: anthropic.ConflictError,
    422: anthropic.UnprocessableEntityError,
    429: anthropic.RateLimitError,
}


class AnthropicClient:
    """Drive the client against the replay.

    Args:
        replay: the server.
        tick: called at every event; raises `TimeoutError` if no time is left.
    """

    name = f"anthropic {anthropic.__version__}"
    surfaces = frozenset({"messages", "count"})

    def __init__(self, replay: Replay, tick: Callable[[], None]) -> None:
        self._replay = replay
        self._tick = tick
        # Neither a proxy from the environment nor a recorded redirect may lead off loopback.
        # It speaks plain HTTP, so it trusts no certificate: loading those of the system takes 25 ms.
        self._http = anthropic.DefaultHttpxClient(
            trust_env=False,
            follow_redirects=False,
            timeout=_SECONDS,
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def read(self, exchange: Exchange, call: ClientCall) -> Iterator[tuple[str, list[Problem]]]:
        """Yield, for each claim about an answer, the last segment of its id and the problems."""
        if exchange.status >= 400:
            attempts: dict[str, Callable[[], list[Problem]]] = {
                "errors": lambda: self._refused(exchange, call)
            }
        elif not call.stream:
            attempts = {f"{call.surface}-whole": lambda: self._whole(exchange, call)}
        else:
            attempts = {
                "messages-stream": lambda: self._streamed(exchange, call),
                "messages-stream-helper": lambda: self._with_helper(exchange, call),
            }
        for slug, attempt in attempts.items():
            try:
                yield slug, attempt()
            except NotSent:
                continue

    def _sent(self, exchange: Exchange, place: tuple[str, ...], given: dict[str, Any]) -> Any:
        # The client adds `/v1` itself.
        base_url = self._replay.choose(exchange).removesuffix("/v1")
        client = anthropic.Anthropic(
            base_url=base_url, api_key="-", max_retries=0, timeout=_SECONDS, http_client=self._http
        )
        return sent(client, place, given, self._replay)

    def _refused(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        wanted: type[Exception] = _STATUSES.get(exchange.status, anthropic.APIStatusError)
        if exchange.status >= 500:
            wanted = anthropic.InternalServerError
        given = {**call.given, "stream": True} if call.stream else call.given
        try:
            self._sent(exchange, call.method, given)
        except NotSent:
            raise
        except Exception as error:
            if isinstance(error, wanted) or _is_cut(exchange, error):
                return []
            return [raised(error, "status", f"{wanted.__name__}, for status {exchange.status}")]
        return [Problem(expected=wanted.__name__, actual="an answer", pointer="status", rule="SDK-01")]

    def _whole(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        try:
            answer = self._sent(exchange, call.method, call.given)
            if call.surface == "count":
                _ = answer.input_tokens + 0
            else:
                _ = answer.id, answer.stop_reason, answer.usage.output_tokens
                message_sum(answer, attribute_of)
                _ = [block.text for block in answer.content if block.type == "text"]
        except NotSent:
            raise
        except Exception as error:
            return [] if _is_cut(exchange, error) else [raised(error, "body")]
        return []

    def _streamed(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        seen: list[Any] = []
        chunks = _without_pings(exchange)
        try:
            with self._sent(exchange, call.method, {**call.given, "stream": True}) as stream:
                for chunk in stream:
                    self._tick()
                    seen.append(chunk)
            found = messages_sum(seen, attribute_of)
        except (NotSent, TimeoutError):
            raise
        except Exception as error:
            if _is_reported(exchange, chunks, error):
                return []
            return [raised(error, event_place(len(seen), chunks))]
        if exchange.error is not None:
            return []
        return list(differences(messages_sum(chunks, get_field), found))

    def _with_helper(self, exchange: Exchange, call: ClientCall) -> list[Problem]:
        chunks = _without_pings(exchange)
        sums = messages_sum(chunks, get_field)
        count = 0
        try:
            with self._sent(exchange, call.helper, call.given) as stream:
                for event in stream:
                    self._tick()
                    # Between the events of the server the helper has some of its own.
                    count += event.type.startswith(("message_", "content_block_"))
                final = stream.get_final_message()
        except (NotSent, TimeoutError):
            raise
        except Exception as error:
            if _is_reported(exchange, chunks, error):
                return []
            return [raised(error, event_place(count, chunks))]
        return [] if exchange.error is not None else list(differences(sums, message_sum(final, attribute_of)))


def _without_pings(exchange: Exchange) -> list[Any]:
    return [chunk for chunk in event_bodies(exchange.events) if get_field(chunk, "type") != "ping"]


def _is_cut(exchange: Exchange, error: Exception) -> bool:
    """Return whether the error is the client's error for a connection that was lost while recording."""
    lost = isinstance(error, anthropic.APIConnectionError) or type(error).__module__.startswith("http")
    return exchange.error is not None and lost


def _is_reported(exchange: Exchange, chunks: list[Any], error: Exception) -> bool:
    """Return whether the server sent an error event, or the connection was lost."""
    reported = any(get_field(chunk, "type") == "error" for chunk in chunks)
    if exchange.error is not None and not chunks:
        # The helper has no message to return if nothing came.
        return True
    return _is_cut(exchange, error) or (reported and isinstance(error, anthropic.APIStatusError))
