"""Define the options of `plumbline serve`. Imports nothing, so that the judge's command line starts without torch."""

from __future__ import annotations

import argparse
from typing import TypeAlias

__all__ = ["add_arguments"]

_Group: TypeAlias = "argparse._ArgumentGroup"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options, each with its default."""
    _add_model_options(parser.add_argument_group("model"))
    _add_server_options(parser.add_argument_group("server"))
    _add_dialect_options(parser.add_argument_group("dialect"))
    _add_engine_options(
        parser.add_argument_group("engine", "All but --max-num-waiting apply to --engine plumbline only.")
    )


def _add_model_options(group: _Group) -> None:
    group.add_argument(
        "--model",
        default="",
        metavar="PATH_OR_HUB_ID",
        help="model to serve: a folder or a Hugging Face id (default: the pocket model, which comes with plumbline)",
    )
    group.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="model id for requests and answers; repeat for aliases (default: the folder's name or the hub id)",
    )
    group.add_argument(
        "--engine",
        choices=("auto", "plumbline", "vllm", "llama_cpp", "transformers"),
        default="auto",
        help="what runs the model; auto takes llama_cpp for GGUF files, our engine (plumbline) for models that it "
        "supports, else vllm if it is installed, else transformers",
    )
    group.add_argument(
        "--engine-args",
        nargs="+",
        default=(),
        metavar="KEY=VALUE",
        help="arguments of the engine's library: of llama.cpp, such as n_gpu_layers=99 or type_k=q8_0, or of vLLM, "
        "such as tensor_parallel_size=2 or quantization=fp8",
    )
    group.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="load a LoRA adapter that requests name as their model; repeatable (vllm)",
    )
    group.add_argument(
        "--lora-dir",
        default="",
        metavar="DIR",
        help="let requests load adapters of this folder and unload them: /v1/load_lora_adapter (default: none)",
    )
    group.add_argument(
        "--max-loras", type=int, default=4, metavar="N", help="maximum number of adapters that are loaded"
    )
    group.add_argument(
        "--max-lora-rank",
        type=int,
        default=0,
        metavar="N",
        help="largest rank of an adapter (default: that of --lora, at least 16)",
    )
    group.add_argument(
        "--device", default="auto", help="torch device such as cpu, cuda or cuda:1; auto prefers cuda"
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "float16", "bfloat16"),
        default="auto",
        help="type of weights and activations; auto takes that of the model's folder",
    )
    group.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run Python code of the model's folder (transformers and vllm): only for models that you trust",
    )
    group.add_argument(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="maximum length of prompt and answer together (default: the model's own limit; more is a risk)",
    )
    group.add_argument(
        "--generation-config",
        choices=("auto", "none"),
        default="auto",
        help="sampling defaults: auto takes the model's generation_config.json, none takes OpenAI's values",
    )


def _add_server_options(group: _Group) -> None:
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; other machines need an API key"
    )
    group.add_argument("--port", type=int, default=8000, help="TCP port to listen on")
    group.add_argument(
        "--uds", default="", metavar="PATH", help="listen on this Unix socket instead of a host and port"
    )
    group.add_argument(
        "--api-servers",
        type=int,
        default=1,
        metavar="N",
        help="processes that answer clients; several share one engine, and each has limits such as --max-connections "
        "for itself",
    )
    group.add_argument(
        "--ssl-certfile", default="", metavar="FILE", help="serve https with this certificate chain (PEM)"
    )
    group.add_argument(
        "--ssl-keyfile", default="", metavar="FILE", help="key of the certificate, if its file lacks it (PEM)"
    )
    group.add_argument(
        "--ssl-ca-certs",
        default="",
        metavar="FILE",
        help="require client certificates of these authorities (PEM)",
    )
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use the server; repeatable, * stands for any text",
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="key that clients must send; repeatable. PLUMBLINE_API_KEY (comma-separated) adds keys",
    )
    group.add_argument("--api-key-file", metavar="FILE", help="file with one key a line; # begins a comment")
    group.add_argument(
        "--trust-request-chat-template",
        action="store_true",
        help="render with the chat_template of a request; a template can keep a thread busy forever",
    )
    group.add_argument(
        "--allow-media-urls",
        action="store_true",
        help="fetch files that requests name with http(s) URLs, from public addresses only; data URLs need no option",
    )
    group.add_argument(
        "--max-media-items", type=int, default=16, metavar="N", help="maximum number of files in a request"
    )
    group.add_argument(
        "--max-media-bytes",
        type=int,
        default=20 * 1024**2,
        metavar="BYTES",
        help="maximum size of the files of a request together",
    )
    group.add_argument(
        "--max-image-pixels",
        type=int,
        default=40_000_000,
        metavar="N",
        help="maximum number of pixels of the images and the frames of videos of a request together",
    )
    group.add_argument(
        "--max-audio-seconds",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="maximum length of the audio of a request together; many models hear the first 30 s of a file only",
    )
    group.add_argument(
        "--max-video-frames",
        type=int,
        default=32,
        metavar="N",
        help="how many frames of a video the model sees at most, evenly spread",
    )
    group.add_argument(
        "--max-video-cpu-seconds",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how many seconds of a CPU decoding one video may take",
    )
    group.add_argument(
        "--media-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how long fetching one file may take",
    )
    group.add_argument(
        "--strict",
        action="store_true",
        help="answer 400 to unknown fields in request bodies; without it they are named in x-plumbline-ignored",
    )
    group.add_argument(
        "--store",
        default=None,
        metavar="WHERE",
        help="where responses and conversations are kept: a path, sqlite:///PATH, "
        "postgresql://USER:PASSWORD@HOST/NAME, or none (default: plumbline/responses.db in the user's data directory)",
    )
    group.add_argument(
        "--store-max-days",
        type=float,
        default=30.0,
        metavar="DAYS",
        help="days that stored responses are kept; 0 keeps them for ever",
    )
    group.add_argument(
        "--store-max-bytes",
        type=int,
        default=10 * 1024**3,
        metavar="BYTES",
        help="maximum size of all that is stored; the oldest conversations go first (default 10 GiB). 0 sets no limit",
    )
    group.add_argument(
        "--store-max-responses-per-key",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of stored responses of one API key; further ones get a 429. 0 sets no limit",
    )
    group.add_argument(
        "--compaction",
        choices=("auto", "summary", "lossless"),
        default="auto",
        help="how conversations are compacted: the model writes a summary, or all of it is sealed; auto lets models "
        "with a gigabyte of weights or more write summaries",
    )
    group.add_argument(
        "--prompts",
        default="",
        metavar="DIR",
        help="folder with prompt templates for the field 'prompt' of Responses: DIR/ID/VERSION.json, with fields of a "
        "request and {{variables}} in its instructions and input (default: none)",
    )
    group.add_argument(
        "--sealing-key-file",
        metavar="FILE",
        help="file with the random secret that seals reasoning for clients (reasoning.encrypted_content); give "
        "servers that share clients the same. PLUMBLINE_SEALING_KEY gives one too (default: one kept in the store)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=int,
        default=10 * 1024 * 1024,
        metavar="BYTES",
        help="maximum size of a request body; larger ones are a 413",
    )
    group.add_argument(
        "--body-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="answer 408 when a body sends nothing, or falls behind 16 KiB/s, for this long; 0 waits forever",
    )
    group.add_argument(
        "--header-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="close connections whose request headers take longer than this; 0 waits forever",
    )
    group.add_argument(
        "--idle-timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="close connections that send nothing after an answer for this long; 0 waits forever",
    )
    group.add_argument(
        "--max-connections",
        type=int,
        default=4096,
        metavar="N",
        help="maximum number of open connections; further ones get a 503. 0 sets no limit",
    )
    group.add_argument(
        "--keep-alive-interval",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="send a comment on a stream that is silent for this long; 0 sends none",
    )
    group.add_argument(
        "--shutdown-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long running requests may take after SIGINT or SIGTERM before they are aborted",
    )


def _add_dialect_options(group: _Group) -> None:
    group.add_argument(
        "--tool-parser",
        default="auto",
        metavar="NAME",
        help="dialect of the model's tool calls; none reads no calls, auto chooses by the chat template",
    )
    group.add_argument(
        "--reasoning-parser",
        default="auto",
        metavar="NAME",
        help="dialect of the model's reasoning; none reads no reasoning, auto chooses by the chat template",
    )
    group.add_argument(
        "--reasoning-field",
        default="both",
        metavar="NAME",
        help="field of chat completions with the reasoning: reasoning_content, reasoning (as in vLLM) or both",
    )
    group.add_argument(
        "--compact-stream",
        action="store_true",
        help="send the finish reason with the last delta of a choice, as vLLM does; each delta is sent when the next "
        "one is known",
    )


def _add_engine_options(group: _Group) -> None:
    group.add_argument(
        "--max-num-seqs", type=int, default=256, metavar="N", help="maximum number of sequences in one step"
    )
    group.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=1024,
        metavar="TOKENS",
        help="maximum number of tokens in one step",
    )
    group.add_argument(
        "--max-num-waiting",
        type=int,
        default=1024,
        metavar="N",
        help="maximum number of sequences in the queue; further requests get a 429",
    )
    group.add_argument(
        "--max-seqs-per-client",
        type=int,
        metavar="N",
        help="maximum number of running and waiting sequences of one API key, or of one address where there are no "
        "keys; further requests get a 429. 0 sets no limit (default: all that run and half of the queue)",
    )
    group.add_argument(
        "--block-size", type=int, default=16, metavar="TOKENS", help="tokens in a KV cache block"
    )
    group.add_argument(
        "--kv-cache-bytes",
        type=int,
        default=None,
        metavar="BYTES",
        help="maximum size of the KV cache (default: 256 MiB; llama_cpp 1 GiB, transformers 4 GiB)",
    )
    group.add_argument(
        "--device-memory",
        type=float,
        default=None,
        metavar="FRACTION",
        help="part of the GPU's memory that vllm may use for weights and cache, 0 to 1 (default: vLLM's own, 0.9)",
    )
    group.add_argument(
        "--batch-invariant",
        action="store_true",
        help="on a CPU, compute the same bits for a request in any batch and any chunking; slower prefill",
    )
    group.add_argument(
        "--no-prefix-caching",
        dest="enable_prefix_caching",
        action="store_false",
        help="compute every prompt in full instead of reusing the KV blocks of equal beginnings",
    )
