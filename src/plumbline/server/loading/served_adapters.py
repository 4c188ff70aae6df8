"""List, load and unload the adapters of a model, within the operator's limits."""

from __future__ import annotations

import asyncio
from pathlib import Path

from plumbline.contract.wire.errors import ApiError, invalid_request, unsupported_operation, unsupported_value
from plumbline.engines.adapters import CONFIG
from plumbline.port.engine import Engine, RefusedRequestError
from plumbline.server.settings import Settings, SettingsError

__all__ = ["ServedAdapters"]

_SHOWN = 200
"""Characters of a path that a message repeats."""


class ServedAdapters:
    """The adapters of one served model, by their names.

    Args:
        engine: what runs the model.
        settings: with the adapters to load at the start, and the folder for those that requests load.
        taken: names of the model, which no adapter may have.
    """

    def __init__(self, engine: Engine, settings: Settings, taken: tuple[str, ...]) -> None:
        self._engine = engine
        self._settings = settings
        self._taken = taken
        self._loaded: dict[str, Path] = {}
        self._changes = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The adapters that requests may name, in the order of their loading."""
        return tuple(self._loaded)

    async def start(self) -> None:
        """Load the adapters of `--lora`.

        Raises:
            SettingsError: an adapter cannot be loaded.
        """
        for name, path in self._settings.loras:
            try:
                await self._load(name, Path(path))
            except (ApiError, RefusedRequestError) as error:
                raise SettingsError(f"--lora {name}={path}: {error}") from error

    async def load(self, name: str, path: str) -> None:
        """Load an adapter that a request names.

        Raises:
            ApiError: 404 if requests may not load adapters; 400 for a name that is taken, a path outside the
                operator's folder, and an adapter that does not fit the model.
        """
        root = self._root("load_lora_adapter")
        if name in self._taken or name in self._loaded:
            raise invalid_request(
                f"A model named '{name}' is already loaded. Send another 'lora_name'.",
                "lora_name",
                "invalid_value",
            )
        folder = _inside(root, path)
        if folder is None:
            # One error for both, so that a client does not learn which files exist outside the folder.
            raise invalid_request(
                f"'{path}' is not an adapter in the folder that this server loads adapters from.",
                "lora_path",
                "invalid_value",
            )
        try:
            # The client may leave meanwhile; what has begun goes on, in the engine and here.
            await asyncio.shield(self._load(name, folder))
        except RefusedRequestError as error:
            # Where the folder is on the server is no matter of clients.
            message = str(error).replace(str(folder), f"'{path[:_SHOWN]}'")
            raise invalid_request(message, error.param or "lora_path") from error

    async def unload(self, name: str) -> None:
        """Unload an adapter; returns after the requests that use it have ended.

        Raises:
            ApiError: 404 if requests may not unload adapters, or no adapter has this name.
        """
        self._root("unload_lora_adapter")
        if self._loaded.pop(name, None) is None:
            raise ApiError(
                404, f"There is no adapter named '{name}'.", param="lora_name", code="adapter_not_found"
            )
        # The client may leave meanwhile; what has begun goes on.
        await asyncio.shield(self._unload(name))

    async def _unload(self, name: str) -> None:
        async with self._changes:
            await self._engine.unload_adapter(name)

    async def _load(self, name: str, folder: Path) -> None:
        async with self._changes:
            if name in self._loaded:
                raise unsupported_value("lora_name", name, "is loaded already")
            if not (folder / CONFIG).is_file():
                raise RefusedRequestError(f"{folder} has no {CONFIG}", param="lora_path")
            await self._engine.load_adapter(name, folder)
            self._loaded[name] = folder

    def _root(self, operation: str) -> Path:
        if not self._settings.lora_dir:
            raise unsupported_operation(operation)
        return Path(self._settings.lora_dir).expanduser().resolve()


def _inside(root: Path, path: str) -> Path | None:
    """Return the folder of an adapter if it is in another folder, also after its links are followed."""
    try:
        folder = (root / path).resolve()
        found = folder.is_relative_to(root) and (folder / CONFIG).is_file()
    except (OSError, ValueError, RuntimeError):  # Such as a name that is too long or has a zero byte.
        return None
    return folder if found else None
