"""Run gated delta nets and state spaces: a short convolution, and a state for each head whose size does not grow.

net      both operations, and torch's version of them
_triton  the Triton kernels of the convolution and of decodes
_chunks  the Triton kernels of chunks of prompts
"""

from plumbline_kernels.delta.net import (
    DeltaShape,
    causal_conv,
    delta_gates,
    delta_rule,
    gated_group_norm,
    gated_norm,
    selective_scan,
    state_space_gates,
)

__all__ = [
    "DeltaShape",
    "causal_conv",
    "delta_gates",
    "delta_rule",
    "gated_group_norm",
    "gated_norm",
    "selective_scan",
    "state_space_gates",
]
