"""Build the response object that an answer starts with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from plumbline.answer.turn import Turn
from plumbline.contract._generated.common import ResponseFormatText
from plumbline.contract._generated.responses import (
    CreateResponse,
    Reasoning,
    Response,
    ResponseConversation,
    ResponseReasoning,
    ResponseTextParam,
)
from plumbline.contract._generated.tools import FunctionTool, FunctionToolParam, MCPTool, ResponseTool
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.ids import new_id, now
from plumbline.server.protocols.responses.client_tools.namespaces import unavailable_tools
from plumbline.server.protocols.responses.mcp.declared import public_url

__all__ = ["initial_response"]


def initial_response(
    request: CreateResponse, turn: Turn, model: str, *, store: bool = False, conversation: str | None = None
) -> Response:
    """Build the response object with every field present, no output, and the request's parameters echoed (R-11).

    Args:
        request: the request.
        turn: what was read from it.
        model: the id of the model.
        store: whether the response will be stored.
        conversation: the id of the conversation that it belongs to.
    """
    text = or_default(request.text, ResponseTextParam())
    reasoning = or_default(request.reasoning, Reasoning())
    sampling = turn.sampling
    echoed: Mapping[str, Any] = {
        name: getattr(request, name)
        for name in ("user", "prompt", "prompt_cache_retention")
        if given(getattr(request, name))
    }
    unavailable = unavailable_tools(or_default(request.tools, []), request.input)  # TOOL-15
    return Response(
        id=new_id("resp_"),
        created_at=now(),
        status="in_progress",
        model=model,
        instructions=or_default(request.instructions, None),
        output=[],
        tools=[_echo_tool(tool) for tool in or_default(request.tools, [])],
        tool_choice=or_default(request.tool_choice, "auto"),
        truncation=or_default(request.truncation, "disabled"),
        parallel_tool_calls=or_default(request.parallel_tool_calls, True),
        text=ResponseTextParam(
            format=text.format if given(text.format) else ResponseFormatText(), verbosity=text.verbosity
        ),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        top_logprobs=or_default(request.top_logprobs, 0),
        reasoning=ResponseReasoning(
            mode=reasoning.mode,
            effort=or_default(reasoning.effort, None),
            summary=or_default(reasoning.summary, or_default(reasoning.generate_summary, None)),
            context=reasoning.context,
            generate_summary=reasoning.generate_summary,
        ),
        max_output_tokens=or_default(request.max_output_tokens, None),
        max_tool_calls=or_default(request.max_tool_calls, None),
        store=store,
        background=or_default(request.background, False),
        previous_response_id=or_default(request.previous_response_id, None),
        conversation=UNSET if conversation is None else ResponseConversation(id=conversation),
        service_tier="default",
        metadata=or_default(request.metadata, {}),
        safety_identifier=or_default(request.safety_identifier, None),
        prompt_cache_key=or_default(request.prompt_cache_key, None),
        unavailable_tools=list(unavailable) or UNSET,
        **echoed,
    )


def _echo_tool(tool: Any) -> ResponseTool:
    """Echo a tool; of function tools `description`, `parameters` and `strict` are present, null where absent.

    The credentials of an MCP tool are left out: the response is stored, and others than the sender may read it. They
    may also be in the path or the query of its URL.
    """
    if isinstance(tool, FunctionToolParam):
        return FunctionTool(
            name=tool.name,
            description=or_default(tool.description, None),
            parameters=or_default(tool.parameters, None),
            strict=or_default(tool.strict, None),
            output_schema=tool.output_schema,
            defer_loading=tool.defer_loading,
            allowed_callers=tool.allowed_callers,
        )
    if isinstance(tool, MCPTool):
        url = public_url(tool.server_url) if isinstance(tool.server_url, str) else tool.server_url
        tool = replace(tool, authorization=UNSET, headers=UNSET, server_url=url)
    echoed: ResponseTool = tool
    return echoed
