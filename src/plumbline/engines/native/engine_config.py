"""Define and check the settings of the native engine."""

from __future__ import annotations

import msgspec

__all__ = ["GPU_BLOCK_SIZE", "EngineConfig"]


GPU_BLOCK_SIZE = 64
"""Tokens in a block of a GPU's cache: a tile of keys of the kernels, which a GPU then loads at once."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the native engine. Lengths are in tokens, sizes in blocks.

    Raises:
        ValueError: a value is out of range or two of them contradict each other; the text names the field.
    """

    max_model_len: int
    """Tokens of prompt and output of one request together."""
    block_size: int = 16
    num_blocks: int = 1024
    max_num_seqs: int = 256
    """Requests in one step."""
    max_num_batched_tokens: int = 1024
    """The token budget of one step, shared by decodes and prefill chunks."""
    max_num_waiting: int = 1024
    """Requests that may wait; one more is refused (the server answers 429)."""
    max_seqs_per_client: int = 0
    """How many of the running and waiting requests one client may have; 0 sets no limit."""
    enable_prefix_caching: bool = True
    num_snapshots: int = 0
    """States of prompts' beginnings that the prefix cache of a model with states keeps; without any it is off."""
    batch_invariant: bool = False
    """Compute every token with the same bits whatever else is in the step; see `AttentionBatch.exact`."""
    speculation: bool = True
    """Propose tokens from the prompt and the answer, where the runner is exact, and on GPUs."""
    expected_output_len: int = 256
    """The output length that admission assumes at first; a moving average of finished requests replaces it."""

    def __post_init__(self) -> None:
        for field in ("max_model_len", "block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.max_num_waiting < 0:
            raise ValueError(f"max_num_waiting must not be negative, got {self.max_num_waiting}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): every running request needs one token of the budget"
            )
        if self.num_blocks < self.blocks_per_sequence:
            raise ValueError(
                f"num_blocks ({self.num_blocks}) cannot hold one request of max_model_len ({self.max_model_len}) "
                f"tokens: it takes {self.blocks_per_sequence} blocks of {self.block_size}"
            )

    @property
    def blocks_per_sequence(self) -> int:
        """Blocks of a request of `max_model_len` tokens."""
        return -(-self.max_model_len // self.block_size)
