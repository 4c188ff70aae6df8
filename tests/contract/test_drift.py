"""Test the SDKs' types beside the contract: every row of the difference has a reason, and the extract is theirs."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest

from generate import drift, sdk_types
from generate.bundle import document, load
from generate.upstream import unexplained

KEPT = json.loads(sdk_types.TYPES.read_text("utf-8"))
RELEASES = {name: part["version"] for name, part in KEPT.items()}

of_other_releases = pytest.mark.skipif(
    {name: version(name) for name in RELEASES} != RELEASES,
    reason="other releases of the SDKs are installed: `nox -s drift` compares them",
)


@of_other_releases
def test_what_an_sdk_has_and_the_contract_has_not_has_a_reason() -> None:
    new, stale = unexplained(drift.drift(), load(drift.DRIFT))

    assert (new, stale) == ([], [])


@of_other_releases
def test_the_extract_is_that_of_the_installed_sdks() -> None:
    assert sdk_types.extracted() == KEPT


def test_widening_keeps_what_the_contract_allows() -> None:
    """Nothing that is required or bounded by the contract is lost, and no member of an answer disappears."""
    ours = document()["components"]["schemas"]
    for name, schema in sdk_types.widened(ours).items():
        if name in ours:
            assert set(ours[name].get("properties", {})) <= set(schema.get("properties", {}))
            assert ours[name].get("required") == schema.get("required")
