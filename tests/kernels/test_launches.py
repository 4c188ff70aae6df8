"""Laws of the number of launches of a decode step: each costs some microseconds, whatever it computes.

* A dense layer has at most 11 launches, and one of experts at most 14.
* Both are counted with a GPU that is not there: Triton's launches, and torch's operations that are not views.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig

from plumbline.engines.native.models import describe, random_model
from plumbline_kernels.attention import AttentionBatch
from plumbline_kernels.without_gpu import compiling_for

pytest.importorskip("triton")
_VIEWS = frozenset(
    {
        *(
            "alias",
            "as_strided",
            "detach",
            "empty",
            "empty_like",
            "expand",
            "permute",
            "reshape",
            "select",
            "slice",
        ),
        *("split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unsqueeze", "view"),
        *("_reshape_alias", "_unsafe_view"),
    }
)
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 32, "norm_topk_prob": True}
OSS = {"num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 32}


class _Operations(TorchDispatchMode):
    """Counts what torch would launch."""

    def __init__(self, count: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._count = count

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = call.__name__.partition(".")[0]
        if name not in _VIEWS:
            self._count[name] += 1
        return call(*args, **(kwargs or {}))


def launches(family: str, layers: int, rows: int, **more: Any) -> Counter[str]:
    """Count those of a decode step of so many rows."""
    if family == "gpt_oss":
        more["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
    config = AutoConfig.for_model(family, **(SHAPE | more), num_hidden_layers=layers)
    count: Counter[str] = Counter()
    with compiling_for(90, launched=lambda name: count.update([name])), torch.no_grad():
        model = random_model(describe(json.loads(config.to_json_string())), seed=1, dtype=torch.bfloat16)
        caches = model.allocate_kv(4, 16)
        batch = AttentionBatch(
            query_start_loc=torch.arange(rows + 1, dtype=torch.int32),
            seq_lens=torch.ones(rows, dtype=torch.int32),
            block_tables=torch.zeros(rows, 256, dtype=torch.int32),
            slot_mapping=torch.full((rows,), -1),
            positions=torch.zeros(rows, dtype=torch.int64),
            max_query_len=1,
            max_seq_len=4096,
            num_decodes=rows,
        )
        tokens = torch.zeros(rows, dtype=torch.int64)
        model.forward(tokens, batch, caches)
        count.clear()
        with _Operations(count):
            model.forward(tokens, batch, caches)
    return count


@pytest.mark.parametrize("rows", [1, 256])
@pytest.mark.parametrize(
    ("family", "more", "most"), [("qwen3", {}, 11), ("qwen3_moe", EXPERTS, 14), ("gpt_oss", OSS, 14)]
)
def test_a_layer_has_few_launches(family: str, more: dict[str, Any], most: int, rows: int) -> None:
    difference = launches(family, 4, rows, **more)
    difference.subtract(launches(family, 2, rows, **more))
    per_layer = {name: count / 2 for name, count in difference.items() if count}

    assert sum(per_layer.values()) <= most, per_layer
