"""Compare models that llama.cpp's own converter wrote with those that it read them from.

A model of transformers with random weights is saved, converted to a GGUF file in fp32, read by our engine, and must
give the logits of transformers' model within 1e-5 of the largest one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from support.weights.model_driver import Driver
from support.weights.model_families import CASES, FULL, SLIDING, Case
from transformers import AutoModelForCausalLM

from plumbline.engines.native.models.gguf import ARCHITECTURES, load_gguf, read_model
from plumbline.pocket import MODEL_DIR

from .vocabulary import Verdict

__all__ = ["NAMED", "compare_converted"]

_PROMPT = [3 + 7 * index % 80 for index in range(40)]
_MOST = 1e-5
_HERE = Path(__file__).parents[1]

_HALF = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}

_PHIMOE_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1000.0,
    "short_factor": [1.0] * 6,
    "long_factor": [1.0, 2.0, 8.0, 8.0, 9.0, 9.0],
    "original_max_position_embeddings": 16,
    "short_mscale": 1.243163121016122,
    "long_mscale": 1.243163121016122,
}
_PHIMOE = {
    "router_jitter_noise": 0.01,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "original_max_position_embeddings": 256,
    },
}

NAMED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "ministral3": {},
    "mixtral": {"sliding_window": None},
    "starcoder2": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "qwen2_moe": {"mlp_only_layers": [], "decoder_sparse_step": 1, "layer_types": [FULL] * 3},
    "qwen3_moe": {},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen3_5_text": {},
    "qwen3_5_moe_text": {},
    "gemma": {},
    "gemma4_text": {},
    "gemma4_text-shared": {},
    "gemma4_text-experts": {},
    "gemma4_text-inputs": {},
    "gpt_oss": {},
    "deepseek_v2": {},
    "deepseek_v2-greedy": {},
    "deepseek_v3": {},
    "glm4": {},
    "glm4_moe": {},
    "glm4_moe_lite": {},
    "phi3": {},
    "phi3-long": {},
    "cohere": {},
    "cohere2": {"rotary_pct": 1.0, "layer_types": [SLIDING] * 3},
    "exaone4": {},
    "seed_oss": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "minimax_m2": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {},
    "arcee": {},
    "apertus": {},
    "minicpm3": {"v_head_dim": 12, "scale_emb": 12, "dim_model_base": 256},
    "phimoe": _PHIMOE | {"sliding_window": None},
    "phimoe-long": _PHIMOE | {"rope_parameters": _PHIMOE_LONG},
    "afmoe": {"layer_types": [SLIDING] * 3},
    "jamba": {},
    "jamba-dense": {},
    "falcon_h1": {"head_dim": 12},
    "llama4_text": {
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": [*["chunked_attention"] * 3, FULL],
        "moe_layers": [0, 1, 2, 3],
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
        "attn_scale": 0.1,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 100.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "dots1": {"layer_types": [FULL] * 3, "sliding_window": None},
    "exaone_moe": {},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "hunyuan_v1_moe": {
        "moe_topk": [2, 2, 2],
        "moe_intermediate_size": [80] * 3,
        "num_shared_expert": [1] * 3,
    },
    "nemotron": {},
    "phi": {"num_key_value_heads": 4, "intermediate_size": 192, "rope_parameters": _HALF},
    "stablelm": {"rope_parameters": _HALF},
    "granite": {},
    "granitemoe": {},
    "granitemoeshared": {},
    "granitemoehybrid-mamba": {},
    "granitemoehybrid-experts": {},
    "lfm2": {},
    "nemotron_h": {"mamba_num_heads": 4, "mamba_head_dim": 16},
    "nemotron_h-experts": {"mamba_num_heads": 4, "mamba_head_dim": 16},
    "lfm2_moe": {"conv_bias": False},
}
"""By the name of a case: changes of its config to what files can say, as published models are."""
_MERGED = ("qwen3", "qwen3_5_moe_text")
"""Cases that are also tried with merged projections, which newer converters write on request."""
_BY_UNIT_TESTS = frozenset({"falcon", "gemma2", "gemma3", "gpt2", "gptneox", "smollm3", "starcoder"})
"""Architectures whose cases have sizes that files cannot say; `tests/support/weights/gguf_files.py` writes those."""
_OLDER = ("deepseek_v2", "qwen3_next")
"""Cases that are also tried as earlier converters wrote them."""
_OF_IMAGES = {
    "Qwen2VLForConditionalGeneration": "qwen2",
    "Qwen3VLForConditionalGeneration": "qwen3",
    "Qwen3VLMoeForConditionalGeneration": "qwen3_moe",
}
"""Models that read images, by the case that their text is."""
_VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "olmo3 with YaRN": (
        "olmo3",
        {
            "rope_parameters": {
                FULL: {
                    "rope_type": "yarn",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 16,
                    "attention_factor": 1.3,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                },
                SLIDING: {"rope_type": "default", "rope_theta": 100.0},
            }
        },
        {},
    ),
    "text of Mistral Small 3.1": (
        "mistral",
        {"sliding_window": None},
        {"architecture": "Mistral3ForConditionalGeneration"},
    ),
    "text of GLM-4.1V": (
        "glm4",
        {},
        {"architecture": "Glm4vForConditionalGeneration", "mrope_section": [1, 1, 1]},
    ),
}
"""By a label: a case, changes of its config, and options of `real.convert`."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "nemotron_h": {"as_written": True},
    # As releases name it.
    "phimoe": {"architecture": "PhiMoEForCausalLM"},
    "phimoe-long": {"architecture": "PhiMoEForCausalLM"},
}
"""Options of `real.convert`."""
_OF_RELEASES = {
    "granitemoehybrid": ("layer_types", {"full_attention": "attention", "linear_attention": "mamba"}),
    "nemotron_h": (
        "layers_block_type",
        {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"},
    ),
}
"""By family: a field with the kinds of layers, and what releases call those that transformers saves otherwise."""


def compare_converted(converter: Path) -> Iterator[tuple[str, Verdict]]:
    """Yield the name and the verdict of each case.

    Args:
        converter: a folder with llama.cpp's packages `conversion` and `gguf`.
    """
    cases = {case.name: case for case in [*CASES, Case("qwen2", {})] if not case.is_compiled}
    tried_as: dict[str, Any] = {name: (name, {}, _OPTIONS.get(name, {})) for name in NAMED}
    tried_as |= {f"{name}, older": (name, {}, {"older": True}) for name in _OLDER}
    tried_as |= {f"text of {name}": (text, {}, {"architecture": name}) for name, text in _OF_IMAGES.items()}
    for name in _MERGED:
        tried_as[f"{name}, merged"] = (name, {}, {"fuse_gate_up_exps": "moe" in name, "fuse_qkv": True})
    tried_as |= _VARIANTS
    with tempfile.TemporaryDirectory() as home:
        folders: dict[str, Path] = {}
        models: dict[str, Any] = {}
        for label, (name, changes, options) in tried_as.items():
            folders[label] = folder = Path(home, str(len(folders)))
            models[label] = _save(cases[name], NAMED.get(name, {}) | changes, folder)
            (folder / "convert.json").write_text(json.dumps(options), "utf-8")
        command = [sys.executable, "-m", "real.convert", str(converter), *map(str, folders.values())]
        subprocess.run(command, cwd=_HERE, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        tried = set()
        for label, folder in folders.items():
            verdict = _compared(models[label], folder)
            if (folder / "model.gguf").is_file():
                tried.add(verdict.line.partition(":")[0])
            yield label, verdict
    if missing := sorted(ARCHITECTURES.keys() - tried - _BY_UNIT_TESTS):
        yield "architectures", Verdict("all are tried", [f"not tried: {', '.join(missing)}"])


def _save(case: Any, changes: dict[str, Any], folder: Path) -> Any:
    torch.manual_seed(0)
    config = case.config()
    for name, value in changes.items():
        setattr(config, name, value)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    for name, weight in model.named_parameters():
        mean = 0.5 if "norm" in name and weight.dim() == 1 else 0.0
        torch.nn.init.normal_(weight, mean, 0.2 if weight.dim() == 1 else 0.1)
    model.save_pretrained(folder)
    # Some converters look at these, though their vocabulary is not taken.
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((MODEL_DIR / name).read_bytes())
    path = folder / "config.json"
    saved = json.loads(path.read_text("utf-8"))
    if case.family in _OF_RELEASES:
        field, names = _OF_RELEASES[case.family]
        kinds = [names.get(kind, kind) for kind in saved.pop(field)]
        if "E" not in kinds and case.family == "nemotron_h":
            # A release of a dense model has no fields of experts.
            for name in [name for name in saved if "expert" in name or name in ("n_group", "topk_group")]:
                del saved[name]
            saved["num_hidden_layers"] = len(kinds)
        saved |= {field: kinds} if field == "layer_types" else {"hybrid_override_pattern": "".join(kinds)}
        path.write_text(json.dumps(saved), "utf-8")
    return model


@torch.no_grad()
def _compared(model: Any, folder: Path) -> Verdict:
    if (folder / "error.txt").is_file():
        return Verdict("", [f"not converted: {(folder / 'error.txt').read_text('utf-8')}"])
    try:
        found = read_model(folder / "model.gguf")
        driver = Driver(load_gguf(found, dtype=torch.float32))
        ours = driver.step([(driver.add(_PROMPT, 64), len(_PROMPT))])
    except Exception as error:
        return Verdict("", [f"{type(error).__name__}: {error}"])
    wanted = model(torch.tensor([_PROMPT])).logits[0]
    far = float((ours - wanted).abs().max() / wanted.abs().max())
    problems = [] if far <= _MOST else [f"logits are {far:.1e} from transformers'"]
    return Verdict(f"{found.architecture}: logits {far:.1e} from transformers'", problems)
