"""Define how tokens choose their experts."""

from typing import NamedTuple

__all__ = ["Routing"]


class Routing(NamedTuple):
    """How tokens choose their experts."""

    top_k: int
    sigmoid: bool = False  # scores are sigmoids of logits, else their softmax over all experts
    late_softmax: bool = False  # weights are the softmax of the chosen logits, times `scale`
    groups: int = (
        1  # experts are in so many groups of equal size, and only those of `chosen_groups` may be chosen
    )
    chosen_groups: int = 1
    best_two: bool = True  # a group is as good as its two best experts together, else as its best one
    normalised: bool = True  # weights of a token are divided by their sum
    floor: float = 0.0  # the least divisor
    scale: float = 1.0  # a factor on weights
    mixer: bool = False  # experts are chosen one by one, by Phi's sparse mixer, whatever is below `top_k`
    jitter: float = 0.0  # of that mixer: logits this near to the best one share its weight
    of_inputs: bool = False  # weights multiply what experts take, and not what they return: see `spread`
