"""Admit requests to an engine: limit how many are in flight, in all and of one client, and compile their grammars.

Requests that name an adapter are counted at its gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

import msgspec

from plumbline.engines.adapters import AdapterGate
from plumbline.engines.constraints.grammar import CompilersBusyError, GrammarCompiler, GrammarError, Matcher
from plumbline.engines.port import EngineFullError, EngineInfo, GenerateRequest, RefusedRequestError

__all__ = ["Admission"]

_BUSY_SECONDS = 5
"""Seconds for `Retry-After` when too many grammars are being compiled."""


class Admission:
    """The requests that an engine has admitted, and the compiler of their grammars.

    Args:
        info: the facts of the engine; `info` has the limits and the features of grammars as well.
        max_in_flight: requests that may run and wait; one more is refused.
        max_per_client: how many of them one client may have; 0 sets no limit.
        grammars: compiles grammars; without it, requests with a grammar are refused.
        adapters: the adapters that requests may name, if the engine has any.
    """

    def __init__(
        self,
        info: EngineInfo,
        *,
        max_in_flight: int,
        max_per_client: int = 0,
        grammars: GrammarCompiler | None = None,
        adapters: AdapterGate | None = None,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._max_per_client = min(max_in_flight, max_per_client or max_in_flight)
        features = info.features if grammars is None else info.features | {"grammar", "banned_strings"}
        self.info = msgspec.structs.replace(info, max_in_flight=self._max_per_client, features=features)
        self.grammars = grammars
        self._adapters = adapters
        self._clients: Counter[str] = Counter()
        self._ids: dict[str, object] = {}
        """The requests in flight, each with what the gate of adapters gave it."""

    @property
    def ids(self) -> Set[str]:
        """The ids of the requests in flight."""
        return self._ids.keys()

    def enter(self, request: GenerateRequest) -> None:
        """Admit a request that has been checked; `leave` must follow.

        Raises:
            EngineFullError: the server or this client has reached its limit of requests in flight.
            RefusedRequestError: a request with this id is in flight, or no adapter has the name that it gives.
        """
        if len(self._ids) >= self._max_in_flight:
            raise EngineFullError(
                f"{len(self._ids)} requests are in flight, which is the limit of this server."
            )
        if self._clients[request.client] >= self._max_per_client:
            raise EngineFullError(
                f"{self._max_per_client} requests of this client are in flight, which is the limit for each."
            )
        if request.request_id in self._ids:
            raise RefusedRequestError(f"request id {request.request_id!r} is in flight already")
        self._ids[request.request_id] = (
            None if self._adapters is None else self._adapters.enter(request.adapter)
        )
        self._clients[request.client] += 1

    def leave(self, request: GenerateRequest) -> None:
        """Give the place of an admitted request to others."""
        entered = self._ids.pop(request.request_id, None)
        if self._adapters is not None:
            self._adapters.leave(entered)
        self._clients[request.client] -= 1
        if not self._clients[request.client]:
            del self._clients[request.client]

    async def compile(self, grammar: str) -> Matcher:
        """Compile a grammar.

        Raises:
            EngineFullError: too many grammars are being compiled.
            RefusedRequestError: the engine has no grammars, or this one is invalid.
        """
        if self.grammars is None:
            raise RefusedRequestError("this engine does not support grammars", param="grammar")
        try:
            return await self.grammars.compile(grammar)
        except GrammarError as error:
            raise RefusedRequestError(str(error), param="grammar") from error
        except CompilersBusyError as error:
            raise EngineFullError(str(error), retry_after=_BUSY_SECONDS) from error
