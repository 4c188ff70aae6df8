"""Check the settings of `plumbline serve`: each option by its declaration, and the rules between options."""

from __future__ import annotations

import ipaddress
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from plumbline.server.settings.declaration import Declaration
from plumbline.server.settings.keys import read_key
from plumbline_conformance.console.options import OptionError, options_of, shown

__all__ = ["OPTIONS", "Settings"]

_CLOSED_PATHS = ("/docs", "/metrics", "/openapi.json", "/openapi.yaml", "/version")
"""Paths that need a key, and can do without one."""
_MIN_SEALING_KEY = 16
"""Minimum number of characters of a sealing key."""


class Settings(Declaration, frozen=True, kw_only=True):
    """The settings of `plumbline serve`; `Declaration` describes each field.

    Raises:
        OptionError: a value is out of its range, or contradicts another one.
    """

    @property
    def several_models(self) -> bool:
        """Whether requests choose among models."""
        return len(self.models) > 1 or bool(self.model_dir)

    @property
    def client_limit(self) -> int:
        """The sequences that one client may have; 0 means no limit."""
        if self.max_seqs_per_client is None:
            return self.max_num_seqs + self.max_num_waiting // 2
        return self.max_seqs_per_client

    def __post_init__(self) -> None:
        for option in OPTIONS:
            problem = option.problem(getattr(self, option.field))
            if problem is not None:
                raise OptionError(option.label, problem)
        for rule in (
            _check_processes,
            _check_models,
            _check_adapters,
            _check_tls,
            _check_proxies,
            _check_access,
            _check_hosts,
            _check_traces,
        ):
            rule(self)


OPTIONS = options_of(Settings)
"""All options, in the order of their declaration."""


def _check_processes(settings: Settings) -> None:
    if settings.api_servers > 1 and sys.platform == "win32":
        raise OptionError("--api-servers", "must be 1 on Windows: several processes need Unix sockets")


def _check_models(settings: Settings) -> None:
    if settings.admin_api_keys and settings.api_servers > 1:
        raise OptionError(
            "--admin-api-key", "needs --api-servers 1: processes share the model that it would unload"
        )
    if settings.model_dir and not Path(settings.model_dir).expanduser().is_dir():
        raise OptionError("--model-dir", f"must be a directory, and {settings.model_dir} is not one")
    if not settings.several_models:
        if settings.models_memory_bytes is not None:
            raise OptionError(
                "--models-memory-bytes", "needs several models: repeat --model, or give --model-dir"
            )
        return
    if settings.api_servers > 1:
        raise OptionError("--api-servers", "must be 1 with several models: processes share one engine")
    if settings.served_model_names:
        raise OptionError("--served-model-name", "names one model: give --model NAME=PATH for each")
    for option, value in (("--lora", settings.loras), ("--lora-dir", settings.lora_dir)):
        if value:
            raise OptionError(
                option, "needs one model: leave it out, or serve one --model without --model-dir"
            )


def _check_adapters(settings: Settings) -> None:
    if settings.max_loras < len(settings.loras):
        raise OptionError(
            "--max-loras",
            f"must be at least the number of --lora, {len(settings.loras)}, got {settings.max_loras}",
        )
    if settings.lora_dir and settings.api_servers > 1:
        raise OptionError(
            "--lora-dir", "needs --api-servers 1: processes do not know each other's adapters; use --lora"
        )
    if settings.lora_dir and not Path(settings.lora_dir).expanduser().is_dir():
        raise OptionError("--lora-dir", f"must be a directory, and {settings.lora_dir} is not one")


def _check_tls(settings: Settings) -> None:
    files = {
        "--ssl-certfile": settings.ssl_certfile,
        "--ssl-keyfile": settings.ssl_keyfile,
        "--ssl-keyfile-password-file": settings.ssl_keyfile_password_file,
        "--ssl-ca-certs": settings.ssl_ca_certs,
    }
    for option, path in files.items():
        if path and not settings.ssl_certfile:
            raise OptionError(option, "needs --ssl-certfile as well")
        if path and not Path(path).is_file():
            raise OptionError(option, f"must be a file, and {path} is not one")


def _check_proxies(settings: Settings) -> None:
    for text in filter(None, map(str.strip, settings.forwarded_allow_ips.split(","))):
        try:
            if text != "*":
                ipaddress.ip_network(text)
        except ValueError as error:
            raise OptionError(
                "--forwarded-allow-ips",
                f"must be addresses and networks such as 10.0.0.0/8, got {shown(text)}",
            ) from error

    if settings.proxy_protocol and not settings.forwarded_allow_ips:
        raise OptionError("--proxy-protocol", "needs --forwarded-allow-ips, the proxies that speak it")
    if settings.proxy_protocol and settings.uds:
        raise OptionError(
            "--proxy-protocol", "needs --port: connections of a Unix socket have no address to trust"
        )


def _check_access(settings: Settings) -> None:
    if settings.uds_group and not settings.uds:
        raise OptionError("--uds-group", "needs --uds, the socket that it is about")
    if not settings.api_keys and not settings.uds and not _is_loopback(settings.host):
        raise OptionError(
            "--host",
            f"is {settings.host or 'empty'}, which other machines can reach, and there is no API key: give one with "
            "--api-key, --api-key-file or PLUMBLINE_API_KEY, or bind 127.0.0.1",
        )
    if settings.sealing_key and len(settings.sealing_key) < _MIN_SEALING_KEY:
        raise OptionError("--sealing-key-file", f"must give at least {_MIN_SEALING_KEY} characters")
    for path in settings.public:
        if path not in _CLOSED_PATHS:
            raise OptionError("--public", f"must be one of {', '.join(_CLOSED_PATHS)}, got {shown(path)}")
    _check_keys(settings)


def _check_keys(settings: Settings) -> None:
    for option, keys in (("--api-key", settings.api_keys), ("--admin-api-key", settings.admin_api_keys)):
        if any(not key for key in keys):
            raise OptionError(option, "must not be empty")
        try:
            known = [read_key(key) for key in keys]
        except ValueError as error:
            raise OptionError(option, str(error)) from None
        if len({key.digest for key in known}) < len(known):
            raise OptionError(option, "has a key twice: leave out one of the lines")


def _check_hosts(settings: Settings) -> None:
    if settings.allow_mcp:
        # `serve --help` needs none of this, and imports little.
        from plumbline.server.tools.mcp.hosts import AllowedHosts

        try:
            AllowedHosts(settings.allow_mcp)
        except ValueError as error:
            raise OptionError("--allow-mcp", str(error)) from None
        if find_spec("mcp") is None:
            raise OptionError(
                "--allow-mcp",
                "needs the MCP client: install Plumbline with the extra [mcp], or `pip install mcp`",
            )


def _check_traces(settings: Settings) -> None:
    endpoint = settings.otlp_traces_endpoint
    if not endpoint:
        return
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise OptionError(
            "--otlp-traces-endpoint",
            f"must be an address of the collector for OTLP over HTTP, such as http://127.0.0.1:4318/v1/traces, got "
            f"{shown(endpoint)}",
        )
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter") is None:
        raise OptionError(
            "--otlp-traces-endpoint",
            "needs OpenTelemetry: install Plumbline with the extra [traces], or "
            "`pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`",
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
