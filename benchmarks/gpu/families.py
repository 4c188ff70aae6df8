"""Compare the logits of a small random model of every family on the device with those on the CPU."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.gpu.operations import Maker, difference, reference
from plumbline.engines.native.graphs import Capture, CudaRecorder, LaunchRecorder, StepGraphs
from plumbline.engines.native.models import describe, random_model
from plumbline.engines.native.slots import StepInputs
from plumbline_kernels.attention import AttentionBatch

__all__ = ["Kept", "family_cases", "family_difference", "graph_difference"]

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
    from support.weights.model_families import CASES

    # An older transformers than ours has no config of the newest.
    return [case for case in CASES if case.is_compiled == wide and case.family in CONFIG_MAPPING]


@torch.inference_mode()
def family_difference(case: Any, make: Maker) -> float:
    """Return how far logits are from fp32 ones, in units of how far those of a CPU in the same type are.

    That is what the type costs, which differs by family: logits of a Gemma 4 with random weights move by a tenth. In
    fp32, which rounds nothing, it is the largest difference as a share of the largest logit.
    """
    config = describe(json.loads(case.config().to_json_string()))
    cpu = torch.device("cpu")
    model = random_model(config, seed=1, dtype=make.dtype, device=make.device)
    found = torch.cat(list(_logits(model, make.device)))
    with reference():
        exact = torch.cat(list(_logits(random_model(config, seed=1, dtype=torch.float32), cpu)))
        far = difference(found, exact)
        if make.dtype == torch.float32:
            return far
        rounded = torch.cat(list(_logits(random_model(config, seed=1, dtype=make.dtype), cpu)))
        return far / difference(rounded, exact)


def _logits(model: Any, device: torch.device) -> Iterator[Tensor]:
    caches = model.allocate_kv(4, 8, num_states=2)
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
            state_rows=whole([1, 0][: len(lengths)]),
        )
        yield model.compute_logits(model.forward(whole(tokens), batch, caches)[: starts[-1]])


class Kept:
    """A recorder without a GPU: it keeps the call, and a replay runs it again."""

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        result = call().clone()

        def replay() -> None:
            result.copy_(call())

        return result, replay


@torch.inference_mode()
def graph_difference(case: Any, make: Maker) -> float:
    """Return the largest difference between decodes as a graph and launch by launch, as a share of the largest logit.

    Three sequences decode twice in a bucket of four; both times the first one has a longer block table than before.
    """
    device = make.device
    model = random_model(
        describe(json.loads(case.config().to_json_string())), seed=1, dtype=make.dtype, device=device
    )
    caches = model.allocate_kv(16, 8, num_states=4)
    recorder: LaunchRecorder = CudaRecorder() if device.type == "cuda" else Kept()
    graphs = StepGraphs(
        lambda token_ids, batch: model.compute_logits(model.forward(token_ids, batch, caches)),
        Capture(recorder, 4, 5),
        vocab_size=model.description.vocab_size,
        block_size=8,
        state_row=3,
        device=device,
    )
    graphs.record_all()
    found, expected = [], []
    tables = torch.arange(1, 16, dtype=torch.int32, device=device).view(3, 5)
    for length in (0, 1, 8, 9, 16):
        positions = torch.tensor([length, length // 2, length // 4], device=device)
        rows = torch.arange(3, device=device)
        batch = AttentionBatch(
            query_start_loc=torch.arange(4, dtype=torch.int32, device=device),
            seq_lens=(positions + 1).int(),
            block_tables=tables[:, : length // 8 + 1],
            slot_mapping=tables[rows, positions // 8].long() * 8 + positions % 8,
            positions=positions,
            max_query_len=1,
            max_seq_len=length + 1,
            num_decodes=3,
            state_rows=rows,
        )
        token_ids = (positions * 7 + rows) % 90
        before = [tuple(each.clone() for each in pair) for pair in caches]
        expected.append(model.compute_logits(model.forward(token_ids, batch, caches)).clone())
        for pair, kept in zip(caches, before, strict=True):
            for cache, values in zip(pair, kept, strict=True):
                cache.copy_(values)
        states: list[Any] = [None] * 3
        none = torch.zeros(0, dtype=torch.int64, device=device)
        inputs = StepInputs(token_ids, batch, states, None, none, states, none.cpu().numpy(), [], [], [])
        found.append(graphs.run(inputs).clone())
    return difference(torch.cat(found), torch.cat(expected))
