"""Serve a model that calls the agent's shell, patches or MCP server once, and answers, with 65,536 tokens of context.

It has the pocket model's tokenizer, chat template and dialects, so that only the choice of tokens is scripted. Agents
send instructions and tools of 15,000 tokens and more, and a small model could not be trusted to use them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable

import msgspec

from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import GenerateRequest, TokenChunk
from plumbline.server.loading.catalog import only
from plumbline.server.loading.served_model import load
from plumbline.server.loading.storage import build_store
from plumbline.server.settings import Settings
from plumbline.server.start.listener import listener

PRINTED = "plumbline-was-here"
ANSWER = "The command has printed its line."
CALLS = {
    "exec_command": {"cmd": f"echo {PRINTED}"},
    "Bash": {"command": f"echo {PRINTED}", "description": "Print a line"},
    "shell_command": {"command": f"echo {PRINTED}"},
    "apply_patch": {"type": "create_file", "path": "a.txt", "diff": "+a"},
    "look_up": {"word": "a"},
    "box__echo": {"message": PRINTED},
    "local_shell": {"command": ["echo", PRINTED], "working_directory": None, "timeout_ms": None},
    "shell": {"commands": [f"echo {PRINTED}"], "timeout_ms": None, "max_output_length": None},
}
"""What a call of each agent's tool looks like."""


class Scripted(ScriptedEngine):
    """Accepts grammars: the calls of the script follow them."""

    async def check_grammar(self, grammar: str, client: str = "") -> None:
        """Accept every grammar."""


def main(port: int, store: str) -> None:
    """Serve until a signal."""
    settings = Settings(
        host="127.0.0.1", port=port, store=store, allow_mcp=(f"127.0.0.1:{os.environ['PLUMBLINE_MCP_PORT']}",)
    )
    pocket = load(settings)
    tokenizer = pocket.renderer.tokenizer
    info = msgspec.structs.replace(pocket.engine.info, name="scripted", max_model_len=65_536, num_blocks=0)

    def script(request: GenerateRequest) -> Iterable[TokenChunk]:
        turn = tokenizer.decode(request.prompt_token_ids)
        tool = next((name for name in CALLS if re.search(rf'"name": ?"{name}"', turn)), None)
        latest = turn[turn.rfind("<|im_start|>user\n") :]
        if PRINTED in latest or tool is None:
            text = ANSWER
        else:
            text = f"<tool_call>\n{json.dumps({'name': tool, 'arguments': CALLS[tool]})}\n</tool_call>"
        for token_id in tokenizer.encode_text(text):
            yield TokenChunk(token_ids=(token_id,))
        yield TokenChunk(token_ids=(min(info.eos_token_ids),), finish_reason="stop")

    model = msgspec.structs.replace(pocket, engine=Scripted(info, script))
    listener(only(model), settings, build_store(settings), host=settings.host, port=port).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
