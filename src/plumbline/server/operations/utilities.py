"""Answer the operations around the models: health, version, metrics, the contract."""

from __future__ import annotations

from importlib.resources import files

from plumbline import __version__
from plumbline.contract._generated.utilities import (
    Health,
    Version,
)
from plumbline.contract.wire.call import Call
from plumbline.contract.wire.decode import encode
from plumbline.contract.wire.errors import ApiError
from plumbline.contract.wire.reply import JsonReply, RawReply, Reply
from plumbline.server.observe.metrics import CONTENT_TYPE
from plumbline.server.operations.base import ServerOperations

__all__ = ["UtilityOperations"]

_DEAD = "an engine has ended"


class UtilityOperations(ServerOperations):
    """Operations around the models."""

    async def get_health(self, call: Call) -> Reply:
        """Report the health: 503 if an engine computes nothing; degraded if only some requests fail."""
        limit, reasons = self._settings.stuck_after, list[str]()
        for engine in self._models.engines:
            stats = engine.stats()
            if not stats.alive or stats.outage or stats.seconds_since_step > limit:
                reason = stats.outage or f"an engine makes no step for {stats.seconds_since_step:.0f} s"
                if not stats.alive:
                    reason = stats.failure or _DEAD
                return JsonReply(encode(Health(status="failing", reasons=[reason])), status=503)
            if stats.last_death:
                reasons.append(f"the engine's process {stats.last_death}, and was started again; see the log")
            if stats.num_hanging_images:
                reasons.append(f"images hang while they are encoded: {stats.num_hanging_images}; see the log")
        # Requests without images, or that store nothing, are answered as before, so traffic should go on to come.
        reasons += [] if self._memory is None else self._memory.store.problems()
        if reasons:
            return JsonReply(encode(Health(status="degraded", reasons=reasons)))
        return JsonReply(encode(Health(status="ok")))

    async def get_health_live(self, call: Call) -> Reply:
        """Report whether the process is of use: 503 if an engine is dead, which only a restart repairs."""
        if all(engine.stats().alive for engine in self._models.engines):
            return JsonReply(encode(Health(status="ok")))
        return JsonReply(encode(Health(status="failing", reasons=[_DEAD])), status=503)

    async def get_health_ready(self, call: Call) -> Reply:
        """Report the health of the engines as `/health` does."""
        return await self.get_health(call)

    async def get_version(self, call: Call) -> Reply:
        """Return the package's version."""
        return JsonReply(encode(Version(version=__version__)))

    async def get_metrics(self, call: Call) -> Reply:
        """Return the Prometheus metrics, which count the requests of all keys."""
        if "/metrics" not in self._settings.public and not self._access.oversees(call):
            raise ApiError(
                403,
                "The metrics count the requests of all keys. Use an admin key, or let the line of this key have "
                "'metrics=yes'.",
                code="insufficient_permissions",
            )
        return RawReply(self._metrics.render(), CONTENT_TYPE)

    async def get_openapi_json(self, call: Call) -> Reply:
        """Return the contract as JSON."""
        return RawReply(_contract("plumbline_conformance._generated", "openapi.json"), "application/json")

    async def get_openapi_yaml(self, call: Call) -> Reply:
        """Return the contract as YAML."""
        return RawReply(_contract("plumbline.contract._generated", "openapi.yaml"), "application/yaml")


def _contract(package: str, name: str) -> bytes:
    return files(package).joinpath(name).read_bytes()
