"""Check requests against what is served and what the operator allows."""

from __future__ import annotations

import json

import msgspec

from plumbline.answer.turn import Turn
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import invalid_request, model_not_found, unsupported_parameter
from plumbline.server.limits.keys import KeyRing, as_sent
from plumbline.server.loading.served_adapters import ServedAdapters
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.settings import Settings

__all__ = ["RequestChecks", "client_named", "client_of", "salted"]


def client_of(call: Call, settings: Settings) -> str:
    """Return the client that a request counts for: its key, or its address where the server checks no keys."""
    return client_named(as_sent(call.api_key or ""), call.peer, settings)


def client_named(api_key: str | None, peer: str, settings: Settings) -> str:
    """Return the client of a request by its key and its address."""
    return api_key or "" if settings.api_keys else peer


def salted(turn: Turn, client: str, settings: Settings) -> Turn:
    """Keep what a key has in the prefix cache apart from that of others, to whom `cached_tokens` would tell it."""
    if not settings.api_keys or settings.share_prefix_cache:
        return turn
    return msgspec.structs.replace(turn, cache_salt=json.dumps([client, turn.cache_salt]))


class RequestChecks:
    """Checks of one served model. Each raises an `ApiError` that names the field."""

    def __init__(
        self, model: ServedModel, settings: Settings, adapters: ServedAdapters, keys: KeyRing
    ) -> None:
        self._keys = keys
        self._model = model
        self._settings = settings
        self._adapters = adapters

    def check_model(self, name: str, call: Call) -> None:
        """Refuse a model that is not served (MOD-04)."""
        known = [*self._model.names, *self._adapters.names]
        if name not in known:
            raise model_not_found(name, list(filter(self._keys.find_of(call).may_use, known)))

    def adapter(self, name: str | msgspec.UnsetType | None) -> str | None:
        """Return the adapter that a request names as its model, or None for the model itself."""
        return name if isinstance(name, str) and name in self._adapters.names else None

    def answer_name(self, name: str | msgspec.UnsetType | None, call: Call) -> str:
        """Return the model that the answer names (MOD-04): the adapter, or the first name that the key may use."""
        may_use = self._keys.find_of(call).may_use
        return self.adapter(name) or next(filter(may_use, self._model.names), self._model.names[0])

    def check_choices(self, count: int, param: str) -> None:
        """Refuse more choices than can ever run at once with a 400: after a 429 clients would try again."""
        every = self._settings.max_num_seqs + self._settings.max_num_waiting
        limit = self._model.engine.info.max_in_flight or every
        if count > limit:
            message = f"Invalid '{param}': {count} choices requested; this server generates at most {limit} at once."
            raise invalid_request(message, param, "invalid_value")

    def check_suffix(self, request: CreateCompletionRequest) -> None:
        """Refuse a suffix if the model has no tokens for filling in the middle (CMP-07)."""
        if isinstance(request.suffix, str) and self._model.renderer.tokenizer.fill_in is None:
            raise unsupported_parameter("suffix", "is not supported: this model does not fill in the middle")

    def check_template(self, request: CreateChatCompletionRequest) -> None:
        """Refuse a request's own template, which can keep a worker thread busy, unless the operator trusts clients."""
        if isinstance(request.chat_template, str) and not self._settings.trust_request_chat_template:
            raise unsupported_parameter(
                "chat_template", "needs a server that was started with --trust-request-chat-template"
            )

    def check_optional_model(self, name: str | msgspec.UnsetType | None, call: Call) -> None:
        """Refuse a model that is not served; without a name it is the only one."""
        if isinstance(name, str):
            self.check_model(name, call)
