"""Test that the judge accuses no server of what Anthropic's types allow.

- Every value of the published types is valid, whatever its blocks, citations and counts are.
- Members and blocks that our server never writes leave every verdict on Messages as it was.
- What neither the contract nor the types allow is still a violation.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from example_servers.good_server import transcripts
from hypothesis import given, settings
from mutants.mutations import Event, body, events
from support.about import about

import plumbline_conformance.checks  # noqa: F401 - registers the suite
from generate.sdk_types import ANSWERS, TYPES
from plumbline_conformance.fuzz.schema_strategies import of_schema
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.suite.scenario import SCENARIOS
from plumbline_conformance.suite.schema_validation import violations
from plumbline_conformance.transcript.exchange import Exchange, Transcript
from plumbline_conformance.variations.formats import is_stream

Json = dict[str, Any]
PUBLISHED: Json = json.loads(TYPES.read_text("utf-8"))["anthropic"]["schemas"]
ALWAYS = {"stop_reason", "stop_sequence"}
"""Members that every answer has, though the types give them a default."""
CITATION = {
    "type": "char_location",
    "cited_text": "Hm",
    "document_index": 0,
    "document_title": None,
    "start_char_index": 0,
    "end_char_index": 2,
    "file_id": None,
}
BLOCKS = [
    {"type": "redacted_thinking", "data": "c2VhbGVk"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
]
COUNTS = {
    "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
    "inference_geo": "eu",
    "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0},
    "service_tier": "standard",
}


def whole(name: str) -> Json:
    """Return one of the types without references, with counts that are no less than zero."""

    def copied(node: Any) -> Any:
        if isinstance(node, list):
            return [copied(value) for value in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return copied(PUBLISHED[node["$ref"].rpartition("/")[2]])
        found = {key: copied(value) for key, value in node.items()}
        if found.get("type") == "integer":
            found["minimum"] = 0
        if isinstance(members := found.get("properties"), dict):
            found["required"] = sorted({*found.get("required", ()), *(ALWAYS & set(members))})
        return found

    return copied(PUBLISHED[name])  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_every_value_of_the_published_types_is_valid(name: str) -> None:
    @settings(deadline=None, max_examples=60)
    @given(of_schema(whole(ANSWERS[name])))
    def law(value: Any) -> None:
        assert list(violations(name, value)) == []

    law()


def test_what_neither_allows_is_a_violation() -> None:
    good: Json = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
    good |= {
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    bad: list[Json] = [
        {"content": [{"type": "hologram"}]},
        {"content": [{"type": "text", "text": 1}]},
        {"content": [{"type": "text", "text": "x", "citations": [{"type": "char_location"}]}]},
        {"stop_reason": "tired"},
        {"usage": {"input_tokens": -1, "output_tokens": 1}},
        {"container": "c"},
    ]

    assert list(violations("CreateMessageResponse", good)) == []
    for change in bad:
        with about(change):
            assert list(violations("CreateMessageResponse", good | change)) != []
    assert (
        list(violations("CreateMessageResponse", {k: v for k, v in good.items() if k != "stop_reason"})) != []
    )


def richer(answer: Json) -> None:
    if answer.get("type") == "message":
        for block in answer["content"]:
            if block["type"] == "text":
                block["citations"] = [CITATION]
        answer["content"] = [*BLOCKS, *answer["content"]]
        answer["usage"] |= COUNTS
        answer |= {
            "container": {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"},
            "stop_details": None,
        }


def richer_events(found: list[Event]) -> list[Event]:
    if not found or found[0][0] != "message_start":
        return found
    added: list[Event] = []
    for place, block in enumerate(BLOCKS):
        added.append(
            ("content_block_start", {"type": "content_block_start", "index": place, "content_block": block})
        )
        added.append(("content_block_stop", {"type": "content_block_stop", "index": place}))
    for name, value in found:
        if isinstance(value.get("index"), int):
            value["index"] += len(BLOCKS)
        if name == "message_start":
            value["message"]["usage"] |= COUNTS
    return [found[0], *added, *found[1:]]


def accused(seen: Transcript) -> dict[str, Any]:
    return {found.check: found.problems[:2] for found in judge(seen) if found.verdict in ("fail", "warn")}


def empty_citations(answer: Json) -> None:
    for block in answer.get("content", ()):
        if isinstance(block, dict) and block.get("type") == "text":
            block["citations"] = []


@pytest.mark.parametrize("of_whole", [richer, empty_citations])
def test_what_our_server_never_writes_leaves_every_verdict(of_whole: Callable[[Json], None]) -> None:
    def varied(exchange: Exchange) -> Exchange:
        seen = Transcript(scenario="", exchanges=[exchange])
        if isinstance(exchange.json, dict):
            return body(of_whole)(seen).exchanges[0]
        return events(richer_events)(seen).exchanges[0] if is_stream(exchange) else exchange

    for scenario in SCENARIOS:
        if scenario.startswith("messages/"):
            with about(scenario):
                exchanges = [varied(one) for one in transcripts()[scenario].exchanges]

                assert accused(Transcript(scenario=scenario, exchanges=exchanges)) == {}
