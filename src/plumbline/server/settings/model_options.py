"""Declare the options of `plumbline serve` about the model: what it is, what runs it, how it is prompted and read."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from plumbline.server.settings.values import read_loras, read_models, read_processors, read_sampling_defaults
from plumbline_conformance.console.options import Amount, AtLeastOne, Count, Describe, Texts

__all__ = ["ModelOptions"]

_model = partial(Describe, "model")
_sampling = partial(Describe, "sampling")
_engine = partial(Describe, "engine")
_adapters = partial(Describe, "adapters", engines=("plumbline", "vllm"))
_dialect = partial(Describe, "dialect")


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options about the model; `Declaration` adds those about the server."""

    models: Annotated[
        tuple[tuple[str, str], ...],
        _model(
            "model to serve: a folder, a GGUF file or a name on the hub; repeatable, and requests then choose by NAME. "
            "The first is the model of requests that name none",
            "[NAME=]MODEL",
            name="model",
            default="the pocket model, which comes with plumbline",
            parse=read_models,
            whole=True,
        ),
    ] = ()
    yes: Annotated[bool, _model("download a missing model without a question")] = False
    model_dir: Annotated[
        str,
        _model(
            "let requests name any model of this folder, a subfolder or a GGUF file; it is loaded when it is named",
            "DIR",
            default="none",
        ),
    ] = ""
    models_memory_bytes: Annotated[
        AtLeastOne | None,
        _model(
            "memory for all models that are loaded, weights and KV caches; the least recently used one leaves for one "
            "that does not fit beside it",
            "SIZE",
            default="nine tenths of the memory of the device",
        ),
    ] = None
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
            "what runs the model; auto takes our engine (plumbline) for models that it supports, else vllm if it is "
            "installed, else transformers; for GGUF files plumbline, or llama_cpp for what that lacks"
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
        _sampling(
            "sampling defaults: auto takes the model's, from generation_config.json or the keys general.sampling.* "
            "of a GGUF file; none takes OpenAI's values"
        ),
    ] = "auto"
    sampling_defaults: Annotated[
        tuple[tuple[str, str], ...],
        _sampling(
            'sampling values of requests that set none, such as {"temperature": 0.7}, for all models or for NAME; '
            "repeatable, they come before the model's own",
            "[NAME=]JSON",
            parse=read_sampling_defaults,
            whole=True,
        ),
    ] = ()
    logits_processors: Annotated[
        tuple[tuple[str, str], ...],
        Describe(
            "sampling",
            "let requests name a Python class that changes logits before each draw; repeatable. Packages register "
            "theirs as entry points of the group plumbline.logits_processors",
            "NAME=MODULE:CLASS",
            name="logits_processor",
            engines=("plumbline", "llama_cpp", "transformers"),
            parse=read_processors,
        ),
    ] = ()
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
    max_queue_seconds: Annotated[
        Amount,
        _engine(
            "answer 429 to a request that would wait longer for its first token, or has waited so long for its turn; "
            "0 lets all wait",
            "SECONDS",
        ),
    ] = 0.0
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
            default="16, and 64 on a GPU",
            engines=("plumbline",),
            advice="vLLM takes --engine-args block_size=N",
        ),
    ] = None
    kv_cache_bytes: Annotated[
        AtLeastOne | None,
        _engine(
            "maximum size of the KV cache",
            "SIZE",
            default="256 MiB; llama_cpp 1 GiB, transformers 4 GiB; on a GPU what --device-memory leaves",
        ),
    ] = None
    device_memory: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        _engine(
            "part of the GPU's memory for weights and cache, 0 to 1",
            "FRACTION",
            default="0.9",
            engines=("plumbline", "vllm"),
        ),
    ] = None
    compile: Annotated[
        Literal["auto", "on", "off"],
        _engine(
            "compile the kernels of a CPU once with the system's C++ compiler: where that is possible, always or "
            "never",
            engines=("plumbline",),
        ),
    ] = "auto"
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        _engine(
            "threads that share a step of compiled kernels on a CPU",
            "N",
            default="1, 2 or all cores, by a measurement of 0.1 to 0.3 s at the start",
            engines=("plumbline",),
            advice="llama_cpp takes --engine-args n_threads=N n_threads_batch=N",
        ),
    ] = None
    quantization: Annotated[
        Literal["auto", "none", "int8", "int4"],
        _engine(
            "round the weights to 8 or 4 bits while they are loaded, and the inputs of linear layers to 8 bits; needs "
            "compiled kernels. auto does so with the weights that the checkpoint has as such integers; none takes all "
            "weights in the type of --dtype",
            engines=("plumbline",),
            advice="vLLM takes --engine-args quantization=NAME",
        ),
    ] = "auto"
    speculation: Annotated[
        bool,
        _engine(
            "propose tokens that followed the last ones before, and verify several in one step; needs a GPU or "
            "compiled kernels",
            engines=("plumbline",),
        ),
    ] = True
    cuda_graphs: Annotated[
        bool,
        _engine(
            "on a GPU, record decode steps as CUDA graphs, and launch one step ahead",
            engines=("plumbline",),
            advice="vLLM takes --engine-args enforce_eager=true",
        ),
    ] = True
    batch_invariant: Annotated[
        bool,
        _engine(
            "compute the same bits for a request in any batch and any chunking; slower on a GPU, and where kernels "
            "are not compiled",
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
    unmarked_calls: Annotated[
        bool,
        _dialect(
            "read an answer that is nothing but calls in JSON, without the markup of the dialect, as calls",
        ),
    ] = True
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
