"""The vocabulary of a GGUF file.

Laws:
- The ids of a text are those of the definition, merge by merge.
- A control token comes from itself in a prompt, never from the text of a message.
- What a file leaves unused is text.
- What needs the tokens alone gets those of the tokenizer.
- Merges that are kept are those that were derived.
- A kind of vocabulary or of splitting that is not known is refused by its name.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.weights.gguf_vocabularies import encode_byte_level, encode_sentencepiece
from tokenizers import Regex, pre_tokenizers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.gguf import merges
from plumbline.answer.text.gguf.merges import merges_of
from plumbline.answer.text.gguf.splitting import SPLITS
from plumbline.answer.text.gguf.vocabulary import read_tokenizer, read_tokens
from plumbline.answer.text.tokenizer import TextTokenizer, UnencodableTextError, UnsupportedTokenizerError
from plumbline.base.gguf_file import read_metadata

from .test_file import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write_vocabulary

UNUSED = 5
ALPHABET = bytes_to_unicode()
CONTROLS = ("<s>", "<|im_end|>", "<｜end▁of▁sentence｜>", "[END]", "\n\n", "x")
words = st.text(alphabet="ab ▁", min_size=2, max_size=4)


@st.composite
def sentencepieces(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the metadata of a SentencePiece vocabulary in which no two pieces have the same score."""
    pieces = draw(st.lists(words.map(lambda word: word.replace(" ", "▁")), unique=True, max_size=10))
    pieces = ["▁", "a", "b", *pieces]
    order = draw(st.permutations(range(len(pieces))))
    return {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces],
        "kinds": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "scores": [0.0] * 259 + [-float(place) for place in order],
        "add_space_prefix": draw(st.booleans()),
    }


@st.composite
def byte_level(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the metadata of a byte-level vocabulary whose tokens are made by merges, and one that no merge makes."""
    tokens, merges = [*ALPHABET.values(), "ab"], ["a b"]
    for _ in range(draw(st.integers(0, 12))):
        known = st.sampled_from(["a", "b", "1", "Ġ", "Ċ", *tokens[256:]])
        first, second = draw(known), draw(known)
        if first + second not in tokens:
            tokens.append(first + second)
            merges.append(f"{first} {second}")
    if "ab1" not in tokens:
        tokens.append("ab1")
    pre = draw(st.sampled_from([name for name, splitting in SPLITS.items() if splitting.as_bytes]))
    return {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "kinds": [NORMAL] * len(tokens),
        "merges": merges,
    }


def written(folder: Path, *, tokens: list[str], kinds: list[int], **keys: object) -> Path:
    return write_vocabulary(folder / "a.gguf", tokens, kinds, **keys)


@given(sentencepieces(), st.text(alphabet="ab é\n▁", max_size=12))
def test_the_pair_with_the_best_score_is_merged_first(vocabulary: dict[str, Any], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), **vocabulary)
        metadata = read_metadata(path, lambda _: True)
        assert read_tokenizer(path).encode_text(text) == encode_sentencepiece(metadata)(text)


@given(sentencepieces(), st.text(alphabet="ab é▁", min_size=1, max_size=8))
def test_what_a_model_generates_has_no_space_before_it(vocabulary: dict[str, Any], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = read_tokenizer(written(Path(folder), **vocabulary))
    ids = found.encode_generated(text)
    assert b"".join(found.table[number] for number in ids) == text.replace("▁", " ").encode()


@given(byte_level(), st.text(alphabet="ab1 \né", max_size=12))
def test_the_merge_that_is_named_first_is_made_first(vocabulary: dict[str, Any], text: str) -> None:
    splitting = SPLITS[vocabulary["pre"]]
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in splitting.patterns]
    pieces = [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), **vocabulary)
        metadata = read_metadata(path, lambda _: True)
        found = read_tokenizer(path).encode_text(text)
    assert found == encode_byte_level(metadata, ALPHABET, whole_words=splitting.whole_words)(pieces)


@pytest.fixture(scope="module", params=["gpt2", "llama", "gemma4"])
def with_markers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    """A vocabulary of each kind with control tokens, one that a user may write, and one that is unused."""
    base, kind = [f"<0x{byte:02X}>" for byte in range(256)], BYTE
    if request.param == "gpt2":  # Its alphabet would have the control token of one letter.
        base, kind = [char if char != "x" else "[x]" for char in ALPHABET.values()], NORMAL
    tokens = [*base, *CONTROLS, "<think>", "<unused7>", "Zz", "Z", "z"]
    kinds = [*[kind] * 256, *[CONTROL] * len(CONTROLS), USER_DEFINED, UNUSED, *[NORMAL] * 3]
    tokens = tokens[:-2] if request.param == "gpt2" else tokens
    kinds = kinds[: len(tokens)]
    keys = {"llama": {"scores": [0.0] * len(tokens)}}.get(request.param, {"merges": ["Z z"]})
    folder = tmp_path_factory.mktemp("markers")
    path = written(
        folder, tokens=tokens, kinds=kinds, model=request.param, pre="qwen2", add_space_prefix=False, **keys
    )
    return read_tokenizer(path)


@pytest.mark.parametrize("text", CONTROLS)
def test_a_control_token_is_itself_in_a_prompt_only(with_markers: TextTokenizer, text: str) -> None:
    number = with_markers.added[text]
    assert number in with_markers.special_ids
    assert with_markers.encode_rendered(text) == [number]
    assert with_markers.visible_table[number] == b""
    if len(text) > 1:  # The guard puts another character in the place of one alone.
        assert number not in with_markers.encode_text(text)


def test_a_token_that_a_user_may_write_is_read_and_shown(with_markers: TextTokenizer) -> None:
    number = with_markers.added["<think>"]
    assert with_markers.encode_generated("<think>") == with_markers.encode_rendered("<think>") == [number]
    assert number not in with_markers.special_ids
    assert with_markers.visible_table[number] == b"<think>"


def test_what_a_file_leaves_unused_is_text(with_markers: TextTokenizer) -> None:
    assert "<unused7>" not in with_markers.added
    ids = with_markers.encode_rendered("<unused7>")
    assert len(ids) > 1
    assert with_markers.decode(ids) == "<unused7>"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": "bert"}, "a.gguf: .*'bert'.*tokenizer.ggml.model"),
        ({"model": "t5"}, "'t5'"),
        ({"model": "gpt2", "pre": "gpt-9", "merges": ["a b"]}, "'gpt-9'.*tokenizer.ggml.pre"),
        ({"model": "gpt2", "pre": "qwen2"}, "has no merges"),
        ({"model": "llama"}, "fewer scores than tokens"),
        ({"model": "gpt2", "pre": "qwen2", "merges": ["a a"]}, "cannot be used: .*out of vocabulary"),
        ({"model": "gpt2", "pre": "qwen2", "merges": ["a b"], "tokens": ["a", "b", "b"]}, "same text"),
        ({"model": "gpt2", "pre": "qwen2", "merges": ["a b"], "tokens": []}, "has no tokens"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    tokens = keys.pop("tokens", ["a", "b", "ab"])
    path = written(tmp_path, tokens=tokens, kinds=[NORMAL] * len(tokens), **keys)
    with pytest.raises(UnsupportedTokenizerError, match=message):
        read_tokenizer(path)


@given(text=st.text(st.sampled_from("ab<|_end>"), max_size=20))
def test_a_vocabulary_of_characters_needs_no_merges(text: str) -> None:
    """Writers leave an empty list of merges out."""
    end = "<|im_end|>"
    tokens = [*"ab<|_end>im", end]
    with tempfile.TemporaryDirectory() as folder:
        kinds = [NORMAL] * len(tokens)
        path = written(Path(folder), tokens=tokens, kinds=kinds, model="gpt2", pre="qwen2", eos_token_id=11)
        tokenizer = read_tokenizer(path)
    assert tokenizer.encode_text(text) == [tokens.index(letter) for letter in text]
    assert tokenizer.encode_rendered(end) == [tokens.index(end)]


@given(byte_level() | sentencepieces(), st.data())
def test_a_changed_file_is_refused_or_read(vocabulary: dict[str, Any], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), **vocabulary)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        with contextlib.suppress(UnencodableTextError, UnsupportedTokenizerError):
            read_tokenizer(path).encode_prompt("ab 1")


@given(byte_level() | sentencepieces(), st.data())
def test_the_tokens_alone_are_those_of_the_tokenizer(vocabulary: dict[str, Any], data: st.DataObject) -> None:
    kinds = [
        data.draw(st.sampled_from([kind, kind, CONTROL, USER_DEFINED, UNUSED])) if kind == NORMAL else kind
        for kind in vocabulary["kinds"]
    ]
    named = data.draw(st.dictionaries(st.sampled_from(["bos", "eos", "unknown"]), st.integers(0, len(kinds))))
    keys = {f"{name}_token_id": number for name, number in named.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), **{**vocabulary, "kinds": kinds}, **keys)  # type: ignore[arg-type]
        try:
            whole = read_tokenizer(path)
        except UnsupportedTokenizerError:
            return
        found = read_tokens(path)
        assert found.table == whole.table
        assert found.added == whole.added
        assert found.special_ids == whole.special_ids
        assert found.encode_generated("ab 1") == whole.encode_generated("ab 1")
        assert found.encode_prompt("ab 1") == whole.encode_prompt("ab 1")
        assert found.encode_rendered("ab 1") == whole.encode_rendered("ab 1")


@given(sentencepieces())
def test_merges_that_are_kept_are_those_that_were_derived(vocabulary: dict[str, Any]) -> None:
    """Of each vocabulary its own, and a file that others have changed is not believed."""
    tokens, scores = vocabulary["tokens"], vocabulary["scores"]
    vocab = {text: number for number, text in enumerate(tokens)}
    made = range(259, len(tokens))
    right = merges_of(tokens, vocab, scores, made)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        patch.setattr(merges, "_LARGE", 0)
        assert merges_of(tokens, vocab, scores, made) == right
        assert merges_of(tokens, vocab, scores, made) == right
        turned = [-score for score in scores]
        found = merges_of(tokens, vocab, turned, made)
        patch.setattr(merges, "_LARGE", 2**30)
        assert found == merges_of(tokens, vocab, turned, made)
        patch.setattr(merges, "_LARGE", 0)
        for file in Path(folder, "plumbline", "merges").iterdir():
            file.write_bytes(file.read_bytes()[:-4] + b"\0\0\0\0")
        assert merges_of(tokens, vocab, scores, made) == right


def test_merges_are_derived_where_no_cache_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plumbline").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(merges, "_LARGE", 0)
    tokens = ["a", "b", "ab"]
    vocab = {text: number for number, text in enumerate(tokens)}
    assert merges_of(tokens, vocab, [0.0] * 3, range(3)) == [("a", "b")]
