"""Law of loading: at its peak it takes no more memory than the loaded weights and the largest tensor.

Files are mapped, so their pages are not counted: the system takes them back when it needs memory. Nor is what the
allocator of C keeps of freed tensors, some 70 MiB: the test has it give all large ones back.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

SLACK = 32 << 20
"""Bytes beside tensors, such as what the allocator keeps of small ones."""
LOAD = """
import sys, threading, time, torch
from pathlib import Path
from plumbline.engines.native.models import load_model

def anonymous():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

def watch():
    while not done.is_set():
        seen.append(anonymous())
        time.sleep(0.002)

torch.set_num_threads(1)
load_model(Path(sys.argv[1]) / "small", torch.float32)  # Imports what loading imports.
before, seen, done = anonymous(), [], threading.Event()
whole = [torch.load(sys.argv[2], weights_only=True)] if len(sys.argv) > 2 else []
thread = threading.Thread(target=watch)
thread.start()
model = load_model(Path(sys.argv[1]), torch.float32)
done.set()
thread.join()
print(max(seen) - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 200 MiB in bf16 and in three files, which is loaded as twice as much."""
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=8,
    )
    torch.manual_seed(0)
    small = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=99
    )
    LlamaForCausalLM(small).bfloat16().save_pretrained(path / "small")
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(path, max_shard_size="80MB")
    torch.save(model.state_dict(), path / "whole.pt")
    return path


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("beside", [False, True])
def test_loading_takes_the_weights_and_one_tensor(folder: Path, beside: bool) -> None:
    """A process that holds the weights of the files beside exceeds it, so the test can fail."""
    weights = 2 * sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    largest = 4 * 2 * 4096 * 1024  # A merged projection of gates and of what they multiply.
    command = [sys.executable, "-c", LOAD, str(folder), *([str(folder / "whole.pt")] if beside else [])]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert (int(done.stdout) <= weights + largest + SLACK) is not beside
