"""Define the base of all groups of operations, with their shared dependencies."""

from __future__ import annotations

from plumbline._generated.service import Service
from plumbline.protocols.common.sealing import Sealer
from plumbline.protocols.responses.prompt_templates import PromptTemplates
from plumbline.server.generation import Generation
from plumbline.server.responses.background import BackgroundRuns
from plumbline.server.responses.compactor import Compactor
from plumbline.server.responses.memory import Memory
from plumbline.wire.errors import no_store

__all__ = ["Operations"]


class Operations(Service):
    """A group of operations. What it does not define answers 404."""

    def __init__(
        self,
        generation: Generation,
        sealer: Sealer,
        memory: Memory | None,
        runs: BackgroundRuns,
        prompts: PromptTemplates,
    ) -> None:
        """Share what the operations work with.

        Args:
            generation: takes requests along the road.
            sealer: seals reasoning for clients, and opens it.
            memory: what was stored; None if nothing is.
            runs: the responses in the background.
            prompts: the templates that requests may name.
        """
        self._generation = generation
        self._sealer = sealer
        self._memory = memory
        self._runs = runs
        self._prompts = prompts
        self._compactor = Compactor(generation, sealer)
        self._model = generation.model
        self._settings = generation.settings
        self._metrics = generation.metrics
        self._admission = generation.admission
        self._road = generation.road

    def _required_memory(self) -> Memory:
        """Return the stored past of requests.

        Raises:
            ApiError: 404 if the server has no store.
        """
        if self._memory is None:
            raise no_store()
        return self._memory
