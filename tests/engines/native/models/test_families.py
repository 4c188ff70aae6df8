"""Every family computes what transformers computes, from a folder that transformers wrote.

The laws, for random weights and a small config of each family:

* A whole prompt, the same prompt in chunks beside a decode, and a prompt whose beginning another sequence has computed
  give the logits of transformers within 1e-4.
* Decoded together with others, a sequence gets the greedy tokens of transformers.
* In an exact batch, and always on the compiled kernels, cutting a prompt otherwise changes no bit.
* The config that transformers writes by default is read, each field of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.weights.model_driver import Driver, Sequence
from support.weights.model_families import CASES, GEMMA4, HYBRID, LLAMA4, SMALL, YARN, Case
from support.weights.vision_cases import CASES as IMAGES

from plumbline.engines.native.models import Transformer, UnsupportedModelError, describe, load_model
from plumbline.engines.native.models.families import FAMILIES
from plumbline.engines.native.models.support import compiled_problem, kernels_problem
from plumbline_kernels.cpu.library import load

VOCAB = 99
COMPILED = {case.family for case in CASES if case.is_compiled}


PARAMETERS = [
    pytest.param(case, marks=pytest.mark.long if case.is_long else (), id=case.name) for case in CASES
]


@pytest.fixture(scope="module", params=PARAMETERS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Transformer]:
    """The same random weights in transformers and in ours, by way of a saved folder."""
    case: Case = request.param
    torch.manual_seed(len(case.name))
    config = case.config()
    config._attn_implementation = "eager"
    reference: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
    for name, parameter in reference.named_parameters():
        if (
            "norm" in name
            or name.endswith(("bias", "router.scale", "per_expert_scale", ".D"))
            or "sinks" in name
        ):
            parameter.data.normal_(case.norms, 0.3)
    for name, buffer in reference.named_buffers():
        if "correction" in name:
            buffer.normal_(0.0, 0.3)
        elif "layer_scalar" in name:
            buffer.normal_(1.0, 0.2)
    path = tmp_path_factory.mktemp(case.name)
    reference.save_pretrained(path)
    model = load_model(
        path, torch.float32, library=load() if case.is_compiled else None, max_model_len=case.length
    )
    assert (model.library is not None) == case.is_compiled
    return reference, model


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def expected(reference: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits.float()


def assert_same(sequence: Sequence, reference: Any) -> None:
    ours = torch.stack(sequence.logits)
    theirs = expected(reference, sequence.tokens[: sequence.num_computed_tokens])[-len(ours) :]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_prompts_whole_in_chunks_and_after_a_cached_beginning_have_the_logits_of_transformers(
    pair: tuple[Any, Transformer],
) -> None:
    reference, model = pair
    driver = Driver(model)
    whole, chunked = driver.add(prompt(50, seed=1), 56), driver.add(prompt(50, seed=1)[:40] + [3] * 9, 56)
    driver.step([(whole, 50)])
    compared = [whole, chunked]
    if not model.description.state_bytes(4):  # Of those that keep states, blocks of the cache are not enough.
        compared.append(driver.fork(whole, prompt(50, seed=1)[:32] + prompt(11, seed=4), 48))
    for count in (7, 1, 24, 17):
        whole.tokens.append(int(whole.logits[-1].argmax()))
        driver.step([(whole, 1), (chunked, count)], padding=count % 3)
    if len(compared) > 2:
        driver.step([(compared[2], 11)])
    for sequence in compared:
        assert_same(sequence, reference)


def test_sequences_decoded_together_get_the_greedy_tokens_of_transformers(
    pair: tuple[Any, Transformer],
) -> None:
    reference, model = pair
    driver = Driver(model)
    prompts = [prompt(length, seed=length) for length in (5, 20)]
    # 64 for each family: on the compiled kernels, which take a tenth of the time of torch, where a case has them. Of
    # its other cases 12 lead into another block of the cache.
    count = 12 if model.library is None and model.description.model_type in COMPILED else 64
    sequences = [driver.add(tokens, len(tokens) + count + 1) for tokens in prompts]
    driver.step([(sequence, len(sequence.tokens)) for sequence in sequences])
    driver.decode(sequences, count)
    for tokens, sequence in zip(prompts, sequences, strict=True):
        # If each token is the reference's choice after the ones before it, all are what it would have generated.
        choices = expected(reference, sequence.tokens).argmax(-1).tolist()
        assert sequence.tokens == tokens + choices[len(tokens) - 1 : -1]


def test_tokens_whose_results_are_wanted_have_the_logits_that_they_have_among_all(
    pair: tuple[Any, Transformer],
) -> None:
    """The last layer computes the last token of each sequence alone, after the keys of all are written."""
    _, model = pair
    results = []
    for alone in (False, True):
        driver = Driver(model)
        sequences = [driver.add(prompt(length, seed=length), length + 1) for length in (7, 20, 12)]
        plan = [(sequence, len(sequence.tokens)) for sequence in sequences]
        if alone:
            results.append(driver.last(plan))
        else:
            driver.step(plan)
            results.append(torch.stack([sequence.logits[-1] for sequence in sequences]))
    torch.testing.assert_close(*results, atol=1e-4, rtol=0)


def test_in_an_exact_batch_a_prompt_has_the_same_bits_in_any_chunks(pair: tuple[Any, Transformer]) -> None:
    _, model = pair
    tokens, outcomes = prompt(19, seed=2), []  # Longer than a block.
    for chunks in ([19], [7, 1, 9, 2], [1, 1, 1, 13, 1, 1, 1]):
        driver = Driver(model, exact=True)
        other, sequence = driver.add(prompt(60, seed=3), 64), driver.add(tokens, 48)
        driver.step([(other, 5)])
        for count in chunks:
            driver.step([(other, 1), (sequence, count)])
        outcomes.append(torch.stack(sequence.logits))
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "text", "vision"), [
    ("gemma3", {"head_dim": 16}, {}),
    ("mistral3", {"model_type": "ministral3", "head_dim": 16, "rope_parameters": YARN}, {"model_type": "pixtral"}),
    ("gemma4", {"head_dim": 16, **GEMMA4, "global_head_dim": 32, "pad_token_id": 0},
     {"head_dim": 16, "num_key_value_heads": 2}),
    ("llama4", {"num_experts_per_tok": 1, **LLAMA4}, {"intermediate_size": 128, "vision_output_dim": 32,
     "projector_input_dim": 32, "projector_output_dim": 32}),
    ("qwen2_5_vl", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 2, 2]}},
     {"depth": 1, "num_heads": 2, "out_hidden_size": 48}),
    ("llava", {"model_type": "qwen3", "head_dim": 16}, {"model_type": "siglip_vision_model"}),
])  # fmt: skip
def test_the_text_of_a_model_of_images_and_text_is_that_of_transformers(
    family: str, text: dict[str, Any], vision: dict[str, Any], tied: bool, tmp_path: Path
) -> None:
    """Tensors of images are left alone, and the output layer is the embedding if the checkpoint has no other."""
    torch.manual_seed(1)
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(
        family,
        text_config=SMALL | text | {"tie_word_embeddings": tied},
        vision_config=small | {"image_size": 28, "patch_size": 14} | vision,
        image_token_index=200,
        tie_word_embeddings=tied,
    )
    config._attn_implementation = "eager"
    reference = transformers.AutoModelForImageTextToText.from_config(config).eval()
    reference.save_pretrained(tmp_path)
    model = load_model(tmp_path, torch.float32)
    assert model.description.is_text_of_more
    driver, tokens = Driver(model), prompt(30, seed=1)
    sequence = driver.add(tokens, 32)
    driver.step([(sequence, 30)])
    assert_same(sequence, reference)


def test_experts_may_be_stored_in_one_tensor(tmp_path: Path) -> None:
    """As recent models of images and text have them, with layers that predict further tokens."""
    case = next(case for case in HYBRID if case.family == "qwen3_5_moe_text")
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(case.config()).save_pretrained(tmp_path)
    apart = load_model(tmp_path, torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    for layer in range(len(apart.description.layers)):
        prefix = f"model.layers.{layer}.mlp.experts"
        one = [
            [tensors.pop(f"{prefix}.{expert}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for expert in range(6)
        ]
        tensors[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in one])
        tensors[f"{prefix}.down_proj"] = torch.stack([down for *_, down in one])
    tensors["mtp.layers.0.input_layernorm.weight"] = torch.ones(48)
    save_file(tensors, tmp_path / "model.safetensors")
    logits = []
    for model in (apart, load_model(tmp_path, torch.float32)):
        driver = Driver(model)
        logits.append(driver.step([(driver.add(prompt(9, seed=1), 16), 9)]))
    assert torch.equal(*logits)


@pytest.mark.parametrize("change", [
    {"surprise": 1}, {"text_config": None}, {"text_config": {"model_type": "mamba"}}, {"quantization_config": {}}
])  # fmt: skip
def test_what_is_around_a_text_is_known_or_refused(change: dict[str, Any]) -> None:
    config = {"model_type": "gemma3", "text_config": {}, "vision_config": {}, "mm_tokens_per_image": 256}
    assert describe(config).vocab_size == 262208
    with pytest.raises(UnsupportedModelError, match=r"surprise|text_config|mamba|quantization_config"):
        describe(config | change)


def test_a_part_that_the_kernels_lack_is_named() -> None:
    """As wide as latents with their keys, queries between two projections would share a buffer with those."""
    library = load()
    for rank, problem in ((48, None), (64, "q_lora_rank of 64")):
        config = next(case for case in CASES if case.family == "deepseek_v3" and case.is_compiled).config()
        config.q_lora_rank = rank
        found = compiled_problem(describe(json.loads(config.to_json_string())), torch.float32, library)
        assert (found is None) == (problem is None)
        assert problem is None or problem in str(found)
    wide = next(case for case in CASES if case.name == "gemma4_text-wide-compiled").config()
    assert kernels_problem(describe(json.loads(wide.to_json_string()))) is None
    wide = next(case for case in CASES if case.family == "qwen3").config()
    wide.head_dim = 640
    assert "heads of 640" in str(kernels_problem(describe(json.loads(wide.to_json_string()))))


def test_every_family_has_a_case() -> None:
    elsewhere = {"llama", "qwen2", *(case.text for case in IMAGES), *ALIASES}
    assert {case.config().model_type for case in CASES} >= FAMILIES.keys() - elsewhere


NEEDED: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "gemma4_text": {"vocab_size_per_layer_input": 262144},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
}
"""Fields of families whose default config describes no model, or none that is supported."""

ALIASES = {"kimi_k2": "deepseek_v3"}
"""Types that releases have for a family of transformers."""


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fields_that_transformers_writes_for_a_family_are_known_and_others_refused(
    family: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(ALIASES.get(family, family), **NEEDED.get(family, {}))
    config.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text()) | {"model_type": family}
    describe(fields)
    with pytest.raises(UnsupportedModelError, match="surprise"):
        describe(fields | {"surprise": 1})
