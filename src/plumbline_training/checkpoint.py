"""Keep a training run in one file: weights, their running mean, the optimizers and the position."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn


class TrainingState:
    """A module in training, its optimizers and the running mean of its weights.

    Args:
        path: the file. An existing one is read, so that the run goes on where it stopped.
        module: the module to train.
        optimizers: of its parameters, with the full learning rates.
        keep: largest share of the mean that a step keeps; the first steps keep less.
        position: further numbers that say where the run is, as they are at the start.
    """

    def __init__(
        self,
        path: Path,
        module: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        keep: float,
        position: dict[str, int] | None = None,
    ) -> None:
        self.path, self.module, self.optimizers, self.keep = path, module, optimizers, keep
        self.rates = [[float(group["lr"]) for group in each.param_groups] for each in optimizers]
        self.average: dict[str, Tensor] = {n: p.detach().clone() for n, p in module.named_parameters()}
        self.step = 0
        self.position = dict(position or {})
        if path.exists():
            self._load()

    def _load(self) -> None:
        state = torch.load(self.path, weights_only=True)
        self.module.load_state_dict(state["weights"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.average, self.step, self.position = state["average"], state["step"], state["position"]

    def save(self) -> None:
        """Replace the file; a process that ends meanwhile leaves the old one."""
        state = {
            "weights": self.module.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
            "average": self.average,
            "step": self.step,
            "position": self.position,
        }
        new = self.path.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, self.path)

    def apply(self, share: float) -> None:
        """Take one step along the gradients, at a share of the full learning rates."""
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        for optimizer, rates in zip(self.optimizers, self.rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        keep = min(self.keep, 1 - 1 / (1 + self.step / 10))
        with torch.no_grad():
            for name, value in self.module.named_parameters():
                self.average[name].lerp_(value, 1 - keep)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the mean in the place of the weights for a while."""
        now = {n: p.detach().clone() for n, p in self.module.named_parameters()}
        self.module.load_state_dict(self.average, strict=False)
        try:
            yield
        finally:
            self.module.load_state_dict(now, strict=False)


def mean_weights(path: Path) -> dict[str, Tensor]:
    """Return the running mean of the weights in a checkpoint, which is what a run has found."""
    found: dict[str, Tensor] = torch.load(path, weights_only=True)["average"]
    return found
