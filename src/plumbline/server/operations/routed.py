"""Hand requests to the models that they name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from msgspec import UNSET

from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract._generated.events import ResponseStreamEvent
from plumbline.contract._generated.messages import CountMessageTokensRequest, CreateMessageRequest
from plumbline.contract._generated.models import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from plumbline.contract._generated.responses import (
    CompactResponseMethodPublicBody,
    CreateResponse,
    TokenCountsBody,
)
from plumbline.contract._generated.utilities import DetokenizeRequest, TokenizeRequest
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.reply import Reply
from plumbline.contract.wire.sse import frame
from plumbline.server.http.replies import CHUNKS, MESSAGES, StreamForm
from plumbline.server.operations.base import ServerOperations
from plumbline.server.operations.responses import unavailable_header
from plumbline.server.protocols.responses.stream_events import error_event, failure_code
from plumbline.server.responses.latest_turns import LatestTurns

__all__ = ["RoutedOperations"]


class RoutedOperations(ServerOperations):
    """Operations that a model answers; `ModelOperations` has them by the same names."""

    async def create_chat_completion(self, request: CreateChatCompletionRequest, call: Call) -> Reply:
        """Answer a conversation."""
        return await self._models.answer(
            request.model,
            call,
            lambda lease: lease.model.create_chat_completion(request, call),
            CHUNKS if request.stream is True else None,
        )

    async def create_completion(self, request: CreateCompletionRequest, call: Call) -> Reply:
        """Continue texts."""
        return await self._models.answer(
            request.model,
            call,
            lambda lease: lease.model.create_completion(request, call),
            CHUNKS if request.stream is True else None,
        )

    async def create_message(self, request: CreateMessageRequest, call: Call) -> Reply:
        """Answer a conversation as Anthropic's API does."""
        return await self._models.answer(
            request.model,
            call,
            lambda lease: lease.model.create_message(request, call),
            MESSAGES if request.stream is True else None,
        )

    async def count_message_tokens(self, request: CountMessageTokensRequest, call: Call) -> Reply:
        """Count the tokens of a conversation (MSG-12)."""
        return await self._models.answer(
            request.model, call, lambda lease: lease.model.count_message_tokens(request, call)
        )

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

    async def count_response_input_tokens(self, request: TokenCountsBody, call: Call) -> Reply:
        """Count the input tokens of a request (R-15)."""
        return await self._models.answer(
            request.model, call, lambda lease: lease.model.count_response_input_tokens(request, call)
        )

    async def compact_response(self, request: CompactResponseMethodPublicBody, call: Call) -> Reply:
        """Seal a conversation into one item (ST-15)."""
        return await self._models.answer(
            request.model, call, lambda lease: lease.model.compact_response(request, call)
        )

    async def tokenize(self, request: TokenizeRequest, call: Call) -> Reply:
        """Turn a prompt or a conversation into token ids."""
        return await self._models.answer(
            request.model, call, lambda lease: lease.model.tokenize(request, call)
        )

    async def detokenize(self, request: DetokenizeRequest, call: Call) -> Reply:
        """Turn token ids into text."""
        return await self._models.answer(
            request.model, call, lambda lease: lease.model.detokenize(request, call)
        )

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
