"""`plumbline list` lists what is served and downloaded, and `plumbline completion` completes at the tab key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from support.models import scripted, served
from support.servers.live import live

from plumbline.cli import main
from plumbline.server.loading.overview.available import available_models
from plumbline.server.settings import Settings

HUB = "models--{}--{}/snapshots/1/{}"


def put(cache: Path, owner: str, name: str, file: str, text: str) -> None:
    """Put a downloaded file into a cache of the hub."""
    path = cache / HUB.format(owner, name, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    blob = path.parents[2] / "blobs" / file
    blob.parent.mkdir(exist_ok=True)
    blob.write_text(text)
    path.symlink_to(blob)


def test_models_lists_what_is_served_and_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "org", "dense", "config.json", '{"model_type": "qwen3"}')
    put(tmp_path, "org", "other", "config.json", '{"model_type": "unheard_of"}')
    put(tmp_path, "org", "files", "small.gguf", "GGUF")
    put(tmp_path, "org", "broken", "config.json", "{")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with live(lambda: served(scripted()), Settings()) as server:
        assert main(["list", f"{server.url}/v1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.strip().startswith("test-model (") for line in lines)
    engines = {words[0]: " ".join(words[3:]) for line in lines if len(words := line.split()) > 3}
    assert engines["org/dense"] == "qwen3, our engine"
    assert engines["org/other"] == "unheard_of, vLLM or transformers"
    assert engines["org/files:small.gguf"] == "GGUF"
    assert engines["org/broken"] == "with a config.json that cannot be read"


def test_models_without_a_server_and_downloads_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    assert main(["list", "http://127.0.0.1:1/v1"]) == 0
    printed = capsys.readouterr().out
    assert "No server of the API answers at http://127.0.0.1:1/v1: give the URL of one" in printed
    assert "No model has been downloaded" in printed


def test_models_of_a_server_with_a_key_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    with live(lambda: served(scripted()), Settings(api_keys=("secret",))) as server:
        assert main(["list", f"{server.url}/v1"]) == 0
        assert "--api-key" in capsys.readouterr().out
        assert main(["list", f"{server.url}/v1", "--api-key", "secret"]) == 0
        assert "test-model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, b"{}", "answered 401. Give its key with --api-key"),
        (404, b"nothing", "answered 404 without a list of models. URL"),
        (200, b'{"data": null}', "answered 200 without a list of models. URL"),
        (200, b"[" * 200_000, "answered 200 without a list of models. URL"),
        (200, b'{"data": [{"id": "a\\u001b[2J", "status": "\\u0007"}]}', "a?[2J (?)"),
    ],
)
def test_models_of_a_strange_server_says_what_is_wrong(
    status: int, body: bytes, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpx2, "get", lambda *_, **__: httpx2.Response(status, content=body))
    assert words in available_models("http://server/v1", None)


def test_models_with_a_key_that_cannot_be_sent_says_so() -> None:
    assert "--api-key has other characters" in available_models("http://127.0.0.1:1/v1", "kéy")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "plumbline" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("plumbline ser", {"serve"}),
        ("plumbline serve --kv-c", {"--kv-cache-bytes"}),
        ("plumbline serve --engine l", {"llama_cpp"}),
        ("plumbline bench --api c", {"chat", "completions"}),
        ("plumbline completion z", {"zsh"}),
    ],
)
def test_the_tab_key_completes(line: str, expected: set[str], tmp_path: Path) -> None:
    """The shell's side is bash's protocol of argcomplete: the words are written to file descriptor 8."""
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "words"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run(
        [sys.executable, "-m", "plumbline.cli"], env={**os.environ, **variables}, check=True, timeout=60
    )
    words = (tmp_path / "words").read_text().split("\n")
    assert {word.strip() for word in words} == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "--prot", "80"], "unrecognized arguments: --prot (did you mean --port?)"),
        (["serve", "--" + "x" * 100_000], "x\n"),
        (["serve", "model", "secret"], "unrecognized arguments: …\n"),
        (["check", "x", "--model", "m", "--tmeout", "3"], "(did you mean --timeout?)"),
        (["run", "--modle", "m"], "(the model stands without an option: plumbline run NAME)"),
        (["serve", "--api-kye=secret"], "unrecognized arguments: --api-kye (did you mean --api-key?)"),
        (["bench", "http://h/v1", "--concurency", "3"], "(did you mean --concurrency?)"),
        (["serve", "--wholly-unlike"], "unrecognized arguments: --wholly-unlike\n"),
        (["serv"], "there is no command serv: did you mean serve?"),
        (["zzz"], "there is no command zzz: choose from serve,"),
    ],
)
def test_an_unknown_option_or_command_names_the_nearest(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert "secret" not in printed
