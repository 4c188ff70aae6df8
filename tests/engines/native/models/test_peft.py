"""Adapters that the peft library wrote give the logits that it computes itself, for drawn configurations.

peft is not among the development tools; `pip install --no-deps peft accelerate psutil` is enough to run this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engines.native.models.test_adapters import TARGETS, base_of, expected, ours, prompt, rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.weights.model_driver import Driver
from support.weights.model_families import CASES, Case

from plumbline.engines.native.adapter_table import AdapterTable

peft: Any = pytest.importorskip("peft", reason="peft is not installed")
pytestmark = pytest.mark.long

CHOSEN = [case for case in CASES if case.family in TARGETS and not case.label]
ATTENTION = ("q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")


def targets(case: Case) -> st.SearchStrategy[Any]:
    """A list of names, a pattern, or all linear layers; with experts of the attention alone, as peft wants it."""
    has_experts = "expert" in str(case.changes)
    known = [name for name in TARGETS[case.family] if not has_experts or name in ATTENTION]
    names = st.lists(st.sampled_from(known), min_size=1, unique=True)
    pattern = st.sampled_from([r".*\.layers\.[01]\..*(q|qkv|q_a)_proj", r".*self_attn\.(o|q|qkv|q_a)_proj"])
    return names | pattern if has_experts else names | pattern | st.just("all-linear")


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_logits_are_those_of_peft(
    case: Case, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted = data.draw(targets(case))
    fields: dict[str, Any] = {
        "r": data.draw(st.integers(1, 24)),
        "lora_alpha": data.draw(st.sampled_from([1, 8, 32])),
        "use_rslora": data.draw(st.booleans()),
        "lora_dropout": data.draw(st.sampled_from([0.0, 0.3])),
        "rank_pattern": data.draw(
            st.dictionaries(st.sampled_from(["q_proj", r".*\.1\..*_proj", "o_proj"]), st.integers(1, 24), max_size=2)),
        "alpha_pattern": data.draw(st.dictionaries(
            st.sampled_from(["o_proj", r"layers.0.self_attn.\w+"]), st.sampled_from([3, 40]), max_size=2)),
        "init_lora_weights": False,
        "task_type": "CAUSAL_LM",
        "target_modules": wanted,
    }  # fmt: skip
    # PEFT writes them in this order, and takes the first that fits.
    for name in ("rank_pattern", "alpha_pattern"):
        fields[name] = dict(sorted(fields[name].items()))
    if isinstance(wanted, list):
        fields["layers_to_transform"] = data.draw(st.sampled_from([None, [0], [0, 2], 1]))
    folder = tmp_path_factory.mktemp("peft")
    base = base_of(case)
    base.save_pretrained(folder / "base")
    torch.manual_seed(data.draw(st.integers(0, 99)))
    try:
        wrapped = peft.get_peft_model(base, peft.LoraConfig(**fields)).eval()
    except ValueError as error:
        if "target modules" in str(error).lower():
            return  # The pattern fits no module of this family.
        raise
    wrapped.save_pretrained(folder / "adapter")
    model = ours(folder / "base", case)
    table = AdapterTable(model, capacity=1, max_rank=24)
    table.put(table.prepare(folder / "adapter"))
    tokens = prompt(13, 1)
    driver = Driver(model)
    logits = driver.step([(driver.add(tokens, 13), 13)], adapters=rows([0] * 13))
    theirs = expected(wrapped, tokens)
    torch.testing.assert_close(logits, theirs, atol=1e-4 * max(1.0, float(theirs.abs().max())), rtol=0)


def test_what_peft_writes_and_is_not_honoured_is_refused(tmp_path: Path) -> None:
    from plumbline.engines.native.models.adapters.adapter_config import AdapterError

    case = next(case for case in CHOSEN if case.name == "qwen3")
    base_of(case).save_pretrained(tmp_path / "base")
    table = AdapterTable(ours(tmp_path / "base", case), capacity=1, max_rank=24)
    for number, (field, fields) in enumerate({
        "use_dora": {"use_dora": True},
        "bias": {"bias": "lora_only"},
        "lora_bias": {"lora_bias": True},
        "modules_to_save": {"modules_to_save": ["lm_head"]},
        "lm_head": {"target_modules": ["q_proj", "lm_head"]},
        "embed_tokens": {"target_modules": ["q_proj", "embed_tokens"]},
        "trainable_token_indices": {"trainable_token_indices": [1, 2]},
        "init_lora_weights": {"init_lora_weights": "pissa"},
    }.items()):  # fmt: skip
        config = peft.LoraConfig(**{"target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | fields)  # type: ignore[operator]
        peft.get_peft_model(base_of(case), config).save_pretrained(tmp_path / str(number))
        with pytest.raises(AdapterError, match=field):
            table.prepare(tmp_path / str(number))
