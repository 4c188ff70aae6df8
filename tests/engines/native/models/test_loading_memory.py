"""Law of loading: at its peak it takes no more memory than the loaded weights and the largest tensor.

Files are mapped, so their pages are not counted: the system takes them back when it needs memory. Nor is what the
allocator of C keeps of freed tensors, some 70 MiB: the test has it give all large ones back.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM

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
    save_small(path)
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(path, max_shard_size="80MB")
    torch.save(model.state_dict(), path / "whole.pt")
    return path


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A layer of 32 experts in MXFP4: 24 MiB of blocks, and 192 MiB when they are loaded in fp32."""
    path = tmp_path_factory.mktemp("experts")
    config = GptOssConfig(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=64,
        num_local_experts=32,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 150000.0},
    )
    GptOssForCausalLM(config).bfloat16().save_pretrained(path)
    save_small(path)
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        groups = count, outputs, inputs // 32
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*groups, 16)).to(torch.uint8)
        tensors[f"{name}_scales"] = torch.full(groups, 120, dtype=torch.uint8)
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    stored = json.loads((path / "config.json").read_text("utf-8"))
    stored["quantization_config"] = {"quant_method": "mxfp4"}
    (path / "config.json").write_text(json.dumps(stored), "utf-8")
    return path


def save_small(path: Path) -> None:
    """Save the model with which everything is imported, beside the one that is measured."""
    small = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=99
    )
    LlamaForCausalLM(small).bfloat16().save_pretrained(path / "small")


def peak(*arguments: Path) -> int:
    """Return the bytes that loading a folder takes at its peak, beside another file if there is one."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    command = [sys.executable, "-c", LOAD, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    return int(done.stdout)


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("beside", [False, True])
def test_loading_takes_the_weights_and_one_tensor(folder: Path, beside: bool) -> None:
    """A process that holds the weights of the files beside exceeds it, so the test can fail."""
    weights = 2 * sum(each.stat().st_size for each in folder.glob("*.safetensors"))
    largest = 4 * 2 * 4096 * 1024  # A merged projection of gates and of what they multiply.
    taken = peak(folder, *([folder / "whole.pt"] if beside else []))
    assert (taken <= weights + largest + SLACK) is not beside


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
def test_loading_experts_of_mxfp4_takes_the_weights_and_one_tensor(experts: Path) -> None:
    """The largest tensor is that of a layer's blocks; as numbers of 32 bits they would take eight times as much."""
    tensors = load_file(experts / "model.safetensors")
    largest = max(tensor.nbytes for tensor in tensors.values())
    blocks = sum(2 * len(tensor.view(-1)) for name, tensor in tensors.items() if name.endswith("_blocks"))
    others = sum(
        len(tensor.view(-1)) for name, tensor in tensors.items() if not name.endswith(("_blocks", "_scales"))
    )
    assert 8 * largest > largest + SLACK
    assert peak(experts) <= 4 * (blocks + others) + largest + SLACK
