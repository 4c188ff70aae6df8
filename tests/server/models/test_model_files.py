"""Finding the files of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline.engines.adapters import read_config
from plumbline.hub.files import find_model
from plumbline.port.engine import RefusedRequestError
from plumbline.server.loading.prompts import load_prompts
from plumbline.server.settings import OptionError


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "no-slash", "a/b/c"])
def test_what_can_be_neither_folder_nor_hub_id_is_refused_at_once(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder, nor a GGUF file, nor a name on the hub"):
        find_model(name)


def test_a_hub_id_without_network_is_refused_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"HF_HUB_OFFLINE is set, which forbids to ask the hub for owner/name"
    ):
        find_model("owner/name")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "chat_template.jinja",
        "model.safetensors",
        "anything",
        "additional_chat_templates/a.jinja",
        "encoding/encoding_a.py",
    ],
)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_would_be_read_without_end_is_named(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    make(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=f"{name} is a pipe, a socket or a device"):
        find_model(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.model", "merges.txt"])
def test_a_text_file_of_gigabytes_is_named(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(name)} has more than 256 MiB"):
        find_model(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_adapters_and_prompts_are_files(make: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "prompts" / "one").mkdir(parents=True)
    make(tmp_path / "prompts" / "one" / "1.json")
    with pytest.raises(OptionError, match=r"--prompts has .*1\.json, which cannot be used: it is not a file"):
        load_prompts(str(tmp_path / "prompts"))
    make(tmp_path / "adapter_config.json")
    with pytest.raises(RefusedRequestError, match=r"adapter_config\.json is a pipe, a socket or a device"):
        read_config(tmp_path)
