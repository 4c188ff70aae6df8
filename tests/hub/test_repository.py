"""Models come from the hub whole and as they are there, once, and are found again without it."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.hub_server import Hub, commit_of, hub_server
from support.servers.live import live
from support.speaking import speaking

from plumbline.cli import main
from plumbline.hub.files import find_model
from plumbline.hub.names import HubName, read_name
from plumbline.hub.repository import HubError, cached, download, offer
from plumbline.hub.transfer import repository_folder, unfinished
from plumbline.pocket import MODEL_DIR
from plumbline.server.settings import Settings

FILES = {
    "o/gguf": {"m-Q4_K_M.gguf": b"four", "m-Q8_0.gguf": b"eight", "README.md": b"no"},
    "o/folder": {
        "config.json": json.dumps({"model_type": "llama"}).encode(),
        "model.safetensors": b"weights",
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"not read",
    },
    "o/bare": {"pytorch_model.bin": b"not read"},
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    root = tmp_path / "hub"
    for name, files in FILES.items():
        (root / name).mkdir(parents=True)
        for path, data in files.items():
            (root / name / path).write_bytes(data)
    with hub_server(root) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            hub.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        yield hub


def _name(text: str) -> HubName:
    name = read_name(text)
    assert name is not None
    return name


@pytest.mark.parametrize(
    "text",
    ["o/gguf", "o/gguf:Q8_0", "hf.co/o/gguf:m-Q8_0.gguf", "o/folder", f"o/folder@{commit_of('o/folder')}"],
)
def test_what_was_pulled_is_served_without_the_hub(hub: Hub, text: str) -> None:
    name = _name(text)
    assert cached(name) is None
    offered = offer(name)
    assert offered.licence == "apache-2.0"
    path = download(offered)
    hub.asked.clear()
    assert find_model(text) == cached(name) == path
    assert hub.asked == []
    found = {file.name for file in path.iterdir()} if path.is_dir() else {path.name}
    assert found == {Path(file.path).name for file in offered.files}
    assert {"pytorch_model.bin", "README.md"}.isdisjoint(found)


def test_a_second_pull_fetches_nothing(hub: Hub) -> None:
    download(offer(_name("o/folder")))
    hub.asked.clear()
    download(offer(_name("o/folder")))
    assert not [asked for asked in hub.asked if asked.startswith("GET") and "/resolve/" in asked]


@pytest.mark.parametrize(
    ("text", "damaged"), [("o/gguf:Q4_K_M", "m-Q4_K_M.gguf"), ("o/folder", "model.safetensors")]
)
def test_other_bytes_than_the_hub_says_are_never_served(hub: Hub, text: str, damaged: str) -> None:
    name = _name(text)
    hub.damaged.add(damaged)
    with pytest.raises(HubError, match=f"{damaged} has arrived with other bytes"):
        download(offer(name))
    assert cached(name) is None
    hub.damaged.clear()
    download(offer(name))
    assert cached(name) is not None


def _partial(hub: Hub, name: str, path: str, data: bytes) -> Path:
    """Leave the beginning of a file in the cache, as an interrupted download does."""
    digest = hashlib.sha256((hub.root / name / path).read_bytes()).hexdigest()
    partial = repository_folder(name) / "blobs" / f"{digest}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(data)
    return partial


@pytest.mark.parametrize(
    ("begun", "ranges"), [(b"we", ["bytes=2-"]), (b"weights", []), (b"weights and more", [])]
)
def test_an_interrupted_download_goes_on_where_it_stopped(hub: Hub, begun: bytes, ranges: list[str]) -> None:
    partial = _partial(hub, "o/folder", "model.safetensors", begun)
    assert cached(_name("o/folder")) is None
    folder = download(offer(_name("o/folder")))
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert hub.ranges == ranges
    assert not partial.exists()


def test_a_damaged_beginning_is_removed(hub: Hub) -> None:
    partial = _partial(hub, "o/folder", "model.safetensors", b"xx")
    with pytest.raises(HubError, match="other bytes than the hub says"):
        download(offer(_name("o/folder")))
    assert not partial.exists()
    download(offer(_name("o/folder")))


def test_the_room_for_a_download_is_what_is_missing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    _partial(hub, "o/gguf", "m-Q4_K_M.gguf", b"fou")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1))
    download(offer(_name("o/gguf")))


def test_a_disk_that_fills_up_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    with pytest.raises(HubError, match=r"\(No space left on device\): make room, or set HF_HOME"):
        download(offer(_name("o/gguf")))


def test_two_downloads_of_a_file_take_turns(hub: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    (hub.root / "o/gguf/m-Q4_K_M.gguf").write_bytes(b"x" * 8)
    hub.pace = 1
    with ThreadPoolExecutor() as pool:
        paths = set(pool.map(lambda _: download(offer(_name("o/gguf"))), range(2)))
    assert len(paths) == 1
    assert "Another program downloads m-Q4_K_M.gguf; waiting for it." in capfd.readouterr().err
    assert sum(asked.startswith("GET") and "/resolve/" in asked for asked in hub.asked) == 1


def test_an_interrupted_download_is_no_model(hub: Hub, tmp_path: Path) -> None:
    path = download(offer(_name("o/folder")))
    (path / "model.safetensors").unlink()
    assert cached(_name("o/folder")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("o/none", "does not exist on the hub, or is private"),
        ("o/bare", "neither safetensors nor GGUF"),
        ("o/gguf:Q2_K", r"no GGUF file for 'Q2_K'; it has m-Q4_K_M\.gguf, m-Q8_0\.gguf"),
    ],
)
def test_what_the_hub_cannot_give_is_named(hub: Hub, text: str, reason: str) -> None:
    with pytest.raises(HubError, match=reason):
        find_model(text)


def test_a_gated_model_says_where_its_licence_is(hub: Hub) -> None:
    hub.gated.add("o/gguf")
    with pytest.raises(HubError, match=r"accept it at https://huggingface\.co/o/gguf"):
        find_model("o/gguf")


def test_a_full_disk_is_named_before_the_download(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 1))
    with pytest.raises(HubError, match=r"it needs 4 B and .* has 1 B left"):
        download(offer(_name("o/gguf")))
    assert not [asked for asked in hub.asked if "/resolve/" in asked]


def test_pull_list_and_rm_keep_one_account(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "http://127.0.0.1:1/v1"
    for text in ("o/gguf:Q4_K_M", "o/gguf:Q8_0", "o/folder"):
        assert main(["pull", text]) == 0
    assert "licence apache-2.0" in capsys.readouterr().out
    assert main(["list", nowhere]) == 0
    listed = capsys.readouterr().out
    assert all(text in listed for text in ("o/gguf:m-Q4_K_M.gguf", "o/gguf:m-Q8_0.gguf", "llama, our engine"))
    assert main(["rm", "o/gguf:Q8_0"]) == 1  # Nobody answers the question.
    assert main(["rm", "o/gguf:Q8_0", "--yes"]) == 0
    assert cached(_name("o/gguf:Q8_0")) is None
    assert cached(_name("o/gguf:Q4_K_M")) is not None
    for text in ("o/gguf", "o/folder"):
        assert main(["rm", text, "--yes"]) == 0
        assert main(["rm", text, "--yes"]) == 2
    capsys.readouterr()
    assert main(["list", nowhere]) == 0
    assert "No model has been downloaded" in capsys.readouterr().out


def test_what_an_interrupted_download_left_is_listed_and_removed(
    hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    _partial(hub, "o/folder", "model.safetensors", b"we")
    main(["list", "http://127.0.0.1:1/v1"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "o/folder" in line)
    assert "2 B  not finished: plumbline pull goes on" in line
    assert main(["rm", "o/folder", "--yes"]) == 0
    assert unfinished() == {}
    capsys.readouterr()
    main(["list", "http://127.0.0.1:1/v1"])
    assert "o/folder" not in capsys.readouterr().out


def test_the_pieces_of_a_file_are_one_model(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hub.root / "o/pieces"
    folder.mkdir()
    for number in range(1, 4):
        (folder / f"m-Q4_0-0000{number}-of-00003.gguf").write_bytes(b"x" * number)
    assert main(["pull", "o/pieces"]) == 0
    capsys.readouterr()
    main(["list", "http://127.0.0.1:1/v1"])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "o/pieces" in line)
    assert line.split() == ["o/pieces:m-Q4_0-00001-of-00003.gguf", "6", "B", "GGUF"]
    assert main(["rm", "o/pieces:m-Q4_0-00001-of-00003.gguf", "--yes"]) == 0
    capsys.readouterr()
    main(["list", "http://127.0.0.1:1/v1"])
    assert "o/pieces" not in capsys.readouterr().out


def test_a_pull_without_the_hub_says_what_is_here(
    hub: Hub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = download(offer(_name("o/gguf")))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["pull", "o/gguf"]) == 2
    message = capsys.readouterr().err
    assert "HF_HUB_OFFLINE is set" in message
    assert f"can be used: {path}" in message
    assert main(["pull", str(path)]) == 0
    assert f"plumbline run {path}" in capsys.readouterr().out


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(FileNotFoundError, match=rf"GGUF files: give one of them, such as {tmp_path}/a\.gguf"):
        find_model(tmp_path)


def test_run_finds_the_server_that_serves_the_file_of_a_name(
    hub: Hub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve OWNER/NAME` gives a GGUF file the name of the file."""
    (hub.root / "o/gguf/test-model.gguf").write_bytes(b"x")
    download(offer(_name("o/gguf:test-model.gguf")))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with live(lambda: speaking("hello"), Settings()) as server:
        for url in (["--url", f"{server.url}/v1"], []):
            monkeypatch.setattr("plumbline.chat.command._DEFAULT_URL", f"{server.url}/v1")
            assert main(["run", *url, "o/gguf:test-model.gguf", "hi"]) == 0
            assert "hello" in capfd.readouterr().out


def test_a_local_model_needs_no_name(tmp_path: Path) -> None:
    assert find_model(MODEL_DIR) == MODEL_DIR
    file = tmp_path / "a.gguf"
    file.touch()
    assert find_model(str(file)) == file
    (tmp_path / "a.bin").touch()
    for wrong, reason in (
        (tmp_path / "a.bin", "neither a folder nor a GGUF"),
        ("./nowhere", "nor a name on the hub"),
    ):
        with pytest.raises(FileNotFoundError, match=reason):
            find_model(wrong)
