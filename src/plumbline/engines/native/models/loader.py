"""Load a model folder into a Transformer: safetensors files, one or sharded, with merged projections.

Every tensor in the files must be used and every weight must be found. A checkpoint that does not match is refused with
the names of the tensors.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from plumbline.engines.native.models.config import ModelConfig, load_config
from plumbline.engines.native.models.linear import Linear
from plumbline.engines.native.models.transformer import Layer, Transformer
from plumbline_kernels.cpu.library import Library

__all__ = ["WeightsError", "load_model", "random_model"]

_log = logging.getLogger("plumbline.engines")

Fetch = Callable[[str, tuple[int, ...]], Tensor]


class WeightsError(ValueError):
    """The weights do not match the config; the message lists the names."""


def load_model(
    folder: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    max_model_len: int | None = None,
    library: Library | None = None,
    bits: int = 0,
) -> Transformer:
    """Load a model folder.

    Args:
        folder: the folder.
        dtype: type of the weights; None takes the config's type.
        device: where they go.
        max_model_len: positions that the model needs; rotary embeddings can be computed for more than the config
            names.
        library: compiled kernels to use where they support the model (`runs_compiled`).
        bits: 8 or 4 to round the weights of linear layers, with a library; the output layer has 8 at least.

    Raises:
        UnsupportedModelError: the transformer does not support the config.
        WeightsError: the files do not match the config.
    """
    config = load_config(folder)
    if max_model_len is not None and max_model_len > config.max_model_len:
        _log.warning(
            "--max-model-len %d is more than the %d positions that this model was made for; "
            "answers beyond them may be poor",
            max_model_len,
            config.max_model_len,
        )
        config = replace(config, max_position_embeddings=max_model_len)
    with _Checkpoint(folder, dtype or config.dtype, torch.device(device)) as checkpoint:
        if config.tie_word_embeddings:
            # A tied model may come with the redundant copy.
            checkpoint.unused.discard("lm_head.weight")
        model = build(config, checkpoint.fetch, library, bits)
        checkpoint.finish()
    return model


def random_model(
    config: ModelConfig,
    seed: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    library: Library | None = None,
    bits: int = 0,
) -> Transformer:
    """Make a model of this config with random weights, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    kind = dtype or config.dtype

    def fetch(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=kind, device=device)
        return torch.empty(shape).normal_(0.0, 0.02, generator=generator).to(device, kind)

    return build(config, fetch, library, bits)


def runs_compiled(config: ModelConfig, dtype: torch.dtype, library: Library) -> bool:
    """Return whether compiled kernels support a model."""
    shared = config.num_heads // config.num_kv_heads
    return library.supports(dtype, config.head_dim, shared, (config.hidden_size, config.intermediate_size))


def build(config: ModelConfig, fetch: Fetch, library: Library | None = None, bits: int = 0) -> Transformer:
    """Assemble the transformer; `fetch` returns tensors by their Hugging Face names and shapes."""
    hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_width, kv_width = config.num_heads * head_dim, config.num_kv_heads * head_dim

    def linear(prefix: str, parts: Iterable[tuple[str, int]], width: int, bias: bool) -> Linear:
        """Build one linear layer from the named projections, stacked along the output."""
        parts = tuple(parts)
        weights = [fetch(f"{prefix}.{name}.weight", (out, width)) for name, out in parts]
        biases = [fetch(f"{prefix}.{name}.bias", (out,)) for name, out in parts] if bias else []
        return Linear(_merge(weights), _merge(biases) if biases else None, library, bits)

    def head_norms(prefix: str) -> tuple[Tensor, Tensor]:
        q_norm = fetch(f"{prefix}.q_norm.weight", (head_dim,))
        return q_norm, fetch(f"{prefix}.k_norm.weight", (head_dim,))

    embedding = fetch("model.embed_tokens.weight", (config.vocab_size, hidden))
    if library is not None and not (
        embedding.device.type == "cpu" and runs_compiled(config, embedding.dtype, library)
    ):
        library = None
    layers = []
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = (("q_proj", q_width), ("k_proj", kv_width), ("v_proj", kv_width))
        layers.append(
            Layer(
                input_norm=fetch(f"{prefix}.input_layernorm.weight", (hidden,)),
                qkv=linear(attention, qkv, hidden, config.qkv_bias),
                o=linear(attention, [("o_proj", hidden)], q_width, config.o_bias),
                post_attention_norm=fetch(f"{prefix}.post_attention_layernorm.weight", (hidden,)),
                gate_up=linear(mlp, [("gate_proj", inner), ("up_proj", inner)], hidden, config.mlp_bias),
                down=linear(mlp, [("down_proj", hidden)], inner, config.mlp_bias),
                head_norms=head_norms(attention) if config.qk_norm else None,
                sliding_window=config.sliding_window(index),
            )
        )
    norm = fetch("model.norm.weight", (hidden,))
    head = embedding if config.tie_word_embeddings else fetch("lm_head.weight", embedding.shape)
    return Transformer(
        config, embedding, layers, norm, Linear(head, None, library, 8 if bits else 0), library
    )


def _merge(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


class _Checkpoint:
    """Read the safetensors files of a folder one tensor at a time, mapped into memory."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.folder, self.dtype, self.device = folder, dtype, device
        self._files: dict[str, Any] = {}
        self._where: dict[str, str] = {}
        self.missing: list[str] = []
        self.unused: set[str] = set()

    def __enter__(self) -> _Checkpoint:
        """Open every file and index its tensors."""
        for name in self._file_names():
            path = self.folder / name
            if not path.exists():
                raise WeightsError(f"{path} is named by the index but missing")
            try:
                file: Any = safe_open(path, framework="pt", device="cpu")
            except SafetensorError as error:
                raise WeightsError(f"{path} is truncated, or not a safetensors file: {error}") from error
            self._files[name] = file.__enter__()
            self._where |= dict.fromkeys(file.keys(), name)
        # Old checkpoints carry the rotary frequencies, which the config determines.
        self.unused = {name for name in self._where if not name.endswith("rotary_emb.inv_freq")}
        return self

    def __exit__(self, *exc: object) -> None:
        """Unmap the files."""
        self._files.clear()

    def _file_names(self) -> list[str]:
        index = self.folder / "model.safetensors.index.json"
        if index.exists():
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if (self.folder / "model.safetensors").exists():
            return ["model.safetensors"]
        raise WeightsError(f"{self.folder} has neither model.safetensors nor model.safetensors.index.json")

    def fetch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read a tensor; a missing one is recorded and replaced by zeros until `finish` refuses the checkpoint."""
        file = self._where.get(name)
        if file is None:
            self.missing.append(name)
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.unused.discard(name)
        tensor: Tensor = self._files[file].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise WeightsError(f"{name} has shape {list(tensor.shape)}, the config asks for {list(shape)}")
        return tensor.to(self.device, self.dtype)

    def finish(self) -> None:
        """Refuse the checkpoint if a tensor was missing or not used."""
        problems = []
        if self.missing:
            problems.append(f"missing: {_some(self.missing)}")
        if self.unused:
            problems.append(f"not used: {_some(sorted(self.unused))}")
        if problems:
            raise WeightsError(f"the weights in {self.folder} do not fit its config; " + "; ".join(problems))


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
