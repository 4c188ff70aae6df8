"""The answer side works with a foreign engine where torch, our engines, the API's types and HTTP are missing.

All of its modules are imported, and one answer is made; import-linter sees the imports within functions.
"""

from __future__ import annotations

import subprocess
import sys

MISSING = (
    "torch",
    "triton",
    "litestar",
    "uvicorn",
    "httpx2",
    "sqlalchemy",
    "PIL",
    "plumbline_conformance",
    "plumbline_kernels",
    "plumbline.contract",
    "plumbline.engines",
    "plumbline.media",
    "plumbline.server",
)

PROGRAM = """
import asyncio, importlib, pkgutil, sys
from contextlib import nullcontext

class Missing:
    def find_spec(self, name, *_):
        if any(name == one or name.startswith(f"{one}.") for one in MISSING):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import plumbline.answer, plumbline.base, plumbline.port

for package in (plumbline.answer, plumbline.base, plumbline.port):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)

from plumbline.answer.dialects.build import build_dialect
from plumbline.answer.dialects.registry import choose
from plumbline.answer.events import Finish, TextDelta, ToolCallDelta, ToolCallStart
from plumbline.answer.road.road import Road
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import ChatPrompt, Message, Tool, ToolChoice, Turn
from plumbline.pocket import MODEL_DIR
from plumbline.port.engine import EngineInfo, SamplingParams, TokenChunk

tokenizer = TextTokenizer.from_folder(MODEL_DIR)
ANSWER = 'One moment.<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'
END = tokenizer.added["<|im_end|>"]


class Engine:
    info = EngineInfo(
        name="foreign", model="m", vocab_size=tokenizer.vocab_size, max_model_len=2048, eos_token_ids=frozenset({END})
    )

    async def generate(self, request):
        for token in tokenizer.encode_generated(ANSWER):
            yield TokenChunk(token_ids=(token,))
        yield TokenChunk(token_ids=(END,), finish_reason="stop")

    def refusal(self, client, more=0):
        return None

    def arriving(self, client):
        return nullcontext()


async def main():
    template = ChatTemplate.from_folder(MODEL_DIR)
    dialect = build_dialect(choose(template.source, tool="hermes", reasoning="qwen3"), tokenizer)
    road = Road(Engine(), Renderer(tokenizer, template), dialect)
    tool = Tool(name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}})
    prompt = ChatPrompt(messages=(Message(role="user", content="1 + 1?"),), tools=(tool,))
    turn = Turn(prompt=prompt, sampling=SamplingParams(max_tokens=100), tool_choice=ToolChoice())
    said = ""
    async for _, event in road.answer(await road.prepare(turn), "1"):
        match event:
            case TextDelta(text):
                said += text
            case ToolCallStart(name):
                said += f"|{name}"
            case ToolCallDelta(arguments):
                said += arguments
            case Finish(reason):
                said += f"|{reason}"
    print(said)
    assert not any(name == one or name.startswith(f"{one}.") for name in sys.modules for one in MISSING)


asyncio.run(main())
"""


def test_a_road_needs_neither_torch_nor_http_nor_our_engines() -> None:
    program = f"MISSING = {MISSING!r}\n{PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == 'One moment.|add{"a": 1}|tool_calls\n'
