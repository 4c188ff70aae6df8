"""Run the model over a step's inputs, in two calls: `forward` and `sample`.

The grammar mask of step N+1 needs the token of step N on the host, so the forward pass of N+1 runs while the mask is
computed. A runner owns the weights, the KV cache and the sampler's device state.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plumbline.engines.native.graphs import Capture, StepGraphs
from plumbline.engines.native.models.transformer import Transformer
from plumbline.engines.native.models.weights import LinearPlace
from plumbline.engines.native.scheduling.pace import attention_share
from plumbline.engines.native.slots import Slots, StepInputs
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.logprobs import log_softmax, logprob_rows
from plumbline.engines.sampling.masks import StepMasks
from plumbline.engines.sampling.sampler import Sampler, TokensInFlight
from plumbline.port.engine import TokenLogprob
from plumbline_kernels._backend import use_triton
from plumbline_kernels.attention import AttentionBatch

__all__ = ["Drawn", "ModelRunner", "Runner"]

_SCORED_ROWS = 64
"""Prompt tokens that are scored at a time: fp32 logits of 1,024 tokens take 600 MB with a large vocabulary."""
_LOGIT = 4
"""Bytes."""
_LOGITS_AT_ONCE = 32 * 1024 * 1024
"""Bytes of logits that a CPU computes at a time."""
_FEWEST_ROWS = 32
"""Rows of them in any case: the head's weight is read once for them."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens and logprobs of a step, on the host.

    Attributes:
        token_ids: int64 [num_draws], in the order of `StepInputs.draw_states`.
        logprobs: one entry per draw, None where the request did not ask for logprobs.
        prompt_logprobs: (request, position of the first entry, entries) for each prompt chunk of a request that asked
            for them.
    """

    token_ids: NDArray[np.int64]
    logprobs: list[TokenLogprob | None]
    prompt_logprobs: list[tuple[RequestState, int, list[TokenLogprob]]] = field(default_factory=list)


class Runner(Protocol):
    """Run steps of a model. One thread calls it."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that inputs must be on."""
        ...

    @property
    def attention_share(self) -> float:
        """What a token's attention to one other costs, as a part of all else that a token costs."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether a row has the same bits in any batch."""
        ...

    @property
    def has_states(self) -> bool:
        """Whether layers keep a state for a sequence, which is known behind its last token alone."""
        ...

    def logits_bytes(self, rows: int) -> int:
        """Return the bytes of the logits that are in memory at a time in a step of so many rows; 0 on a GPU."""
        ...

    def copy_state(self, source: int, target: int) -> None:
        """Copy the state in a row, a request's slot or a snapshot's, to another row."""
        ...

    def renewed(self, *, new_cache: bool) -> Runner:
        """Return a runner of the same model without requests, with the same cache or a new one."""
        ...

    def admit(self, state: RequestState) -> None:
        """Prepare for a request that has got a slot."""
        ...

    def release(self, slot: int) -> None:
        """Drop the state of a slot."""
        ...

    def can_launch(self, inputs: StepInputs) -> bool:
        """Whether `launch` runs this step: nothing that the host must know is between its tokens and the next ones."""
        ...

    def launch(self, inputs: StepInputs, slots: Slots) -> TokensInFlight:
        """Let the device compute a step and draw its tokens, without waiting for them."""
        ...

    def forward(self, inputs: StepInputs) -> None:
        """Compute the step's tokens and write their KV."""
        ...

    def sample(self, inputs: StepInputs, slots: Slots, masks: StepMasks | None = None) -> Drawn:
        """Draw tokens for the rows that `forward` has just computed, from those that the masks allow."""
        ...


class ModelRunner:
    """Run a transformer over its paged KV cache."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int,
        device: torch.device,
        num_states: int = 0,
        capture: Capture | None = None,
        exact: bool = False,
    ) -> None:
        """Allocate the cache; with `capture`, decode steps run as graphs, which `graphs` has.

        With `exact`, all batches must be so (see `AttentionBatch`).
        """
        self._model = model
        self._exact = exact
        self._device = device
        self._cache_size, self._num_states = (num_blocks, block_size), num_states
        self._capture = capture
        self.graphs: StepGraphs | None = None
        self._allocate()
        self._sampler = Sampler(model.description.vocab_size, device, model.library)
        self._shown: set[int] = set()
        """Slots of requests that want the hidden state of their last token."""
        self._computed: Tensor | None = None
        """What `forward` leaves to `sample`: logits after a graph, else hidden states."""
        self._has_logits = False

    def _allocate(self) -> None:
        capture, spare = self._capture, 0 if self._capture is None else 1
        self._kv = self._model.allocate_kv(*self._cache_size, num_states=self._num_states + spare)
        if capture is not None:
            self.graphs = StepGraphs(
                self._logits,
                capture,
                vocab_size=self.vocab_size,
                block_size=self._cache_size[1],
                state_row=self._num_states,
                device=self._device,
            )

    def _logits(self, token_ids: Tensor, batch: AttentionBatch) -> Tensor:
        return self._model.compute_logits(self._model.forward(token_ids, batch, self._kv), self._exact)

    @property
    def vocab_size(self) -> int:
        """The model's vocabulary."""
        return self._model.description.vocab_size

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._device

    @property
    def attention_share(self) -> float:
        """See `pace.attention_share`."""
        return attention_share(self._model.description)

    @property
    def is_exact(self) -> bool:
        """Compiled kernels are, and Triton kernels in exact batches."""
        kernels = self._exact and use_triton(torch.empty(0, device=self._device))
        return self._model.library is not None or kernels

    def logits_bytes(self, rows: int) -> int:
        """See `Runner.logits_bytes`."""
        return min(rows, self._rows_at_once) * self.vocab_size * _LOGIT if self._device.type == "cpu" else 0

    @property
    def _rows_at_once(self) -> int:
        """Rows whose logits are in memory at a time."""
        if self._device.type != "cpu":
            return sys.maxsize
        found = _LOGITS_AT_ONCE // (_LOGIT * self.vocab_size)
        return max(found - found % _FEWEST_ROWS, _FEWEST_ROWS)

    @property
    def has_states(self) -> bool:
        """Delta nets and state spaces have."""
        return bool(self._model.description.state_bytes(1))

    @torch.inference_mode()
    def copy_state(self, source: int, target: int) -> None:
        """See `Runner.copy_state`."""
        for tensor in self._model.states(self._kv):
            tensor[target].copy_(tensor[source])

    def renewed(self, *, new_cache: bool) -> ModelRunner:
        """See `Runner.renewed`."""
        other = copy.copy(self)
        other._sampler = Sampler(self.vocab_size, self._device, self._model.library)
        other._computed, other._shown = None, set()
        if new_cache:
            other._allocate()
        return other

    def admit(self, state: RequestState) -> None:
        """Prepare the sampler for a request."""
        self._sampler.admit(state)
        if state.sampling.hidden_state:
            self._shown.add(state.slot)

    def release(self, slot: int) -> None:
        """Drop the sampler's state of a slot."""
        self._sampler.release(slot)
        self._shown.discard(slot)

    @torch.inference_mode()
    def decode(self, rows: int, threads: int) -> None:
        """Compute a decode step of as many sequences with compiled kernels, to measure it; no request may run.

        All sequences are in the first block of the cache, which requests overwrite.
        """
        library = self._model.library
        assert library is not None, "torch has its own threads"
        library.threads = threads
        # Kernels do not check positions, and a block (--block-size) may be longer than the tables of rotations.
        size = min(self._cache_size[1], self._model.description.context_length)
        last = torch.full((rows,), size - 1)
        batch = AttentionBatch(
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32),
            seq_lens=torch.full((rows,), size, dtype=torch.int32),
            block_tables=torch.zeros(rows, 1, dtype=torch.int32),
            slot_mapping=last,
            positions=last,
            max_query_len=1,
            max_seq_len=size,
            num_decodes=rows,
            state_rows=torch.zeros(rows, dtype=torch.int64),
        )
        self._model.compute_logits(self._model.forward(torch.zeros_like(last), batch, self._kv))

    @property
    def dtype(self) -> torch.dtype:
        """Of weights and activations."""
        return self._model.dtype

    @property
    def places(self) -> Sequence[LinearPlace]:
        """The linear layers that adapters may change."""
        return self._model.places

    @property
    def has_images(self) -> bool:
        """Whether the model reads images, whose tokens may attend to later ones."""
        return self._model.vision is not None

    @torch.inference_mode()
    def try_step(self, batch: AttentionBatch, most_rows: int) -> None:
        """Compute a step of token 0, and the logits of up to `most_rows` rows; no request may run."""
        token_ids = torch.zeros_like(batch.slot_mapping)
        hidden = self._model.forward(token_ids, batch, self._kv)
        self._model.compute_logits(hidden[:most_rows], self._exact)

    def can_launch(self, inputs: StepInputs) -> bool:
        """See `Runner.can_launch`."""
        return self._takes_graph(inputs) and self._sampler.is_free

    def _takes_graph(self, inputs: StepInputs) -> bool:
        """Whether a step runs as a graph, which leaves logits and no hidden states."""
        return self.graphs is not None and not self._shown and self.graphs.takes(inputs)

    @torch.inference_mode()
    def launch(self, inputs: StepInputs, slots: Slots) -> TokensInFlight:
        """See `Runner.launch`."""
        assert self.graphs is not None, "can_launch() comes before launch()"
        logits = self.graphs.run(inputs)
        return TokensInFlight(
            self._sampler.pick(
                logits, inputs.draw_states, inputs.draw_slots, slots, ahead=inputs.draw_proposed
            )
        )

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> None:
        """Compute hidden states [num_selected, hidden] or logits, and write K and V into the cache."""
        self._has_logits = self._takes_graph(inputs)
        if self.graphs is not None and self._has_logits:
            self._computed = self.graphs.run(inputs)
        else:
            self._computed = self._model.forward(
                inputs.token_ids, inputs.batch, self._kv, inputs.selection, inputs.given, inputs.axes
            )

    @torch.inference_mode()
    def sample(self, inputs: StepInputs, slots: Slots, masks: StepMasks | None = None) -> Drawn:
        """Compute logits of the rows that draw, and draw."""
        computed = self._computed
        assert computed is not None, "sample() follows forward()"
        self._computed = None
        prompt = [self._score_prompt(computed, *row) for row in inputs.prompt_rows]
        if not inputs.draw_states:
            return Drawn(np.zeros(0, dtype=np.int64), [], prompt)
        if self._has_logits:
            token_ids, logprobs = self._sampler.draw(
                computed, inputs.draw_states, inputs.draw_slots, slots, masks, inputs.draw_proposed
            )
            return Drawn(token_ids, logprobs, prompt)
        all_rows_draw = len(inputs.draw_states) == computed.shape[0]
        drawing = computed if all_rows_draw else computed[inputs.draw_rows]
        if self._shown:
            _keep_hidden(drawing, inputs.draw_states)
        return self._draw(drawing, inputs, slots, masks, prompt)

    def _draw(
        self,
        hidden: Tensor,
        inputs: StepInputs,
        slots: Slots,
        masks: StepMasks | None,
        prompt: list[tuple[RequestState, int, list[TokenLogprob]]],
    ) -> Drawn:
        """Draw from rows of hidden states, as many at a time as there is memory for their logits."""
        token_ids: list[NDArray[np.int64]] = []
        logprobs: list[TokenLogprob | None] = []
        for first in range(0, len(hidden), self._rows_at_once):
            end = min(first + self._rows_at_once, len(hidden))
            drawn, entries = self._sampler.draw(
                self._model.compute_logits(hidden[first:end], self._exact),
                inputs.draw_states[first:end],
                inputs.draw_slots[first:end],
                slots,
                None if masks is None else masks.part(first, end),
                inputs.draw_proposed[first:end],
            )
            token_ids.append(drawn)
            logprobs += entries
        return Drawn(token_ids[0] if len(token_ids) == 1 else np.concatenate(token_ids), logprobs, prompt)

    def _score_prompt(
        self, hidden: Tensor, state: RequestState, row: int, position: int, count: int
    ) -> tuple[RequestState, int, list[TokenLogprob]]:
        """Return the logprobs that the rows [row, row + count) give to the prompt tokens after them."""
        following = state.token_ids[position + 1 : min(position + count + 1, state.num_prompt_tokens)]
        entries: list[TokenLogprob] = []
        for start in range(0, len(following), _SCORED_ROWS):
            chosen = torch.tensor(following[start : start + _SCORED_ROWS], dtype=torch.int64)
            scored = hidden[row + start : row + start + len(chosen)]
            logits = self._model.compute_logits(scored, self._exact)
            tops = [state.sampling.prompt_logprobs or 0] * len(chosen)
            logprobs = log_softmax(logits)
            entries += logprob_rows(logprobs, chosen.to(logits.device), tops, ranks=True)
        return state, position + 1, entries


def _keep_hidden(rows: Tensor, states: Sequence[RequestState]) -> None:
    """Give requests that ask for it a copy of the state that they draw from: steps overwrite their results."""
    for row, state in zip(rows, states, strict=True):
        if state.sampling.hidden_state:
            state.hidden_state = row.to(torch.float32, copy=True)
