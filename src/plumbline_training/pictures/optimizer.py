"""Muon in float32 for matrices, AdamW for the rest: torch's Muon uses bfloat16, which older processors emulate."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def orthogonalised(batch: Tensor, steps: int = 5) -> Tensor:
    """Return matrices [count, rows, columns] with all singular values near 1, by Newton-Schulz iterations."""
    x = batch / (batch.norm(dim=(1, 2), keepdim=True) + 1e-7)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    found: Tensor = x.mT if tall else x
    return found


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised; matrices of the same shape are done together."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[nn.Parameter]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.shape[0], p[0].numel()), []).append(p)
            for (rows, columns), params in alike.items():
                updates = []
                for p in params:
                    state, gradient = self.state[p], p.grad
                    if gradient is None:
                        continue
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    kept = state["momentum"].lerp_(gradient, 1 - group["momentum"])
                    updates.append(gradient.lerp(kept, group["momentum"]).reshape(rows, columns))
                # The update has the size that AdamW's would have.
                scale = 0.2 * max(rows, columns) ** 0.5 * group["lr"]
                for p, update in zip(params, orthogonalised(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.sub_(update.reshape(p.shape), alpha=scale)
