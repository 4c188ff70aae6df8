"""Give every group of operations what it works with."""

from __future__ import annotations

from plumbline._generated.service import Service
from plumbline.protocols.common.sealing import Sealer
from plumbline.server.generation import Generation

__all__ = ["Operations"]


class Operations(Service):
    """A group of operations. What it does not define answers 404."""

    def __init__(self, generation: Generation, sealer: Sealer) -> None:
        self._generation = generation
        self._sealer = sealer
        self._model = generation.model
        self._settings = generation.settings
        self._metrics = generation.metrics
        self._admission = generation.admission
        self._road = generation.road
