"""Read earlier items of MCP servers: lists of tools, calls with their outputs, requests for approval and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from plumbline.answer.remote_tools import (
    ApprovedCall,
    RemoteError,
    RemoteResult,
    RemoteTool,
    approval_text,
    content_text,
    result_text,
    shown_name,
)
from plumbline.answer.turn import Message, ToolCall
from plumbline.contract._generated.mcp import (
    HTTPError,
    MCPApprovalRequest,
    MCPApprovalResponse,
    MCPListTools,
    MCPToolCall,
    MCPToolExecutionError,
)
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.protocols.common.fields import or_default

__all__ = ["RemoteItem", "RemotePast", "read_past", "remote_messages"]

RemoteItem: TypeAlias = MCPListTools | MCPToolCall | MCPApprovalRequest | MCPApprovalResponse

_UNFINISHED = RemoteResult(error=RemoteError("http", "It did not end."))


class RemotePast(NamedTuple):
    """Items of MCP servers in a context."""

    listed: Mapping[str, tuple[RemoteTool, ...]]
    """The tools that are listed, by the label of their server; the last list of a server counts."""
    fields: Mapping[str, str]
    """The field of each of these lists, by the same labels."""
    requests: Mapping[str, MCPApprovalRequest]
    """The requests for approval, by their ids."""
    approved: tuple[ApprovedCall, ...]
    """The calls that are approved and have not been made, in the order of the approvals."""


def read_past(entries: Sequence[tuple[str, Any]]) -> RemotePast:
    """Collect the lists, calls and approvals of MCP servers in a context.

    Args:
        entries: the items with their fields in the request.

    Raises:
        ApiError: 400 for an approval without its request, and for a second answer to one.
    """
    listed: dict[str, tuple[RemoteTool, ...]] = {}
    fields: dict[str, str] = {}
    requests: dict[str, MCPApprovalRequest] = {}
    answers: dict[str, bool] = {}
    made: set[str] = set()
    for where, item in entries:
        match item:
            case MCPListTools():
                if not or_default(item.error, None):
                    fields[item.server_label] = f"{where}.tools"
                    listed[item.server_label] = tuple(
                        RemoteTool(
                            tool.name,
                            or_default(tool.description, None),
                            tool.input_schema,
                            or_default(tool.annotations, None),
                        )
                        for tool in item.tools
                    )
            case MCPToolCall():
                made.add(or_default(item.approval_request_id, None) or "")
            case MCPApprovalRequest():
                requests[item.id] = item
            case MCPApprovalResponse():
                wanted = item.approval_request_id
                if wanted not in requests or wanted in answers:
                    reason = "is answered twice" if wanted in answers else "was not found before its answer"
                    field = f"{where}.approval_request_id"
                    raise invalid_request(f"The approval request with id '{wanted}' {reason}.", field)
                answers[wanted] = item.approve
    approved = [requests[wanted] for wanted, approve in answers.items() if approve and wanted not in made]
    return RemotePast(
        listed,
        fields,
        requests,
        tuple(ApprovedCall(one.server_label, one.name, one.arguments, one.id) for one in approved),
    )


def remote_messages(item: RemoteItem, requests: Mapping[str, MCPApprovalRequest]) -> Iterator[Message]:
    """Yield the messages that the model sees of an item: the call, and what it returned.

    A call that was approved comes with its result. Of one that nobody answered the model sees nothing.
    """
    match item:
        case MCPToolCall():
            yield from call_messages(item.server_label, item.name, item.arguments, item.id, _text(item))
        case MCPApprovalResponse(approve=False):
            request = requests[item.approval_request_id]
            text = approval_text(or_default(item.reason, None))
            yield from call_messages(request.server_label, request.name, request.arguments, request.id, text)
        case _:
            pass


def call_messages(label: str, name: str, arguments: str, call_id: str, result: str) -> Iterator[Message]:
    """Yield a call and its result as the model sees them."""
    yield Message(role="assistant", tool_calls=(ToolCall(call_id, shown_name(label, name), arguments),))
    yield Message(role="tool", content=result, tool_call_id=call_id)


def _text(call: MCPToolCall) -> str:
    error, output = or_default(call.error, None), or_default(call.output, None)
    if error is None:
        return result_text(_UNFINISHED if output is None else RemoteResult(output))
    if isinstance(error, MCPToolExecutionError):
        return result_text(RemoteResult(error=RemoteError("tool", content_text(error.content))))
    kind: Literal["http", "protocol"] = "http" if isinstance(error, HTTPError) else "protocol"
    return result_text(RemoteResult(error=RemoteError(kind, error.message, error.code)))
