"""Describe the served model."""

from __future__ import annotations

from msgspec import UNSET

from plumbline._generated.models import (
    ListModelsResponse,
    LoadLoraAdapterRequest,
    Model,
    UnloadLoraAdapterRequest,
)
from plumbline.server.failures import api_errors
from plumbline.server.operations.base import Operations
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.errors import unsupported_value
from plumbline.wire.reply import JsonReply, RawReply, Reply

__all__ = ["ModelOperations"]


class ModelOperations(Operations):
    """Operations on models."""

    async def list_models(self, call: Call) -> Reply:
        """List the served names and the adapters (MOD-01)."""
        adapters = self._generation.adapters.names
        return JsonReply(
            encode(
                ListModelsResponse(data=[self._describe(name) for name in (*self._model.names, *adapters)])
            )
        )

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        """Describe a served model (MOD-02, MOD-03)."""
        self._admission.check_model(model)
        return JsonReply(encode(self._describe(model)))

    async def load_lora_adapter(self, request: LoadLoraAdapterRequest, call: Call) -> Reply:
        """Load an adapter that requests may name afterwards."""
        if request.load_inplace is True:
            raise unsupported_value("load_inplace", True, "is not supported: unload the adapter first")
        await api_errors(self._generation.adapters.load(request.lora_name, request.lora_path))
        return _done(f"Success: LoRA adapter '{request.lora_name}' added successfully.")

    async def unload_lora_adapter(self, request: UnloadLoraAdapterRequest, call: Call) -> Reply:
        """Unload an adapter once its requests have ended."""
        await api_errors(self._generation.adapters.unload(request.lora_name))
        return _done(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")

    def _describe(self, name: str) -> Model:
        return Model(
            id=name,
            created=self._model.created,
            owned_by="plumbline",
            max_model_len=self._model.engine.info.max_model_len,
            parent=UNSET if self._admission.adapter(name) is None else self._model.names[0],
        )


def _done(text: str) -> Reply:
    return RawReply(text.encode(), "text/plain; charset=utf-8")
