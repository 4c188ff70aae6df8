"""Declare every option of `plumbline serve`: its type, range, default and help. All else is derived from this."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plumbline.server.settings.options import Describe
from plumbline.server.settings.values import read_loras

__all__ = ["Declaration"]

Count = Annotated[int, Meta(ge=0)]
AtLeastOne = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Texts = tuple[str, ...]

_model = partial(Describe, "model")
_engine = partial(Describe, "engine")
_adapters = partial(Describe, "adapters", engines=("vllm",))
_dialect = partial(Describe, "dialect")
_network = partial(Describe, "network")
_access = partial(Describe, "access")
_limits = partial(Describe, "connections and limits")
_files = partial(Describe, "files in requests")
_storage = partial(Describe, "storage")


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """The options, by the fields of the settings. Sizes are in tokens or bytes, times in seconds."""

    model: Annotated[
        str,
        _model(
            "model to serve: a folder, a GGUF file or a Hugging Face id",
            "PATH_OR_HUB_ID",
            default="the pocket model, which comes with plumbline",
        ),
    ] = ""
    served_model_names: Annotated[
        Texts,
        _model(
            "model id for requests and answers; repeat for aliases, answers have the first",
            "NAME",
            name="served_model_name",
            default="the folder's name or the hub id",
        ),
    ] = ()
    engine: Annotated[
        Literal["auto", "plumbline", "vllm", "llama_cpp", "transformers"],
        _model(
            "what runs the model; auto takes llama_cpp for GGUF files, our engine (plumbline) for models that it "
            "supports, else vllm if it is installed, else transformers"
        ),
    ] = "auto"
    engine_args: Annotated[
        Texts,
        _model(
            "arguments of the engine's library: of llama.cpp, such as n_gpu_layers=99 or type_k=q8_0, or of vLLM, such "
            "as tensor_parallel_size=2 or quantization=fp8",
            "KEY=VALUE",
            engines=("llama_cpp", "vllm"),
            spread=True,
        ),
    ] = ()
    device: Annotated[
        str,
        _model(
            "torch device such as cpu, cuda or cuda:1; auto prefers cuda. llama_cpp takes auto and cpu only",
            engines=("plumbline", "llama_cpp", "transformers"),
            advice="choose the devices of vLLM with CUDA_VISIBLE_DEVICES",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        _model(
            "type of weights and activations; auto takes that of the model's folder. With llama_cpp it is the type of "
            "keys and values, and the weights have the file's"
        ),
    ] = "auto"
    trust_remote_code: Annotated[
        bool,
        _model(
            "run Python code of the model's folder, only for models that you trust; plumbline and llama_cpp never run "
            "any"
        ),
    ] = False
    max_model_len: Annotated[
        AtLeastOne | None,
        _model(
            "maximum length of prompt and answer together",
            "TOKENS",
            default="the model's own limit; more is a risk",
        ),
    ] = None
    allow_auto_truncate: Annotated[
        bool,
        _model(
            "shorten prompts that do not fit instead of refusing them: conversations lose their oldest messages, texts "
            "their beginning; a request's truncation or truncate_prompt_tokens wins"
        ),
    ] = False
    generation_config: Annotated[
        Literal["auto", "none"],
        _model(
            "sampling defaults: auto takes the model's generation_config.json, none takes OpenAI's values"
        ),
    ] = "auto"

    max_num_seqs: Annotated[AtLeastOne, _engine("maximum number of sequences in one step", "N")] = 256
    max_num_batched_tokens: Annotated[
        AtLeastOne | None,
        _engine(
            "maximum number of tokens in one step",
            "TOKENS",
            default="1024",
            engines=("plumbline", "llama_cpp"),
            advice="vLLM takes --engine-args max_num_batched_tokens=N",
        ),
    ] = None
    max_num_waiting: Annotated[
        Count, _engine("maximum number of sequences in the queue; further requests get a 429", "N")
    ] = 1024
    max_seqs_per_client: Annotated[
        Count | None,
        _engine(
            "maximum number of running and waiting sequences of one API key, or of one address where there are no "
            "keys; further requests get a 429. 0 sets no limit",
            "N",
            default="all that run and half of the queue",
        ),
    ] = None
    block_size: Annotated[
        AtLeastOne | None,
        _engine(
            "tokens in a KV cache block",
            "TOKENS",
            default="16",
            engines=("plumbline",),
            advice="vLLM takes --engine-args block_size=N",
        ),
    ] = None
    kv_cache_bytes: Annotated[
        AtLeastOne | None,
        _engine(
            "maximum size of the KV cache",
            "BYTES",
            default="256 MiB; llama_cpp 1 GiB, transformers 4 GiB, vllm what --device-memory leaves",
        ),
    ] = None
    device_memory: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        _engine(
            "part of the GPU's memory for weights and cache, 0 to 1",
            "FRACTION",
            default="vLLM's own, 0.9",
            engines=("vllm",),
        ),
    ] = None
    batch_invariant: Annotated[
        bool,
        _engine(
            "on a CPU, compute the same bits for a request in any batch and any chunking; slower prefill",
            engines=("plumbline",),
        ),
    ] = False
    enable_prefix_caching: Annotated[
        bool,
        _engine(
            "reuse the KV blocks of equal beginnings of prompts; transformers computes every prompt in full",
            name="prefix_caching",
        ),
    ] = True

    loras: Annotated[
        tuple[tuple[str, str], ...],
        _adapters(
            "load a LoRA adapter that requests name as their model; repeatable",
            "NAME=PATH",
            name="lora",
            parse=read_loras,
        ),
    ] = ()
    lora_dir: Annotated[
        str,
        _adapters(
            "let requests load adapters of this folder and unload them: /v1/load_lora_adapter",
            "DIR",
            default="none",
        ),
    ] = ""
    max_loras: Annotated[AtLeastOne, _adapters("maximum number of adapters that are loaded", "N")] = 4
    max_lora_rank: Annotated[
        Count, _adapters("largest rank of an adapter", "N", default="that of --lora, at least 16")
    ] = 0

    chat_template: Annotated[
        str,
        _dialect(
            "render conversations with this Jinja file, or with the model's template of this name, instead of the "
            "model's default; the dialects are chosen by it too",
            "FILE_OR_NAME",
            default="the model's own",
        ),
    ] = ""
    chat_template_content_format: Annotated[
        Literal["auto", "string", "openai"],
        _dialect(
            "content of messages that the template gets: string joins the texts, openai gives a list of parts, auto "
            "reads in the template which one it expects"
        ),
    ] = "auto"
    default_chat_template_kwargs: Annotated[
        str,
        _dialect(
            'template variables of requests without them, a JSON object such as {"enable_thinking": false}; the '
            "chat_template_kwargs and the reasoning effort of a request win",
            "JSON",
        ),
    ] = ""
    tool_parser: Annotated[
        str,
        _dialect(
            "dialect of the model's tool calls; none reads no calls, auto chooses by the chat template",
            "NAME",
        ),
    ] = "auto"
    reasoning_parser: Annotated[
        str,
        _dialect(
            "dialect of the model's reasoning; none reads no reasoning, auto chooses by the chat template",
            "NAME",
        ),
    ] = "auto"
    reasoning_field: Annotated[
        Literal["reasoning_content", "reasoning", "both"],
        _dialect("field of chat completions with the reasoning; clients of vLLM read reasoning", "NAME"),
    ] = "both"
    compact_stream: Annotated[
        bool,
        _dialect(
            "send the finish reason with the last delta of a choice, as vLLM does; each delta is sent when the next "
            "one is known"
        ),
    ] = False
    enable_force_include_usage: Annotated[
        bool,
        _dialect(
            "send the usage chunk at the end of every chat and completion stream, as if stream_options.include_usage "
            "were true"
        ),
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool,
        _dialect(
            "name the tokens of logprobs token_id:N, unless the request has return_tokens_as_token_ids: false"
        ),
    ] = False

    host: Annotated[str, _network("address to listen on; other machines need an API key")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)], _network("TCP port to listen on")] = 8000
    uds: Annotated[str, _network("listen on this Unix socket instead of a host and port", "PATH")] = ""
    api_servers: Annotated[
        Annotated[int, Meta(ge=1, le=64)],
        _network(
            "processes that answer clients; several share one engine, and each has limits such as --max-connections "
            "for itself",
            "N",
        ),
    ] = 1
    cors_origins: Annotated[
        Texts,
        _network(
            "let web pages of this origin use the server; repeatable, * stands for any text",
            "ORIGIN",
            name="cors_origin",
        ),
    ] = ()
    ssl_certfile: Annotated[str, _network("serve https with this certificate chain (PEM)", "FILE")] = ""
    ssl_keyfile: Annotated[str, _network("key of the certificate, if its file lacks it (PEM)", "FILE")] = ""
    ssl_ca_certs: Annotated[
        str, _network("require client certificates of these authorities (PEM)", "FILE")
    ] = ""

    api_keys: Annotated[
        Texts,
        _access(
            "key that clients must send; repeatable. The command line, PLUMBLINE_API_KEY and the configuration file "
            "add keys to each other",
            "KEY",
            name="api_key",
            secret=True,
            in_file="file with one key a line; # begins a comment",
            adds=True,
        ),
    ] = ()
    sealing_key: Annotated[
        str,
        _access(
            "the secret of --sealing-key-file itself, for the environment or a configuration file",
            "SECRET",
            secret=True,
            in_file="file with the random secret of 16 characters or more that seals reasoning for clients "
            "(reasoning.encrypted_content); give servers that share clients the same. PLUMBLINE_SEALING_KEY gives one "
            "too (default: one kept in the store)",
            only_in_file=True,
        ),
    ] = ""
    trust_request_chat_template: Annotated[
        bool,
        _access("render with the chat_template of a request; a template can keep a thread busy forever"),
    ] = False
    strict: Annotated[
        bool,
        _access(
            "answer 400 to unknown fields in request bodies; without it they are named in x-plumbline-ignored"
        ),
    ] = False
    lenient: Annotated[
        bool,
        _access(
            "accept forms of requests that other servers accept and OpenAI's API refuses; x-plumbline-lenient names "
            "those of a request"
        ),
    ] = False

    enable_log_requests: Annotated[
        bool,
        _access(
            "log each request, with the beginning of its body; keys, headers for other servers and files are left out, "
            "what users write is not"
        ),
    ] = False
    enable_log_outputs: Annotated[bool, _access("log each request, and the beginning of its answer")] = False
    max_log_len: Annotated[
        AtLeastOne, _access("characters of a body that are logged, of its first 64 KiB", "N")
    ] = 2048

    max_connections: Annotated[
        Count, _limits("maximum number of open connections; further ones get a 503. 0 sets no limit", "N")
    ] = 4096
    max_body_bytes: Annotated[
        Count, _limits("maximum size of a request body; larger ones are a 413", "BYTES")
    ] = 10 * 1024**2
    header_timeout: Annotated[
        Amount,
        _limits("close connections whose request headers take longer than this; 0 waits forever", "SECONDS"),
    ] = 30.0
    body_timeout: Annotated[
        Amount,
        _limits(
            "answer 408 when a body sends nothing, or falls behind 16 KiB/s, for this long; 0 waits forever",
            "SECONDS",
        ),
    ] = 30.0
    idle_timeout: Annotated[
        Amount,
        _limits(
            "close connections that send nothing after an answer for this long; 0 waits forever", "SECONDS"
        ),
    ] = 60.0
    keep_alive_interval: Annotated[
        Amount,
        _limits("send a comment on a stream that is silent for this long; 0 sends none", "SECONDS"),
    ] = 15.0
    shutdown_timeout: Annotated[
        Amount,
        _limits(
            "how long running requests may take after SIGINT or SIGTERM before they are aborted", "SECONDS"
        ),
    ] = 30.0
    stuck_after: Annotated[
        Positive,
        _limits(
            "answer 503 at /health when the engine has had work for this long without finishing a step",
            "SECONDS",
        ),
    ] = 120.0

    allow_media_urls: Annotated[
        bool,
        _files(
            "fetch files that requests name with http(s) URLs, from public addresses only; data URLs need no option"
        ),
    ] = False
    max_media_items: Annotated[
        AtLeastOne, _files("maximum number of files in a request, with those that it continues", "N")
    ] = 16
    max_media_bytes: Annotated[
        AtLeastOne, _files("maximum size of the files of a request together", "BYTES")
    ] = 20 * 1024**2
    max_media_in_flight: Annotated[
        AtLeastOne,
        _files(
            "maximum size of the files of all requests that are being answered; further ones get a 429",
            "BYTES",
        ),
    ] = 1024**3
    max_image_pixels: Annotated[
        AtLeastOne,
        _files("maximum number of pixels of the images and the frames of videos of a request together", "N"),
    ] = 40_000_000
    max_audio_seconds: Annotated[
        Positive,
        _files(
            "maximum length of the audio of a request together; many models hear the first 30 s of a file only",
            "SECONDS",
        ),
    ] = 30.0
    max_video_frames: Annotated[
        AtLeastOne, _files("how many frames of a video the model sees at most, evenly spread", "N")
    ] = 32
    max_video_cpu_seconds: Annotated[
        Positive, _files("how many seconds of a CPU decoding one video may take", "SECONDS")
    ] = 5.0
    media_timeout: Annotated[Positive, _files("how long fetching one file may take", "SECONDS")] = 10.0

    store: Annotated[
        str,
        _storage(
            "where responses and conversations are kept: a path, sqlite:///PATH, "
            "postgresql://USER:PASSWORD@HOST/NAME, or none",
            "WHERE",
            default="plumbline/responses.db in the user's data directory",
            secret=True,
        ),
    ] = "none"
    store_max_days: Annotated[
        Amount, _storage("days that stored responses are kept; 0 keeps them for ever", "DAYS")
    ] = 30.0
    store_max_bytes: Annotated[
        Count,
        _storage(
            "maximum size of all that is stored; the oldest conversations go first. 0 sets no limit", "BYTES"
        ),
    ] = 10 * 1024**3
    store_max_responses_per_key: Annotated[
        Count,
        _storage(
            "maximum number of stored responses of one API key; further ones get a 429. 0 sets no limit", "N"
        ),
    ] = 0
    compaction: Annotated[
        Literal["auto", "summary", "lossless"],
        _storage(
            "how conversations are compacted: the model writes a summary, or all of it is sealed; auto lets models "
            "with a gigabyte of weights or more write summaries"
        ),
    ] = "auto"
    prompts: Annotated[
        str,
        _storage(
            "folder with prompt templates for the field 'prompt' of Responses: DIR/ID/VERSION.json, with fields of a "
            "request and {{variables}} in its instructions and input",
            "DIR",
            default="none",
        ),
    ] = ""
