"""Hand requests to the models that they name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from msgspec import UNSET

from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.models import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.reply import Reply
from plumbline.contract.wire.sse import frame
from plumbline.server.http.replies import CHUNKS, MESSAGES, StreamForm
from plumbline.server.operations.base import ModelOperations, ServerOperations
from plumbline.server.operations.chat import ChatOperations
from plumbline.server.operations.completions import CompletionOperations
from plumbline.server.operations.messages import MessageOperations
from plumbline.server.operations.responses import ResponseOperations, unavailable_header
from plumbline.server.operations.tokens import TokenOperations
from plumbline.server.protocols.responses.stream_events import error_event, failure_code
from plumbline.server.responses.latest_turns import LatestTurns

__all__ = ["RoutedOperations"]

M = TypeVar("M", bound=ModelOperations)
R = TypeVar("R", bound=Any)


def _forwarded(
    operation: Callable[[M, R, Call], Awaitable[Reply]], form: StreamForm | None = None
) -> Callable[[RoutedOperations, R, Call], Coroutine[Any, Any, Reply]]:
    """Return an operation of the server that the model of the request answers.

    Args:
        operation: the operation of a loaded model.
        form: how its stream begins if it waits for the model; None if it has no stream.
    """

    async def forward(self: RoutedOperations, request: R, call: Call) -> Reply:
        streams = form is not None and request.stream is True
        return await self._models.answer(
            request.model,
            call,
            lambda lease: operation(lease.model, request, call),
            form if streams else None,
        )

    return forward


class RoutedOperations(ServerOperations):
    """Operations that a model answers; `ModelOperations` has them by the same names."""

    create_chat_completion = _forwarded(ChatOperations.create_chat_completion, CHUNKS)
    create_completion = _forwarded(CompletionOperations.create_completion, CHUNKS)
    create_message = _forwarded(MessageOperations.create_message, MESSAGES)
    count_message_tokens = _forwarded(MessageOperations.count_message_tokens)
    count_response_input_tokens = _forwarded(ResponseOperations.count_response_input_tokens)
    compact_response = _forwarded(ResponseOperations.compact_response)
    tokenize = _forwarded(TokenOperations.tokenize)
    detokenize = _forwarded(TokenOperations.detokenize)

    async def create_response(self, request: CreateResponse, call: Call) -> Reply:
        """Answer input items."""
        request = self._prompts.applied(request)
        return await self._models.answer(
            request.model,
            call,
            lambda lease: lease.model.create_response(request, call, lease),
            _RESPONSES if request.stream is True else None,
            lambda: _headers(request),
        )

    async def answer_on_socket(
        self,
        request: CreateResponse,
        call: Call,
        latest: LatestTurns,
        lane: str | None,
        *,
        generate: bool = True,
    ) -> AsyncGenerator[ResponseStreamEvent, None]:
        """Yield the events of one turn of a WebSocket; see `ResponseOperations`."""
        request = self._prompts.applied(request)
        async with self._models.lease(request.model, call) as lease:
            events = lease.model.answer_on_socket(request, call, latest, lane, generate=generate)
            async for event in events:
                yield event

    async def get_tokenizer_info(self, call: Call, *, model: str | None) -> Reply:
        """Return the configuration of a model's tokenizer."""
        return await self._models.answer(model, call, lambda lease: lease.model.get_tokenizer_info())

    async def load_lora_adapter(self, request: LoadLoraAdapterRequest, call: Call) -> Reply:
        """Load an adapter that requests may name afterwards."""
        self._check_may_change_adapters(call)
        return await self._models.answer(
            UNSET, call, lambda lease: lease.model.load_lora_adapter(request, call)
        )

    async def unload_lora_adapter(self, request: UnloadLoraAdapterRequest, call: Call) -> Reply:
        """Unload an adapter once its requests have ended."""
        self._check_may_change_adapters(call)
        return await self._models.answer(
            UNSET, call, lambda lease: lease.model.unload_lora_adapter(request, call)
        )

    def _check_may_change_adapters(self, call: Call) -> None:
        """Refuse a key that is not an admin's, because adapters are those of all keys; without keys all may."""
        if not (self._access.keys.open and self._access.admin_keys.open):
            self._check_admin(call)


def _headers(request: CreateResponse) -> Mapping[str, str]:
    try:
        return unavailable_header(request)
    except ApiError:  # The stream ends with the error of the whole request, which is more exact.
        return {}


_RESPONSES = StreamForm(lambda error, _: frame(encode(error_event(0, error, failure_code(error))), "error"))
"""The form of a stream that fails before it has an event (ERR-11)."""
