"""The smallest engine: builds attention batches by hand and decodes greedily, for tests of the model alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from plumbline.engines.native.models import Transformer
from plumbline.engines.native.models.axes import axis_positions
from plumbline.engines.request import PlacedImage
from plumbline_kernels.attention import AttentionBatch, RowSelection
from plumbline_kernels.lora import AdapterRows

torch.set_num_threads(1)


@dataclass
class Sequence:
    tokens: list[int]
    blocks: list[int]
    num_computed_tokens: int = 0
    state_row: int = 0
    images: list[PlacedImage] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


class Driver:
    """Drive a model over a paged cache with scattered blocks."""

    def __init__(
        self, model: Transformer, num_blocks: int = 64, block_size: int = 16, exact: bool = False
    ) -> None:
        self.model, self.block_size, self.exact = model, block_size, exact
        self.whole_images = False
        """Whether the positions of an image attend to each other; then a step must have all of them."""
        self.kv_caches = model.allocate_kv(num_blocks, block_size, num_states=8)
        for k, v in self.kv_caches:
            k.fill_(float("nan"))
            v.fill_(float("nan"))
        self._num_sequences = 0
        self._free = [(7 * i + 3) % num_blocks for i in range(num_blocks)]

    def add(self, tokens: list[int], max_len: int) -> Sequence:
        count = -(-max_len // self.block_size)
        blocks, self._free = self._free[:count], self._free[count:]
        self._num_sequences += 1
        return Sequence(list(tokens), blocks, state_row=(3 * self._num_sequences) % 8)

    def fork(self, sequence: Sequence, tokens: list[int], max_len: int) -> Sequence:
        """Add a sequence that shares the whole blocks in which its tokens are those of another one."""
        pairs = zip(tokens, sequence.tokens[: sequence.num_computed_tokens], strict=False)
        same = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), len(tokens))
        count = same // self.block_size
        assert count, "nothing is shared"
        forked = self.add(tokens, max_len - count * self.block_size)
        forked.blocks = sequence.blocks[:count] + forked.blocks
        forked.num_computed_tokens = count * self.block_size
        return forked

    @torch.inference_mode()
    def step(
        self, plan: list[tuple[Sequence, int]], padding: int = 0, adapters: AdapterRows | None = None
    ) -> Tensor:
        """Compute the next tokens of each sequence (decodes first) and return the logits of all of them."""
        plan = sorted(plan, key=lambda item: item[1] != 1)
        batch, ids = self._batch(plan, padding)
        batch = replace(batch, adapters=adapters)
        starts = batch.query_start_loc.tolist()
        given, axes = self._place_images(plan, ids, starts), self._turn(plan, batch.positions, starts)
        if self.whole_images:
            batch = replace(batch, reach=self._reach(plan, batch.positions, starts))
        hidden = self.model.forward(ids, batch, self.kv_caches, None, given, axes)
        logits = self.model.compute_logits(hidden[: starts[-1]], self.exact)
        for (sequence, _), start, stop in zip(plan, starts[:-1], starts[1:], strict=True):
            sequence.logits += list(logits[start:stop])
        return logits

    def _place_images(
        self, plan: list[tuple[Sequence, int]], ids: Tensor, starts: list[int]
    ) -> Tensor | None:
        """Replace the ids of image positions; returns the rows that they stand for."""
        rows: list[Tensor] = []
        for (sequence, count), first in zip(plan, starts, strict=False):
            begin = sequence.num_computed_tokens - count
            for image in sequence.images:
                for index, row in enumerate(image.rows):
                    place = image.start + index - begin
                    if 0 <= place < count:
                        rows.append(row)
                        ids[first + place] = -len(rows)
        return torch.stack(rows) if rows else None

    def _turn(self, plan: list[tuple[Sequence, int]], positions: Tensor, starts: list[int]) -> Tensor | None:
        """Replace the positions of tokens with three of them; returns these."""
        found: list[Tensor] = []
        for (sequence, count), first in zip(plan, starts, strict=False):
            begin = sequence.num_computed_tokens - count
            axes = torch.from_numpy(axis_positions(sequence.images, begin, count))
            for index, each in enumerate(axes.unbind(1)):
                several = len(set(each.tolist())) > 1
                found += [each] if several else []
                positions[first + index] = -len(found) if several else each[0]
        return torch.stack(found, 1) if found else None

    def _reach(self, plan: list[tuple[Sequence, int]], positions: Tensor, starts: list[int]) -> Tensor:
        reach = positions.clone()
        for (sequence, count), first in zip(plan, starts, strict=False):
            begin = sequence.num_computed_tokens - count
            for image in sequence.images:
                if image.start < begin + count and begin < image.end:
                    assert image.end <= begin + count
                    reach[first + max(image.start - begin, 0) : first + image.end - begin] = image.end - 1
        return reach

    def _batch(self, plan: list[tuple[Sequence, int]], padding: int) -> tuple[AttentionBatch, Tensor]:
        """Return the batch of the next tokens of each sequence, decodes first, and their ids."""
        width = max(len(sequence.blocks) for sequence, _ in plan)
        starts, seq_lens, tables, slots, ids = [0], [], [], [], []
        positions: list[int] = []
        for sequence, count in plan:
            first, last = sequence.num_computed_tokens, sequence.num_computed_tokens + count
            for position in range(first, last):
                block = sequence.blocks[position // self.block_size]
                slots.append(block * self.block_size + position % self.block_size)
            positions += range(first, last)
            ids += sequence.tokens[first:last]
            starts.append(len(ids))
            seq_lens.append(last)
            tables.append(sequence.blocks + [0] * (width - len(sequence.blocks)))
            sequence.num_computed_tokens = last
        batch = AttentionBatch(
            query_start_loc=torch.tensor(starts, dtype=torch.int32),
            seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
            block_tables=torch.tensor(tables, dtype=torch.int32),
            slot_mapping=torch.tensor(slots + [-1] * padding),
            positions=torch.tensor(positions + [0] * padding),
            max_query_len=max(count for _, count in plan),
            max_seq_len=max(seq_lens),
            num_decodes=sum(count == 1 for _, count in plan),
            exact=self.exact,
            state_rows=torch.tensor([sequence.state_row for sequence, _ in plan]),
        )
        return batch, torch.tensor(ids + [0] * padding)

    @torch.inference_mode()
    def last(self, plan: list[tuple[Sequence, int]]) -> Tensor:
        """Compute the next tokens of each sequence, in this order, and return the logits of the last of each alone."""
        batch, ids = self._batch(plan, 0)
        count, rows = len(plan), batch.query_start_loc[1:].long() - 1
        kept = AttentionBatch(
            query_start_loc=torch.arange(count + 1, dtype=torch.int32),
            seq_lens=batch.seq_lens,
            block_tables=batch.block_tables,
            slot_mapping=batch.slot_mapping[rows],
            positions=batch.positions[rows],
            max_query_len=1,
            max_seq_len=batch.max_seq_len,
            num_decodes=count,
            exact=self.exact,
        )
        hidden = self.model.forward(ids, batch, self.kv_caches, RowSelection(rows, kept))
        return self.model.compute_logits(hidden, self.exact)

    def decode(self, sequences: list[Sequence], steps: int) -> None:
        """Append `steps` greedy tokens to each sequence whose prompt was computed."""
        for _ in range(steps):
            for sequence in sequences:
                sequence.tokens.append(int(sequence.logits[-1].argmax()))
            self.step([(sequence, 1) for sequence in sequences])
