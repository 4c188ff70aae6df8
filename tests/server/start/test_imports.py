"""A start imports what serving needs, and nothing else: imports are most of the time to a first answer."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import write

FRONT = """
import sys
from plumbline.server.start import run
early = set(sys.modules)
from plumbline.server.start import serve
from plumbline.server.settings import Settings
from plumbline.server.loading.served_model import load
from plumbline.engines.scripted import ScriptedEngine
from plumbline.port.engine import EngineInfo
info = EngineInfo(name="s", model="s", vocab_size=9999, max_model_len=99, eos_token_ids=frozenset({1}))
load(Settings(models=(("m", sys.argv[1]),)), ScriptedEngine(info, lambda request: ()))
print(*sorted({name for name in early if "." not in name}))
print(*sorted(sys.modules))
"""
ENGINE = """
import sys
from plumbline.server.start.engine_process import process
from plumbline.server.start.engine_process.start_messages import EngineStart
from plumbline.server.settings import Settings
class Silent:
    def send(self, message): pass
settings = Settings(models=(("m", sys.argv[1]),), engine="plumbline", device="cpu")
start = EngineStart(settings=settings, folder=".", gguf=sys.argv[1], name="m")
early = set(sys.modules)
process._load(start, Silent())
print(*sorted({name for name in early if "." not in name}))
print(*sorted(sys.modules))
"""
HEAVY = (
    "torch._dynamo",
    "torch._inductor",
    # Other releases of torch are imported whole.
    *(["torch._meta_registrations"] if version("torch").startswith("2.13.") else []),
    "torchvision",
    "torchaudio",
    "sympy",
    "networkx",
    "transformers",
    "triton",
    "PIL",
    "av",
    "soundfile",
    "matplotlib",
    "pandas",
    "vllm",
    "llama_cpp",
    "alembic",
    "huggingface_hub",
    "jsonschema",
)
"""Packages that no start of a text model needs."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("imports") / "pocket.gguf"
    write(MODEL_DIR, path)
    return path


def modules(script: str, file: Path) -> tuple[set[str], set[str]]:
    """Return the packages that a process imports before it does its work, and all of its modules in the end."""
    command = [sys.executable, "-c", script, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    early, late = done.stdout.splitlines()[-2:]
    return set(early.split()), set(late.split())


@pytest.mark.long
def test_the_server_imports_neither_torch_nor_decoders(file: Path) -> None:
    early, late = modules(FRONT, file)
    assert not early & {
        "torch",
        "numpy",
        "tokenizers",
        "litestar",
        "sqlalchemy",
        "rich",
        "uvicorn",
        "asyncio",
    }
    assert not late & {*HEAVY, "torch", "numpy", "rich"}


@pytest.mark.long
def test_the_engine_imports_nothing_that_a_gpu_or_another_engine_needs(file: Path) -> None:
    early, late = modules(ENGINE, file)
    assert not early & {"torch", "numpy", "tokenizers", "jinja2"}
    assert not late & {*HEAVY, "litestar", "sqlalchemy"}
