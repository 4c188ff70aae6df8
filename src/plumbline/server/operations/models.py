"""Describe the served models, load and unload them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from plumbline.contract._generated.messages import MessageModel, MessageModelList
from plumbline.contract._generated.models import (
    ListModelsResponse,
    LoadModelRequest,
    Model,
    ModelChangeResponse,
    ModelLoadProgress,
    ModelNameRequest,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.error_forms import ANTHROPIC_VERSION
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.reply import JsonReply, Reply
from plumbline.contract.wire.sse import frame
from plumbline.server.http.replies import CHUNKS
from plumbline.server.operations.base import ServerOperations
from plumbline.server.protocols.common.fields import or_default

__all__ = ["ModelListOperations"]


def _message_model(model: Model) -> MessageModel:
    """Return a model as Anthropic's API describes one; what a server cannot know of it is null there."""
    longest = or_default(model.max_model_len, None)
    made = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return MessageModel(
        id=model.id,
        display_name=model.id,
        created_at=made,
        lifecycle="active",
        max_input_tokens=longest,
        max_tokens=longest,
    )


class ModelListOperations(ServerOperations):
    """Operations on models: OpenAI's, those of llama.cpp's router and those of TabbyAPI.

    Loading and unloading need an admin key, also where other requests need no key: any page or program of the machine
    could send them.
    """

    async def list_models(self, call: Call) -> Reply:
        """List the served names and the adapters (MOD-01), in Anthropic's form to its clients (MSG-15)."""
        if ANTHROPIC_VERSION in call.headers:
            found = list(map(_message_model, self._models.described(call)))
            first, last = (found[0].id, found[-1].id) if found else (None, None)
            return JsonReply(
                encode(MessageModelList(data=found, has_more=False, first_id=first, last_id=last))
            )
        return JsonReply(encode(ListModelsResponse(data=self._models.described(call))))

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        """Describe a served model (MOD-02, MOD-03, MSG-15)."""
        found = self._models.described(call, model)[0]
        return JsonReply(encode(_message_model(found) if ANTHROPIC_VERSION in call.headers else found))

    async def list_router_models(self, call: Call) -> Reply:
        """List the models, at the path of llama.cpp's router."""
        return await self.list_models(call)

    async def load_model(self, request: ModelNameRequest, call: Call) -> Reply:
        """Begin to load a model; llama.cpp's router does not wait either."""
        self._check_admin(call)
        self._models.begin(request.model, self._models.load)
        return _done()

    async def unload_model(self, request: ModelNameRequest, call: Call) -> Reply:
        """Begin to unload a model; llama.cpp's router does not wait either."""
        self._check_admin(call)
        self._models.begin(request.model, self._models.unload)
        return _done()

    async def get_current_model(self, call: Call) -> Reply:
        """Describe the loaded model that was used last, at TabbyAPI's path."""
        return JsonReply(encode(self._models.current(call)))

    async def list_folder_models(self, call: Call) -> Reply:
        """List the models, at TabbyAPI's path."""
        return await self.list_models(call)

    async def stream_model_load(self, request: LoadModelRequest, call: Call) -> Reply:
        """Load a model and follow its load, at TabbyAPI's path."""
        self._check_admin(call)
        self._models.described(call, request.name)  # An unknown one is a 404 and not an event.
        return self._replies.as_they_are(self._progress(request.name, call))

    async def unload_models(self, call: Call) -> Reply:
        """Unload every model once its requests have ended, at TabbyAPI's path."""
        self._check_admin(call)
        await self._models.unload()
        return _done()

    async def _progress(self, name: str, call: Call) -> AsyncGenerator[bytes, None]:
        yield frame(encode(ModelLoadProgress(module=1, modules=1, status="processing")))
        try:
            await self._models.load(name)
        except ApiError as error:
            yield CHUNKS.failure(error, call)
            return
        yield frame(encode(ModelLoadProgress(module=1, modules=1, status="finished")))


def _done() -> Reply:
    return JsonReply(encode(ModelChangeResponse()))
