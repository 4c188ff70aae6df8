"""Compare the logits of a small random model of every family on the device with those on the CPU."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.operations import Maker, difference, reference
from plumbline.engines.native.models import describe, random_model
from plumbline_kernels.attention import AttentionBatch

__all__ = ["family_cases", "family_difference"]

_STEPS: tuple[tuple[list[int], list[int], list[int], list[int], list[int], int], ...] = (
    ([3, 9, 4, 7, 7], [0, 5], [5], [8, 9, 10, 11, 12], [0, 1, 2, 3, 4], 0),
    ([1, 5, 6, 8, 0], [0, 1, 4], [6, 3], [13, 24, 25, 26, -1], [5, 0, 1, 2, 0], 1),
)
"""A prefill, and a step of a decode, a chunk and padding: tokens, starts, lengths, slots, positions, decodes."""


def family_cases(wide: bool) -> list[Any]:
    """Return the configs of all families; those with `wide` heads fit the matrix instructions of a GPU."""
    tests = str(Path(__file__).parents[2] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    from support.model_families import CASES

    # Latent attention has no Triton kernel.
    return [case for case in CASES if "kv_lora_rank" not in case.changes and case.is_compiled == wide]


@torch.inference_mode()
def family_difference(case: Any, make: Maker) -> float:
    """Return the largest difference of logits as a share of the largest logit."""
    config = describe(json.loads(case.config().to_json_string()))
    model = random_model(config, seed=1, dtype=make.dtype, device=make.device)
    found = torch.cat(list(_logits(model, make.device)))
    with reference():
        plain = random_model(config, seed=1, dtype=torch.float32)
        return difference(found, torch.cat(list(_logits(plain, torch.device("cpu")))))


def _logits(model: Any, device: torch.device) -> Iterator[Tensor]:
    caches = model.allocate_kv(4, 8)
    for tokens, starts, lengths, slots, positions, decodes in _STEPS:

        def whole(values: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        batch = AttentionBatch(
            query_start_loc=whole(starts, torch.int32),
            seq_lens=whole(lengths, torch.int32),
            block_tables=whole([[1], [3]][: len(lengths)], torch.int32),
            slot_mapping=whole(slots),
            positions=whole(positions),
            max_query_len=max(b - a for a, b in itertools.pairwise(starts)),
            max_seq_len=max(lengths),
            num_decodes=decodes,
        )
        yield model.compute_logits(model.forward(whole(tokens), batch, caches)[: starts[-1]])
