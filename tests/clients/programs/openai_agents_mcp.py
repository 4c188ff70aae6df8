"""Use the Agents SDK's hosted MCP tool with a server of the official SDK. The model is scripted to call it once."""

import asyncio
import os
import threading

import agents
import uvicorn
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner
from mcp.server.mcpserver import MCPServer
from openai import AsyncOpenAI

MODEL = os.environ["PLUMBLINE_MODEL"]
PORT = int(os.environ["PLUMBLINE_MCP_PORT"])
PRINTED = "plumbline-was-here"
ANSWER = "The command has printed its line."
TOKEN = "credential-of-the-client"
calls: list[str] = []
tokens: set[str] = set()


def start_server() -> None:
    """Run an MCP server with one tool, and return when it answers."""
    server = MCPServer("box", log_level="ERROR")

    @server.tool()
    def echo(message: str) -> str:
        """Repeat a message."""
        calls.append(message)
        return message

    app = server.streamable_http_app()

    async def watched(scope, receive, send) -> None:
        if scope["type"] == "http":
            tokens.add(dict(scope["headers"]).get(b"authorization", b"").decode())
        await app(scope, receive, send)

    running = uvicorn.Server(uvicorn.Config(watched, host="127.0.0.1", port=PORT, log_level="error"))
    threading.Thread(target=running.run, daemon=True).start()
    while not running.started:
        pass


def tool(**changes) -> agents.HostedMCPTool:
    config = {
        "type": "mcp",
        "server_label": "box",
        "server_url": f"http://127.0.0.1:{PORT}/mcp",
        "authorization": TOKEN,
        "require_approval": "never",
        **changes.pop("config", {}),
    }
    return agents.HostedMCPTool(tool_config=config, **changes)


async def main() -> None:
    agents.set_tracing_disabled(True)
    start_server()
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI())
    settings = ModelSettings(max_tokens=200)

    agent = Agent(name="a", model=model, model_settings=settings, tools=[tool()])
    whole = await Runner.run(agent, "Run a command.", max_turns=3)
    streamed = Runner.run_streamed(agent, "Run a command.", max_turns=3)
    seen = [event.data.type async for event in streamed.stream_events() if event.type == "raw_response_event"]
    for result in (whole, streamed):
        kinds = [item.type for item in result.new_items]
        assert kinds == ["mcp_list_tools_item", "tool_call_item", "message_output_item"], kinds
        assert result.final_output == ANSWER
        assert result.new_items[1].raw_item.output == PRINTED
    for name in ("list_tools.completed", "call.in_progress", "call_arguments.done", "call.completed"):
        assert f"response.mcp_{name}" in seen, seen
    print("   HostedMCPTool: whole, streamed", flush=True)

    asked: list[str] = []

    def approve(request: agents.MCPToolApprovalRequest) -> agents.MCPToolApprovalFunctionResult:
        asked.append(request.data.name)
        return {"approve": len(asked) != 2, "reason": PRINTED}  # The script looks for it.

    gated = tool(config={"require_approval": "always"}, on_approval_request=approve)
    agent = Agent(name="a", model=model, model_settings=settings, tools=[gated])
    for approved, chained in ((True, False), (False, False), (True, True)):
        result = await Runner.run(agent, "Run a command.", max_turns=3, auto_previous_response_id=chained)
        kinds = [item.type for item in result.new_items]
        made = ["tool_call_item"] if approved else []
        wanted = ["mcp_list_tools_item", "mcp_approval_request_item", "mcp_approval_response_item", *made]
        assert kinds == [*wanted, "message_output_item"], kinds
        assert result.final_output == ANSWER
    print("   on_approval_request: approved, declined, with previous_response_id", flush=True)
    assert asked == ["echo"] * 3
    assert calls == [PRINTED] * 4
    assert tokens == {f"Bearer {TOKEN}"}


asyncio.run(main())
