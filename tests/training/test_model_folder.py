"""Check the committed folder: it loads in transformers, answers, and its card has the figures of the evaluation."""

import json
import random
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.servers.pocket import text_model
from transformers import AutoProcessor, AutoTokenizer

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import text_weights
from plumbline.pocket.network import Network, PocketShape
from plumbline.pocket.to_gguf import gguf_name
from plumbline_training import evaluate, tokenizer
from plumbline_training.pictures.draw import picture
from plumbline_training.pictures.model_with_eyes import IMAGE_TOKEN, TOKENS, pixels
from plumbline_training.pictures.scene import Scenes

FILES = [
    "README.md",
    "chat_template.jinja",
    "config.json",
    "evaluation.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture(scope="module")
def model() -> Any:
    return text_model()


def test_the_folder_is_whole_and_small() -> None:
    assert {p.name for p in MODEL_DIR.iterdir()} >= set(FILES)
    assert (MODEL_DIR / "model.safetensors").stat().st_size <= 12_000_000


def test_the_weights_are_those_of_the_layout_and_tied() -> None:
    with safe_open(MODEL_DIR / "model.safetensors", "pt") as file:
        names = set(file.keys())
        assert {file.get_tensor(n).dtype for n in names} == {torch.bfloat16}
    assert set(text_weights(MODEL_DIR)) == {n for n, _ in Network(PocketShape()).named_parameters()}
    parts = ("language_model.", "vision_tower.", "multi_modal_projector.")
    assert {name for name in names if name.startswith(parts)} == names


def test_the_eyes_are_small() -> None:
    weights = load_file(MODEL_DIR / "model.safetensors")
    size = sum(w.numel() for name, w in weights.items() if not name.startswith("language_model."))
    assert size <= 1_000_000


def test_the_processor_gives_the_pixels_of_training() -> None:
    processor = AutoProcessor.from_pretrained(MODEL_DIR)
    scenes = Scenes(random.Random(1), "eval")
    images = [picture(scenes.any(), scenes.rng).image for _ in range(4)]
    found = processor(images=[[each] for each in images], text=[IMAGE_TOKEN] * 4, return_tensors="pt")
    torch.testing.assert_close(found["pixel_values"], pixels(images), atol=1e-5, rtol=0)
    assert found["input_ids"].shape == (4, TOKENS)


def test_size_and_context(model: Any) -> None:
    assert 2_000_000 <= model.num_parameters() <= 4_000_000
    assert model.config.max_position_embeddings >= 20_000
    assert model.config.tie_word_embeddings


def test_tokenizers_and_transformers_give_the_same_tokens() -> None:
    hf = AutoTokenizer.from_pretrained(MODEL_DIR)
    tok = tokenizer.load()
    for text in (
        "Hello, Plumbline!",
        "<|im_start|>user\nHi<|im_end|>",
        "get_weather(city=Malmö) 3.5",
        "  a\n\n b",
    ):
        assert hf.encode(text) == tok.encode(text).ids
        assert hf.decode(hf.encode(text)) == text
    assert hf.eos_token == "<|im_end|>"
    assert hf.pad_token == "<|endoftext|>"


def test_training_network_and_transformers_agree(model: Any) -> None:
    network = Network(PocketShape(), dtype=torch.float32)
    state = {n: p.detach().clone() for n, p in model.named_parameters()}
    network.load_state_dict(state)
    rng = random.Random(4)
    ids = torch.tensor([[rng.randrange(1024) for _ in range(40)] for _ in range(2)])
    with torch.inference_mode():
        ours = network(ids, torch.ones_like(ids, dtype=torch.bool)).view(2, 40, -1)
        theirs = model(ids).logits
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)


def test_the_card_repeats_the_evaluation() -> None:
    result = json.loads((MODEL_DIR / "evaluation.json").read_text(encoding="utf-8"))
    card = (MODEL_DIR / "README.md").read_text(encoding="utf-8")
    table = card.partition(evaluate.BEGIN_CARD)[2].partition(evaluate.END_CARD)[0].strip()
    assert table == evaluate.card_table(result)
    assert set(result["rows"]) == set(evaluate.TARGETS)
    # A case of 20,000 tokens takes as long as a thousand short ones.
    least = {f"long_{tokens}": 24 for tokens in evaluate.LONG}
    assert all(row["cases"] >= least.get(name, 200) for name, row in result["rows"].items())
    assert all(
        row["passed"] >= row["target"] * row["cases"] for row in result["rows"].values() if row["target"]
    )


def test_every_tensor_has_a_name_in_gguf() -> None:
    names = [n for n, _ in Network(PocketShape()).named_parameters()]
    found = {gguf_name(n) for n in names}
    assert len(found) == len(names)
    assert {
        "token_embd.weight",
        "output_norm.weight",
        "blk.4.attn_q_norm.weight",
        "blk.0.ffn_down.weight",
    } <= found
