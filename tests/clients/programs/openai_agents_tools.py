"""Use the Agents SDK's shells and patches, whole and streamed. The model is scripted to call each once."""

import asyncio
import os

import agents
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner
from openai import AsyncOpenAI

MODEL = os.environ["PLUMBLINE_MODEL"]
PRINTED = "plumbline-was-here"
ANSWER = "The command has printed its line."


class Editor:
    """Keeps the operations that it is asked for."""

    def __init__(self) -> None:
        self.seen: list[agents.ApplyPatchOperation] = []

    def create_file(self, operation: agents.ApplyPatchOperation) -> agents.ApplyPatchResult:
        self.seen.append(operation)
        return agents.ApplyPatchResult(status="completed", output=PRINTED)

    update_file = delete_file = create_file


async def main() -> None:
    agents.set_tracing_disabled(True)
    model = OpenAIResponsesModel(MODEL, AsyncOpenAI())
    commands: list[str] = []
    editor = Editor()

    def shell(request: agents.ShellCommandRequest) -> str:
        commands.extend(request.data.action.commands)
        return PRINTED

    def local_shell(request: agents.LocalShellCommandRequest) -> str:
        commands.append(" ".join(request.data.action.command))
        return PRINTED

    @agents.function_tool(defer_loading=True)
    def look_up(word: str) -> str:
        """Look up a word."""
        return PRINTED

    offered: tuple[list[agents.Tool], ...] = (
        [agents.ShellTool(executor=shell)],
        [agents.LocalShellTool(executor=local_shell)],
        [agents.ApplyPatchTool(editor=editor)],
        [agents.ToolSearchTool(), look_up],
    )
    for tools in offered:
        agent = Agent(name="a", model=model, model_settings=ModelSettings(max_tokens=200), tools=tools)
        whole = await Runner.run(agent, "Run a command.", max_turns=3)
        streamed = Runner.run_streamed(agent, "Run a command.", max_turns=3)
        assert [event async for event in streamed.stream_events()]
        chained = await Runner.run(agent, "Run a command.", max_turns=3, auto_previous_response_id=True)
        for result in (whole, streamed, chained):
            kinds = [item.type for item in result.new_items]
            assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"], kinds
            assert result.final_output == ANSWER
        print(f"   {type(tools[0]).__name__}: whole, streamed, with previous_response_id", flush=True)
    assert commands == [f"echo {PRINTED}"] * 6
    assert [(one.type, one.path, one.diff) for one in editor.seen] == [("create_file", "a.txt", "+a")] * 3


asyncio.run(main())
