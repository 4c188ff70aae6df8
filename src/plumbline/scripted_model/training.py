"""Overfit a Qwen3 network of half a million parameters to a script set: seeded, resumable, bounded in time.

Every step uses all scripts, so the order of the data does not matter. Training ends when the *worst* token of all
answers is certain, with the weights rounded as they will be stored: an average would hide one wrong token, and a narrow
margin would not survive another engine's rounding.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from plumbline.pocket.network import Network, PocketShape
from plumbline.scripted_model.vocabulary import IM_END, id_of
from plumbline_conformance.exact.scripts import Script, ScriptSet

__all__ = ["TrainingProgress", "learn", "prompt_ids", "shape_for"]

CERTAIN = 0.05
"""The loss of the worst token, in nats, at which training ends: a probability of 95 %, a margin of 3 nats."""

_MICRO_TOKENS = 4096
_CHECK_EVERY = 10
_WARM_UP = 20
_STEPS_TO_HALF = 400
"""Steps in which the learning rate halves; long, so that sets that are hard to learn still progress."""


@dataclass(frozen=True, slots=True)
class TrainingProgress:
    """Progress of a training run."""

    step: int
    seconds: float
    mean_loss: float
    """Nats per answer token, in the last step."""
    worst: float
    """Nats of the worst answer token, with rounded weights."""


@dataclass(frozen=True, slots=True)
class _Batch:
    ids: Tensor
    """int64 [scripts, length], padded at the end."""
    wanted: Tensor
    """bool [scripts, length - 1]: true where the next token belongs to an answer."""


def shape_for(tokenizer: Tokenizer) -> PocketShape:
    """Return the sizes of the network: about 0.5 M parameters."""
    return PocketShape(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )


def prompt_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Return the token ids of a single user message in the chat template."""
    rendered = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False).ids
    return ids


def learn(
    scripts: ScriptSet,
    tokenizer: Tokenizer,
    *,
    seed: int,
    max_seconds: float,
    checkpoint: Path | None = None,
    report: Callable[[TrainingProgress], None] = lambda _: None,
    certain: float = CERTAIN,
) -> tuple[Network, TrainingProgress]:
    """Train until every answer token is certain, or until the time is up.

    Args:
        scripts: the scripts to learn.
        tokenizer: built for these scripts.
        seed: seed of the initial weights.
        max_seconds: wall time of this call; the state at that time is returned and saved.
        checkpoint: file with the training state; an existing one is resumed.
        report: called every few steps.
        certain: loss of the worst token, in nats, at which to end.

    Returns:
        The network with weights as they will be stored, and the progress; `worst` shows whether training is done.
    """
    torch.manual_seed(seed)
    network = Network(shape_for(tokenizer), dtype=torch.float32)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    step = 0
    if checkpoint is not None and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    batches = _batches(scripts.scripts, tokenizer)
    count = sum(int(batch.wanted.sum()) for batch in batches)
    start = time.monotonic()
    while True:
        loss = _one_step(network, optimizer, batches, count, _rate(step))
        step += 1
        late = time.monotonic() - start >= max_seconds
        if step % _CHECK_EVERY and not late:
            continue
        rounded = _rounded(network)
        progress = TrainingProgress(step, time.monotonic() - start, loss, _worst(rounded, batches))
        report(progress)
        if late or progress.worst <= certain or step % (10 * _CHECK_EVERY) == 0:
            _save(checkpoint, network, optimizer, step)
        if late or progress.worst <= certain:
            return rounded, progress


def _one_step(
    network: Network, optimizer: torch.optim.Optimizer, batches: list[_Batch], count: int, rate: float
) -> float:
    total = 0.0
    for batch in batches:
        logits = network(batch.ids[:, :-1], batch.wanted)
        loss = F.cross_entropy(logits, batch.ids[:, 1:][batch.wanted], reduction="sum") / count
        torch.autograd.backward(loss)
        total += float(loss.detach())
    if not math.isfinite(total):
        raise RuntimeError("the loss is not finite")
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()
    optimizer.zero_grad()
    return total


def _rate(step: int) -> float:
    return 6e-3 * min(1.0, (step + 1) / _WARM_UP) / (1 + step / _STEPS_TO_HALF)


def _batches(scripts: tuple[Script, ...], tokenizer: Tokenizer) -> list[_Batch]:
    """Group scripts of similar length, to compute little padding."""
    end = id_of(tokenizer, IM_END)
    rows: list[tuple[list[int], int]] = []
    for script in scripts:
        prompt = prompt_ids(tokenizer, script.prompt)
        answer = tokenizer.encode(script.output, add_special_tokens=False).ids
        rows.append(([*prompt, *answer, end], len(prompt)))
    rows.sort(key=lambda row: len(row[0]))
    groups: list[list[tuple[list[int], int]]] = []
    for row in rows:
        if groups and (len(groups[-1]) + 1) * len(row[0]) <= _MICRO_TOKENS and _alike(groups[-1][0], row):
            groups[-1].append(row)
        else:
            groups.append([row])
    return [_batch(group) for group in groups]


def _alike(first: tuple[list[int], int], row: tuple[list[int], int]) -> bool:
    return len(row[0]) <= 1.5 * len(first[0]) + 16


def _batch(rows: list[tuple[list[int], int]]) -> _Batch:
    length = max(len(ids) for ids, _ in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    wanted = torch.zeros(len(rows), length - 1, dtype=torch.bool)
    for index, (row, prompt) in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        wanted[index, prompt - 1 : len(row) - 1] = True
    return _Batch(ids, wanted)


def _rounded(network: Network) -> Network:
    """Return a copy with weights rounded to bfloat16, as they are stored."""
    copy = Network(network.shape, dtype=torch.float32)
    copy.load_state_dict(
        {name: value.to(torch.bfloat16).float() for name, value in network.state_dict().items()}
    )
    return copy


@torch.inference_mode()
def _worst(network: Network, batches: list[_Batch]) -> float:
    return max(
        float(
            F.cross_entropy(
                network(batch.ids[:, :-1], batch.wanted),
                batch.ids[:, 1:][batch.wanted],
                reduction="none",
            ).max()
        )
        for batch in batches
    )


def _save(path: Path | None, network: Network, optimizer: torch.optim.Optimizer, step: int) -> None:
    if path is None:
        return
    state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
