"""List the clients: their packages with exact releases, and the program that uses them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CLIENTS", "Client"]


class Client(NamedTuple):
    """A client, or a few packages that are used together."""

    name: str
    packages: tuple[str, ...]
    """Requirements of pip, or of npm."""
    program: str
    """A file in `programs`."""
    scripted: bool = False
    """Whether it talks to `scripted_server.py` and not to the pocket model."""

    @property
    def is_python(self) -> bool:
        """Whether pip installs it; else npm does."""
        return self.program.endswith(".py")


CLIENTS = (
    Client("openai-python", ("openai[realtime]==3.57.0",), "openai_python.py"),
    # The oldest releases that docs/guides/clients.md promises.
    Client("openai-oldest", ("openai[realtime]==3.0.0",), "openai_python.py"),
    Client("openai-node", ("openai@7.59.0", "ws@8.23.0", "zod@4.6.7"), "openai_node.mjs"),
    Client("ai-sdk", ("ai@7.0.173", "@ai-sdk/openai@4.0.118", "zod@4.6.7"), "ai_sdk.mjs"),
    Client("openai-agents", ("openai-agents==0.24.0",), "openai_agents.py"),
    Client("agents-tools", ("openai-agents==0.24.0",), "openai_agents_tools.py", scripted=True),
    Client("agents-mcp", ("openai-agents==0.24.0", "mcp==2.3.0"), "openai_agents_mcp.py", scripted=True),
    Client(
        "mcp-everything",
        ("openai@7.59.0", "@modelcontextprotocol/server-everything@2026.8.31"),
        "mcp_everything.mjs",
        scripted=True,
    ),
    Client("langchain", ("langchain-openai==1.7.4",), "langchain_openai_.py"),
    Client(
        "litellm",
        # Its streams of Messages import its proxy, whose extra wants packages that few indexes have.
        (
            "litellm==1.110.2",
            "fastapi==0.165.0",
            "backoff==2.2.1",
            "orjson==3.13.0",
            "redis==8.1.0",
            "soundfile==0.14.0",
            "mcp==2.3.0",
        ),
        "litellm_.py",
    ),
    Client("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0",), "pydantic_ai_.py"),
    Client("llama-index", ("llama-index-llms-openai==0.8.3",), "llama_index_.py"),
    Client("instructor", ("instructor==1.17.0",), "instructor_.py"),
    Client("smolagents", ("smolagents[openai]==1.26.0",), "smolagents_.py"),
    Client("llm", ("llm==0.36",), "llm_.py"),
    Client("lm-eval", ("lm-eval[api]==0.4.13", "transformers==5.24.0"), "lm_eval_.py"),
    Client("anthropic-python", ("anthropic==2.14.0",), "anthropic_python.py"),
    Client("anthropic-oldest", ("anthropic==2.0.0",), "anthropic_python.py"),
    Client("anthropic-node", ("@anthropic-ai/sdk@1.14.0",), "anthropic_node.mjs"),
    Client("claude-code", ("@anthropic-ai/claude-code@2.1.332",), "claude_code.mjs", scripted=True),
    Client("claude-code-pocket", ("@anthropic-ai/claude-code@2.1.332",), "claude_code_pocket.mjs"),
    Client("codex", ("@openai/codex@0.171.0",), "codex.mjs", scripted=True),
    Client("codex-pocket", ("@openai/codex@0.171.0",), "codex_pocket.mjs"),
)
