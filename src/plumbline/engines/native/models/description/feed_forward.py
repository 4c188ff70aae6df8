"""Describe the feed-forward block of a layer: dense, or of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.engines.native.models.description.unsupported import UnsupportedModelError

__all__ = ["Activation", "Dense", "Experts", "FeedForward", "Router"]

Activation = Literal["silu", "gelu_tanh", "gelu", "swiglu_oss", "relu", "relu2", "xielu"]
"""`gelu` is the one with the error function, and `xielu` has numbers in the checkpoint."""
_GATED, _PLAIN = {"silu", "gelu_tanh", "gelu", "swiglu_oss"}, {"gelu_tanh", "gelu", "relu", "relu2", "xielu"}


def _check_activation(activation: Activation, gated: bool) -> None:
    if activation not in (_GATED if gated else _PLAIN):
        kind = "with" if gated else "without"
        raise UnsupportedModelError(f"activation {activation!r} {kind} a gate is not supported")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A feed-forward block that every token takes: down(activation(gate) * up), or down(activation(up))."""

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    scales: tuple[float, float] | None = None
    """Factors on the projections of gates and of values."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        _check_activation(self.activation, self.gated)

    def num_weights(self, hidden_size: int) -> int:
        """Return how many weights a token is multiplied with, without biases."""
        return (3 if self.gated else 2) * hidden_size * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How tokens choose their experts, and what the experts' results are multiplied by."""

    top_k: int
    scores: Literal["softmax", "sigmoid", "softmax_of_chosen", "sparse_mixer"] = "softmax"
    """The softmax of all logits, their sigmoids, the softmax of the chosen ones, or of those near to each chosen."""
    jitter: float = 0.0
    """How near they must be with `sparse_mixer`."""
    bias: bool = False
    correction: bool = False
    """Whether a bias is added to scores for the choice alone."""
    groups: int = 1
    """Experts are in so many groups, of which the best `chosen_groups` may be chosen from."""
    chosen_groups: int = 1
    groups_by_two: bool = True
    """Whether a group is as good as its two best experts together, and not as its best one."""
    normalised: bool = True
    """Whether the weights of a token are divided by their sum."""
    floor: float = 0.0
    """The least divisor of weights."""
    scale: float = 1.0
    """A factor on weights."""
    of_inputs: bool = False
    """Whether weights multiply what experts take, and not what they return."""
    by_expert: bool = False
    """Whether weights are multiplied by a number of the checkpoint for each expert."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A feed-forward block of experts, of which a token takes a few, and shared ones, which every token takes."""

    number: int
    width: int
    router: Router
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    shared: Dense | None = None
    shared_gate: bool = False
    """Whether the shared experts' result is multiplied by the sigmoid of a projection of the input."""
    shared_scale: float = 1.0
    """A factor on the shared experts' result."""
    has_norms: bool = False
    """Whether router and experts read the residual stream by norms of their own, and results have norms (Gemma 4)."""

    def __post_init__(self) -> None:
        """Check what the operations assume."""
        _check_activation(self.activation, self.gated)
        if self.activation == "xielu":
            raise UnsupportedModelError("activation 'xielu' of experts is not supported")
        router = self.router
        if not 0 < router.top_k <= self.number:
            raise UnsupportedModelError(
                "num_experts_per_tok must be at least 1 and at most the number of experts"
            )
        if self.number % router.groups or not 0 < router.chosen_groups <= router.groups:
            raise UnsupportedModelError(
                "n_group must divide the number of experts, and topk_group be at most n_group"
            )
        if router.top_k > self.number // router.groups * router.chosen_groups:
            raise UnsupportedModelError(
                "num_experts_per_tok must be at most the experts of topk_group groups"
            )

    def num_weights(self, hidden_size: int) -> int:
        """Return how many weights a token is multiplied with, without biases and the router."""
        chosen = self.router.top_k * (3 if self.gated else 2) * hidden_size * self.width
        return chosen + (0 if self.shared is None else self.shared.num_weights(hidden_size))


FeedForward = Dense | Experts
