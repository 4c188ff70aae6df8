"""Record decode steps as graphs, so that a step is one launch, and Python does not run between its kernels.

A graph repeats its kernels with the grids, the arguments and the addresses that they were recorded with. So there is
one for each of a few batch sizes, over buffers that stay in place and block tables of the longest request. The lengths
are on the device: programs beyond the end of a sequence return at once. Rows without a request have a length of 0 and
no slot, so they attend to nothing and write nothing; their state, in layers that keep one, is a row of its own.

The kernels are recorded through `LaunchRecorder`, which is a CUDA graph on a GPU. Tests have one that runs the kernels
again and compares their launches (tests/kernels/interpreted_graphs.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from plumbline.engines.native.cuda import GRAPH_PRIORITY
from plumbline.engines.native.scheduling.speculation import MOST_PROPOSED
from plumbline.engines.native.slots import StepInputs
from plumbline_kernels.attention import AttentionBatch

__all__ = [
    "Capture",
    "CompileRecorder",
    "CudaRecorder",
    "LaunchRecorder",
    "StepGraphs",
    "bucket_sizes",
    "graphs_bytes",
]

_STEP = 16
"""Buckets are a power of two up to this size, and multiples of it from there on."""

Replay = Callable[[], None]
Forward = Callable[[Tensor, AttentionBatch], Tensor]
"""Maps token ids [B] to logits [B, V]."""


class LaunchRecorder(Protocol):
    """Records what a call launches on the device."""

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        """Run a call that never waits for the device; returns its result, and what computes it again in place."""
        ...


class CudaRecorder:
    """Record CUDA graphs, which share the memory of their intermediate results.

    Their kernels have the priority of the stream that they are recorded on.
    """

    def __init__(self, priority: int = GRAPH_PRIORITY) -> None:
        self._pool: Any = None
        cuda: Any = torch.cuda
        self._stream = cuda.Stream(priority=priority)

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Replay]:
        """See `LaunchRecorder.record`."""
        # The first run compiles kernels and makes the handles of cuBLAS, which a graph cannot contain.
        cuda: Any = torch.cuda
        current, aside = cuda.current_stream(), self._stream
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            call()
        current.wait_stream(aside)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=aside, capture_error_mode="thread_local"):
            result = call()
        self._pool = graph.pool()
        return result, graph.replay


class CompileRecorder:
    """Run calls once, which compiles their kernels, and repeat nothing."""

    def record(self, call: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """See `LaunchRecorder.record`."""
        return call(), lambda: None


class Capture(NamedTuple):
    """What decode steps are recorded with."""

    recorder: LaunchRecorder
    max_num_seqs: int
    blocks_per_sequence: int
    exact: bool = False
    """See `AttentionBatch`."""


@dataclass(frozen=True, slots=True)
class _Graph:
    logits: Tensor
    """fp32 [B, V]; each replay of any bucket overwrites it."""
    replay: Replay


class StepGraphs:
    """The graphs of a model's decode steps, one for each bucket.

    Args:
        forward: computes a decode step.
        capture: how to record it, and its limits.
        vocab_size: V.
        block_size: tokens of a block.
        state_row: the row of layers with a state that no request has.
        device: of the model.
    """

    def __init__(
        self,
        forward: Forward,
        capture: Capture,
        *,
        vocab_size: int,
        block_size: int,
        state_row: int,
        device: torch.device,
    ) -> None:
        self._forward, self._recorder = forward, capture.recorder
        self._sizes, self._exact = bucket_sizes(capture.max_num_seqs), capture.exact
        self._max_seq_len, self._state_row = capture.blocks_per_sequence * block_size, state_row
        self._graphs: dict[int, _Graph] = {}
        rows = self._sizes[-1]

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._token_ids, self._positions, self._slots, self._states = (zeros(rows) for _ in range(4))
        self._seq_lens = zeros(rows, dtype=torch.int32)
        self._tables = zeros(rows, capture.blocks_per_sequence, dtype=torch.int32)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        # Logits of its own for each bucket would take gigabytes of a large vocabulary.
        self._logits = zeros(rows, vocab_size, dtype=torch.float32)

    def takes(self, inputs: StepInputs) -> bool:
        """Return whether a step is one of plain decodes: of one token each, without images and adapters."""
        batch = inputs.batch
        decodes = batch.max_query_len == 1 and inputs.selection is None and not inputs.prompt_rows
        plain = inputs.given is None and batch.adapters is None and batch.reach is None
        return decodes and plain and len(inputs.draw_states) == len(inputs.states) <= self._sizes[-1]

    def record_all(self) -> None:
        """Record every bucket, the largest first, so that the others fit into its memory; no request may run."""
        for size in reversed(self._sizes):
            self._record(size)

    def run(self, inputs: StepInputs) -> Tensor:
        """Compute a step that `takes` allows; returns logits [rows, V], which the next step overwrites."""
        rows, batch = len(inputs.states), inputs.batch
        size = self._sizes[bisect_left(self._sizes, rows)]
        graph = self._graphs.get(size) or self._record(size)
        for buffer, values in (
            (self._token_ids, inputs.token_ids),
            (self._positions, batch.positions),
            (self._slots, batch.slot_mapping),
            (self._seq_lens, batch.seq_lens),
            (self._states, batch.state_rows),
        ):
            if values is not None:
                buffer[:rows].copy_(values)
        # What lies beyond the end of a sequence is never used as a block.
        self._tables[:rows, : batch.block_tables.shape[1]].copy_(batch.block_tables)
        self._clear(rows, size)
        graph.replay()
        return graph.logits[:rows]

    def _clear(self, rows: int, size: int) -> None:
        """Leave the rows from `rows` on without a request."""
        if rows < size:
            self._slots[rows:size].fill_(-1)
            self._seq_lens[rows:size].zero_()
            self._states[rows:size].fill_(self._state_row)

    @torch.inference_mode()
    def _record(self, size: int) -> _Graph:
        self._clear(0, size)

        def call() -> Tensor:
            batch = AttentionBatch(
                query_start_loc=self._starts[: size + 1],
                seq_lens=self._seq_lens[:size],
                block_tables=self._tables[:size],
                slot_mapping=self._slots[:size],
                positions=self._positions[:size],
                max_query_len=1,
                max_seq_len=self._max_seq_len,
                num_decodes=size,
                exact=self._exact,
                state_rows=self._states[:size],
            )
            return self._logits[:size].copy_(self._forward(self._token_ids[:size], batch))

        found = self._graphs[size] = _Graph(*self._recorder.record(call))
        return found


def graphs_bytes(most: int, vocab_size: int, itemsize: int) -> int:
    """Return about how many bytes the graphs of steps of up to `most` requests take.

    Logits are most of it: what a step computes of them, in the model's type of `itemsize` bytes and in fp32, in memory
    that all graphs share, and the result.
    """
    return bucket_sizes(most)[-1] * vocab_size * (itemsize + 4 + 4)


def bucket_sizes(most: int) -> list[int]:
    """Return the numbers of rows that steps of up to `most` requests are recorded for.

    A sole request may also have a row for each proposed token.

    >>> bucket_sizes(40)
    [1, 2, 4, 8, 16, 32, 48]
    >>> bucket_sizes(1)
    [1, 2, 4, 8, 16, 32]
    """
    most = max(most, 1 + MOST_PROPOSED)
    small = [1 << power for power in range(_STEP.bit_length()) if 1 << power < 2 * most]
    return small + list(range(2 * _STEP, most + _STEP, _STEP))
