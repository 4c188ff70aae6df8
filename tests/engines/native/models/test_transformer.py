"""Our transformer computes what transformers computes, whatever the paging, the chunking and the batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from support.weights.model_driver import Driver

from plumbline.engines.native.models import Transformer, describe, load_model, random_model
from plumbline.engines.native.models.operations.recorded import RecordedBackend
from plumbline_kernels.cpu.library import load

VOCAB = 199
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-gqa": ("Llama", {}),
    "llama-mha-tied": ("Llama", {"num_key_value_heads": 6, "tie_word_embeddings": True}),
    "llama-mqa-bias": ("Llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 16, "rms_norm_eps": 1e-3}),
    "llama-rope-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-rope-linear": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0}},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2-yarn-tied": ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3-tied-window": (
        "Qwen3",
        {
            "head_dim": 8,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 2,
        },
    ),
    "mistral-window": ("Mistral", {"sliding_window": 21, "head_dim": 8}),
    "mistral-full": ("Mistral", {"sliding_window": None, "head_dim": None}),
    "compiled-llama-bias": (
        "Llama",
        {"head_dim": 32, "attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3},
    ),
    "compiled-qwen3-tied-window": (
        "Qwen3",
        {
            "head_dim": 32,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 2,
        },
    ),
}
"""Families and changes of `BASE`; those that begin with "compiled" run on the compiled kernels."""


@pytest.fixture(scope="module", params=CASES, ids=list(CASES))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Transformer]:
    """The same random weights in transformers and in ours, by way of a saved folder; some of them sharded."""
    family, changes = CASES[request.param]
    torch.manual_seed(len(request.param))
    config = getattr(transformers, f"{family}Config")(**(BASE | changes))
    config._attn_implementation = "eager"
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in reference.named_parameters():
        if name.endswith(("norm.weight", "bias")):
            parameter.data.normal_(0.7, 0.3)
    path = tmp_path_factory.mktemp(request.param)
    reference.save_pretrained(path, max_shard_size="40KB" if "tied" in request.param else "5GB")
    assert (path / "model.safetensors.index.json").exists() == ("tied" in request.param)
    model = load_model(path, torch.float32, library=load() if request.param.startswith("compiled") else None)
    assert (model.head.packed is not None) == request.param.startswith("compiled")
    return reference, model


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference_logits(reference: Any, tokens: list[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(torch.tensor([tokens])).logits[0]
    return logits.float()


def test_logits_agree_with_transformers(pair: tuple[Any, Transformer]) -> None:
    """A whole prompt in one chunk gives the logits of every position within 1e-4."""
    reference, model = pair
    tokens = prompt(75, seed=1)
    driver = Driver(model)
    logits = driver.step([(driver.add(tokens, 80), 75)])
    torch.testing.assert_close(logits, reference_logits(reference, tokens), atol=1e-4, rtol=0)


def test_greedy_tokens_agree_over_64_steps_in_ragged_batches(pair: tuple[Any, Transformer]) -> None:
    """Three prompts of different lengths decode together to the tokens that each gives alone in transformers."""
    reference, model = pair
    driver = Driver(model)
    prompts = [prompt(length, seed=length) for length in (5, 33, 16)]
    sequences = [driver.add(tokens, len(tokens) + 65) for tokens in prompts]
    driver.step([(sequence, len(sequence.tokens)) for sequence in sequences])
    driver.decode(sequences, 64)
    for tokens, sequence in zip(prompts, sequences, strict=True):
        # If each token is the reference's choice after the ones before it, all are what it would have generated.
        choices = reference_logits(reference, sequence.tokens).argmax(-1).tolist()
        assert sequence.tokens == tokens + choices[len(tokens) - 1 : -1]
        assert len(sequence.tokens) == len(tokens) + 64


def test_an_exact_decode_step_has_the_same_bits_in_any_batch(pair: tuple[Any, Transformer]) -> None:
    """Whatever else is decoded in the same step, a sequence's logits do not change in a single bit."""
    _, model = pair
    driver = Driver(model, exact=True)
    sequences = [driver.add(prompt(length, seed=length), 40) for length in (3, 30, 17, 9)]
    for sequence in sequences:
        driver.step([(sequence, len(sequence.tokens))])
    for sequence in sequences:
        sequence.tokens.append(7)
    together = driver.step([(sequence, 1) for sequence in sequences])
    for row, sequence in enumerate(sequences):
        sequence.num_computed_tokens -= 1
        assert torch.equal(driver.step([(sequence, 1)])[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_exact_prompt_has_the_same_bits_in_any_chunks(
    pair: tuple[Any, Transformer], dtype: torch.dtype
) -> None:
    """A prompt in one chunk, in odd chunks beside a decode, and token by token: the same logits to the bit.

    The compiled attention takes 64 rows and 64 keys at a time: the prompt is longer, and ends token by token.
    """
    library = None if pair[1].head.packed is None else load()
    model = (
        pair[1] if dtype == torch.float32 else random_model(pair[1].description, 5, dtype, library=library)
    )
    tokens, outcomes = prompt(70, seed=2), []
    for chunks in ([70], [7, 1, 16, 30, 16], [*[1] * 3, 58, *[1] * 9]):
        driver = Driver(model, exact=True)
        other, sequence = driver.add(prompt(90, seed=3), 96), driver.add(tokens, 80)
        driver.step([(other, 5)])
        for count in chunks:
            driver.step([(other, 1), (sequence, count)])
        outcomes.append(torch.stack(sequence.logits))
    assert torch.equal(outcomes[0], outcomes[1])
    assert torch.equal(outcomes[0], outcomes[2])


def test_steps_of_growing_size_record_few_programs() -> None:
    """Each one has buffers of its own for all operations."""
    config = describe(BASE | {"model_type": "qwen3", "head_dim": 32})
    model = random_model(config, 5, torch.float32, library=load())
    assert isinstance(model._backend, RecordedBackend)
    driver, programs = Driver(model), []
    sequence = driver.add([1], 240)
    for count in range(60, 240, 10):
        sequence.tokens, sequence.num_computed_tokens = [1] * count, 0
        driver.step([(sequence, count)])
        programs.append(model._backend._recorded)
    assert len({id(program) for program in programs}) <= 3


def test_a_step_on_an_old_cache_while_another_thread_records_writes_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An engine is renewed with a new cache while the thread that hung may still run a step on the old one."""
    model = random_model(describe(BASE | {"model_type": "qwen3", "head_dim": 32}), 5, library=load())
    old, new = Driver(model), Driver(model)
    whole, sequence = model._run_layers, old.add([1] * 9, 9)

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.undo()
        old.step([(sequence, 5)])
        return whole(*arguments)

    monkeypatch.setattr(model, "_run_layers", interrupted)
    new.step([(new.add([1] * 9, 9), 9)])
    before = [tensor.clone() for pair in new.kv_caches for tensor in pair]
    old.step([(sequence, 4)])
    after = [tensor for pair in new.kv_caches for tensor in pair]
    torch.testing.assert_close(after, before, atol=0, rtol=0, equal_nan=True)
    torch.testing.assert_close(old.kv_caches[0][0], new.kv_caches[0][0], equal_nan=True)


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_weights_change_little_and_nothing_by_chunks(bits: int) -> None:
    """Chunks give the same bits; the logits stay close to those of the exact weights."""
    config = describe(BASE | {"model_type": "qwen3", "head_dim": 32})
    exact, model = (random_model(config, 5, torch.float32, library=load(), bits=n) for n in (0, bits))
    tokens, outcomes = prompt(70, seed=2), []
    for chosen, chunks in ((exact, [70]), (model, [70]), (model, [7, 1, 16, 46])):
        driver = Driver(chosen)
        sequence = driver.add(tokens, 80)
        for count in chunks:
            driver.step([(sequence, count)])
        outcomes.append(torch.stack(sequence.logits))
    assert torch.equal(outcomes[1], outcomes[2])
    error = (outcomes[1] - outcomes[0]).norm() / outcomes[0].norm()
    assert 0 < error < (0.05 if bits == 8 else 0.3)


def test_chunked_prefill_beside_decodes_changes_nothing(pair: tuple[Any, Transformer]) -> None:
    """A prompt computed in chunks, next to a decoding sequence and padding rows, has the logits of one chunk."""
    reference, model = pair
    driver = Driver(model)
    other = driver.add(prompt(9, seed=3), 80)
    driver.step([(other, 9)])
    tokens = prompt(70, seed=2)
    sequence = driver.add(tokens, 80)
    for count in (7, 1, 16, 30, 16):
        other.tokens.append(int(other.logits[-1].argmax()))
        driver.step([(other, 1), (sequence, count)], padding=count % 3)
    expected = reference_logits(reference, tokens)
    torch.testing.assert_close(torch.stack(sequence.logits), expected, atol=1e-4, rtol=0)
    expected = reference_logits(reference, other.tokens)
    torch.testing.assert_close(torch.stack(other.logits), expected, atol=1e-4, rtol=0)
