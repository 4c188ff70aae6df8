"""The text side of a GGUF file is that of the folder it was made from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.base.gguf_file import GgufError, read_metadata
from plumbline.pocket import MODEL_DIR
from plumbline.pocket.to_gguf import write

OURS = TextTokenizer.from_folder(MODEL_DIR)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf")
    write(MODEL_DIR, path / "pocket.gguf")
    read_tokenizer(path / "pocket.gguf", path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return read_tokenizer(folder / "pocket.gguf")


@given(st.text())
def test_texts_have_the_same_tokens(tokenizer: TextTokenizer, text: str) -> None:
    assert tokenizer.encode_text(text) == OURS.encode_text(text)


def test_added_tokens_and_the_template_are_the_same(folder: Path, tokenizer: TextTokenizer) -> None:
    assert tokenizer.added == OURS.added
    assert tokenizer.special_ids == OURS.special_ids
    assert tokenizer.eos_token == OURS.eos_token
    found, own = (ChatTemplate.from_folder(each) for each in (folder, MODEL_DIR))
    assert found is not None
    assert own is not None
    assert found.source == own.source


def test_a_broken_file_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(UnsupportedTokenizerError, match=r"broken\.gguf"):
        read_tokenizer(tmp_path / "broken.gguf")


def write_vocabulary(path: Path, tokens: list[str], kinds: list[int], **keys: object) -> Path:
    """Write a GGUF file of metadata alone; `keys` are of `tokenizer.ggml`."""
    out = gguf.GGUFWriter(path, "llama")
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    for name, value in keys.items():
        if isinstance(value, bool):
            out.add_bool(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            out.add_uint32(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, str):
            out.add_string(f"tokenizer.ggml.{name}", value)
        else:
            out.add_array(f"tokenizer.ggml.{name}", value)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    return path


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TextTokenizer]:
    """Make a byte-level tokenizer with four added tokens, one of them not of the byte alphabet."""
    alphabet = [*bytes_to_unicode().values(), "ab"]
    markers = [
        ("<|begin|>", CONTROL),
        ("<|end|>", CONTROL),
        ("<｜mark｜>", CONTROL),
        ("<think>", USER_DEFINED),
    ]
    tokens = alphabet + [text for text, _ in markers]
    kinds = [NORMAL] * len(alphabet) + [kind for _, kind in markers]

    def make(**keys: object) -> TextTokenizer:
        folder = tmp_path_factory.mktemp("vocabulary")
        ids = {"bos_token_id": len(alphabet), "eos_token_id": len(alphabet) + 1}
        path = write_vocabulary(
            folder / "a.gguf", tokens, kinds, model="gpt2", merges=["a b"], **({"pre": "qwen2"} | ids | keys)
        )
        return read_tokenizer(path)

    return make


def test_the_added_tokens_are_those_of_the_file_and_no_others(
    byte_level: Callable[..., TextTokenizer],
) -> None:
    found = byte_level()
    assert found.added == {"<|begin|>": 257, "<|end|>": 258, "<｜mark｜>": 259, "<think>": 260}
    assert found.special_ids == {257, 258, 259}
    assert found.vocab_size == 261
    assert found.table[259] == "<｜mark｜>".encode()
    assert (found.bos_token, found.eos_token) == ("<|begin|>", "<|end|>")


@pytest.mark.parametrize(
    ("keys", "begins"),
    [
        ({}, False),
        ({"add_bos_token": True}, True),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
    ],
)
def test_a_prompt_begins_as_the_file_says(
    byte_level: Callable[..., TextTokenizer], keys: dict[str, object], begins: bool
) -> None:
    assert (byte_level(**keys).encode_prompt("x")[0] == 257) == begins


@given(st.text(alphabet=" ab", max_size=8).filter(bool))
def test_sentencepiece_sets_a_space_before_every_text(sentencepiece: TextTokenizer, text: str) -> None:
    ids = sentencepiece.encode_text(text)
    assert b"".join(sentencepiece.table[i] for i in ids) == b" " + text.encode()
    assert sentencepiece.decode(ids) == text
    assert sentencepiece.encode_prompt(text) == [1, *ids]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("sentencepiece")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 4]
    scores = [0.0] * 259 + [-4.0, -2.0, -3.0, -1.0]
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_vocabulary(folder / "a.gguf", tokens, kinds, model="llama", scores=scores, **ids)
    return read_tokenizer(path)


@given(st.data())
def test_a_file_that_was_cut_or_changed_is_refused_or_read(folder: Path, data: st.DataObject) -> None:
    """Never with more memory than the file has bytes, and with no other error."""
    content = bytearray((folder / "pocket.gguf").read_bytes()[:3000])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = folder / "changed.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(GgufError):
        read_metadata(path, lambda _: True)


@given(
    st.lists(st.sets(st.sampled_from(["tokens", "token_type", "merges", "model"])), min_size=2, max_size=4)
)
def test_what_was_read_or_passed_before_changes_no_value(
    tmp_path_factory: pytest.TempPathFactory, asked: list[set[str]]
) -> None:
    """Ends of passed arrays are remembered, and a file of the same name is another one when it has changed."""
    folder = tmp_path_factory.mktemp("asked")
    contents = (["a", "b", "ab"], ["ab", "", "a" * 300, "b"])
    for tokens in (*contents, *contents):
        path = write_vocabulary(
            folder / "one.gguf", tokens, [NORMAL] * len(tokens), merges=["a b"] * len(tokens), model="gpt2"
        )
        written = {
            "tokens": tokens,
            "token_type": [NORMAL] * len(tokens),
            "merges": ["a b"] * len(tokens),
            "model": "gpt2",
        }
        for names in asked:
            keys = {f"tokenizer.ggml.{name}" for name in names}
            assert read_metadata(path, keys.__contains__) == {
                f"tokenizer.ggml.{name}": written[name] for name in names
            }
        path.unlink()
