"""Define Qwen3 as a small torch module with the parameter names of transformers, for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Network", "PocketShape", "config_of", "rotary_tables"]

_LONGEST_MASK = 2048
"""Tokens of the longest sequences whose attention scores are all in memory at once."""


@dataclass(frozen=True)
class PocketShape:
    """The sizes of the model."""

    vocab_size: int = 1024
    hidden_size: int = 256
    intermediate_size: int = 576
    num_hidden_layers: int = 5
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 24576
    initializer_range: float = 0.02


class RMSNorm(nn.Module):
    """Normalise by the root mean square, with weights in fp32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def rotary_tables(shape: PocketShape, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of the rotary embedding, [length, head_dim] each."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.arange(length).float()[:, None] * inverse[None, :]
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair of a head's first and second half, as in transformers."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class PocketAttention(nn.Module):
    """Grouped-query attention with norms of queries and keys.

    With a mask the scores of all positions are in memory at once, and no key is copied. Without one torch's fused
    attention keeps no scores, but takes a copy of keys and values for each query head.
    """

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.heads, self.groups = shape.num_attention_heads, shape.num_key_value_heads
        self.dim = shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, self.groups * self.dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, self.groups * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(self.dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(self.dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.groups, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, self.dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if mask is None:
            k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
            return self._out(mixed.reshape(batch, length, -1))
        # Query heads that share a key head are stacked along the length: no key is copied.
        q = q.reshape(batch, self.groups, -1, self.dim) * self.dim**-0.5
        scores = (q @ k.transpose(-1, -2)).view(batch, self.groups, -1, length, length) + mask
        mixed = torch.softmax(scores, dim=-1).view(batch, self.groups, -1, length) @ v
        mixed = mixed.view(batch, self.heads, length, self.dim).transpose(1, 2)
        return self._out(mixed.reshape(batch, length, -1))

    def _out(self, mixed: Tensor) -> Tensor:
        out: Tensor = self.o_proj(mixed)
        return out


class MLP(nn.Module):
    """The feed-forward block, a SwiGLU."""

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """Attention and feed-forward block, each after a norm and added to the residual stream."""

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.self_attn = PocketAttention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class PocketBody(nn.Module):
    """The modules that transformers names `model`."""

    def __init__(self, shape: PocketShape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Network(nn.Module):
    """Qwen3ForCausalLM with tied embeddings, for training only."""

    def __init__(self, shape: PocketShape, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.shape, self.dtype = shape, dtype
        self.model = PocketBody(shape)
        residual = shape.initializer_range / (2 * shape.num_hidden_layers) ** 0.5
        for name, p in self.named_parameters():
            if p.dim() == 2:
                # As in GPT-2, projections into the residual stream begin smaller, by the number of their sums.
                adds_to_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=residual if adds_to_residual else shape.initializer_range * 2)

    def forward(self, ids: Tensor, wanted: Tensor) -> Tensor:
        """Return logits at the positions where `wanted` is true."""
        length = ids.shape[1]
        cos, sin = rotary_tables(self.shape, length, self.dtype)
        mask = None
        if length <= _LONGEST_MASK:
            mask = torch.full((length, length), -1e9, dtype=self.dtype).triu(1)
        x = self.model.embed_tokens(ids).to(self.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        logits: Tensor = F.linear(self.model.norm(x)[wanted], self.model.embed_tokens.weight)
        return logits


def config_of(shape: PocketShape, eos: int, pad: int) -> dict[str, Any]:
    """Return the content of `config.json` for a network of this shape."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": eos,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": shape.initializer_range,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "max_window_layers": shape.num_hidden_layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pad_token_id": pad,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }
