"""Describe the served models."""

from __future__ import annotations

from plumbline._generated.models import ListModelsResponse
from plumbline.server.operations.base import ServerOperations
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.reply import JsonReply, Reply

__all__ = ["ModelListOperations"]


class ModelListOperations(ServerOperations):
    """Operations on models."""

    async def list_models(self, call: Call) -> Reply:
        """List the served names and the adapters (MOD-01)."""
        return JsonReply(encode(ListModelsResponse(data=self._models.described())))

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        """Describe a served model (MOD-02, MOD-03)."""
        return JsonReply(encode(self._models.described(model)[0]))
