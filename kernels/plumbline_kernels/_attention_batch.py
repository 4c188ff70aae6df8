"""Define the batch of one step: where its tokens sit, and which of them have an adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

__all__ = ["AdapterBlocks", "AdapterRows", "AttentionBatch", "RowSelection"]


@dataclass(frozen=True, slots=True)
class AdapterBlocks:
    """Groups of rows with the same adapter, cut into blocks for the programs of a kernel; int32 [blocks] each."""

    slots: Tensor
    starts: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """The rows of a step that have an adapter, group after group."""

    rows: Tensor
    """int64 [N]: rows of x, ascending within a group; no row comes twice."""
    slots: tuple[int, ...]
    """The adapter of each group."""
    starts: tuple[int, ...]
    """Group i has the entries of `rows` from entry i up to entry i + 1."""
    _blocks: dict[int, AdapterBlocks] = field(default_factory=dict, init=False, repr=False)

    def groups(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the adapter and the rows of each group."""
        for index, slot in enumerate(self.slots):
            yield slot, self.rows[self.starts[index] : self.starts[index + 1]]

    def blocks(self, size: int) -> AdapterBlocks:
        """Cut the groups into blocks of at most `size` rows; the layers of a step share the result."""
        found = self._blocks.get(size)
        if found is None:
            cut = [
                (slot, start, self.starts[index + 1])
                for index, slot in enumerate(self.slots)
                for start in range(self.starts[index], self.starts[index + 1], size)
            ]
            table = torch.tensor(cut, dtype=torch.int32).t().contiguous().to(self.rows.device)
            found = self._blocks[size] = AdapterBlocks(*table)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBatch:
    """Describe which tokens attend to which cache slots in one step; every step builds a new one."""

    query_start_loc: Tensor
    """int32 [num_seqs + 1]: sequence i owns the tokens from entry i up to entry i + 1."""
    seq_lens: Tensor
    """int32 [num_seqs]: context_len + query_len."""
    block_tables: Tensor
    """int32 [num_seqs, max_blocks]: block ids in order; unused entries are 0."""
    slot_mapping: Tensor
    """int64 [num_tokens]: the cache slot of each new token, -1 for padding."""
    positions: Tensor
    """int64 [num_tokens]: the row of each token in tables of rotations and temperatures. What a token attends to
    follows from the lengths."""
    max_query_len: int
    max_seq_len: int
    """Host integers, known when the step is planned, so that nothing waits for the device."""
    num_decodes: int = 0
    """The first `num_decodes` sequences have query_len 1; the rest are prefill chunks."""
    exact: bool = False
    """Give every token the same bits in any batch and any chunking, decoded or prefilled. Without it on a CPU, only
    decodes with up to two query heads per key head have that property; others may differ in the last bits. There it
    slows prefill down: about 1.5 times the time for 256 tokens, three times for 2,000."""
    reach: Tensor | None = None
    """int64 [num_tokens]: the last position that each new token attends to, which is its own or a later one of the same
    step, as within an image. Values never decrease within a sequence. None: all attend up to their own position."""
    adapters: AdapterRows | None = None
    """The tokens that have an adapter; None if none has."""
    state_rows: Tensor | None = None
    """int64 [num_seqs]: the row of each sequence in layers that keep a state for it; None if they are not known."""
    plans: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    """Index tensors that the CPU path derives from the tensors above, shared by the layers of the step."""

    @classmethod
    def of_one(cls, count: int, block_size: int) -> AttentionBatch:
        """Describe a step that computes one sequence of `count` tokens on a CPU, in the first blocks of a cache."""
        return cls.of_prompts([count], block_size)

    @classmethod
    def of_prompts(cls, counts: Sequence[int], block_size: int) -> AttentionBatch:
        """Describe a step that computes whole sequences on a CPU, each in as many blocks of a cache as the longest."""
        blocks = -(-max(counts) // block_size)
        positions = torch.cat([torch.arange(count) for count in counts])
        first_slots = torch.arange(len(counts)) * blocks * block_size
        return cls(
            query_start_loc=torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
            seq_lens=torch.tensor(counts, dtype=torch.int32),
            block_tables=torch.arange(len(counts) * blocks, dtype=torch.int32).view(-1, blocks),
            slot_mapping=positions + first_slots.repeat_interleave(torch.tensor(counts)),
            positions=positions,
            max_query_len=max(counts),
            max_seq_len=max(counts),
            state_rows=torch.arange(len(counts)),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowSelection:
    """The tokens of a step whose results are wanted: the last layer computes no others once it has written its keys."""

    rows: Tensor
    """int64 [R], ascending."""
    batch: AttentionBatch
    """These tokens, as new tokens at the end of their sequences."""
