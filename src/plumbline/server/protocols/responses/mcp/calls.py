"""Write lists of tools, calls and requests for approval of MCP servers as official items."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.answer.events import ApprovalNeeded, RemoteCallEnd, RemoteCallStart, ToolsListed, ToolsListing
from plumbline.answer.remote_tools import RemoteError
from plumbline.contract._generated.items import OutputItem
from plumbline.contract._generated.mcp import (
    HTTPError,
    MCPApprovalRequest,
    MCPListTools,
    MCPListToolsTool,
    MCPProtocolError,
    MCPToolCall,
    MCPToolCallError,
    MCPToolCallStatus,
    MCPToolExecutionError,
)
from plumbline.server.protocols.responses.event_order import Machine, Step
from plumbline.server.protocols.responses.items import ItemStatus, OpenItem

__all__ = ["ApprovalItem", "ListItem", "RemoteCallItem"]


class ListItem(OpenItem):
    """The tools of an MCP server."""

    machine: Machine = "mcp_list_tools"
    prefix = "mcpl_"

    def __init__(self, event: ToolsListing) -> None:
        super().__init__()
        self._label = event.server
        self.listed = ToolsListed((), error="The list was not finished.")

    def added(self) -> OutputItem:
        return MCPListTools(id=self.id, server_label=self._label, tools=[], error=None)

    def last_steps(self) -> Iterator[Step]:
        """Yield the step that shows whether there is a list."""
        yield "succeed" if self.listed.error is None else "fail"

    def _finished(self, status: ItemStatus) -> OutputItem:
        tools = [
            MCPListToolsTool(
                name=tool.name,
                description=tool.description,
                input_schema=tool.input_schema,
                annotations=tool.annotations,
            )
            for tool in self.listed.tools
        ]
        return MCPListTools(id=self.id, server_label=self._label, tools=tools, error=self.listed.error)


class RemoteCallItem(OpenItem):
    """A call of a tool of an MCP server; its text is the arguments."""

    machine: Machine = "mcp_call"
    prefix = "mcp_"

    def __init__(self, event: RemoteCallStart) -> None:
        super().__init__()
        self._start = event
        self.result: RemoteCallEnd | None = None
        """Set at the end; a call that was cut has none."""
        self.runs = False
        """Whether the arguments were whole."""

    def added(self) -> OutputItem:
        return self._item("", "in_progress")

    def last_steps(self) -> Iterator[Step]:
        """Yield the steps that show the arguments, unless they were shown before, and how the call went."""
        if not self.runs:
            yield "run"
        if self.result is not None:
            yield "succeed" if self.result.error is None else "fail"

    def finish(self, status: ItemStatus) -> None:
        """Set `text` and `finished`."""
        self.text = "".join(self.fragments)
        state: MCPToolCallStatus = "incomplete"
        if self.result is not None:
            state = "completed" if self.result.error is None else "failed"
        self.finished = self._item(self.text, state)

    def _finished(self, status: ItemStatus) -> OutputItem:
        raise NotImplementedError  # `finish` knows more than the status.

    def _item(self, arguments: str, status: MCPToolCallStatus) -> MCPToolCall:
        result = self.result or RemoteCallEnd()
        return MCPToolCall(
            id=self.id,
            server_label=self._start.server,
            name=self._start.name,
            arguments=arguments,
            output=result.output,
            error=None if result.error is None else _error(result.error),
            status=status,
            approval_request_id=self._start.approval_id,
        )


class ApprovalItem(OpenItem):
    """A request for approval; it is written at once."""

    machine: Machine = "mcp_approval_request"
    prefix = "mcpr_"

    def __init__(self, event: ApprovalNeeded) -> None:
        super().__init__()
        self._event = event

    def added(self) -> OutputItem:
        return self._finished("in_progress")

    def _finished(self, status: ItemStatus) -> OutputItem:
        return MCPApprovalRequest(
            id=self.id,
            server_label=self._event.server,
            name=self._event.name,
            arguments=self._event.arguments,
        )


def _error(error: RemoteError) -> MCPToolCallError:
    if error.kind == "tool":
        return MCPToolExecutionError(content=error.content)
    kind = HTTPError if error.kind == "http" else MCPProtocolError
    return kind(code=error.code, message=error.message)
