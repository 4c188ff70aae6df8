"""List the models of a running server, and those in the cache of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from plumbline.base.gguf_file import first_piece
from plumbline.engines.native.models.families import FAMILIES, WRAPPED
from plumbline.hub.transfer import unfinished
from plumbline.pocket import MODEL_NAME
from plumbline_conformance.console.sizes import size_text

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

__all__ = ["available_models"]

_TIMEOUT = 5.0
"""Seconds for a server to answer."""
_HINTS = (
    f"{MODEL_NAME} comes with the package and is served without a name.",
    "plumbline list --supported lists what each engine runs.",
)


def available_models(url: str, api_key: str | None) -> str:
    """Return the text of `plumbline list`: the models of a server and of the hub's cache.

    Args:
        url: the base URL of the server, such as http://127.0.0.1:8000/v1.
        api_key: its key, if it has one.
    """
    return "\n".join([*_server_lines(url, api_key), "", *_cache_lines(), "", *_HINTS])


def _server_lines(url: str, api_key: str | None) -> Iterator[str]:
    """Yield the models of a server, or why there are none."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        answer = httpx2.get(f"{url.rstrip('/')}/models", headers=headers, timeout=_TIMEOUT, trust_env=False)
    except UnicodeEncodeError:
        yield "--api-key has other characters than ASCII, which no server takes. Copy the key again."
        return
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError):
        yield f"No server of the API answers at {url}: give the URL of one, plumbline list URL."
        return
    if answer.status_code in (401, 403):
        yield f"The server at {url} answered {answer.status_code}. Give its key with --api-key."
        return
    models = _models_of(answer)
    if models is None:
        status = answer.status_code
        yield f"The server at {url} answered {status} without a list of models. URL must be the root of its API."
        return
    yield f"Served at {url}:"
    yield from (f"  {_model_line(model)}" for model in models if isinstance(model, dict))


def _models_of(answer: httpx2.Response) -> list[Any] | None:
    """Return the models of an answer, or None if it has no list of them."""
    try:
        models = answer.json()["data"] if answer.is_success else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return models if isinstance(models, list) else None


def _model_line(model: dict[str, Any]) -> str:
    """Return a model's id, and what servers add to OpenAI's fields: the context and whether it is loaded."""
    name = _printable(str(model.get("id")))
    length, status = model.get("max_model_len"), model.get("status")
    if isinstance(status, dict):
        status = status.get("value")
    more = [f"{length:,} tokens"] if isinstance(length, int) else []
    more += [_printable(status)] if isinstance(status, str) else []
    return f"{name} ({', '.join(more)})" if more else name


def _printable(text: str) -> str:
    """Replace control characters in text of a server, which could change the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _cache_lines() -> Iterator[str]:
    """Yield the models of the hub's cache: name, size, and the engine that runs it."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = [
            each for each in scan_cache_dir(constants.HF_HUB_CACHE).repos if each.repo_type == "model"
        ]
    except CacheNotFound:
        repositories = []
    rows = [row for each in sorted(repositories, key=lambda one: one.repo_id) for row in _cache_rows(each)]
    rows += [
        (name, size, f"not finished: plumbline pull goes on, plumbline rm {name} removes it")
        for name, size in sorted(unfinished().items())
    ]
    if not rows:
        yield "No model has been downloaded from the hub; plumbline pull OWNER/NAME downloads one."
        return
    yield "Downloaded from the hub (plumbline run NAME talks to one, plumbline serve NAME serves it):"
    width = max(len(name) for name, _, _ in rows)
    yield from (f"  {name:{width}}  {size_text(size):>9}  {engine}" for name, size, engine in rows)


def _cache_rows(repository: CachedRepoInfo) -> Iterator[tuple[str, int, str]]:
    """Yield name, bytes and engine of each model of a repository: each GGUF file is one, or the folder."""
    files = {
        each.file_path.relative_to(revision.snapshot_path).as_posix(): each.size_on_disk
        for revision in repository.revisions
        for each in revision.files
    }
    if "config.json" in files:
        folders = [revision.snapshot_path for revision in repository.revisions]
        yield repository.repo_id, repository.size_on_disk, _engine_of(folders)
        return
    sizes: dict[str, int] = {}
    for path, size in files.items():
        if path.endswith(".gguf"):
            first = first_piece(Path(path)).as_posix()
            sizes[first] = sizes.get(first, 0) + size
    named = [(f"{repository.repo_id}:{path}", size, "GGUF") for path, size in sorted(sizes.items())]
    yield from named or [(repository.repo_id, repository.size_on_disk, "without a config.json")]


def _engine_of(folders: list[Path]) -> str:
    """Return the engine of a model folder, judged by the `model_type` of its config."""
    for folder in folders:
        try:
            kind = json.loads((folder / "config.json").read_text("utf-8")).get("model_type")
        except (OSError, ValueError, AttributeError):
            continue
        ours = kind in FAMILIES or kind in WRAPPED
        return f"{kind}, {'our engine' if ours else 'vLLM or transformers'}"
    return "with a config.json that cannot be read"
