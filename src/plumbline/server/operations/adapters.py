"""Load and unload the adapters of a model."""

from __future__ import annotations

from plumbline.contract._generated.models import LoadLoraAdapterRequest, UnloadLoraAdapterRequest
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import unsupported_value
from plumbline.contract.wire.reply import RawReply, Reply
from plumbline.server.http.failures import api_errors
from plumbline.server.operations.base import ModelOperations

__all__ = ["AdapterOperations"]


class AdapterOperations(ModelOperations):
    """Operations on the adapters of a model."""

    async def load_lora_adapter(self, request: LoadLoraAdapterRequest, call: Call) -> Reply:
        """Load an adapter that requests may name afterwards."""
        if request.load_inplace is True:
            raise unsupported_value("load_inplace", True, "is not supported: unload the adapter first")
        await api_errors(self.generation.adapters.load(request.lora_name, request.lora_path))
        return _done(f"Success: LoRA adapter '{request.lora_name}' added successfully.")

    async def unload_lora_adapter(self, request: UnloadLoraAdapterRequest, call: Call) -> Reply:
        """Unload an adapter once its requests have ended."""
        await api_errors(self.generation.adapters.unload(request.lora_name))
        return _done(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _done(text: str) -> Reply:
    return RawReply(text.encode(), "text/plain; charset=utf-8")
