"""Look at a page of a browser with axe."""

from __future__ import annotations

from typing import Any

import pytest


def violations(page: Any) -> list[tuple[str, list[str]]]:
    """Return what axe finds: the rule and the elements."""
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is missing: run `nox -s page`"
    )
    found = axe.Axe().run(page).response["violations"]
    return [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in found]
