"""Keep persistent rows for running requests, so that a step's tensors are gathered and not rebuilt.

A running request owns one slot. Its block table and sampling numbers are written into NumPy arrays once, when they
change; `stage` then builds the inputs of a step by indexing. A decode creates no Python object per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.engines.native.engine_config import EngineConfig
from plumbline.engines.native.models.axes import AxisPositions
from plumbline.engines.native.scheduling.scheduler import Scheduled, StepPlan
from plumbline.engines.request import RequestState, images_within
from plumbline.engines.sampling.rows import SamplingRows, upload
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.lora import AdapterRows

__all__ = ["Slots", "StepInputs"]

_UNKNOWN = (-1,)
"""The token before one that is drawn when the host does not know it yet."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one step. Tensors are on the runner's device.

    Attributes:
        token_ids: int64 [num_tokens], the tokens to compute, request after request, decodes first.
        batch: where each of them sits (positions, block tables, lengths).
        states: the requests of the step, in the order of the rows; on a GPU one comes again for each proposed token.
        selection: the tokens whose results are wanted, to draw or to score; None if all are.
        draw_rows: int64 [num_draws], the row of these results whose logits draw a token.
        draw_states: the requests that draw, in the order of `draw_rows`.
        draw_slots: int64 [num_draws] (host), their slots.
        draw_proposed: the proposed tokens before the one to draw, for each draw.
        draw_masks: the mask of each draw, int32 [num_words], if it was computed for a proposal.
        prompt_rows: (request, first row of these results, first position, count) for requests that want prompt
            logprobs.
        given: the rows of images, [G, D]: token -1 - i stands for row i; None if the step has no images.
        axes: int64 [3, M]: rotary position -1 - i stands for these three; None if each token has one.
    """

    token_ids: Tensor
    batch: AttentionBatch
    states: list[RequestState]
    selection: RowSelection | None
    draw_rows: Tensor
    draw_states: list[RequestState]
    draw_slots: NDArray[np.int64]
    draw_proposed: list[tuple[int, ...]]
    draw_masks: list[NDArray[np.int32] | None]
    prompt_rows: list[tuple[RequestState, int, int, int]]
    given: Tensor | None = None
    axes: Tensor | None = None


class Slots(SamplingRows):
    """The arrays of all slots, with block tables and last tokens. Only the engine thread may use it."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        num = config.max_num_seqs
        super().__init__(num)
        self._device = device
        self._block_size = config.block_size
        self._exact = config.batch_invariant
        self._apart = use_triton(torch.empty(0, device=device))
        self._block_tables = np.zeros((num, config.blocks_per_sequence), dtype=np.int32)
        self._num_blocks = [0] * num
        self._last_token = np.zeros(num, dtype=np.int64)
        self._axes = AxisPositions(num)
        self._counting, self._rows = np.arange(num + 1, dtype=np.int32), np.arange(num)

    def assign(self, state: RequestState) -> None:
        """Give a request a slot and write the values that do not change while it runs."""
        super().assign(state)
        self._num_blocks[state.slot] = 0
        self._last_token[state.slot] = state.token_ids[-1]
        self._axes.assign(state)

    def set_last_tokens(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Record the drawn tokens, the inputs of the next decode."""
        self._last_token[slots] = token_ids

    def stage(self, plan: StepPlan, tokens: Tensor | None = None) -> StepInputs:
        """Build the inputs of a step.

        Args:
            plan: the step; every entry's request must have a slot.
            tokens: int64 [entries], on the device: what the requests' last tokens will be, before the host has them.
        """
        entries = plan.entries
        num_decodes = plan.num_decodes
        states = [entry.state for entry in entries]
        slot_list = [state.slot for state in states]
        num_blocks = self._num_blocks
        for state, slot in zip(states, slot_list, strict=True):
            if num_blocks[slot] != len(state.block_ids):
                self._sync_blocks(state)
        slots = np.array(slot_list, dtype=np.int64)
        starts = np.array([entry.start for entry in entries], dtype=np.int64)
        rows = _Rows(entries[:num_decodes], self._last_token[slots[:num_decodes]])
        if num_decodes == len(entries):
            # Most steps; NumPy's calls on so few numbers are most of the cost of staging them.
            seq_lens, query_start = starts + 1, self._counting[: num_decodes + 1]
            row, position = slots, starts
            max_query_len, selection_of = 1, None
            draw_rows, draw_slots = self._rows[:num_decodes], slots
        else:
            counts = np.array([entry.count for entry in entries], dtype=np.int64)
            query_start = np.zeros(len(entries) + 1, dtype=np.int32)
            np.cumsum(counts, out=query_start[1:])
            seq_lens, max_query_len = starts + counts, int(counts.max())
            row = np.repeat(slots, counts)
            position = np.arange(len(row)) + np.repeat(starts - query_start[:-1], counts)
            wanted = [1] * num_decodes + [rows.add(entry) for entry in entries[num_decodes:]]
            selection_of = None if rows.num_wanted == plan.num_tokens else np.array(wanted, dtype=np.int64)
            draw_rows = np.array(rows.draw_rows, dtype=np.int64)
            draw_slots = np.array([state.slot for state in rows.draw_states], dtype=np.int64)
            if self._apart and all(entry.proposal.tokens for entry in entries[num_decodes:]):
                # Proposed tokens are decodes of their own, so that the step can run as a graph.
                states, slots, starts, num_decodes = rows.draw_states, row, position, len(row)
                seq_lens, max_query_len = position + 1, 1
                query_start = np.arange(len(row) + 1, dtype=np.int32)

        size = self._block_size
        mapping = self._block_tables[row, position // size] * np.int64(size) + position % size
        max_seq_len = int(seq_lens.max())
        width = -(-max_seq_len // size)
        rotary, axes = self._axes.turned(states, query_start, row, position)
        batch = AttentionBatch(
            query_start_loc=self._tensor(query_start),
            seq_lens=self._tensor(seq_lens.astype(np.int32)),
            block_tables=self._tensor(self._block_tables[slots, :width]),
            slot_mapping=self._tensor(mapping),
            positions=self._tensor(rotary),
            max_query_len=max_query_len,
            max_seq_len=max_seq_len,
            num_decodes=num_decodes,
            exact=self._exact,
            adapters=self._adapted(states, query_start),
            reach=self._reach(states, starts, query_start, position),
            state_rows=self._tensor(slots),
        )
        token_ids = rows.tokens[0] if len(rows.tokens) == 1 else np.concatenate(rows.tokens)
        if tokens is not None:
            rows.draw_proposed = [_UNKNOWN] * len(states)
        return StepInputs(
            token_ids=self._tensor(token_ids) if tokens is None else tokens,
            batch=batch,
            states=states,
            selection=None
            if selection_of is None
            else self._select(batch, states, query_start, selection_of),
            draw_rows=self._tensor(draw_rows),
            draw_states=rows.draw_states,
            draw_slots=draw_slots,
            draw_proposed=rows.draw_proposed,
            draw_masks=rows.draw_masks,
            prompt_rows=rows.prompt_rows,
            given=rows.all_given(),
            axes=None if axes is None else self._tensor(axes),
        )

    def _select(
        self,
        batch: AttentionBatch,
        states: list[RequestState],
        query_start: NDArray[np.int32],
        wanted: NDArray[np.int64],
    ) -> RowSelection:
        """Select the last `wanted` tokens of each sequence."""
        kept = np.nonzero(wanted)[0]
        counts = wanted[kept]
        starts = np.zeros(len(kept) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        # Row r of sequence i is r - starts[i] tokens after the first wanted one.
        shift = query_start[1:][kept] - starts[1:]
        rows = self._tensor(np.arange(starts[-1], dtype=np.int64) + np.repeat(shift, counts))
        sequences = self._tensor(kept)
        return RowSelection(
            rows,
            AttentionBatch(
                query_start_loc=self._tensor(starts),
                seq_lens=batch.seq_lens[sequences],
                block_tables=batch.block_tables[sequences],
                slot_mapping=batch.slot_mapping[rows],
                positions=batch.positions[rows],
                max_query_len=int(counts.max(initial=0)),
                max_seq_len=batch.max_seq_len,
                num_decodes=int(np.argmin(counts == 1)) if (counts != 1).any() else len(kept),
                exact=self._exact,
                adapters=self._adapted([states[index] for index in kept], starts),
                reach=None if batch.reach is None else batch.reach[rows],
            ),
        )

    def _reach(
        self,
        states: list[RequestState],
        starts: NDArray[np.int64],
        query_start: NDArray[np.int32],
        positions: NDArray[np.int64],
    ) -> Tensor | None:
        """Return `AttentionBatch.reach`: the positions of an image that is whole reach to its end."""
        reach: NDArray[np.int64] | None = None
        for index, state in enumerate(states):
            shift = query_start[index] - starts[index]
            for image in images_within(state.images, starts[index], query_start[index + 1] - shift):
                first = max(image.start + shift, query_start[index])
                stop = min(image.end + shift, query_start[index + 1])
                if image.whole:
                    reach = positions.copy() if reach is None else reach
                    reach[first:stop] = image.end - 1
        return None if reach is None else self._tensor(reach)

    def _adapted(self, states: list[RequestState], starts: NDArray[np.int32]) -> AdapterRows | None:
        """Group the rows of requests with an adapter, of which request i has those from starts[i] to starts[i + 1]."""
        if not any(state.adapter for state in states):
            return None
        owners = np.array([-1 if state.adapter is None else state.adapter.slot for state in states])
        by_row = np.repeat(owners, np.diff(starts))
        order = np.argsort(by_row, kind="stable")
        rows = order[np.searchsorted(by_row[order], 0) :]
        slots, first = np.unique(by_row[rows], return_index=True)
        return AdapterRows(self._tensor(rows), tuple(slots.tolist()), (*first.tolist(), len(rows)))

    def _sync_blocks(self, state: RequestState) -> None:
        slot = state.slot
        known = self._num_blocks[slot]
        have = len(state.block_ids)
        if known != have:
            self._block_tables[slot, known:have] = state.block_ids[known:]
            # Entries past the table stay 0: kernels may read them but never use the block they name.
            self._block_tables[slot, have:] = 0
            self._num_blocks[slot] = have

    def _tensor(self, values: NDArray[np.generic]) -> Tensor:
        return upload(values, self._device)


class _Rows:
    """Collect the tokens of a step, request after request, and the rows whose results draw.

    Args:
        decodes: those that compute one token each.
        last_tokens: int64 [num_decodes], these tokens.
    """

    def __init__(self, decodes: list[Scheduled], last_tokens: NDArray[np.int64]) -> None:
        self.tokens = [last_tokens]
        self.num_wanted = len(decodes)
        """Rows whose results are wanted."""
        self.draw_rows = list(range(len(decodes)))
        self.draw_states = [entry.state for entry in decodes]
        self.draw_proposed: list[tuple[int, ...]] = [()] * len(decodes)
        self.draw_masks: list[NDArray[np.int32] | None] = [
            entry.proposal.masks[0] if entry.proposal.masks else None for entry in decodes
        ]
        self.prompt_rows: list[tuple[RequestState, int, int, int]] = []
        self._given: list[Tensor] = []
        self._num_given = 0
        for index, entry in enumerate(decodes):
            # A prompt may end with an image, and have all but its last token computed.
            if entry.state.images:
                self.place_images(entry.state, entry.start, last_tokens[index : index + 1])

    def place_images(self, state: RequestState, start: int, ids: NDArray[np.int64]) -> None:
        """Put the rows of images in the place of their tokens, which stand at `start`."""
        for first, rows in _image_parts(state, start, len(ids)):
            last = self._num_given + len(rows)
            ids[first : first + len(rows)] = np.arange(-1 - self._num_given, -1 - last, -1)
            self._num_given = last
            self._given.append(rows)

    def all_given(self) -> Tensor | None:
        """Return the rows of images; None if there are none."""
        return torch.cat(self._given) if self._given else None

    def add(self, entry: Scheduled) -> int:
        """Take a part of a prompt, or a decode with proposed tokens; returns how many of its results are wanted."""
        state, proposed = entry.state, entry.proposal.tokens
        ids = np.array([*state.token_ids[entry.start : entry.start + entry.count], *proposed], dtype=np.int64)
        self.place_images(state, entry.start, ids)
        self.tokens.append(ids)
        draws = 1 + len(proposed) if entry.draws else 0
        wanted = draws
        if state.prompt_logprobs is not None and entry.start < state.num_prompt_tokens:
            self.prompt_rows.append((state, self.num_wanted, entry.start, entry.count))
            wanted = entry.count
        self.num_wanted += wanted
        if draws:
            self.draw_rows.extend(range(self.num_wanted - draws, self.num_wanted))
            self.draw_states.extend([state] * draws)
            self.draw_proposed.extend(proposed[:count] for count in range(draws))
            self.draw_masks.extend(entry.proposal.masks or [None] * draws)
        return wanted


def _image_parts(state: RequestState, start: int, count: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the parts of images within `count` tokens from position `start`: the first token, and the rows."""
    for image in images_within(state.images, start, start + count):
        first, last = max(image.start, start), min(image.end, start + count)
        yield first - start, image.rows[first - image.start : last - image.start]
