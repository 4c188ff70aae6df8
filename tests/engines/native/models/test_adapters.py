"""Laws of adapters in a model: logits are those of transformers with the adapter merged into its weights.

* It holds for each family's layers: projections that stand alone and merged ones, rotated in any way, and for models
  whose weights are rounded as far as rounding allows.
* Sequences with different adapters, and without one, in the same step do not change each other.
* An adapter of a GGUF file is that of the folder which the file was made from.
* An adapter that cannot be honoured is refused by the name of the field or the tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.laws import EXPLORED
from support.weights.adapters import PREFIX, merge, write_adapter
from support.weights.gguf_files import random_reference, write_gguf
from support.weights.model_driver import Driver
from support.weights.model_families import CASES, SMALL, Case

from plumbline.engines.native.adapter_table import AdapterTable
from plumbline.engines.native.models import Transformer, load_model
from plumbline.engines.native.models.adapters.adapter_config import AdapterConfig, AdapterError
from plumbline.engines.native.models.gguf import load_gguf, read_model
from plumbline.port.engine import RefusedRequestError
from plumbline.server.loading.native.native_loader import build_native
from plumbline.server.settings import OptionError, Settings
from plumbline_kernels.cpu.library import load
from plumbline_kernels.lora import AdapterRows

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGETS: dict[str, tuple[str, ...]] = {
    "qwen3": ALL,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "glm4": (*ALL[:4], "gate_up_proj", "down_proj"),
    "cohere": ("q_proj", "up_proj"),
    "gemma2": ("k_proj", "v_proj", "gate_proj", "down_proj"),
    "starcoder2": ("q_proj", "c_fc", "c_proj"),
    "mixtral": ALL[:4],
    "gpt2": ("c_attn", "c_proj", "c_fc"),
    "gpt_neox": ("query_key_value", "dense", "dense_h_to_4h"),
    "codegen": ("qkv_proj", "fc_in"),
    "afmoe": (*ALL[:4], "self_attn.gate_proj"),
    "lfm2": ("in_proj", "conv.out_proj", "w1"),
    "falcon_h1": ("in_proj", "gate_proj", "up_proj", "k_proj"),
    "deepseek_v3": (
        "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj", "shared_experts.up_proj", "layers.0.mlp.up_proj"),
}  # fmt: skip
"""Modules by family."""
CHOSEN = [case for case in CASES if case.family in TARGETS and not case.label]


def base_of(case: Case, seed: int = 1) -> Any:
    torch.manual_seed(seed)
    config = case.config()
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("expert_bias"):  # A new router of Trinity finds all experts alike.
            parameter.data.normal_()
    return model


def ours(path: Path, case: Case, **options: Any) -> Transformer:
    return load_model(path, torch.float32, library=load() if case.is_compiled else None, **options)


def rows(owners: list[int]) -> AdapterRows:
    """The rows of a step by slot, -1 for none."""
    slots = sorted({slot for slot in owners if slot >= 0})
    groups = [[row for row, owner in enumerate(owners) if owner == slot] for slot in slots]
    starts = [0]
    for group in groups:
        starts.append(starts[-1] + len(group))
    flat = [row for group in groups for row in group]
    return AdapterRows(torch.tensor(flat, dtype=torch.int64), tuple(slots), tuple(starts))


@torch.inference_mode()
def expected(model: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.float()


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, 99, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_logits_are_those_of_merged_weights_whatever_else_is_in_the_step(case: Case, tmp_path: Path) -> None:
    """Two adapters of different ranks, and a sequence without one: a whole prompt each, then a decode each."""
    base = base_of(case)
    base.save_pretrained(tmp_path / "base")
    targets = TARGETS[case.family]
    folders = [
        write_adapter(tmp_path / name, base, targets, rank=rank, alpha=2 * rank, seed=rank)
        for name, rank in (("a", 3), ("b", 20))
    ]
    model = ours(tmp_path / "base", case)
    table = AdapterTable(model, capacity=3, max_rank=20)
    placed = [table.put(table.prepare(folder)) for folder in folders]
    references = [base_of(case) for _ in range(3)]
    for reference, folder in zip(references, folders, strict=False):
        merge(reference, folder)

    driver = Driver(model)
    owners = [placed[0].slot, placed[1].slot, -1]
    sequences = [driver.add(prompt(length, seed=length), length + 2) for length in (9, 14, 6)]
    for counts in ((9, 14, 6), (1, 1, 1)):
        by_row = [slot for slot, count in zip(owners, counts, strict=True) for _ in range(count)]
        driver.step(list(zip(sequences, counts, strict=True)), adapters=rows(by_row))
        for sequence in sequences:
            sequence.tokens.append(int(sequence.logits[-1].argmax()))
    for sequence, reference in zip(sequences, references, strict=True):
        wanted = expected(reference, sequence.tokens[: sequence.num_computed_tokens])
        torch.testing.assert_close(torch.stack(sequence.logits), wanted, atol=1e-4, rtol=0)
    first = expected(references[0], sequences[0].tokens)
    assert (first - expected(references[2], sequences[0].tokens)).abs().max() > 0.05, (
        "adapters change something"
    )


FILES = ("llama", "qwen2", "qwen3", "smollm3", "gemma3", "granite", "mixtral", "mistral")
"""Labels of GGUF files, with rows of q and k that the converter turns and without."""


@pytest.mark.parametrize("label", FILES)
def test_adapters_of_a_file_are_those_of_its_folder(label: str, tmp_path: Path) -> None:
    reference = random_reference(label)
    write_gguf(tmp_path / "a.gguf", reference, label)
    targets = ALL[:4] if label == "mixtral" else ALL
    folder = write_adapter(tmp_path / "adapter", reference, targets, rank=4, alpha=8, size=0.3)
    model = load_gguf(read_model(tmp_path / "a.gguf"), torch.float32)
    table = AdapterTable(model, capacity=1, max_rank=4)
    slot = table.put(table.prepare(folder)).slot
    ids = [token % 96 for token in prompt(24, seed=1)]
    plain = expected(reference, ids)
    merge(reference, folder)
    driver = Driver(model)
    found = driver.step([(driver.add(ids, 32), len(ids))], adapters=rows([slot] * len(ids)))
    wanted = expected(reference, ids)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    assert (wanted - plain).abs().max() > 0.05, "the adapter changes something"


@pytest.mark.parametrize("label", ["gptneox", "falcon two", "lfm2"])
def test_files_whose_weights_the_converter_changes_take_no_adapters(label: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", random_reference(label), label)
    assert read_model(tmp_path / "a.gguf").order == "other"
    given = Settings(loras=(("a", "b"),))
    with pytest.raises(OptionError, match="--lora is not supported with GGUF files of"):
        build_native(given, "a", tmp_path, tmp_path / "a.gguf", lambda *_: None, lambda _: [])


PLAIN = Case("qwen3", {"head_dim": 16})


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Transformer, Path]:
    """A small model, the same in transformers and in ours, and a folder with an adapter of it."""
    base, folder = base_of(PLAIN), tmp_path_factory.mktemp("small")
    base.save_pretrained(folder / "base")
    return base, ours(folder / "base", PLAIN), write_adapter(folder / "good", base, ALL)


CONFIGS = st.fixed_dictionaries({
    "rank": st.integers(1, 20),
    "alpha": st.sampled_from([1, 8, 16.5]),
    "use_rslora": st.booleans(),
    "targets": st.sets(st.sampled_from(ALL), min_size=1),
    "form": st.sampled_from(["list", "regex", "all-linear"]),
    "rank_pattern": st.dictionaries(
        st.sampled_from(["q_proj", r"^model.layers.1.self_attn.v_proj", r"layers\.[02]\..*\.(up|down)_proj", "proj"]),
        st.integers(1, 12), max_size=3),
    "alpha_pattern": st.dictionaries(
        st.sampled_from(["k_proj", r"model\.layers\.\d+\.mlp\.up_proj", "1.mlp.gate_proj"]),
        st.sampled_from([2, 30.0]), max_size=2),
    "seed": st.integers(0, 99),
})  # fmt: skip


@settings(
    max_examples=EXPLORED or 8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(drawn=CONFIGS)
def test_ranks_and_scales_of_each_module_are_what_the_configuration_says(
    small: tuple[Any, Transformer, Path], tmp_path_factory: pytest.TempPathFactory, drawn: dict[str, Any]
) -> None:
    base, model, _ = small
    fields = {name: drawn[name] for name in ("use_rslora", "rank_pattern", "alpha_pattern")}
    if drawn["form"] != "list":
        fields["target_modules"] = drawn["form"] if drawn["form"] == "all-linear" else r".*\.(q|k|v)_proj"
    config = AdapterConfig({"r": drawn["rank"], "lora_alpha": drawn["alpha"], "peft_type": "LORA", **fields})
    folder = write_adapter(
        tmp_path_factory.mktemp("drawn") / "a", base, tuple(sorted(drawn["targets"])), rank=drawn["rank"],
        alpha=drawn["alpha"], seed=drawn["seed"], rank_of=config.rank, size=0.3, **fields,
    )  # fmt: skip
    reference = base_of(PLAIN)

    def scale(name: str) -> float:
        by = config.rank(name)
        alpha = next((v for k, v in drawn["alpha_pattern"].items() if ends(k, name)), drawn["alpha"])
        return float(alpha / (by**0.5 if drawn["use_rslora"] else by))

    merge(reference, folder, scale)
    table = AdapterTable(model, capacity=1, max_rank=20)
    table.put(table.prepare(folder))
    driver, tokens = Driver(model), prompt(11, seed=drawn["seed"])
    sequence = driver.add(tokens, 12)
    logits = driver.step([(sequence, 11)], adapters=rows([0] * 11))
    torch.testing.assert_close(logits, expected(reference, tokens), atol=2e-4, rtol=1e-4)


def ends(pattern: str, name: str) -> bool:
    import re

    return re.match(rf"(.*\.)?({pattern})$", name) is not None


def test_adapters_are_not_rounded_with_the_weights(tmp_path: Path) -> None:
    """What they add to the results of rounded weights is a law of the kernels."""
    case = next(case for case in CASES if case.family == "qwen3" and case.is_compiled)
    base = base_of(case)
    base.save_pretrained(tmp_path / "base")
    model = ours(tmp_path / "base", case, bits=4)
    table = AdapterTable(model, capacity=1, max_rank=16)
    prepared = table.prepare(write_adapter(tmp_path / "a", base, ALL))
    for place, (_, projections) in zip(model.places, prepared.parts, strict=True):
        assert place.layer.packed is not None
        assert place.layer.packed.bits == 4
        assert [packed.bits for packed in projections] == [0, 0]


def test_an_adapter_that_has_left_leaves_nothing_behind(small: tuple[Any, Transformer, Path]) -> None:
    """Its slot goes to the next one, which has fewer modules."""
    base, model, folder = small
    table = AdapterTable(model, capacity=1, max_rank=16)
    tokens = prompt(8, 1)

    def logits(owner: int) -> torch.Tensor:
        driver = Driver(model)
        return driver.step([(driver.add(tokens, 8), 8)], adapters=rows([owner] * 8))

    plain = logits(-1)
    first = table.put(table.prepare(folder))
    assert table.num_bytes > 0
    assert not torch.equal(logits(first.slot), plain)
    table.remove(first)
    assert torch.equal(logits(first.slot), plain)
    assert (table.num_bytes, table.num_free) == (0, 1)
    few = write_adapter(folder.parent / "few", base, ("layers.2.self_attn.q_proj",), seed=5)
    second = table.put(table.prepare(few))
    assert (second.slot, second.number) == (first.slot, first.number + 1)
    reference = base_of(PLAIN)
    merge(reference, few)
    torch.testing.assert_close(logits(second.slot), expected(reference, tokens), atol=1e-4, rtol=0)


Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
Q = f"{PREFIX}model.layers.0.self_attn.q_proj"
ONE = torch.ones(1, 1)


def added(name: str) -> Change:
    return lambda weights: weights | {name: ONE}


TENSORS: dict[str, tuple[Change, str]] = {
    "lm_head": (added(f"{PREFIX}lm_head.lora_A.weight"), r"lm_head.*output layer"),
    "embedding": (added(f"{PREFIX}model.embed_tokens.lora_embedding_A"), r"embed_tokens.*embedding"),
    "dora": (added(f"{Q}.lora_magnitude_vector"), r"q_proj.*DoRA"),
    "bias": (added(f"{Q}.lora_B.bias"), r"lora_B\.bias"),
    "experts": (added(f"{PREFIX}model.layers.0.mlp.experts.0.up_proj.lora_A.weight"), r"experts.*are"),
    "unknown layer": (added(f"{PREFIX}model.layers.9.mlp.up_proj.lora_A.weight"), r"layers\.9.*no linear layer"),
    "other prefix": (added("model.layers.0.mlp.up_proj.lora_A.weight"), r"not supported"),
    "no B": (
        lambda weights: {k: v for k, v in weights.items() if k != f"{Q}.lora_B.weight"}, r"no lora_B for .*0.*q_proj"),
    "wide": (lambda weights: weights | {f"{Q}.lora_B.weight": torch.ones(64, 5)}, r"shape \[64, 5\]"),
    "narrow": (lambda weights: weights | {f"{Q}.lora_A.weight": torch.ones(4, 47)}, r"shape \[4, 47\]"),
    "integers": (lambda weights: weights | {f"{Q}.lora_A.weight": torch.ones(4, 48).int()}, r"type torch.int32"),
    "not numbers": (
        lambda weights: weights | {f"{Q}.lora_A.weight": torch.full((4, 48), float("nan"))}, r"q_proj.*numbers"),
    "empty": (lambda weights: {}, "no tensors"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TENSORS)
def test_tensors_that_do_not_fit_are_refused_by_name(
    fault: str, small: tuple[Any, Transformer, Path], tmp_path: Path
) -> None:
    _, model, good = small
    change, message = TENSORS[fault]
    (tmp_path / "adapter_config.json").write_bytes((good / "adapter_config.json").read_bytes())
    save_file(change(load_file(good / "adapter_model.safetensors")), tmp_path / "adapter_model.safetensors")
    with pytest.raises(AdapterError, match=message):
        AdapterTable(model, capacity=1, max_rank=16).prepare(tmp_path)


FIELDS: dict[str, list[Any]] = {
    "peft_type": ["IA3", None],
    "task_type": ["SEQ_CLS"],
    "bias": ["all", "lora_only"],
    "init_lora_weights": ["pissa", "olora", "corda", "pissa_niter_4"],
    "use_dora": [True],
    "lora_bias": [True],
    "use_qalora": [True],
    "modules_to_save": [["lm_head"]],
    "trainable_token_indices": [[3]],
    "target_parameters": [["mlp.experts.gate_up_proj"]],
    "layer_replication": [[[0, 2]]],
    "alora_invocation_tokens": [[1, 2]],
    "surprise": [1, "yes"],
    "r": [0, -1, "8", 2.5, True, None, 10**400],
    "lora_alpha": ["8", None, float("nan"), True],
    "use_rslora": ["yes"],
    "rank_pattern": [[], {"q_proj": 0}, {"(": 4}, {"(a+)+$": 4}, {".*.*.*x": 4}, {"a?a?a?aaa": 4},
                     {"q" * 300: 4}, {f"q{number}": 4 for number in range(3000)}],
    "alpha_pattern": [{"q_proj": "8"}],
    "target_modules": [["v_proj"], [1], 3, []],
    "layers_to_transform": [[0], 1, "0"],
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_fields_that_cannot_be_honoured_are_refused_by_name(
    field: str, small: tuple[Any, Transformer, Path], tmp_path: Path
) -> None:
    _, model, good = small
    config = json.loads((good / "adapter_config.json").read_text())
    (tmp_path / "adapter_model.safetensors").write_bytes((good / "adapter_model.safetensors").read_bytes())
    for value in FIELDS[field]:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | {field: value}))
        with pytest.raises(AdapterError, match=field):
            AdapterTable(model, capacity=1, max_rank=16).prepare(tmp_path)


def test_fields_without_effect_are_accepted(small: tuple[Any, Transformer, Path], tmp_path: Path) -> None:
    _, model, good = small
    config = json.loads((good / "adapter_config.json").read_text()) | {
        "layers_to_transform": [0, 1, 2], "init_lora_weights": "gaussian", "fan_in_fan_out": False, "loftq_config": {},
        "modules_to_save": None, "use_dora": False, "peft_version": "0.21.2", "inference_mode": True,
        "megatron_core": "megatron.core", "qalora_group_size": 16, "target_parameters": None,
    }  # fmt: skip
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes((good / "adapter_model.safetensors").read_bytes())
    assert AdapterTable(model, capacity=1, max_rank=16).prepare(tmp_path).parts


def test_files_that_are_none_are_refused(small: tuple[Any, Transformer, Path], tmp_path: Path) -> None:
    _, model, good = small
    table = AdapterTable(model, capacity=1, max_rank=16)
    for text in ("", "[]", "[" * 100_000, '{"r": 4' + " " * 2**20 + "}"):
        (tmp_path / "adapter_config.json").write_text(text)
        with pytest.raises(RefusedRequestError, match=r"adapter_config\.json"):
            table.prepare(tmp_path)
    (tmp_path / "adapter_config.json").write_bytes((good / "adapter_config.json").read_bytes())
    with pytest.raises(AdapterError, match="safetensors"):
        table.prepare(tmp_path)
    whole = (good / "adapter_model.safetensors").read_bytes()
    for part in (b"", whole[:100], whole[:-1], b"\xff" * 64):
        (tmp_path / "adapter_model.safetensors").write_bytes(part)
        with pytest.raises(AdapterError, match="truncated"):
            table.prepare(tmp_path)
    with pytest.raises(AdapterError, match=r"rank 4.*at most 3 \(--max-lora-rank\)"):
        AdapterTable(model, capacity=1, max_rank=3).prepare(good)


def test_an_adapter_of_a_model_of_images_and_text_is_one_of_its_text(tmp_path: Path) -> None:
    torch.manual_seed(1)
    tiny = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        "gemma3",
        text_config=SMALL | {"head_dim": 16},
        vision_config=tiny | {"image_size": 28, "patch_size": 14},
        image_token_index=200,
    )
    config._attn_implementation = "eager"
    reference = transformers.AutoModelForImageTextToText.from_config(config).eval()
    reference.save_pretrained(tmp_path / "base")
    folder = write_adapter(tmp_path / "a", reference.model.language_model, ("q_proj", "up_proj"))
    weights = load_file(folder / "adapter_model.safetensors")
    renamed = {k.replace(PREFIX, f"{PREFIX}model.language_model."): v for k, v in weights.items()}
    save_file(renamed, folder / "adapter_model.safetensors")
    merge(reference, folder)
    model = load_model(tmp_path / "base", torch.float32)
    table = AdapterTable(model, capacity=1, max_rank=16)
    table.put(table.prepare(folder))
    driver, tokens = Driver(model), prompt(12, 1)
    logits = driver.step([(driver.add(tokens, 12), 12)], adapters=rows([0] * 12))
    torch.testing.assert_close(logits, expected(reference, tokens), atol=1e-4, rtol=0)
