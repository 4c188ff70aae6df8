"""Wrong settings are explained, and the sampling defaults of a model folder are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.cli import main
from plumbline.server.loading.served_model import _recommended
from plumbline.server.settings import Settings
from plumbline.server.settings.sources import read_settings
from plumbline_conformance.console.sizes import parse_size, size_text


@pytest.mark.usefixtures("in_one_process")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "99999"], "--port must be an integer from 0 to 65535, got 99999"),
        (["--threads", "2000"], "--threads must be an integer from 1 to 1024, got 2000"),
        (["--host", "0.0.0.0"], "--api-key"),
        (["--api-key", ""], "must not be empty"),
        (["--api-key-file", "no-such-file"], "--api-key-file names no-such-file, which cannot be read"),
        (
            ["--sealing-key-file", "no-such-file"],
            "--sealing-key-file names no-such-file, which cannot be read",
        ),
        (["--sealing-key-file", "/dev/null"], "--sealing-key-file names /dev/null, which is empty"),
        (["--config", "/"], "--config names /, which cannot be read"),
        (["--block-size", "8", "--engine", "transformers"], "--block-size is an option of plumbline"),
        (["--sampling-defaults", "[]"], "Expected `object`, got `array`"),
        (["--sampling-defaults", "a=[]"], "Expected `object`, got `array`"),
        (
            ["--model", "./no-such-folder"],
            "--model cannot be used: ./no-such-folder is neither a folder, nor a GGUF file, nor a name on the hub",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_no_traceback(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLUMBLINE_API_KEY", raising=False)
    monkeypatch.setenv("PLUMBLINE_PORT", "0")  # Another server may run on the default.

    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"plumbline: {arguments[0]} ")
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (None, (1.0, 1.0, 0)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": True}, (0.6, 0.95, 20)),
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20, "do_sample": False}, (0.0, 1.0, 0)),
        ({"temperature": 0, "top_k": None}, (0.0, 1.0, 0)),
        ({"eos_token_id": [1, 2]}, (1.0, 1.0, 0)),
    ],
)
def test_the_sampling_defaults_of_a_model_are_read(
    tmp_path: Path, config: Any, expected: tuple[float, float, int]
) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    found = _recommended(tmp_path, Settings(), None)

    assert (found.temperature, found.top_p, found.top_k) == expected
    plain = _recommended(tmp_path, Settings(generation_config="none"), None)
    assert (plain.temperature, plain.top_p, plain.top_k) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("config", "expected"), [({"max_new_tokens": 512}, 512), ({"max_new_tokens": 0}, None), ({}, None)]
)
def test_the_default_length_of_a_model_is_read(
    tmp_path: Path, config: dict[str, int], expected: int | None
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(config))

    assert _recommended(tmp_path, Settings(), None).max_tokens == expected
    assert _recommended(tmp_path, Settings(generation_config="none"), None).max_tokens is None


@pytest.mark.usefixtures("in_one_process")
def test_an_error_of_the_model_names_the_place_of_the_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (
        ("MODEL", "./none"),
        ("DEVICE", "abacus"),
        ("ENGINE", "llama_cpp"),
        ("TOOL_PARSER", "nope"),
        ("KV_CACHE_BYTES", "1"),
        ("STORE", "ftp://host"),
        ("PROMPTS", "./none"),
    ):
        with monkeypatch.context() as context:
            context.setenv("PLUMBLINE_STORE", "none")
            context.setenv("PLUMBLINE_PORT", "0")
            context.setenv(f"PLUMBLINE_{variable}", value)
            assert main(["serve"]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith(f"plumbline: PLUMBLINE_{variable} ")


@pytest.mark.parametrize("value", ["1.5GiB", "1536 MiB", 1610612736])
def test_sizes_have_units_in_every_source(value: str | int, tmp_path: Path) -> None:
    file = tmp_path / "plumbline.toml"
    file.write_text(f"kv_cache_bytes = {json.dumps(value)}")
    sources: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"kv_cache_bytes": str(value)}, {}),
        ({}, {"PLUMBLINE_KV_CACHE_BYTES": str(value)}),
        ({"config": str(file)}, {}),
    ]
    for arguments, environment in sources:
        assert read_settings(arguments, environment).settings.kv_cache_bytes == 1610612736


@pytest.mark.parametrize(
    "text", ["1XiB", "-1GiB", "1.5", "2.0 B", "1e9", "GiB", "", "9" * 30, "1 G i B", "٣GiB"]
)
def test_invalid_sizes_are_refused(text: str) -> None:
    assert parse_size(text) is None


@given(
    st.integers(0, 10**15), st.sampled_from(["", "B", "k", "KiB", "KB", "m", "MiB", "MB", "GiB", "tb", "TiB"])
)
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    power = "kmgt".find(unit[:1].lower()) + 1 if unit not in ("", "B") else 0
    base = 1000 if len(unit) == 2 else 1024
    assert parse_size(f"{number} {unit}") == number * base**power


@given(st.integers(0, 2**60))
def test_sizes_are_shown_to_half_a_percent(number: int) -> None:
    assert parse_size(size_text(number).replace(",", "")) == pytest.approx(number, rel=0.005)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o644, True), (0o660, True)])
def test_a_key_file_that_others_may_read_is_warned_of(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("secret-key\n")
    keys.chmod(mode)

    assert read_settings({"api_key_file": str(keys)}, {}).settings.api_keys == ("secret-key",)
    assert any("chmod 600" in line and "secret-key" not in line for line in caplog.messages) is warned


def test_credentials_of_systemd_are_private_whatever_their_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("secret-key")
    file.chmod(0o440)  # As systemd makes them; the group is the mask of their access list.
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_settings({"api_key_file": str(file)}, {}).settings.api_keys == ("secret-key",)
    assert not caplog.messages
