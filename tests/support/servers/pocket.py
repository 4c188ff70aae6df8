"""Serve the pocket model on our engine, or on the one that `nox -s engines` tries."""

from __future__ import annotations

import os
from typing import Any

from plumbline.pocket import MODEL_DIR
from plumbline.pocket.folder import text_config, text_weights
from plumbline.server.settings import Settings
from plumbline.server.settings.values import read_models

__all__ = ["pocket_settings", "text_model"]

_SETTINGS: dict[str, dict[str, Any]] = {
    # Neither the number of threads is measured nor more of the cache used than tests need.
    "plumbline": {"kv_cache_bytes": 64 << 20, "threads": 1},
    "llama_cpp": {},
    "transformers": {"engine": "transformers"},
    "vllm": {"engine": "vllm", "engine_args": ("enforce_eager=true",), "kv_cache_bytes": 1 << 30},
}


def pocket_settings() -> Settings:
    """The settings of a server.

    PLUMBLINE_TEST_ENGINE names the engine. PLUMBLINE_TEST_MODEL is the model that it runs, for llama_cpp a GGUF file.
    """
    return Settings(
        models=read_models((os.environ.get("PLUMBLINE_TEST_MODEL", ""),)),
        served_model_names=("plumbline-pocket",),
        **_SETTINGS[os.environ.get("PLUMBLINE_TEST_ENGINE", "plumbline")],
    )


def text_model() -> Any:
    """Return the text part of the pocket model in transformers, in float32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**text_config(MODEL_DIR))).float().eval()
    model.load_state_dict(
        {name: weight.float() for name, weight in text_weights(MODEL_DIR).items()}, strict=False
    )
    model.tie_weights()
    return model
