"""A model that is cut into several GGUF files is the model, or is refused by the name of what does not fit.

The pieces are written by the gguf package, as publishers cut files that are larger than a hub or a file system takes.

Laws:
    1. Tensors, logits and the size of the weights are those of the same model in one file, however it is cut.
    2. A piece that is missing, given alone, renamed, exchanged or of another model is named.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights.gguf_files import random_reference, write_gguf
from support.weights.model_driver import Driver

from plumbline.base.gguf_file import piece_paths
from plumbline.engines.native.models import UnsupportedModelError
from plumbline.engines.native.models.gguf import load_gguf, read_model
from plumbline.server.loading.memory import weight_bytes

LABEL = "llama 3"
"""It has the divisors of rotary frequencies, which are read apart from the other tensors."""
PROMPT = list(range(3, 40))


def logits(file: Path) -> torch.Tensor:
    driver = Driver(load_gguf(read_model(file), dtype=torch.float32))
    return driver.step([(driver.add(PROMPT, 48), len(PROMPT))])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("whole") / "a.gguf"
    write_gguf(file, random_reference(LABEL), LABEL)
    return file


def cut(folder: Path, size: int, *, label: str = LABEL) -> list[Path]:
    """Write the model in pieces of `size` tensors; return their paths."""
    write_gguf(folder / "a.gguf", random_reference(label), label, tensors_a_piece=size)
    return sorted(folder.glob("a-*.gguf"))


@settings(max_examples=4)
@given(st.integers(1, 30))
def test_pieces_are_the_model(tmp_path_factory: pytest.TempPathFactory, whole: Path, size: int) -> None:
    """Law 1."""
    pieces = cut(tmp_path_factory.mktemp("cut"), size)
    if len(pieces) == 1:
        return
    assert piece_paths(pieces[0]) == pieces
    found, one = read_model(pieces[0]), read_model(whole)
    assert found.tensors.keys() == one.tensors.keys()
    assert found.description == one.description
    torch.testing.assert_close(logits(pieces[0]), logits(whole), atol=0, rtol=0)
    assert weight_bytes(pieces[0].parent, pieces[0]) == sum(piece.stat().st_size for piece in pieces)


def refused(file: Path, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read_model(file)


def test_a_piece_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Law 2."""
    first, second, *_, last = cut(tmp_path, 8)
    refused(second, r"not the first of its 3 pieces; give a-00001-of-00003\.gguf")
    shutil.copy(first, tmp_path / "renamed.gguf")
    refused(tmp_path / "renamed.gguf", r"its name: that must end with -00001-of-00003\.gguf")
    spare = tmp_path / "spare"
    second.rename(spare)
    refused(first, r"a-00002-of-00003\.gguf, which has a part of its tensors, is missing")
    shutil.copy(last, second)
    refused(first, r"a-00002-of-00003\.gguf is not piece 2 of 3 by its metadata")
    shutil.copy(first, second)
    refused(first, r"a-00002-of-00003\.gguf is not piece 2 of 3 by its metadata")


def test_a_piece_of_another_model_is_refused(tmp_path: Path) -> None:
    """Law 2: such a piece has tensors that the others have, or too few."""
    pieces = cut(tmp_path, 8)
    (tmp_path / "other").mkdir()
    other = cut(tmp_path / "other", 9, label="llama")
    assert len(other) == len(pieces)
    shutil.copy(other[1], pieces[1])
    refused(pieces[0], r"two pieces have a tensor|its pieces have \d+ tensors, and its metadata \d+")
