"""Draw random tokens without a model: what remains of a step is the engine's own work."""

from __future__ import annotations

import numpy as np
import torch

from plumbline.engines.native.runner import Drawn
from plumbline.engines.native.slots import Slots, StepInputs
from plumbline.engines.request import RequestState
from plumbline.engines.sampling.masks import StepMasks
from plumbline.engines.sampling.sampler import TokensInFlight

__all__ = ["NullRunner"]


class NullRunner:
    """Draw random tokens without a model, so that benchmarks measure the engine's own cost per token."""

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        self._vocab_size = vocab_size
        self._random = np.random.default_rng(seed)

    @property
    def vocab_size(self) -> int:
        """As given."""
        return self._vocab_size

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    @property
    def attention_share(self) -> float:
        """There is no attention."""
        return 0.0

    @property
    def is_exact(self) -> bool:
        """Draws are random."""
        return False

    @property
    def has_states(self) -> bool:
        """There are no layers."""
        return False

    def logits_bytes(self, rows: int) -> int:
        """There are none."""
        return 0

    def copy_state(self, source: int, target: int) -> None:
        """There are none."""

    def renewed(self, *, new_cache: bool) -> NullRunner:
        """There is nothing that it shares with others."""
        return self

    def admit(self, state: RequestState) -> None:
        """Nothing to prepare."""

    def release(self, slot: int) -> None:
        """Nothing to drop."""

    def can_launch(self, inputs: StepInputs) -> bool:
        """There is no device."""
        return False

    def launch(self, inputs: StepInputs, slots: Slots) -> TokensInFlight:
        """Never called."""
        raise NotImplementedError

    def forward(self, inputs: StepInputs) -> None:
        """Nothing to compute."""

    def sample(self, inputs: StepInputs, slots: Slots, masks: StepMasks | None = None) -> Drawn:
        """Return uniform random tokens; masks are ignored because there are no logits."""
        assert masks is None, "a runner without logits holds no grammar"
        count = len(inputs.draw_states)
        return Drawn(self._random.integers(0, self._vocab_size, count), [None] * count)
