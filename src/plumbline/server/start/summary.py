"""Print what the server serves: the model, its engine, its memory, the address and a first request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from plumbline import __version__
from plumbline.base.workers.memory import highest, resident
from plumbline.port.engine import EngineInfo
from plumbline.server.loading.catalog import Catalog
from plumbline.server.loading.served_model import ServedModel
from plumbline.server.settings import Settings
from plumbline.server.store.interface import Store
from plumbline_conformance.console.sizes import size_text

__all__ = ["base_url", "summary"]

_WIDTH = 9
"""Columns of the names of lines."""
_ENDS = 8
"""Tokens that are shown."""


def summary(catalog: Catalog, settings: Settings, store: Store | None, port: int, key_note: str = "") -> str:
    """Return the lines that are printed when the models are loaded.

    Args:
        catalog: the models.
        settings: the settings.
        store: where responses are kept.
        port: the TCP port, which is not the one of the settings if that is 0.
        key_note: where the sealing key of a server without a store is.
    """
    lines = [f"Plumbline {__version__}"]
    # Of several models each has its engine's process; the server's own is counted with the only one.
    servers = 0 if settings.several_models else settings.api_servers
    own = resident() * servers, highest() * servers
    for model in catalog.loaded.values():
        lines += [f"  {name:<{_WIDTH}}{value}" for name, value in _model_lines(model, settings, own)]
    storage = _storage(store, key_note)
    lines += [f"  {name:<{_WIDTH}}{value}" for name, value in _server_lines(catalog, settings, storage, port)]
    return "\n".join(lines)


def _model_lines(model: ServedModel, settings: Settings, own: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield the lines of one model. A model that is unloaded later must not be kept by a variable of the caller."""
    info = model.engine.info
    yield "model", ", ".join(model.names)
    yield "engine", f"{info.name} ({model.engine_reason}){f', on {info.runs_on}' if info.runs_on else ''}"
    yield "memory", _memory(model.weight_bytes, info, own)
    if info.rounding_losses:
        yield "rounding", _rounding(info.rounding_losses)
    yield "ends", _ends(model)
    yield "sampling", _sampling(model, settings)
    if model.renderer.template is None:
        yield "prompts", "no chat template: /v1/completions only, or give one with --chat-template"
        return
    yield "dialect", model.dialect.choice.describe()
    yield from (("", note) for note in model.template_notes)


def _rounding(losses: Mapping[str, float]) -> str:
    """Return what rounding the weights to 4 bits costs."""
    shown = ", ".join(f"{loss:.3f} ({kind})" for kind, loss in losses.items())
    return f"weights to 4 bits, with {shown} times the perplexity of texts that the model itself writes"


def _sampling(model: ServedModel, settings: Settings) -> str:
    """Return the sampling defaults and where they come from."""
    values = model.defaults.set_values
    given = [
        json.loads(value) for name, value in settings.sampling_defaults if not name or name in model.names
    ]
    operators = {name for one in given for name in one}
    sources = ["the model"] if values.keys() - operators else []
    if given:
        sources.append("the operator")
    if not sources:
        ignored = settings.generation_config == "none"
        sources = ["OpenAI's API" + ("" if ignored else ", because the model recommends nothing")]
    shown = ", ".join(f"{name} {value}" for name, value in (values or {"temperature": 1.0}).items())
    return f"{shown} where requests set nothing; from {' and '.join(sources)} (--sampling-defaults)"


def _ends(model: ServedModel) -> str:
    """Return the tokens that end an answer."""
    found, tokenizer = sorted(model.engine.info.eos_token_ids), model.renderer.tokenizer
    if not found:
        return "no token ends an answer: neither a config, nor the tokenizer, nor the chat template names one"
    shown = [
        f"{tokenizer.token_text(end) if end < len(tokenizer.table) else ''} ({end})" for end in found[:_ENDS]
    ]
    return (
        ", ".join(shown)
        + (f" and {len(found) - _ENDS} more" if len(found) > _ENDS else "")
        + " end an answer"
    )


def _memory(weight_bytes: int, info: EngineInfo, own: tuple[int, int]) -> str:
    """Return the memory plan: what the processes have now and have or had at most, weights, cache, and its use.

    Args:
        weight_bytes: of the files with the weights.
        info: of the engine.
        own: bytes that processes other than the engine's have, and the most that they have had: they read the
            vocabulary while the engine reads weights.
    """
    parts = []
    if info.resident_bytes:
        rest, loading = info.resident_bytes + own[0], info.loading_bytes + own[1]
        most = max(rest + info.cache_bytes + info.step_bytes, loading)
        parts.append(f"{size_text(rest)} now" + (f", {size_text(most)} at most" if info.step_bytes else ""))
    parts += [f"weights {size_text(weight_bytes)}"] if weight_bytes else []
    if info.num_blocks:
        tokens = info.num_blocks * info.block_size
        size = f"{size_text(info.cache_bytes)}, " if info.cache_bytes else ""
        parts.append(f"cache {size}{tokens:,} tokens of all sequences (--kv-cache-bytes)")
    elif info.cache_bytes:
        parts.append(f"cache up to {size_text(info.cache_bytes)} (--kv-cache-bytes)")
    limit = f"{info.max_model_len:,} tokens a sequence (--max-model-len)"
    if info.max_num_seqs:
        limit += f", {info.max_num_seqs} sequences at a time (--max-num-seqs)"
    return "; ".join([*parts, limit])


def _server_lines(catalog: Catalog, settings: Settings, storage: str, port: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of the server as a whole."""
    if settings.several_models:
        yield (
            "models",
            f"{_loaded(catalog)}; together they may take {size_text(catalog.capacity)} (--models-memory-bytes)",
        )
    if settings.api_servers > 1:
        yield "servers", f"{settings.api_servers} API servers share the engine (--api-servers)"
    yield "storage", storage
    if settings.uds:
        yield "address", f"the Unix socket {settings.uds} (paths begin with /v1)"
        return
    url = base_url(settings, port)
    yield "address", f"{url}/v1"
    if settings.page:
        yield "page", f"{url}/"
    yield "try", _first_request(catalog, settings, url)


def _storage(store: Store | None, key_note: str) -> str:
    """Say what is kept, where, for how long, and how to change that."""
    if store is None:
        return "; ".join(filter(None, ("responses are not stored (--store none)", key_note)))
    return f"responses are kept in {store.description}; --store none keeps nothing"


def _loaded(catalog: Catalog) -> str:
    """Count the models that are loaded."""
    total, loaded = len(catalog.sources), len(catalog.loaded)
    others = ", the others when requests name them" if loaded < total else ""
    return f"{loaded} of {total} loaded{others}"


def _first_request(catalog: Catalog, settings: Settings, url: str) -> str:
    names: Sequence[str] = [name for source in catalog.sources for name in source.names] or ["MODEL"]
    key = " -H 'authorization: Bearer KEY'" if settings.api_keys else ""
    trust = " -k" if settings.ssl_certfile else ""
    path, field, text = "responses", "input", "Who are you?"
    if not all(model.renderer.template is not None for model in catalog.loaded.values()):
        path, field, text = "completions", "prompt", "Once upon a time"
    return f"""curl{trust} {url}/v1/{path}{key} --json '{{"model": "{names[0]}", "{field}": "{text}"}}'"""


def base_url(settings: Settings, port: int) -> str:
    """Return the URL of the server, without a path. A server on all addresses is reached by the loopback one."""
    scheme = "https" if settings.ssl_certfile else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)  # noqa: S104
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
