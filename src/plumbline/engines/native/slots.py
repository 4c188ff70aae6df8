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

from plumbline.engines.native.config import EngineConfig
from plumbline.engines.native.scheduler import StepPlan
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.rows import SamplingRows
from plumbline_kernels.attention import AttentionBatch, Selection
from plumbline_kernels.lora import AdapterRows

__all__ = ["Slots", "StepInputs"]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """The inputs of one step. Tensors are on the runner's device.

    Attributes:
        token_ids: int64 [num_tokens], the tokens to compute, request after request, decodes first.
        batch: where each of them sits (positions, block tables, lengths).
        states: the requests of the step, in the order of the rows.
        selection: the tokens whose results are wanted, to draw or to score; None if all are.
        draw_rows: int64 [num_draws], the row of these results whose logits draw a token.
        draw_states: the requests that draw, in the order of `draw_rows`.
        draw_slots: int64 [num_draws] (host), their slots.
        draw_proposed: the proposed tokens before the one to draw, for each draw.
        draw_masks: the mask of each draw, int32 [num_words], if it was computed for a proposal.
        prompt_rows: (request, first row of these results, first position, count) for requests that want prompt
            logprobs.
        given: the rows of images, [G, D]: token -1 - i stands for row i; None if the step has no images.
    """

    token_ids: Tensor
    batch: AttentionBatch
    states: list[RequestState]
    selection: Selection | None
    draw_rows: Tensor
    draw_states: list[RequestState]
    draw_slots: NDArray[np.int64]
    draw_proposed: list[tuple[int, ...]]
    draw_masks: list[NDArray[np.int32] | None]
    prompt_rows: list[tuple[RequestState, int, int, int]]
    given: Tensor | None = None


class Slots(SamplingRows):
    """The arrays of all slots, with block tables and last tokens. Only the engine thread may use it."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        num = config.max_num_seqs
        super().__init__(num)
        self._device = device
        self._block_size = config.block_size
        self._exact = config.batch_invariant
        self._block_tables = np.zeros((num, config.blocks_per_sequence), dtype=np.int32)
        self._num_blocks = [0] * num
        self._last_token = np.zeros(num, dtype=np.int64)

    def assign(self, state: RequestState) -> None:
        """Give a request a slot and write the values that do not change while it runs."""
        super().assign(state)
        self._num_blocks[state.slot] = 0
        self._last_token[state.slot] = state.token_ids[-1]

    def set_last_tokens(self, slots: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """Record the drawn tokens, the inputs of the next decode."""
        self._last_token[slots] = token_ids

    def stage(self, plan: StepPlan) -> StepInputs:
        """Build the inputs of a step. Every entry's request must have a slot."""
        entries = plan.entries
        num_decodes = plan.num_decodes
        states = [entry.state for entry in entries]
        for state in states:
            self._sync_blocks(state)
        slots = np.fromiter((state.slot for state in states), np.int64, len(states))
        starts = np.fromiter((entry.start for entry in entries), np.int64, len(entries))
        counts = np.fromiter((entry.count for entry in entries), np.int64, len(entries))
        query_start = np.zeros(len(entries) + 1, dtype=np.int32)
        np.cumsum(counts, out=query_start[1:])
        seq_lens = starts + counts

        given: list[Tensor] = []
        num_given = 0

        def with_images(state: RequestState, start: int, ids: NDArray[np.int64]) -> None:
            """Put the rows of images in the place of their tokens, which stand at `start`."""
            nonlocal num_given
            for first, rows in _image_parts(state, start, len(ids)):
                ids[first : first + len(rows)] = np.arange(-1 - num_given, -1 - num_given - len(rows), -1)
                num_given += len(rows)
                given.append(rows)

        last_tokens = self._last_token[slots[:num_decodes]]
        for index, state in enumerate(states[:num_decodes]):
            if state.images:  # A prompt may end with an image, and have all but its last token computed.
                with_images(state, entries[index].start, last_tokens[index : index + 1])
        tokens = [last_tokens]
        positions = [starts[:num_decodes]]
        rows = [slots[:num_decodes]]
        prompt_rows: list[tuple[RequestState, int, int, int]] = []
        wanted = np.ones(len(entries), dtype=np.int64)
        num_wanted = num_decodes
        draw_rows = list(range(num_decodes))
        draw_states = states[:num_decodes]
        draw_proposed: list[tuple[int, ...]] = [()] * num_decodes
        draw_masks = [
            entry.proposal.masks[0] if entry.proposal.masks else None for entry in entries[:num_decodes]
        ]
        for index in range(num_decodes, len(entries)):
            entry = entries[index]
            state = entry.state
            proposed = entry.proposal.tokens
            chunk = [*state.token_ids[entry.start : entry.start + entry.count], *proposed]
            ids = np.array(chunk, dtype=np.int64)
            with_images(state, entry.start, ids)
            tokens.append(ids)
            positions.append(np.arange(entry.start, entry.start + entry.count, dtype=np.int64))
            rows.append(np.full(entry.count, state.slot, dtype=np.int64))
            wanted[index] = 1 + len(proposed) if entry.draws else 0
            if state.prompt_logprobs is not None and entry.start < state.num_prompt_tokens:
                prompt_rows.append((state, num_wanted, entry.start, entry.count))
                wanted[index] = entry.count
            num_wanted += int(wanted[index])
            if entry.draws:
                draws = 1 + len(proposed)
                draw_rows.extend(range(num_wanted - draws, num_wanted))
                draw_states.extend([state] * draws)
                draw_proposed.extend(proposed[:count] for count in range(draws))
                draw_masks.extend(entry.proposal.masks or [None] * draws)

        position = np.concatenate(positions)
        row = np.concatenate(rows)
        size = self._block_size
        mapping = self._block_tables[row, position // size].astype(np.int64) * size + position % size
        max_seq_len = int(seq_lens.max())
        width = -(-max_seq_len // size)
        batch = AttentionBatch(
            query_start_loc=self._tensor(query_start),
            seq_lens=self._tensor(seq_lens.astype(np.int32)),
            block_tables=self._tensor(self._block_tables[slots, :width]),
            slot_mapping=self._tensor(mapping),
            positions=self._tensor(position),
            max_query_len=int(counts.max()),
            max_seq_len=max_seq_len,
            num_decodes=num_decodes,
            exact=self._exact,
            adapters=self._adapted(states, query_start),
            reach=self._reach(states, starts, query_start, position),
        )
        return StepInputs(
            token_ids=self._tensor(np.concatenate(tokens)),
            batch=batch,
            states=states,
            selection=(
                None if num_wanted == plan.num_tokens else self._select(batch, states, query_start, wanted)
            ),
            draw_rows=self._tensor(np.array(draw_rows, dtype=np.int64)),
            draw_states=draw_states,
            draw_slots=np.fromiter((state.slot for state in draw_states), np.int64, len(draw_states)),
            draw_proposed=draw_proposed,
            draw_masks=draw_masks,
            prompt_rows=prompt_rows,
            given=torch.cat(given) if given else None,
        )

    def _select(
        self,
        batch: AttentionBatch,
        states: list[RequestState],
        query_start: NDArray[np.int32],
        wanted: NDArray[np.int64],
    ) -> Selection:
        """Select the last `wanted` tokens of each sequence."""
        kept = np.nonzero(wanted)[0]
        counts = wanted[kept]
        starts = np.zeros(len(kept) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        # Row r of sequence i is r - starts[i] tokens after the first wanted one.
        shift = query_start[1:][kept] - starts[1:]
        rows = self._tensor(np.arange(starts[-1], dtype=np.int64) + np.repeat(shift, counts))
        sequences = self._tensor(kept)
        return Selection(
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
            for image in state.images:
                first = max(image.start - starts[index], 0) + query_start[index]
                stop = min(image.end - starts[index] + query_start[index], query_start[index + 1])
                if image.whole and first < stop:
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
        tensor = torch.from_numpy(values)
        return tensor if self._device.type == "cpu" else tensor.to(self._device, non_blocking=True)


def _image_parts(state: RequestState, start: int, count: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the parts of images within `count` tokens from position `start`: the first token, and the rows."""
    for image in state.images:
        first, last = max(image.start, start), min(image.end, start + count)
        if first < last:
            yield first - start, image.rows[first - image.start : last - image.start]
