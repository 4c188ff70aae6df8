"""Record the operations of a forward pass once, and run them in one call per step."""

from __future__ import annotations

import ctypes
from collections import Counter

import torch
from torch import Tensor

from plumbline_kernels._attention_batch import AdapterRows, AttentionBatch, RowSelection
from plumbline_kernels.cpu.layout import KINDS, GroupsStruct, Op, PairStruct, SequencesStruct, StepStruct
from plumbline_kernels.cpu.library import Library, PackedWeight
from plumbline_kernels.cpu.structs import KernelOperation

__all__ = ["Adapters", "Program"]


class Adapters:
    """The adapters of a linear layer by their slots, for `AdaptOp`. It must outlive the programs that use its pairs."""

    def __init__(self, capacity: int) -> None:
        self.pairs = (PairStruct * capacity)()
        self._used: dict[int, PairStruct] = {}

    def put(self, slot: int, down: PackedWeight, up: PackedWeight) -> None:
        """Give a slot its projections, [rank, in] and [out, rank]."""
        pair = PairStruct(down=down.matrix(None), up=up.matrix(None))
        self.pairs[slot] = pair  # First, so that the table never points to weights that are freed.
        self._used[slot] = pair

    def clear(self, slot: int) -> None:
        """Take the projections of a slot away, if it has any; no step may be running."""
        ctypes.memset(ctypes.addressof(self.pairs[slot]), 0, ctypes.sizeof(PairStruct))
        self._used.pop(slot, None)


class Program:
    """The operations of a forward pass, with buffers for at most `capacity` tokens.

    Operations of the same kind and width share a buffer, so a result must be used before the next one of its kind is
    recorded; that of a kind with several `buffers` as much later.
    """

    def __init__(self, library: Library, *, block_size: int, dtype: torch.dtype, capacity: int) -> None:
        """Describe the model.

        Args:
            library: the kernels.
            block_size: tokens of a block of the cache.
            dtype: of weights, activations and cache; weights of norms are fp32.
            capacity: tokens of the largest step.
        """
        self.capacity = capacity
        self._library, self._dtype = library, dtype
        self._step = StepStruct(block_size=block_size, is_bf16=dtype == torch.bfloat16)
        self._operations: list[KernelOperation] = []
        self._array: ctypes.Array[Op] | None = None
        self._buffers: dict[tuple[type[KernelOperation], int, int], Tensor] = {}
        self._filled: Counter[type[KernelOperation]] = Counter()

    def fill(self, operation: KernelOperation, width: int) -> Tensor:
        """Record an operation that fills a buffer, `out`; returns the buffer, [capacity, width]."""
        kind = type(operation)
        place = kind, width, self._filled[kind] % kind.buffers
        self._filled[kind] += 1
        if place not in self._buffers:
            self._buffers[place] = torch.empty(self.capacity, width, dtype=self._dtype)
        operation.put("out", self._buffers[place])
        self.record(operation)
        return self._buffers[place]

    def record(self, operation: KernelOperation) -> None:
        """Record an operation that writes to what it names."""
        self._operations.append(operation)

    def run(
        self,
        token_ids: Tensor,
        batch: AttentionBatch,
        selection: RowSelection | None,
        given: Tensor | None = None,
    ) -> int:
        """Compute a step; its results are in the buffers.

        Args:
            token_ids: int64 [T], T at most `capacity`; -1 - i stands for row i of `given`.
            batch: where the tokens sit.
            selection: the rows to keep in the last layer; None for all.
            given: rows [G, D] in the place of embeddings, which the factor leaves alone; wider rows have what `GiveOp`
                adds behind it.

        Returns:
            How many rows of the last buffer are results.
        """
        if self._array is None:
            ops = (Op(kind=KINDS[type(op)], operation=ctypes.addressof(op)) for op in self._operations)
            self._array = (Op * len(self._operations))(*ops)
        assert given is None or given.is_contiguous()
        assert given is None or given.dtype == self._dtype
        # One structure for all steps: making it costs a tenth of a small model's step.
        step = self._step
        rows = token_ids.shape[0]
        step.token_ids, step.tokens = token_ids.data_ptr(), rows
        step.positions, step.slots = batch.positions.data_ptr(), batch.slot_mapping.data_ptr()
        step.state_rows = None if batch.state_rows is None else batch.state_rows.data_ptr()
        step.given, step.given_width = (None, 0) if given is None else (given.data_ptr(), given.shape[1])
        step.threads = self._library.threads
        _point(step.all, batch)
        kept = [_group(step.adapted, batch.adapters)]
        step.num_rows = -1
        if selection is not None:
            step.num_rows = rows = selection.rows.shape[0]
            step.rows = selection.rows.data_ptr()
            _point(step.selected, selection.batch)
            kept.append(_group(step.adapted_selected, selection.batch.adapters))
        self._library.run(ctypes.byref(self._array), len(self._array), ctypes.byref(step))
        del kept
        return rows


def _point(sequences: SequencesStruct, batch: AttentionBatch) -> None:
    sequences.query_start = batch.query_start_loc.data_ptr()
    sequences.seq_lens = batch.seq_lens.data_ptr()
    sequences.tables = batch.block_tables.data_ptr()
    sequences.reach = None if batch.reach is None else batch.reach.data_ptr()
    sequences.count, sequences.width = batch.block_tables.shape


def _group(groups: GroupsStruct, adapted: AdapterRows | None) -> object:
    """Point to the groups; returns what must live as long as the pointers are used."""
    groups.count = 0
    if adapted is None:
        return None
    groups.count = count = len(adapted.slots)
    slots, starts = (ctypes.c_int64 * count)(*adapted.slots), (ctypes.c_int64 * (count + 1))(*adapted.starts)
    groups.slots, groups.starts = ctypes.addressof(slots), ctypes.addressof(starts)
    groups.rows = adapted.rows.data_ptr()
    return slots, starts
