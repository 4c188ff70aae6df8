"""Samples of a schema are valid, and have each branch, optional member and value of it."""

from __future__ import annotations

import pytest

from plumbline_conformance.checks.sweeps.members import NOTED
from plumbline_conformance.suite.contract import document
from plumbline_conformance.suite.scenario import SCENARIOS, Target
from plumbline_conformance.suite.schema_samples import samples
from plumbline_conformance.suite.schema_validation import violations

TARGET = Target(base_url="http://127.0.0.1:1/v1", model="m")
REQUESTS = {
    "chat": "CreateChatCompletionRequest",
    "responses": "CreateResponse",
    "messages": "CreateMessageRequest",
}


@pytest.mark.parametrize("api", REQUESTS)
def test_each_request_of_members_is_valid(api: str) -> None:
    """A refusal of a request is then not due to the judge."""
    for request in SCENARIOS[f"{api}/members"].steps(TARGET):
        assert list(violations(REQUESTS[api], request.json)) == [], request.name


@pytest.mark.parametrize("api", REQUESTS)
def test_a_turn_with_notes_is_compared_with_the_same_without_them(api: str) -> None:
    sent = {request.name: request.json for request in SCENARIOS[f"{api}/members"].steps(TARGET)}

    assert NOTED[f"{api}/members"]
    for noted, plain in NOTED[f"{api}/members"].items():
        assert sent[noted] != sent[plain]


def test_each_value_of_a_member_occurs() -> None:
    for schema in document()["components"]["schemas"].values():
        for name, member in schema.get("properties", {}).items():
            if set(schema.get("required", ())) & {name} or "x-extension" in member or schema.get("x-hosted"):
                continue
            if isinstance(member.get("enum"), list):
                found = [one.get(name) for one in samples(schema, {}) if isinstance(one, dict)]
                assert set(member["enum"]) - {None} <= set(found), name


def test_a_text_is_sent_where_its_type_fits() -> None:
    node = {
        "type": "object",
        "required": ["url", "limit"],
        "properties": {"url": {"type": "string"}, "limit": {"type": "integer", "minimum": 3}},
    }

    assert samples(node, {"url": "http://127.0.0.1/", "limit": "none"}) == [
        {"url": "http://127.0.0.1/", "limit": 3}
    ]
