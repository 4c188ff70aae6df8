"""The text side of a GGUF file is that of the folder it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.pocket.to_gguf import write
from plumbline.server.settings import pocket_model
from plumbline.text.gguf import SAMPLES, disagreement, write_text_folder
from plumbline.text.templates.template import ChatTemplate
from plumbline.text.tokenizer import TextTokenizer, UnsupportedTokenizerError

OURS = TextTokenizer.from_folder(pocket_model())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf")
    write(pocket_model(), path / "pocket.gguf")
    write_text_folder(path / "pocket.gguf", path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(folder)


@given(st.text())
def test_texts_have_the_same_tokens(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.encode_text(text) == OURS.encode_text(text)


def test_added_tokens_and_the_template_are_the_same(folder: Path, tokenizer: TextTokenizer) -> None:
    assert tokenizer.added == OURS.added
    assert tokenizer.special_ids == OURS.special_ids
    assert tokenizer.eos_token == OURS.eos_token
    found, own = (ChatTemplate.from_folder(each) for each in (folder, pocket_model()))
    assert found is not None
    assert own is not None
    assert found.source == own.source


def test_the_first_text_that_differs_is_named(tokenizer: TextTokenizer) -> None:
    assert disagreement(tokenizer, OURS.encode_text) is None
    wrong = next(text for text in SAMPLES if "7 dwarfs" in text)
    assert disagreement(tokenizer, lambda text: [] if "7 dwarfs" in text else OURS.encode_text(text)) == wrong


def test_a_broken_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "config.json").write_text(json.dumps({}), "utf-8")
    with pytest.raises(UnsupportedTokenizerError, match=r"broken\.gguf"):
        write_text_folder(tmp_path / "broken.gguf", tmp_path)
