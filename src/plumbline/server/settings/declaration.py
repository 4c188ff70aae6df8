"""Declare every option of `plumbline serve`: its type, range, default and help. All else is derived from this.

The options about the model are in `model_options.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from plumbline.server.settings.model_options import ModelOptions
from plumbline_conformance.console.options import Amount, AtLeastOne, Count, Describe, Positive, Texts

__all__ = ["Declaration"]

_network = partial(Describe, "network")
_access = partial(Describe, "access")
_log = partial(Describe, "logs and traces")
_limits = partial(Describe, "connections and limits")
_files = partial(Describe, "files in requests")
_storage = partial(Describe, "storage")


class Declaration(ModelOptions, frozen=True, kw_only=True):
    """The options, by the fields of the settings. Sizes are in tokens or bytes, times in seconds."""

    host: Annotated[str, _network("address to listen on; other machines need an API key")] = "127.0.0.1"
    port: Annotated[Annotated[int, Meta(ge=0, le=65535)], _network("TCP port to listen on")] = 8000
    uds: Annotated[
        str,
        _network(
            "listen on this Unix socket, which only its owner can use, instead of a host and port", "PATH"
        ),
    ] = ""
    uds_group: Annotated[bool, _network("let the group of the Unix socket use it as well")] = False
    api_servers: Annotated[
        Annotated[int, Meta(ge=1, le=64)],
        _network(
            "processes that answer clients; several share one engine, and each has limits such as --max-connections "
            "for itself",
            "N",
        ),
    ] = 1
    answer_while_loading: Annotated[
        bool,
        _network(
            "listen while the model loads as well: /health has the progress, and other requests get a 503; otherwise "
            "connections are refused until the server is ready, so that proxies send requests elsewhere"
        ),
    ] = False
    cors_origins: Annotated[
        Texts,
        _network(
            "let web pages of this origin use the server; repeatable, * stands for any text",
            "ORIGIN",
            name="cors_origin",
        ),
    ] = ()
    allowed_hosts: Annotated[
        Texts,
        _network(
            "without API keys, answer requests that name this host besides localhost and --host; repeatable, * stands "
            "for any text",
            "HOST",
            name="allowed_host",
        ),
    ] = ()
    forwarded_allow_ips: Annotated[
        str,
        _network(
            "believe the X-Forwarded-For and X-Forwarded-Proto of these proxies, addresses or networks with commas "
            "between them; * stands for all, also for clients (default: nobody's)",
            "ADDRESSES",
        ),
    ] = ""
    proxy_protocol: Annotated[
        bool,
        _network(
            "read the addresses of clients from the PROXY protocol, versions 1 and 2, with which each connection of "
            "--forwarded-allow-ips then has to begin"
        ),
    ] = False
    page: Annotated[
        bool, _network("serve a page to talk to the model at / and a reference of the API at /docs")
    ] = True
    ssl_certfile: Annotated[str, _network("serve https with this certificate chain (PEM)", "FILE")] = ""
    ssl_keyfile: Annotated[str, _network("key of the certificate, if its file lacks it (PEM)", "FILE")] = ""
    ssl_keyfile_password_file: Annotated[str, _network("password of the key, if it is encrypted", "FILE")] = (
        ""
    )
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
            in_file="file with one key a line, or its hash as sha256:HEX, and after it name=NAME, requests=N and "
            "tokens=N a minute, streams=N at the same time, stored=SIZE, models=NAME,NAME, metrics=yes; # begins a "
            "comment",
            adds=True,
        ),
    ] = ()
    admin_api_keys: Annotated[
        Texts,
        _access(
            "key of clients that may load and unload models and adapters, sent as x-admin-key or as an API key, which "
            "it is too; repeatable. Without one these operations are refused",
            "KEY",
            name="admin_api_key",
            secret=True,
            in_file="file with one admin key a line, as in --api-key-file; # begins a comment",
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
            "too (default: one kept in the store, or without one in the user's data directory)",
            only_in_file=True,
        ),
    ] = ""
    share_prefix_cache: Annotated[
        bool,
        _access(
            "let requests with different keys use what each other has in the prefix cache; a client then learns from "
            "`cached_tokens` and from times what others have sent"
        ),
    ] = False
    public: Annotated[
        Texts,
        _access(
            "path that needs no key where other paths do: /metrics, /version, /docs, /openapi.json or /openapi.yaml; "
            "repeatable",
            "PATHNAME",
        ),
    ] = ()
    trust_request_chat_template: Annotated[
        bool,
        _access(
            "render with the chat_template of a request; each runs in a process with 10 s of CPU time "
            "and 1 GiB of memory"
        ),
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

    allow_mcp: Annotated[
        Texts,
        _access(
            "call MCP servers of this host where requests have tools of type mcp; repeatable. Without a port, the "
            "ports of http and https are meant; a private address must be named itself",
            "HOST[:PORT]",
        ),
    ] = ()

    access_log: Annotated[
        bool,
        _log(
            "log a line for each request when it has ended: id, path, status, times, model, tokens, name of the key; "
            "nothing that was asked or answered"
        ),
    ] = False
    log_format: Annotated[
        Literal["text", "json"], _log("form of the log: lines for people, or a JSON object a line")
    ] = "text"
    otlp_traces_endpoint: Annotated[
        str,
        _log(
            "send traces to this address of an OpenTelemetry collector, over HTTP, such as "
            "http://127.0.0.1:4318/v1/traces; nothing that was asked or answered is in them",
            "URL",
        ),
    ] = ""
    enable_log_requests: Annotated[
        bool,
        _log(
            "log each request, with the beginning of its body; keys, headers for other servers and files are left out, "
            "what users write is not"
        ),
    ] = False
    enable_log_outputs: Annotated[bool, _log("log each request, and the beginning of its answer")] = False
    debug: Annotated[bool, _log("show the traceback of a failure at the start")] = False
    max_log_len: Annotated[
        AtLeastOne, _log("characters of a body that are logged, of its first 64 KiB", "N")
    ] = 2048

    max_connections: Annotated[
        Count, _limits("maximum number of open connections; further ones get a 503. 0 sets no limit", "N")
    ] = 4096
    max_body_bytes: Annotated[
        Count, _limits("maximum size of a request body; larger ones are a 413", "SIZE")
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
    stop_delay: Annotated[
        Amount,
        _limits(
            "accept connections for this long after SIGINT or SIGTERM, while /health/ready is 503, for proxies that "
            "learn of a stop by probes only",
            "SECONDS",
        ),
    ] = 0.0
    stuck_after: Annotated[
        Positive,
        _limits(
            "answer 503 at /health when the engine has had work for this long without finishing a step, or at most 5 "
            "seconds after its process falls silent; after three times as long its requests end with an error, and it "
            "starts again",
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
        AtLeastOne, _files("maximum size of the files of a request together", "SIZE")
    ] = 20 * 1024**2
    max_media_in_flight: Annotated[
        AtLeastOne,
        _files(
            "maximum size of the files of all requests that are being answered; further ones get a 429",
            "SIZE",
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
            "maximum size of all that is stored; above, the oldest conversations of the key with the most go first. 0 "
            "sets no limit",
            "SIZE",
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
