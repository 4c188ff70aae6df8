"""What real clients send decodes, whatever they add, leave out or fill with null."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, assume, given, settings
from schemathesis import GenerationMode
from support.contract import CONTRACT, EXAMPLES
from support.contract_types import TYPES

from plumbline.contract._generated import OPERATIONS
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract._generated.responses import CreateResponse
from plumbline.contract.wire.decode import decode
from plumbline.contract.wire.errors import ApiError

SCHEMAS = CONTRACT["components"]["schemas"]
SCHEMA = schemathesis.openapi.from_dict(CONTRACT)
OUTPUT = [item for response in EXAMPLES["Response"] for item in response["output"]]
MESSAGES = [choice["message"] for a in EXAMPLES["CreateChatCompletionResponse"] for choice in a["choices"]]

CODEX = {
    "model": "m",
    "stream": True,
    "instructions": "Be brief.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "id": "d1",
            "content": [{"type": "input_text", "text": "x"}],
        },
        {"type": "message", "role": "user", "id": "u1", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "x"}],
            "encrypted_content": None,
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "name": "f",
            "arguments": "{}",
            "call_id": "c",
        },
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "done"},
    ],
    "tools": [
        {
            "type": "function",
            "name": "f",
            "description": "x",
            "strict": False,
            "parameters": {"type": "object"},
        },
        {"type": "namespace", "name": "n", "description": "x", "tools": [{"type": "function", "name": "g"}]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"a": {"b": 1}},
}
AGENTS = {
    "model": "m",
    "include": [],
    "input": [
        {"role": "user", "content": "x"},
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "name": "f",
            "arguments": "{}",
            "call_id": "c",
        },
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ],
    "tools": [{"type": "function", "name": "f", "strict": True, "parameters": {}, "description": ""}],
}


@pytest.mark.parametrize("body", [CODEX, AGENTS], ids=["codex", "agents"])
def test_what_official_clients_send_decodes(body: dict[str, Any]) -> None:
    """R-13, TOOL-15, ST-16."""
    request = decode(CreateResponse, json.dumps(body).encode())

    assert isinstance(request.input, list)
    assert len(request.input) == len(body["input"])


def dumped(document: dict[str, Any], schema: str) -> dict[str, Any]:
    """Return what a client makes of an answer: every optional field it knows is there, as null."""
    return {**dict.fromkeys(SCHEMAS[schema]["properties"]), **document}


KINDS = {
    "message": "OutputMessage",
    "reasoning": "ReasoningItem",
    "function_call": "FunctionToolCallResource",
    "custom_tool_call": "CustomToolCallResource",
}


@pytest.mark.parametrize("item", OUTPUT, ids=lambda item: item["type"])
def test_an_item_of_output_can_be_sent_back_as_input(item: dict[str, Any]) -> None:
    for sent in (item, dumped(item, KINDS[item["type"]])):
        request = decode(CreateResponse, json.dumps({"model": "m", "input": [sent]}).encode())
        assert isinstance(request.input, list)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: "calls" if m.get("tool_calls") else "text")
def test_a_message_of_an_answer_can_be_sent_back_as_history(message: dict[str, Any]) -> None:
    for sent in (message, dumped(message, "ChatCompletionResponseMessage")):
        request = decode(CreateChatCompletionRequest, json.dumps({"model": "m", "messages": [sent]}).encode())
        assert request.messages


@pytest.mark.parametrize("operation", [op for op in OPERATIONS if op.request], ids=lambda op: op.id)
def test_whatever_can_be_drawn_from_the_contract_decodes(operation: Any) -> None:
    strategy = SCHEMA[operation.path][operation.method].as_strategy(generation_mode=GenerationMode.POSITIVE)
    kind = TYPES[operation.request]

    @settings(
        max_examples=3,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def law(case: Any) -> None:
        try:
            found = decode(kind, json.dumps(case.body).encode())
        except ApiError as error:
            # Two spellings of one field exclude each other, which JSON Schema does not say.
            assume("are the same field" not in str(error))
            raise
        assert isinstance(found, kind)

    law()
