"""Build the store that the settings ask for."""

from __future__ import annotations

import msgspec

from plumbline.server.settings import OptionError, Settings
from plumbline.server.store.interface import Store
from plumbline.server.store.key_file import kept_key
from plumbline.server.store.open import BadStoreUrlError, open_store
from plumbline.server.store.sql.sweep import Retention

__all__ = ["build_store", "with_sealing_key"]

_DAY = 86_400


def build_store(settings: Settings) -> Store | None:
    """Return the store; the caller starts it. None if nothing is kept.

    Raises:
        OptionError: the store's URL cannot be used.
    """
    if settings.store == "none":
        return None
    retention = Retention(
        max_age=round(settings.store_max_days * _DAY) or None,
        max_bytes=settings.store_max_bytes or None,
        max_responses_per_owner=settings.store_max_responses_per_key or None,
    )
    try:
        return open_store(settings.store, retention)
    except BadStoreUrlError as error:
        raise OptionError("--store", f"cannot be used: {error}") from None


def with_sealing_key(settings: Settings) -> tuple[Settings, str]:
    """Return settings with a sealing key, if no store has one, and a line that says where it is.

    Without it each of several API servers would have a key of its own, and refuse what another one has sealed, and a
    restart would refuse the open sessions of all clients.
    """
    if settings.store != "none" or settings.sealing_key:
        return settings, ""
    key, path = kept_key()
    note = f"{path} keeps the key of sealed thinking"
    if path is None:
        note = "no file can keep the key of sealed thinking, so a restart refuses it (--sealing-key-file gives one)"
    return msgspec.structs.replace(settings, sealing_key=key), note
