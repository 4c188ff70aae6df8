"""Define the server's settings, and check them before anything is loaded."""

from __future__ import annotations

import ipaddress
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

__all__ = [
    "ENGINES",
    "MIN_SEALING_KEY",
    "Settings",
    "SettingsError",
    "pocket_model",
    "read_api_keys",
    "read_loras",
    "read_sealing_key",
]


ENGINES = ("auto", "plumbline", "vllm", "llama_cpp", "transformers")
MIN_SEALING_KEY = 16
"""Minimum number of characters of a sealing key."""


class SettingsError(ValueError):
    """A setting is wrong, or two contradict each other; the message explains how to fix it."""


def pocket_model() -> Path:
    """Return the folder of the model that comes with the package."""
    return Path(__file__).parent.parent / "pocket" / "model"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of `plumbline serve`. Sizes are in tokens or bytes, times in seconds."""

    model: str = ""
    """A folder, a GGUF file, or one of them on the hub; empty means the pocket model."""
    served_model_names: tuple[str, ...] = ()
    """Model ids that requests may use; answers have the first. Default: the folder's name."""
    host: str = "127.0.0.1"
    port: int = 8000
    uds: str = ""
    """A Unix socket to listen on instead of `host` and `port`."""
    ssl_certfile: str = ""
    """A PEM file with the certificate chain; the server then speaks TLS."""
    ssl_keyfile: str = ""
    """A PEM file with the certificate's key; empty if the certificate file has it."""
    ssl_ca_certs: str = ""
    """A PEM file with authorities; clients then need a certificate of one of them."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may use the server; `*` stands for any text."""
    api_keys: tuple[str, ...] = ()
    sealing_key: str = ""
    """The secret that seals reasoning for clients (`reasoning.encrypted_content`); empty takes a random one."""
    store: str = "none"
    """Where responses are kept: a path, `sqlite:///PATH`, `postgresql://…`, or `none`. The command line's default is a
    file in the user's data directory."""
    store_max_days: float = 30.0
    """Days that stored responses are kept; 0 keeps them for ever."""
    store_max_bytes: int = 10 * 1024**3
    """Bytes of what is stored; above, the oldest conversations are deleted. 0 sets no limit."""
    store_max_responses_per_key: int = 0
    """Stored responses of one API key; further ones are a 429. 0 sets no limit."""
    compaction: str = "auto"
    """How conversations are compacted: `summary` by the model, `lossless`, or `auto`: by models with a gigabyte of
    weights or more."""
    prompts: str = ""
    """A folder with prompt templates, `FOLDER/ID/VERSION.json`; empty for none."""
    engine: str = "auto"
    """`plumbline`, `vllm`, `llama_cpp`, `transformers`, or `auto` to choose by the model (`server.loading.engines`)."""
    engine_args: tuple[str, ...] = ()
    """`KEY=VALUE` texts for the engine's library."""
    loras: tuple[tuple[str, str], ...] = ()
    """Names and folders of the LoRA adapters to load at the start."""
    lora_dir: str = ""
    """The folder from which requests may load adapters; empty for none."""
    max_loras: int = 4
    """Adapters that may be loaded."""
    max_lora_rank: int = 0
    """The largest rank of an adapter; 0 is that of the adapters to load at the start, or 16 if that is more."""
    device_memory: float | None = None
    """The part of the device's memory that vLLM may use, 0 to 1."""
    device: str = "auto"
    dtype: str = "auto"
    trust_remote_code: bool = False
    """Run Python code that comes with the model; transformers and vLLM."""
    generation_config: str = "auto"
    """Sampling defaults: `auto` takes the model's generation_config.json, `none` OpenAI's values."""
    tool_parser: str = "auto"
    """The dialect of tool calls: a name, `none`, or `auto` to choose it from the chat template."""
    reasoning_parser: str = "auto"
    """The dialect of the model's thinking, chosen the same way."""
    reasoning_field: Literal["reasoning_content", "reasoning", "both"] = "both"
    """The field of chat completions that carries the thinking; clients of vLLM read `reasoning`, others the other."""
    compact_stream: bool = False
    """Whether the last delta of a streamed choice carries its finish reason, as vLLM's does. Then every delta waits for
    the one behind it."""
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 1024
    max_num_waiting: int = 1024
    max_seqs_per_client: int | None = None
    """How many sequences one client may have, running and waiting; None is all that run and half of the queue."""
    block_size: int = 16
    kv_cache_bytes: int | None = None
    """Keys and values that an engine keeps; None lets the engine choose (`server.loading.engines`)."""
    enable_prefix_caching: bool = True
    batch_invariant: bool = False
    trust_request_chat_template: bool = False
    """Take chat templates from requests."""
    allow_media_urls: bool = False
    """Fetch images and videos that requests name with http(s) URLs."""
    max_media_items: int = 16
    """Files that a request may have, with those of the conversation that it continues."""
    max_media_bytes: int = 20 * 1024**2
    """Bytes of all files of a request together."""
    max_image_pixels: int = 40_000_000
    """Pixels of all images and of all frames of videos of a request together."""
    max_video_frames: int = 32
    """Frames of a video that the model sees, evenly spread."""
    max_video_cpu_seconds: float = 5.0
    """Seconds of a CPU that decoding one video may take."""
    max_audio_seconds: float = 30.0
    """Length of all audio of a request together."""
    max_media_in_flight: int = 1024**3
    """Bytes of the files of all requests that are being answered; more requests with files get a 429."""
    media_timeout: float = 10.0
    """Seconds that fetching one file may take."""
    strict: bool = False
    """Answer 400 to unknown fields in request bodies instead of ignoring them."""
    api_servers: int = 1
    """Processes that answer clients; more than one share the engine, which then has a process of its own."""
    max_body_bytes: int = 10 * 1024 * 1024
    header_timeout: float = 30.0
    """A connection whose headers take longer is closed, with a 408 if they have begun; 0 waits forever."""
    body_timeout: float = 30.0
    """A request body that sends nothing, or falls behind 16 KiB/s, for this long is a 408; 0 waits forever."""
    idle_timeout: float = 60.0
    """A connection that sends nothing after an answer is closed after this long; 0 waits forever."""
    max_connections: int = 4096
    """Connections open at the same time; further ones get a 503. 0 sets no limit."""
    keep_alive_interval: float = 15.0
    """A stream that has been silent for this long gets a comment line; 0 sends none."""
    shutdown_timeout: float = 30.0
    """How long streams may continue after SIGINT or SIGTERM; then they end with an error event."""
    stuck_after: float = 120.0
    """`/health` turns 503 when the engine has had work for this long without finishing a step."""

    @property
    def client_limit(self) -> int:
        """The sequences that one client may have; 0 means no limit."""
        if self.max_seqs_per_client is None:
            return self.max_num_seqs + self.max_num_waiting // 2
        return self.max_seqs_per_client

    def __post_init__(self) -> None:
        if not 1 <= self.api_servers <= 64:
            raise SettingsError(f"--api-servers must be 1 to 64, got {self.api_servers}")
        if self.api_servers > 1 and sys.platform == "win32":
            raise SettingsError("--api-servers: several processes need Unix sockets; leave it out")
        if self.max_seqs_per_client is not None and self.max_seqs_per_client < 0:
            raise SettingsError(f"--max-seqs-per-client must be at least 0, got {self.max_seqs_per_client}")
        if not 0 <= self.port <= 65535:
            raise SettingsError(f"--port must be 0 to 65535, got {self.port}")
        if self.max_loras < max(1, len(self.loras)):
            raise SettingsError(
                f"--max-loras must be at least 1 and the number of --lora, got {self.max_loras}"
            )
        if self.device_memory is not None and not 0 < self.device_memory <= 1:
            raise SettingsError(f"--device-memory must be above 0 and at most 1, got {self.device_memory}")
        if self.lora_dir and self.api_servers > 1:
            raise SettingsError(
                "--lora-dir: several API servers would not know each other's adapters; use --lora"
            )
        if self.lora_dir and not Path(self.lora_dir).expanduser().is_dir():
            raise SettingsError(f"--lora-dir: {self.lora_dir} is no folder")
        if self.engine not in ENGINES:
            raise SettingsError(f"--engine must be one of {', '.join(ENGINES)}, got {self.engine!r}")
        if self.compaction not in ("auto", "summary", "lossless"):
            raise SettingsError(f"--compaction must be auto, summary or lossless, got {self.compaction!r}")
        if self.generation_config not in ("auto", "none"):
            raise SettingsError(f"--generation-config must be auto or none, got {self.generation_config!r}")
        for name in (
            "max_media_items",
            "max_media_bytes",
            "max_image_pixels",
            "max_audio_seconds",
            "max_video_frames",
            "max_video_cpu_seconds",
            "media_timeout",
        ):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(
                    f"--{name.replace('_', '-')} must be above 0 and finite, got {getattr(self, name)}"
                )
        for name in (
            "header_timeout",
            "body_timeout",
            "idle_timeout",
            "store_max_days",
            "store_max_bytes",
            "store_max_responses_per_key",
        ):
            if getattr(self, name) < 0:
                raise SettingsError(
                    f"--{name.replace('_', '-')} must be at least 0, got {getattr(self, name)}"
                )
        if self.reasoning_field not in ("reasoning_content", "reasoning", "both"):
            raise SettingsError(
                f"--reasoning-field must be reasoning_content, reasoning or both, got {self.reasoning_field!r}"
            )
        self._check_tls()
        if not self.api_keys and not self.uds and not _is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host} is reachable from other machines and there is no API key. "
                "Give one with --api-key, --api-key-file or PLUMBLINE_API_KEY, or bind 127.0.0.1."
            )
        if self.sealing_key and len(self.sealing_key) < MIN_SEALING_KEY:
            raise SettingsError(f"the sealing key must have at least {MIN_SEALING_KEY} characters")
        if any(not key for key in self.api_keys):
            raise SettingsError("an API key must not be empty")

    def _check_tls(self) -> None:
        if (self.ssl_keyfile or self.ssl_ca_certs) and not self.ssl_certfile:
            raise SettingsError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise SettingsError(f"--{name.replace('_', '-')} {path} is not a file")


def read_loras(given: list[str]) -> tuple[tuple[str, str], ...]:
    """Read the `NAME=PATH` texts of `--lora`.

    Raises:
        SettingsError: one has no name or no path, or a name comes twice.
    """
    found: dict[str, str] = {}
    for text in given:
        name, _, path = text.partition("=")
        if not name or not path or name in found:
            raise SettingsError(f"--lora takes NAME=PATH with a name of its own, got {text!r}")
        found[name] = str(Path(path).expanduser())
    return tuple(found.items())


def read_api_keys(
    given: list[str], file: str | None, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Collect keys from the command line, a file (one a line, `#` comments) and `PLUMBLINE_API_KEY` (comma-separated).

    Raises:
        SettingsError: the file cannot be read or has no keys.
    """
    environment = os.environ if environment is None else environment
    keys = list(given)
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"--api-key-file {file} cannot be read: {error}") from error
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise SettingsError(f"--api-key-file {file} has no keys")
        keys += found
    keys += [key.strip() for key in environment.get("PLUMBLINE_API_KEY", "").split(",") if key.strip()]
    return tuple(dict.fromkeys(keys))


def read_sealing_key(file: str | None, environment: Mapping[str, str] | None = None) -> str:
    """Return the sealing key from a file, else from `PLUMBLINE_SEALING_KEY`, else an empty string.

    Raises:
        SettingsError: the file cannot be read or is empty.
    """
    environment = os.environ if environment is None else environment
    if file is None:
        return environment.get("PLUMBLINE_SEALING_KEY", "").strip()
    try:
        found = Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"--sealing-key-file {file} cannot be read: {error}") from error
    if not found:
        raise SettingsError(f"--sealing-key-file {file} is empty")
    return found


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
