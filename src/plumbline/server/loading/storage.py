"""Build the store that the settings ask for."""

from __future__ import annotations

from plumbline.server.settings import OptionError, Settings
from plumbline.server.store.interface import Store
from plumbline.server.store.open import BadStoreUrlError, open_store
from plumbline.server.store.sql.sweep import Retention

__all__ = ["build_store"]

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
