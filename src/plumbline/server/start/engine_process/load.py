"""Load a model with its engine in a process of its own."""

from __future__ import annotations

import asyncio
import weakref

from plumbline.engines.remote.client import RemoteEngine
from plumbline.port.engine import Engine, EngineInfo
from plumbline.server.loading.planned import ServerPlan
from plumbline.server.loading.served_model import ServedModel, load
from plumbline.server.settings import Settings
from plumbline.server.start.engine_process.keeper import Begun, EngineProcess, begin, reported
from plumbline.server.start.engine_process.start_messages import EngineStart

__all__ = ["KeptEngine", "load_apart", "plan_apart"]


class KeptEngine(RemoteEngine):
    """An engine in a process that this one keeps: it ends with `stop`."""

    def __init__(self, process: EngineProcess, info: EngineInfo, settings: Settings) -> None:
        super().__init__(process.socket, info, settings.stuck_after, settings.max_num_waiting)
        self.socket = process.socket
        """The socket, for other processes that use the engine."""
        self._process = process
        # A model whose load was given up is dropped without `stop`.
        weakref.finalize(self, process.discard)
        self.link.on_hang = process.kill

    async def stop(self) -> None:
        """Abort what this process asked for, and end the engine's process. Idempotent."""
        await super().stop()
        await asyncio.to_thread(self._process.stop)


class _Elsewhere:
    """See `plumbline.server.loading.served_model.Elsewhere`."""

    def __init__(self, process: EngineProcess, settings: Settings) -> None:
        self._process = process
        self._settings = settings

    def engine(self) -> tuple[Engine, str]:
        ready = self._process.ready()
        return KeptEngine(self._process, ready.info, self._settings), ready.reason


def load_apart(settings: Settings, begun: Begun | None = None) -> ServedModel:
    """Load a model: its engine in a process of its own, and its text side meanwhile here.

    This process imports no torch, whose memory is that of a small model.

    Args:
        settings: the settings, with one model.
        begun: the process, if it has begun to load the engine.

    Raises:
        SettingsError: the settings and the model do not fit, or the model cannot be served.
        StartError: the engine's process has failed.
    """
    if begun is None:
        begun = begin(settings)
    settings, process = begun
    try:
        try:
            return load(settings, _Elsewhere(process, settings))
        except Exception:
            process.ready()  # What is wrong with the engine explains more, as it does in one process.
            raise
    except BaseException:
        process.end()
        raise


def plan_apart(settings: Settings) -> ServerPlan:
    """Plan the models of the settings in another process: it needs torch."""
    return reported(EngineStart(settings=settings)).plan
