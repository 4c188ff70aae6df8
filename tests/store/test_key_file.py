"""The sealing key of a server without a store: one for each user, whatever starts, ends or fails."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.server.loading.storage import with_sealing_key
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.settings import Settings
from plumbline.server.store.key_file import kept_key


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "plumbline"


@given(thought=st.text())
def test_what_one_start_seals_every_other_one_opens(thought: str) -> None:
    """The folder of the tests stands for the user's."""
    (one, _), (other, _) = (with_sealing_key(Settings(store="none")) for _ in range(2))
    assert Sealer(other.sealing_key).open(Sealer(one.sealing_key).seal(thought)) == thought


def test_a_given_key_and_the_key_of_a_store_are_left(home: Path) -> None:
    for settings in (Settings(store="none", sealing_key="sixteen characters"), Settings(store="a.db")):
        assert with_sealing_key(settings) == (settings, "")
    assert not home.exists()


def test_servers_that_start_together_have_one_key(home: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        found = {key for key, _ in pool.map(lambda _: kept_key(), range(64))}
    assert found == {(home / "sealing-key").read_text()}
    assert [path.name for path in home.iterdir()] == ["sealing-key"]


def test_the_key_is_readable_by_its_user_only(home: Path) -> None:
    _, path = kept_key()
    assert path is not None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 65, None])
def test_a_key_that_cannot_be_kept_is_a_new_one_and_named(home: Path, content: bytes | None) -> None:
    if content is None:  # The folder of data is a file.
        home.write_bytes(b"")
    else:
        home.mkdir()
        (home / "sealing-key").write_bytes(content)
    found = [with_sealing_key(Settings(store="none")) for _ in range(2)]
    assert found[0][0].sealing_key != found[1][0].sealing_key
    assert all("--sealing-key-file" in note for _, note in found)


def test_a_user_without_a_home_has_a_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.delenv("XDG_DATA_HOME")
    assert kept_key()[1] is None
