"""Finding the files of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.model_files import resolve_gguf, resolve_model


def test_a_gguf_file_is_found_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.touch()
    assert resolve_gguf(str(file)) == file
    assert resolve_gguf("owner/name") is None
    assert resolve_gguf("") is None
    with pytest.raises(FileNotFoundError, match=r"OWNER/NAME:FILE\.gguf"):
        resolve_gguf(str(tmp_path / "missing.gguf"))


def test_a_local_folder_is_resolved_to_itself() -> None:
    folder = MODEL_DIR
    assert resolve_model(folder) == folder
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "no-slash", "a/b/c"])
def test_what_can_be_neither_folder_nor_hub_id_is_refused_at_once(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="neither a folder nor a hub id"):
        resolve_model(name)


def test_a_hub_id_without_network_is_refused_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match=r"owner/name is not a local folder and could not be downloaded"
    ):
        resolve_model("owner/name")
