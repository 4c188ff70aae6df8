"""Laws of `--model`, `--model-dir` and `--models-memory-bytes`.

- A model is given as a path or hub id, or as NAME=PATH; an existing path is a path, whatever characters it has.
- The models of `--model` that fit are loaded at the start, in their order; all others when requests name them.
- What cannot be served together is refused at the start, by the name of the option.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.servers.asgi import serving

from plumbline.engines.native.graphs import graphs_bytes
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.catalog import Catalog
from plumbline.server.loading.native.memory import CACHE_BYTES
from plumbline.server.loading.plan import plan
from plumbline.server.loading.several import several
from plumbline.server.settings import Settings, SettingsError
from plumbline.server.settings.values import read_models

CHAT = "/v1/chat/completions"
WEIGHTS = (MODEL_DIR / "model.safetensors").stat().st_size
SIZE = WEIGHTS + CACHE_BYTES["plumbline"]


def planned(settings: Settings, loading: Callable[[str], None]) -> Catalog:
    """Return the models of a server, whose engines run in this process."""
    return several(plan(settings), settings, loading)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three models, and what is none."""
    for name in ("one", "two"):
        os.symlink(MODEL_DIR, tmp_path / name)
    for name in ("small.gguf", "split-00001-of-00002.gguf", "split-00002-of-00002.gguf", "mmproj-small.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    (tmp_path / "no-model").mkdir()
    (tmp_path / "notes.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((), ()),
        (("",), ()),
        (("./a",), (("", "./a"),)),
        (("owner/name",), (("", "owner/name"),)),
        (("a=./b", "c=owner/name"), (("a", "./b"), ("c", "owner/name"))),
        (("a/b=./c=d", "./x=y"), (("a/b", "./c=d"), ("", "./x=y"))),
    ],
)
def test_a_model_may_have_a_name(given: tuple[str, ...], found: Any) -> None:
    assert read_models(given) == found


def test_an_existing_path_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b").mkdir()
    assert read_models(("a=b",)) == (("", "a=b"),)


@pytest.mark.parametrize("given", [("=./a",), ("a=",), ("a=./b", "a=./c")])
def test_a_model_without_a_path_or_a_name_of_its_own_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError, match="--model must be"):
        read_models(given)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"api_servers": 2}, "--api-servers"),
        ({"served_model_names": ("x",)}, "--served-model-name"),
        ({"loras": (("x", "./x"),)}, "--lora"),
        ({"lora_dir": "."}, "--lora-dir"),
    ],
)
def test_what_needs_one_model_is_refused_with_several(changes: dict[str, Any], option: str) -> None:
    several: tuple[dict[str, Any], ...] = ({"models": (("a", "./a"), ("b", "./b"))}, {"model_dir": "."})
    for models in several:
        with pytest.raises(SettingsError, match=f"^{option} "):
            Settings(**models, **changes)
    Settings(models=(("a", "./a"),), **changes)


def test_options_of_several_models_need_several() -> None:
    with pytest.raises(SettingsError, match="--models-memory-bytes needs several models"):
        Settings(models_memory_bytes=1)
    with pytest.raises(SettingsError, match="--model-dir must be a directory"):
        Settings(model_dir="/no/such/folder")


def test_a_folder_lists_its_models_and_loads_none(folder: Path) -> None:
    catalog = planned(Settings(model_dir=str(folder), models_memory_bytes=1000), print)
    assert [source.names for source in catalog.sources] == [
        ("one",), ("small",), ("split",), ("two",),
    ]  # fmt: skip
    assert [source.size for source in catalog.sources] == [
        SIZE,
        *[size + CACHE_BYTES["llama_cpp"] for size in (4, 8)],
        SIZE,
    ]
    assert (catalog.default, catalog.loaded, catalog.capacity) == (None, {}, 1000)
    size = planned(Settings(model_dir=str(folder), kv_cache_bytes=10**6), print).sources[0].size
    assert size == WEIGHTS + 10**6


def test_the_graphs_of_a_gpu_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("plan", "native.memory", "native.native_model"):
        monkeypatch.setattr(f"plumbline.server.loading.{module}.device_of", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    given: dict[str, Any] = {"model_dir": str(folder), "models_memory_bytes": 1000, "engine": "plumbline"}
    with_graphs, without = (
        planned(Settings(**given, cuda_graphs=records), print).sources[0].size for records in (True, False)
    )
    vocabulary = json.loads((MODEL_DIR / "config.json").read_text())["text_config"]["vocab_size"]
    assert without == SIZE
    assert with_graphs == SIZE + graphs_bytes(Settings().max_num_seqs, vocabulary, 2)


def test_the_models_that_fit_are_loaded_at_the_start(folder: Path) -> None:
    given = (("x", str(folder / "one")), ("", str(MODEL_DIR)), ("", ""))
    for room, loaded in ((1, ["x"]), (2, ["x", MODEL_DIR.name])):
        began: list[str] = []
        catalog = planned(Settings(models=given, models_memory_bytes=room * SIZE), began.append)
        assert [source.names[0] for source in catalog.sources] == ["x", MODEL_DIR.name, "plumbline-pocket"]
        assert began == list(catalog.loaded) == loaded
        assert catalog.default is catalog.sources[0]


def test_a_model_that_never_fits_ends_the_start(folder: Path) -> None:
    with pytest.raises(SettingsError, match=f"--models-memory-bytes must be at least {SIZE}"):
        planned(Settings(models=(("a", str(folder / "one")), ("b", "")), models_memory_bytes=SIZE - 1), print)


def test_a_model_of_the_folder_may_be_the_first_one(folder: Path) -> None:
    settings = Settings(models=(("x", str(folder / "one")),), model_dir=str(folder))
    names = [source.names[0] for source in planned(settings, print).sources]
    assert names == ["x", "small", "split", "two"]


def test_two_models_with_one_name_are_refused(folder: Path) -> None:
    (folder / "one.gguf").touch()
    with pytest.raises(SettingsError, match="--model-dir gives two models the name 'one'"):
        planned(Settings(model_dir=str(folder)), print)


async def test_a_model_of_the_folder_answers_when_it_is_named(folder: Path) -> None:
    settings = {"model_dir": str(folder), "models_memory_bytes": SIZE, "max_model_len": 1024}
    catalog = planned(Settings(**settings), print)  # type: ignore[arg-type]
    async with serving(catalog, **settings) as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
        answers = [(await server.post(CHAT, {**body, "model": name})).json for name in ("one", "two", "one")]
        assert [answer["model"] for answer in answers] == ["one", "two", "one"]
        texts = {json.dumps(answer["choices"][0]["message"]) for answer in answers}
        assert len(texts) == 1
        answer = await server.post(CHAT, {**body, "model": "small"})
        assert (answer.status, answer.error["code"]) == (503, "engine_unavailable")
