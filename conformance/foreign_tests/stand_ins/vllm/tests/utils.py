"""Stand in for `tests.utils` of vLLM: its `RemoteOpenAIServer` starts our server with the pocket model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from vllm import absent

from own_server.launch import launched_server

ROCM_EXTRA_ARGS: list[str] = []
ROCM_ENV_OVERRIDES: dict[str, str] = {}
VLLM_PATH = Path(__file__).parent.parent

_Kind = Literal["flag", "value"]
_SAME: Mapping[str, _Kind] = {
    "--api-key": "value",
    "--chat-template-content-format": "value",
    "--enable-force-include-usage": "flag",
    "--max-lora-rank": "value",
    "--max-model-len": "value",
    "--max-num-batched-tokens": "value",
    "--max-num-seqs": "value",
    "--return-tokens-as-token-ids": "flag",
    "--served-model-name": "value",
    "--uds": "value",
}
"""Options of `vllm serve` that are ours by the same name."""
_WITHOUT_EFFECT: Mapping[str, _Kind] = {
    # The tests give templates of their models, and the pocket model has its own.
    "--chat-template": "value",
    "--dtype": "value",
    "--enable-auto-tool-choice": "flag",
    "--enable-chunked-prefill": "flag",
    "--enable-lora": "flag",
    "--enable-prompt-tokens-details": "flag",
    "--enable-request-id-headers": "flag",
    "--enable-server-load-tracking": "flag",
    "--enable-tokenizer-info-endpoint": "flag",
    "--enforce-eager": "flag",
    "--gpu-memory-utilization": "value",
    "--max-cpu-loras": "value",
    "--reasoning-parser": "value",
    "--seed": "value",
    "--structured-outputs-config.backend": "value",
    "--tool-call-parser": "value",
    "--trust-remote-code": "flag",
}
"""Options of `vllm serve` for what our server always does, or finds out from the model, or for speed."""


class RemoteOpenAIServer:
    """Our server, by the interface of vLLM's class.

    Args:
        model: the name under which the server has the pocket model.
        vllm_serve_args: options of `vllm serve`; an option that our server does not have skips the tests.
        env_dict: variables of vLLM, which ours does not read.
        more: waiting times and seeds.
    """

    DUMMY_API_KEY = "token-abc123"

    def __init__(
        self,
        model: str,
        vllm_serve_args: Sequence[str] = (),
        *,
        env_dict: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        options = _ours(list(vllm_serve_args))
        if "qwen3" in vllm_serve_args:
            # Qwen3's template lets the model think unless a request forbids it, the pocket model's does not.
            options.append('--default-chat-template-kwargs={"enable_thinking": true}')
        if not any(option.startswith("--served-model-name") for option in options):
            options.append(f"--served-model-name={model}")
        # Adapters may be loaded from wherever the tests have them.
        dynamic = "VLLM_ALLOW_RUNTIME_LORA_UPDATING" in (env_dict or {})
        options += ["--lora-dir=/"] if dynamic else []
        self._stack = ExitStack()
        self._url = self._stack.enter_context(launched_server(None, *options)).removesuffix("/v1")

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    @property
    def url_root(self) -> str:
        """Return the address of the server."""
        return self._url

    def url_for(self, *parts: str) -> str:
        """Return the address of a path."""
        return "/".join([self._url, *(part.strip("/") for part in parts if part)])

    def get_client(self, **named: Any) -> openai.OpenAI:
        """Return OpenAI's client."""
        return openai.OpenAI(base_url=self.url_for("v1"), **self._named(named))

    def get_async_client(self, **named: Any) -> openai.AsyncOpenAI:
        """Return OpenAI's asynchronous client."""
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), **self._named(named))

    def get_client_anthropic(self, **named: Any) -> anthropic.Anthropic:
        """Return Anthropic's client."""
        return anthropic.Anthropic(base_url=self._url, **self._named(named))

    def get_async_client_anthropic(self, **named: Any) -> anthropic.AsyncAnthropic:
        """Return Anthropic's asynchronous client."""
        return anthropic.AsyncAnthropic(base_url=self._url, **self._named(named))

    def _named(self, named: dict[str, Any]) -> dict[str, Any]:
        return {"api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 60, **named}


def _ours(given: list[str]) -> list[str]:
    """Translate options of `vllm serve`."""
    found = []
    while given:
        name, equals, value = given.pop(0).partition("=")
        # vLLM takes underscores as well.
        name = name.replace("_", "-")
        kind = _SAME.get(name) or _WITHOUT_EFFECT.get(name)
        if name == "--lora-modules":
            while given and not given[0].startswith("--"):
                found.append(f"--lora={_adapter(given.pop(0))}")
        elif name == "--no-enable-prefix-caching":
            found.append("--no-prefix-caching")
        elif kind is None:
            pytest.skip(f"needs an option of vLLM, {name}")
        else:
            if kind == "value" and not equals:
                value = given.pop(0)
            if name in _SAME:
                found.append(f"{name}={value}" if kind == "value" else name)
    return found


def _adapter(given: str) -> str:
    if not given.startswith("{"):
        return given
    fields = json.loads(given)
    return f"{fields['name']}={fields['path']}"


def _needs(what: str) -> Any:
    return lambda test: pytest.mark.skip(f"needs {what}")(test)


def multi_gpu_only(*, num_gpus: int = 2) -> Any:
    """Skip a test for several GPUs."""
    return _needs(f"{num_gpus} GPUs")


def requires_fp8(test: Any) -> Any:
    """Skip a test for a GPU with fp8."""
    return _needs("a GPU with fp8")(test)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return absent("tests.utils", name)
