"""Define the bases of all groups of operations, with their shared dependencies."""

from __future__ import annotations

from typing import Any

from plumbline.contract._generated.service import Service
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import no_store
from plumbline.server.admission import client_of
from plumbline.server.generation import Generation
from plumbline.server.http.replies import Replies
from plumbline.server.limits.access import Access
from plumbline.server.models import Models
from plumbline.server.observe.metrics import Metrics
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.responses.prompt_templates import PromptTemplates
from plumbline.server.remote_access import RemoteAccess
from plumbline.server.responses.background import BackgroundRuns
from plumbline.server.responses.compactor import Compactor
from plumbline.server.responses.memory import Memory
from plumbline.server.settings import Settings

__all__ = ["ModelOperations", "ServerOperations", "required"]


class ModelOperations:
    """A group of operations of one loaded model."""

    def __init__(
        self,
        generation: Generation,
        sealer: Sealer,
        memory: Memory | None,
        runs: BackgroundRuns,
        remote: RemoteAccess,
    ) -> None:
        """Share what the operations work with.

        Args:
            generation: takes requests along the road.
            sealer: seals reasoning for clients, and opens it.
            memory: what was stored; None if nothing is.
            runs: the responses in the background.
            remote: the MCP servers that requests may use.
        """
        self.generation = generation
        self._sealer = sealer
        self._memory = memory
        self._runs = runs
        self._remote = remote
        self._compactor = Compactor(generation)
        self._model = generation.model
        self._settings = generation.settings
        self._replies = generation.replies
        self._admission = generation.admission
        self._road = generation.road

    def _sealer_of(self, call: Call) -> Sealer:
        """Return what seals for a client; without keys all are one."""
        return self._sealer.of(client_of(call, self._settings) if self._settings.api_keys else "")


class ServerOperations(Service):
    """A group of operations that are not of one model. What it does not define answers 404."""

    def __init__(
        self,
        models: Models[Any],
        settings: Settings,
        metrics: Metrics,
        replies: Replies,
        memory: Memory | None,
        runs: BackgroundRuns,
        prompts: PromptTemplates,
        access: Access,
    ) -> None:
        """Share what the operations work with.

        Args:
            models: the models; what answers the requests of each has all operations of `ModelOperations`.
            settings: the settings.
            metrics: the metrics of the server.
            replies: sends streams.
            memory: what was stored; None if nothing is.
            runs: the responses in the background.
            prompts: the templates that requests may name.
            access: the keys of requests, and what each may do.
        """
        self._models = models
        self._settings = settings
        self._metrics = metrics
        self._replies = replies
        self._memory = memory
        self._runs = runs
        self._prompts = prompts
        self._access = access

    def _check_admin(self, call: Call) -> None:
        if (error := self._access.admin_error(call)) is not None:
            raise error

    def _required_memory(self) -> Memory:
        return required(self._memory)


def required(memory: Memory | None) -> Memory:
    """Return the stored past of requests.

    Raises:
        ApiError: 404 if the server has no store.
    """
    if memory is None:
        raise no_store()
    return memory
