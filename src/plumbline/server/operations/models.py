"""Describe the served model."""

from __future__ import annotations

from plumbline._generated.models import ListModelsResponse, Model
from plumbline.server.operations.base import Operations
from plumbline.wire.call import Call
from plumbline.wire.decode import encode
from plumbline.wire.reply import JsonReply, Reply

__all__ = ["ModelOperations"]


class ModelOperations(Operations):
    """Operations on models."""

    async def list_models(self, call: Call) -> Reply:
        """List the served names (MOD-01)."""
        return JsonReply(
            encode(ListModelsResponse(data=[self._describe(name) for name in self._model.names]))
        )

    async def retrieve_model(self, call: Call, *, model: str) -> Reply:
        """Describe a served model (MOD-02, MOD-03)."""
        self._admission.check_model(model)
        return JsonReply(encode(self._describe(model)))

    def _describe(self, name: str) -> Model:
        return Model(
            id=name,
            created=self._model.created,
            owned_by="plumbline",
            max_model_len=self._model.engine.info.max_model_len,
        )
