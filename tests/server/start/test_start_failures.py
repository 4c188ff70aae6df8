"""A server that cannot start says why in one line, without a traceback, and what to do about it."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from plumbline.cli import main
from plumbline.pocket import MODEL_DIR
from plumbline.server.start.explain import explained
from plumbline.server.store.interface import StoreUnavailableError

ONE_PROCESS = pytest.mark.usefixtures("in_one_process")


def last_line(capfd: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the last line that a start with these options prints; every start here fails."""
    assert main(["serve", "--store", "none", "--port", "0", *options]) in (1, 2)
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    assert printed.out == ""
    line = printed.err.splitlines()[-1]
    assert line.startswith("plumbline: ")
    return line


def model(folder: Path, damage: Callable[[Path], object]) -> Path:
    """Copy the pocket model and damage the copy."""
    shutil.copytree(MODEL_DIR, folder)
    damage(folder)
    return folder


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut_weights, "model.safetensors is truncated, or not a safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 1000), "not a safetensors file"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json is not valid JSON"),
        (lambda folder: (folder / "config.json").write_text("]"), "config.json is not valid JSON"),
        (
            lambda folder: (folder / "config.json").write_text('{"a": %s}' % ("9" * 5_000)),
            "config.json has a number with too many digits",
        ),
    ],
)
@ONE_PROCESS
def test_a_damaged_model_is_named_with_its_file(
    damage: Callable[[Path], object], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path / "model", damage)
    line = last_line(capfd, "--model", str(folder))
    assert words in line
    assert str(folder) in line


@pytest.mark.parametrize("damage", [cut_weights, lambda folder: (folder / "tokenizer.json").unlink()])
def test_a_damaged_model_is_named_by_the_process_of_the_engine_too(
    damage: Callable[[Path], object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One file that the engine's process reads, and one that this process reads."""
    assert str(tmp_path / "model") in last_line(capfd, "--model", str(model(tmp_path / "model", damage)))


@ONE_PROCESS
def test_a_port_that_is_taken_is_named_with_a_free_one(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = last_line(capfd, "--port", str(port))
    assert f"--port {port} cannot be used on 127.0.0.1" in line
    free = int(line.split(" is free")[0].rsplit(" ", 1)[1])
    with socket.create_server(("127.0.0.1", free)):
        pass


@ONE_PROCESS
@pytest.mark.parametrize("name", ["/nowhere/x.sock", "{folder}/a.txt/x.sock"])
def test_a_socket_that_cannot_be_made_is_named(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").touch()
    path = name.format(folder=tmp_path)
    assert f"--uds cannot be used: the socket {path}" in last_line(capfd, "--uds", path)


@ONE_PROCESS
def test_files_that_are_no_certificates_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pem").touch()
    line = last_line(capfd, "--ssl-certfile", str(tmp_path / "a.pem"))
    assert "--ssl-certfile cannot be used" in line
    assert str(tmp_path / "a.pem") in line


@ONE_PROCESS
@pytest.mark.parametrize("store", ["/proc/nowhere/s.db", "postgresql://u:secret@127.0.0.1:1/x"])
def test_a_store_that_cannot_be_opened_is_named(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    line = last_line(capfd, "--store", store)
    assert "--store cannot be used" in line
    assert "secret" not in line


@ONE_PROCESS
def test_a_server_that_cannot_open_its_store_names_no_address(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", "0", "--store", "/proc/nowhere/s.db"]) == 1
    assert "http://" not in capfd.readouterr().err


@ONE_PROCESS
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "cuda:99"), "--device is cuda:99, and torch finds"),
        (("--device", "meta"), "--device is meta, and its tensors have no data"),
        (("--device", "vulkan"), "--device is vulkan, and torch cannot use it here"),
        (("--max-model-len", str(10**11)), "a smaller --max-model-len"),
        (("--kv-cache-bytes", "900TiB", "--max-num-seqs", "1000000"), "--kv-cache-bytes makes a cache of"),
        (("--max-model-len", "0"), "--max-model-len must be an integer of at least 1"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_before_weights_are_read(
    options: tuple[str, ...],
    words: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("plumbline.server.loading.native.native_loader.load_model", None)
    assert words in last_line(capfd, *options)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "the memory does not suffice: give a smaller"),
        (RuntimeError("x: can't allocate memory: you tried to allocate 400 bytes."), "for 400 bytes more"),
        (RuntimeError("CUDA out of memory. Tried"), "the memory does not suffice"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "the memory does not suffice"),
        (RuntimeError("can't start new thread"), "the memory does not suffice"),
        (
            ExceptionGroup("of tasks", [StoreUnavailableError("it is locked")]),
            "--store cannot be used: it is locked",
        ),
        (KeyError("x\ny" * 1000), "KeyError: "),
        (ValueError(), "no message"),
    ],
)
def test_every_failure_has_one_line(error: Exception, words: str) -> None:
    line = explained(error)
    assert words in line
    assert "\n" not in line
    assert len(line) < 600


@ONE_PROCESS
def test_with_debug_the_traceback_is_shown(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup):
        main(["serve", "--debug", "--port", "0", "--store", "/proc/nowhere/s.db"])
