"""Measure what rounded weights cost in quality: perplexity and choices of the pocket model on held-out answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from plumbline.engines.native.models import Transformer, load_model
from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.cpu.library import load
from plumbline_training.evaluate import cases

__all__ = ["FORMATS", "measure", "score"]

POCKET = Path(__file__).parents[1] / "src/plumbline/pocket/model"
FORMATS = {"none": 0, "int8": 8, "int4": 4}
_BLOCK = 16


def measure(count: int = 60) -> list[dict[str, Any]]:
    """Return a row for each format, over `count` held-out samples of each kind."""
    samples = list(_samples(count))
    rows: list[dict[str, Any]] = []
    chosen: list[torch.Tensor] = []
    for name, bits in FORMATS.items():
        model = load_model(POCKET, torch.bfloat16, library=load(), bits=bits)
        results = [score(model, prompt, answer) for prompt, answer in samples]
        loss = torch.cat([loss for loss, _ in results])
        choices = [choice for _, choice in results]
        chosen = chosen or choices
        same = torch.cat([a == b for a, b in zip(chosen, choices, strict=True)])
        rows.append({
            "weights": name,
            "answers": len(samples),
            "tokens": len(loss),
            "perplexity": round(math.exp(loss.mean()), 4),
            "same_choice_percent": round(100 * same.float().mean().item(), 2),
            "same_answers_percent": round(
                100 * sum(torch.equal(a, b) for a, b in zip(chosen, choices, strict=True)) / len(samples), 1
            ),
        })  # fmt: skip
    return rows


def _samples(count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield token ids of prompts and of the answers that they should get."""
    tokenizer: Any = AutoTokenizer.from_pretrained(POCKET)
    for _, sample in cases(count, seed=1):
        text = tokenizer.apply_chat_template(
            sample.messages,
            tools=sample.tools or None,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=sample.thinking,
        )
        answer = tokenizer.encode(sample.completion(), add_special_tokens=False)
        yield tokenizer.encode(text, add_special_tokens=False), answer


@torch.inference_mode()
def score(model: Transformer, prompt: list[int], answer: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the negative log-likelihood of each token of the answer, and the likeliest token at its place."""
    tokens = torch.tensor(prompt + answer)
    batch = AttentionBatch.of_one(len(tokens), _BLOCK)
    hidden = model.forward(tokens, batch, model.allocate_kv(batch.block_tables.shape[1], _BLOCK))
    logits = model.compute_logits(hidden[len(prompt) - 1 : -1])
    wanted = tokens[len(prompt) :]
    return torch.nn.functional.cross_entropy(logits, wanted, reduction="none"), logits.argmax(-1)
