"""Count the causal language models of transformers that our engine computes: `pytest -m long -s` prints the table.

The laws, for a tiny random checkpoint of every type in transformers' mapping of causal language models:

* Our engine gives the logits of transformers, or refuses the checkpoint by name. None is wrong.
* A type is refused only if no family of ours has it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support.weights.model_driver import Driver
from support.weights.model_families import CASES, SMALL
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from plumbline.engines.native.models import UnsupportedModelError, describe, load_model
from plumbline.engines.native.models.families import FAMILIES, WRAPPED

pytestmark = pytest.mark.long

LEAST = 85
"""The families that must be equal; those of a family and of its model of images count once."""
LENGTH = 40
MOST = 20_000_000
"""Parameters of a small model."""
SHAPES = SMALL | {
    **dict.fromkeys(("d_model", "n_embd"), 48),
    **dict.fromkeys(("d_ff", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 80),
    **dict.fromkeys(("n_layer", "num_layers", "decoder_layers", "encoder_layers"), 3),
    **dict.fromkeys(("n_head", "decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    "pad_token_id": 0,
    "head_dim": 12,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}
"""Small values of fields that types have."""
FIRST = {case.family: case for case in reversed(CASES) if not case.is_compiled}
"""The first case of each type of ours."""


def small_config(kind: str) -> Any:
    """Return a config of a type: that of our cases, or transformers' own with all sizes that are known made small."""
    if kind in FIRST:
        return FIRST[kind].config()
    names = vars(transformers.AutoConfig.for_model(kind)).keys()
    changes = {name: value for name, value in SHAPES.items() if name in names and value is not None}
    return transformers.AutoConfig.for_model(kind, **changes)


@torch.inference_mode()
def logits_of(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()  # type: ignore[no-any-return]


def verdict(kind: str, folder: Path) -> str:
    """Return what our engine makes of a tiny model of a type, or why there is none."""
    try:
        config = small_config(kind)
        if config.is_encoder_decoder:
            return "no decoder alone"
        config._attn_implementation = "eager"
        with torch.device("meta"):
            shape = transformers.AutoModelForCausalLM.from_config(config)
        if sum(each.numel() for each in shape.parameters()) > MOST:
            raise ValueError("too large")
        torch.manual_seed(1)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        tokens = torch.randint(5, 90, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
        expected = logits_of(model, tokens)
        other = logits_of(model, [*tokens[:-1], 3])
    except Exception as error:
        refused(kind)
        return f"not built: {type(error).__name__} {str(error)[:60]!r}"
    if expected.shape[0] != LENGTH or not torch.allclose(expected[:-1], other[:-1], atol=1e-5):
        return "not causal"
    model.save_pretrained(folder)
    try:
        ours = load_model(folder, torch.float32)
    except UnsupportedModelError:
        return "refused"
    driver = Driver(ours)
    sequence = driver.add(tokens, LENGTH + 8)
    driver.step([(sequence, 11)])
    driver.step([(sequence, LENGTH - 11)])
    found = torch.stack(sequence.logits)
    return "equal" if torch.allclose(found, expected, atol=1e-4, rtol=0) else "wrong"


def refused(kind: str) -> None:
    """Check that a type which transformers cannot build here is not one of ours."""
    with pytest.raises(UnsupportedModelError):
        describe({"model_type": kind})


def test_every_causal_language_model_is_equal_or_refused_by_name(tmp_path: Path) -> None:
    verdicts: dict[str, str] = {}
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        # The text of a model of images is a type of its own.
        if kind not in WRAPPED and kind != "gpt-sw3":
            verdicts[kind] = verdict(kind, tmp_path / kind)
    for found, count in sorted(Counter(each.partition(":")[0] for each in verdicts.values()).items()):
        names = [kind if ":" not in each else f"{kind} ({each.partition(': ')[2]})"
                 for kind, each in verdicts.items() if each.partition(":")[0] == found]  # fmt: skip
        print(f"{found}: {count}: {' '.join(names)}")
    assert "wrong" not in verdicts.values(), json.dumps(verdicts, indent=1)
    assert {kind for kind, each in verdicts.items() if each == "equal"} >= FIRST.keys() & verdicts.keys()
    assert sum(each == "equal" for each in verdicts.values()) >= LEAST
    assert FAMILIES.keys() >= {kind for kind, each in verdicts.items() if each == "equal"}
