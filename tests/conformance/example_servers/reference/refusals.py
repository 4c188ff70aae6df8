"""Refuse invalid requests to the reference."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs

from example_servers.reference.names import KEY
from example_servers.reference.schema_faults import faults

__all__ = ["CLIENT_TOOLS", "Refused", "authorised", "check_chat", "check_completion", "check_response"]

CLIENT_TOOLS = ("shell", "local_shell", "apply_patch", "tool_search")
WINDOW = 4096


class Refused(Exception):  # noqa: N818 - it is an answer
    """An error object with its status."""

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = "invalid_value",
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def authorised(scope: Any) -> None:
    """Refuse a wrong key (HTTP-06, MSG-11)."""
    headers = dict(scope["headers"])
    own = headers.get(b"x-api-key") if scope["path"].startswith("/v1/messages") else None  # MSG-11
    if KEY.encode() != own and headers.get(b"authorization") != f"Bearer {KEY}".encode():
        raise Refused(
            "Incorrect API key provided.", None, "invalid_api_key", status=401, kind="authentication_error"
        )


def valid(schema: str, body: Any) -> None:
    """Refuse a body that violates the schema of the contract."""
    found = faults(schema, body)
    if not found:
        return
    path, missing = found[0]
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
    code = "missing_required_parameter" if missing else "invalid_type"
    raise Refused(f"Invalid value for {param or 'the body'}.", param or None, code)


def known(body: dict[str, Any], model: str) -> None:
    if body["model"] != model:
        raise Refused("The model does not exist.", "model", "model_not_found", status=404)


def check_chat(body: Any, model: str) -> None:
    """Refuse a chat request that breaks a rule (CS-09, LP-05, TOOL-08, TOOL-12, SO-03, ERR-09)."""
    valid("CreateChatCompletionRequest", body)
    known(body, model)
    if body.get("stream_options") and not body.get("stream"):
        raise Refused("Only set stream_options when you set stream.", "stream_options")
    if body.get("top_logprobs") is not None and not body.get("logprobs"):
        raise Refused("logprobs must be true.", "top_logprobs")
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise Refused("Go on with a message, or begin one.", "continue_final_message")
    tools = [tool[tool["type"]]["name"] for tool in body.get("tools") or []]
    _check_choice(body.get("tool_choice"), tools)
    _check_pairs(body["messages"])
    output_format = body.get("response_format") or {}
    if output_format.get("type") == "json_schema":
        _check_schema(output_format["json_schema"].get("schema"), "response_format.json_schema.schema")
    if body.get("functions") or body.get("modalities") == ["text", "audio"]:
        raise Refused("Not supported.", "functions", "unsupported_parameter")
    if "image_url" in str(body["messages"]):
        raise Refused("No images.", "messages", "unsupported_value")
    structured = body.get("structured_outputs") or {}
    if structured.get("regex"):
        try:
            re.compile(structured["regex"])
        except re.error as error:
            raise Refused("No regular expression.", "structured_outputs.regex") from error
    _fits(body.get("max_completion_tokens") or body.get("max_tokens"), "messages")


def _check_choice(choice: Any, tools: list[str]) -> None:
    if choice in (None, "none", "auto"):
        return
    if not tools:
        raise Refused("tool_choice is only allowed when tools are given.", "tool_choice")
    if isinstance(choice, dict) and not {"name", "tools", choice["type"]} & {*choice, *tools}:
        raise Refused(f"There is no {choice['type']} here.", "tool_choice")
    named = [] if choice == "required" else names_of(choice)["names"]
    for name in named:
        if name not in tools:
            raise Refused(f"Tool choice {name!r} not found in tools.", "tool_choice")


def names_of(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the names that a tool choice of either API allows, and its mode."""
    kind = choice["type"]
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        return {"names": [_name(tool) for tool in allowed["tools"]], "mode": allowed["mode"]}
    return {"names": [_name(choice)], "mode": "required"}


def _name(tool: dict[str, Any]) -> str:
    kind = tool["type"]
    return kind if kind in CLIENT_TOOLS else str(tool.get("name") or tool[kind]["name"])


def _is_cut(call: dict[str, Any]) -> bool:
    """Whether a limit has cut the arguments of a call, which then needs no result."""
    try:
        json.loads(call.get("function", {}).get("arguments") or "{}")
    except ValueError:
        return True
    return False


def _check_pairs(messages: list[dict[str, Any]]) -> None:
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                raise Refused(
                    "A tool message must answer an earlier call.", f"messages[{index}].tool_call_id", None
                )
            waiting.remove(message["tool_call_id"])
        elif waiting:
            break
        calls = message.get("tool_calls") or []
        waiting += [call["id"] for call in calls if not _is_cut(call)]
    if waiting:
        raise Refused(f"No tool output found for {waiting[0]}.", "messages", None)


def _check_schema(schema: Any, param: str) -> None:
    try:
        jsonschema_rs.Draft202012Validator(schema or {})
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise Refused("Invalid schema.", param, "invalid_json_schema") from error


def _fits(limit: int | None, param: str) -> None:
    if limit is not None and limit > WINDOW:
        raise Refused("The context window is too small.", param, "context_length_exceeded")


def check_completion(body: Any, model: str) -> None:
    """Refuse a legacy completion that breaks a rule (CMP-06, CMP-07)."""
    valid("CreateCompletionRequest", body)
    known(body, model)
    if body.get("suffix"):
        raise Refused("No suffix.", "suffix", "unsupported_parameter")
    best = body.get("best_of") or 1
    if best > 1 and (body.get("stream") or best < (body.get("n") or 1)):
        raise Refused("best_of cannot be streamed, and is at least n.", "best_of")
    _fits(body.get("max_tokens"), "prompt")


def check_response(body: Any, model: str) -> None:
    """Refuse a request of the Responses API that breaks a rule (TOOL-08, TOOL-12, ST-06, ST-18, SO-03)."""
    valid("CreateResponse", body)
    known(body, model)
    tools = [
        tool.get("name", tool["type"])
        for tool in body.get("tools") or []
        if tool["type"] in ("function", "custom", "mcp", *CLIENT_TOOLS)
    ]
    if any(tool["type"] == "mcp" and "server_url" not in tool for tool in body.get("tools") or []):
        raise Refused("There are no connectors here.", "tools")
    _check_choice(body.get("tool_choice"), tools)
    if body.get("previous_response_id") and body.get("conversation"):
        raise Refused("One of them.", "conversation")
    output_format = (body.get("text") or {}).get("format") or {}
    if output_format.get("type") == "json_schema":
        _check_schema(output_format.get("schema"), "text.format.schema")
    _fits(body.get("max_output_tokens"), "input")


def check_calls(items: list[dict[str, Any]]) -> None:
    """Refuse outputs without a call of their `call_id`, and calls without outputs (TOOL-11, TOOL-12)."""
    calls = [
        _joint(item)
        for item in items
        if str(item.get("type")).endswith("_call") and item["type"] != "mcp_call"
    ]
    outputs = [_joint(item) for item in items if str(item.get("type")).endswith("_output")]
    for output in outputs:
        if output not in calls:
            message = f"No tool call found for function call output with call_id {output}."
            raise Refused(message, "input", None)
    for call in calls:
        if call not in outputs:
            raise Refused(f"No tool output found for function call {call}.", "input", None)


def _joint(item: dict[str, Any]) -> Any:
    """Return what joins a call to its output; an output of a local shell may have it as its id."""
    return item.get("call_id") or item.get("id")
