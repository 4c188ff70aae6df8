"""Turn input items into stored ones, with ids and every field, and stored items into input again.

A stored item that is read again gives the model the same messages as the item that the client sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from plumbline.contract._generated.client_tools import (
    ApplyPatchToolCall,
    ApplyPatchToolCallItemParam,
    ApplyPatchToolCallOutput,
    ApplyPatchToolCallOutputItemParam,
    FunctionShellCall,
    FunctionShellCallItemParam,
    FunctionShellCallOutput,
    FunctionShellCallOutputItemParam,
    LocalShellToolCall,
    LocalShellToolCallOutput,
    LocalShellToolCallOutputParam,
    LocalShellToolCallParam,
)
from plumbline.contract._generated.content import (
    Annotation,
    InputImageContent,
    InputTextContent,
    LogProb,
    OutputTextContent,
    OutputTextContentParam,
)
from plumbline.contract._generated.items import (
    CustomToolCall,
    CustomToolCallOutput,
    EasyInputMessage,
    FunctionCallOutputItemParam,
    FunctionToolCall,
    HostedItemAdditionalTools,
    InputItem,
    ItemReferenceParam,
    Message,
)
from plumbline.contract._generated.mcp import MCPApprovalResponse, MCPApprovalResponseResource
from plumbline.contract._generated.tool_search import (
    ToolSearchCall,
    ToolSearchCallItemParam,
    ToolSearchOutput,
    ToolSearchOutputItemParam,
)
from plumbline.contract.wire.decode import encode, read_back
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.server.protocols.common.fields import or_default, tag_of
from plumbline.server.protocols.common.ids import new_id
from plumbline.server.protocols.responses.client_tools.history import search_execution
from plumbline.server.protocols.responses.client_tools.hosted import additional_tools
from plumbline.server.protocols.responses.client_tools.search import loaded_tools
from plumbline.server.store.records import ItemRecord

__all__ = ["as_context", "check_storable", "referenced_ids", "resolve_references", "stored_input"]

_PREFIXES = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fco_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "shell_call": "sh_",
    "shell_call_output": "sho_",
    "apply_patch_call": "apc_",
    "apply_patch_call_output": "apco_",
    "local_shell_call": "lsh_",
    "local_shell_call_output": "lsho_",
    "tool_search_call": "tsc_",
    "tool_search_output": "tso_",
    "mcp_list_tools": "mcpl_",
    "mcp_call": "mcp_",
    "mcp_approval_request": "mcpr_",
    "mcp_approval_response": "mcpa_",
    "reasoning": "rs_",
    "compaction": "cmp_",
    "additional_tools": "at_",
    "agent_message": "amsg_",
    "web_search_call": "ws_",
    "file_search_call": "fs_",
    "image_generation_call": "ig_",
    "code_interpreter_call": "ci_",
    "multi_agent_call": "mac_",
    "multi_agent_call_output": "maco_",
}
_CALLS = (
    "function_call",
    "custom_tool_call",
    "shell_call",
    "local_shell_call",
    "tool_search_call",
    "mcp_call",
)
_LISTED: dict[type, Any] = {
    FunctionShellCallItemParam: FunctionShellCall,
    FunctionShellCallOutputItemParam: FunctionShellCallOutput,
    ApplyPatchToolCallItemParam: ApplyPatchToolCall,
    ApplyPatchToolCallOutputItemParam: ApplyPatchToolCallOutput,
    LocalShellToolCallParam: LocalShellToolCall,
    LocalShellToolCallOutputParam: LocalShellToolCallOutput,
    ToolSearchCallItemParam: ToolSearchCall,
    ToolSearchOutputItemParam: ToolSearchOutput,
    MCPApprovalResponse: MCPApprovalResponseResource,
}
"""The types of items as they are listed, which have members that clients may leave out, also in their parts."""
_WITH_STATUS = (
    FunctionToolCall,
    FunctionCallOutputItemParam,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionShellCallItemParam,
    FunctionShellCallOutputItemParam,
    LocalShellToolCallParam,
    LocalShellToolCallOutputParam,
    ToolSearchCallItemParam,
    ToolSearchOutputItemParam,
)


def stored_input(items: str | Sequence[InputItem]) -> tuple[ItemRecord, ...]:
    """Return the items of an input as they are stored and listed: each with an id of its own (ST-08).

    Items keep the ids that the client gave them, but an id that comes again is replaced.
    """
    if isinstance(items, str):
        items = [EasyInputMessage(role="user", content=items)]
    taken: set[str] = set()
    found: list[ItemRecord] = []
    for item in items:
        item = _complete(item)
        item_id = or_default(getattr(item, "id", None), None)
        if not item_id or item_id in taken:
            item_id = new_id(_PREFIXES.get(tag_of(item), "item_"))
        taken.add(item_id)
        found.append(ItemRecord(item_id, encode(_resource(item, item_id))))
    return tuple(found)


def _complete(item: InputItem) -> InputItem:
    """Return an item of a local shell, a search or further tools with what clients may leave out."""
    match item:
        case ToolSearchCallItemParam() | ToolSearchOutputItemParam():
            return msgspec.structs.replace(item, execution=search_execution(item))
        case HostedItemAdditionalTools():
            tools = [] if item.tools is UNSET else item.tools
            return msgspec.structs.replace(item, role=or_default(item.role, "developer"), tools=tools)
        case LocalShellToolCallParam(action=action) if not or_default(action.env, None):
            return msgspec.structs.replace(item, action=msgspec.structs.replace(action, env={}))
        case LocalShellToolCallOutputParam() if item.id and not or_default(item.call_id, None):
            # Without a call_id, its id names the call and not the output.
            return msgspec.structs.replace(item, id=UNSET, call_id=item.id)
        case _:
            return item


def as_context(items: Iterable[bytes]) -> list[InputItem]:
    """Read stored items as input.

    Calls that broke off are left out: no client ran them, and a call without an output is an error (TOOL-12).
    """
    found: list[InputItem] = []
    for body in items:
        item = read_back(InputItem, body)
        if tag_of(item) not in _CALLS or or_default(getattr(item, "status", None), None) != "incomplete":
            found.append(item)
    return found


def referenced_ids(items: str | Sequence[InputItem]) -> list[str]:
    """Return the ids that an input refers to (ST-13)."""
    if isinstance(items, str):
        return []
    return [item.id for item in items if isinstance(item, ItemReferenceParam)]


def check_storable(items: Sequence[InputItem], param: str) -> None:
    """Refuse items that a response could not be answered from, before a conversation keeps them.

    Raises:
        ApiError: 400 naming the first one.
    """
    for index, item in enumerate(items):
        if tag_of(item) not in _PREFIXES:
            raise unsupported_value(
                f"{param}[{index}].type", tag_of(item), "cannot be part of a conversation on this server"
            )
        if isinstance(item, ToolSearchOutputItemParam):
            list(loaded_tools(item.tools, f"{param}[{index}].tools"))
        list(additional_tools([(f"{param}[{index}]", item)]))


def resolve_references(
    items: str | Sequence[InputItem], found: Mapping[str, bytes], param: str = "input"
) -> str | Sequence[InputItem]:
    """Put stored items in the place of references to them.

    Raises:
        ApiError: 400 naming the first reference to an unknown item (ST-13).
    """
    if isinstance(items, str):
        return items
    resolved: list[InputItem] = []
    for index, item in enumerate(items):
        if not isinstance(item, ItemReferenceParam):
            resolved.append(item)
        elif item.id in found:
            resolved.append(read_back(InputItem, found[item.id]))
        else:
            raise invalid_request(f"Item with id '{item.id}' not found.", f"{param}[{index}].id")
    return resolved


def _resource(item: InputItem, item_id: str) -> Any:
    if isinstance(item, EasyInputMessage):
        return Message(
            id=item_id, role=item.role, status="completed", content=_content(item), phase=item.phase
        )
    # Clients may send null for what they leave out; items that are listed have no null there.
    empty = (name for name in item.__struct_fields__ if getattr(item, name) is None)
    changes: dict[str, Any] = dict.fromkeys(empty, UNSET) | {"id": item_id}
    if isinstance(item, _WITH_STATUS):
        changes["status"] = or_default(item.status, None) or "completed"
    found = msgspec.structs.replace(item, **changes)
    listed = _LISTED.get(type(item))
    return found if listed is None else read_back(listed, encode(found))


def _content(message: EasyInputMessage) -> list[Any]:
    """Return the parts of a message; a string becomes one part of the kind that its role has."""
    if isinstance(message.content, str):
        if message.role == "assistant":
            return [OutputTextContent(text=message.content, annotations=[], logprobs=[])]
        return [InputTextContent(text=message.content)]
    return [_listed(part) for part in message.content]


def _listed(part: Any) -> Any:
    """Return a part with the members that it always has where it is listed."""
    match part:
        case OutputTextContentParam():
            return _output_text(part)
        case InputImageContent() if or_default(part.detail, None) is None:
            return msgspec.structs.replace(part, detail="auto")
        case _:
            return part


def _output_text(part: OutputTextContentParam) -> OutputTextContent:
    """Return a part as it is listed, without annotations and logprobs that no server would have sent.

    The model sees neither, and one that is listed has all its members.
    """
    return OutputTextContent(
        text=part.text,
        annotations=_converted(or_default(part.annotations, []) or [], list[Annotation]),
        logprobs=_converted(or_default(part.logprobs, []) or [], list[LogProb]),
    )


def _converted(values: list[dict[str, Any]], wanted: Any) -> list[Any]:
    try:
        found: list[Any] = msgspec.convert(values, wanted)
    except msgspec.ValidationError:
        return []
    return found
