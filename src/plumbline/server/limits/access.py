"""Hold the keys of a server and their limits, and read them again while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from plumbline.contract.wire.call import Call
from plumbline.contract.wire.errors import ApiError
from plumbline.server.limits.keys import KeyRing, admin_error
from plumbline.server.limits.rates import Rates, SharedAccounts
from plumbline.server.settings import Settings, SettingsError

__all__ = ["Access"]

_log = logging.getLogger("plumbline.server")


class Access:
    """Who may use the server, and how much."""

    def __init__(self, settings: Settings, shared: SharedAccounts | None = None) -> None:
        self.keys = KeyRing(_all_keys(settings))
        self.admin_keys = KeyRing(settings.admin_api_keys)
        self.rates = Rates(self.keys.keys, shared)

    def oversees(self, call: Call) -> bool:
        """Return whether a key sees what the server does for all: an admin's, one with `metrics=yes`, or a sole one."""
        if self.keys.open:
            return True
        key = self.keys.find_of(call)
        admins = {each.digest for each in self.admin_keys.keys}
        if key.metrics or key.digest in admins or self.admin_error(call) is None:
            return True
        tenants = [each for each in self.keys.keys if not each.metrics and each.digest not in admins]
        return tenants == [key] and not key.models

    def admin_error(self, call: Call) -> ApiError | None:
        """Return the error of a request that needs an admin key and has none."""
        return admin_error(
            self.admin_keys, call.headers.get("authorization"), call.headers.get("x-admin-key")
        )

    def use(self, settings: Settings) -> None:
        """Take the keys of other settings.

        Raises:
            SettingsError: they have no keys where there were some, or the other way round; records belong to keys.
        """
        for option, ring, keys in (
            ("--api-key-file", self.keys, settings.api_keys),
            ("--admin-api-key-file", self.admin_keys, settings.admin_api_keys),
        ):
            if ring.open is bool(keys):
                raise SettingsError(
                    f"{option} has {len(keys)} keys now: to begin or end with keys, restart the server"
                )
        self.keys.use(_all_keys(settings))
        self.admin_keys.use(settings.admin_api_keys)
        self.rates.use(self.keys.keys)

    def read_again(self, read: Callable[[], Settings]) -> None:
        """Take the keys that `read` finds; if it fails, keep those that there are. Either is a line in the log."""
        try:
            self.use(read())
        except (SettingsError, OSError) as error:
            _log.error("the keys stay as they are: %s", error)
        else:
            _log.warning("the keys were read again: there are %d", len(self.keys.keys))


def _all_keys(settings: Settings) -> tuple[str, ...]:
    """Return the keys of all requests; admin keys are among them where there are any."""
    return (*settings.api_keys, *settings.admin_api_keys) if settings.api_keys else ()
