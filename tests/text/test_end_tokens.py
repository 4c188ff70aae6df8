"""The ends of a turn are the union of what all places of a model name; null names nothing.

The laws:

* Of a folder: config, text config, generation config, tokenizer config, special tokens map and chat template each add
  what they name, and none replaces another.
* Of a GGUF file: keys, control tokens with the text of an end, and texts that the template writes, whatever their type.
  The tokenizer of the file has each of them as one control token.
* A text that may be ordinary, such as `</s>`, is an end only where it is a control token or the template writes it.
* Where `<|end|>` ends a message of a turn, as in gpt-oss, it does not end the turn.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline.base.end_tokens import EndTokenError, file_ends, folder_ends, token_ids

TEXTS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "</s>",
    "</think>",
    "</end>",
)
"""By their ids."""
ENDS = (0, 2, 3, 4, 5)
WRITTEN = st.sampled_from([None, *(TEXTS[end] for end in ENDS)])
ids = st.one_of(st.none(), st.integers(0, 5), st.lists(st.one_of(st.none(), st.integers(-1, 5)), max_size=3))


def read(value: Any) -> set[int]:
    """What a field names."""
    return {one for one in (value if isinstance(value, list) else [value]) if one is not None and one >= 0}


@given(
    config=ids,
    inner=ids,
    generation=ids,
    tokenizer=WRITTEN,
    older=WRITTEN,
    extra=WRITTEN,
    written=st.sets(st.sampled_from(TEXTS)),
    where=st.sampled_from(["chat_template.jinja", "tokenizer_config.json", "additional"]),
)
def test_every_place_of_a_folder_adds_its_ends(
    tmp_path_factory: pytest.TempPathFactory,
    config: Any,
    inner: Any,
    generation: Any,
    tokenizer: str | None,
    older: str | None,
    extra: str | None,
    written: set[str],
    where: str,
) -> None:
    folder = tmp_path_factory.mktemp("ends")
    template = "{{ messages[0].content }}" + "".join(sorted(written))
    entry = {"__type": "AddedToken", "content": tokenizer} if tokenizer == "</s>" else tokenizer
    files: dict[str, Any] = {
        "config.json": {"eos_token_id": config, "text_config": {"eos_token_id": inner}},
        "generation_config.json": {"eos_token_id": generation},
        "tokenizer_config.json": {"eos_token": entry, "extra_special_tokens": {"eot_token": extra}},
        "special_tokens_map.json": {"eos_token": older},
        "tokenizer.json": {
            "added_tokens": [{"id": number, "content": text} for number, text in enumerate(TEXTS)],
            "model": {"vocab": {"a": 8, "end": 9, "eos": 10}},
        },
    }
    if where == "tokenizer_config.json":
        files[where]["chat_template"] = [{"name": "default", "template": template}]
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content), "utf-8")
    if where == "chat_template.jinja":
        (folder / where).write_text(template, "utf-8")
    if where == "additional":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(template, "utf-8")
    named = {TEXTS.index(text) for text in (tokenizer, older, extra) if text is not None}
    in_template = {TEXTS.index(text) for text in written} & set(ENDS)
    assert folder_ends(folder) == read(config) | read(inner) | read(generation) | named | in_template


def test_an_empty_folder_names_no_end(tmp_path: Path) -> None:
    assert folder_ends(tmp_path) == frozenset()


WRONG = st.recursive(
    st.sampled_from([None, True, 1, -1, 1.5, "a", "<|im_end|>"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from([
                "added_tokens", "added_tokens_decoder", "chat_template", "content", "eos_token", "eos_token_id",
                "extra_special_tokens", "id", "model", "name", "template", "text_config", "vocab", "1",
            ]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)  # fmt: skip


@given(
    name=st.sampled_from(["config.json", "tokenizer.json", "tokenizer_config.json", "added_tokens.json"]),
    content=WRONG,
)
def test_whatever_a_file_has_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, content: Any
) -> None:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / name).write_text(json.dumps(content), "utf-8")
    with contextlib.suppress(EndTokenError):
        assert all(end >= 0 for end in folder_ends(folder))


@pytest.mark.parametrize("value", ["2", [1, "2"], {}, 1.5, True])
def test_what_is_no_token_id_is_an_error(value: Any) -> None:
    with pytest.raises(EndTokenError, match="eos_token_id must be a token id"):
        token_ids(value, "eos_token_id")


NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


@given(
    kinds=st.lists(st.sampled_from([NORMAL, CONTROL, USER_DEFINED]), min_size=8, max_size=8),
    key=st.sampled_from(["eos", "eot", "eom"]),
    named=st.integers(0, 9),
    written=st.sets(st.sampled_from(TEXTS)),
)
def test_a_file_names_ends_by_keys_types_and_texts(
    kinds: list[int], key: str, named: int, written: set[str]
) -> None:
    found = file_ends(
        {
            "tokenizer.ggml.tokens": list(TEXTS),
            "tokenizer.ggml.token_type": kinds,
            f"tokenizer.ggml.{key}_token_id": named,
            "tokenizer.chat_template": "".join(sorted(written)),
        }
    )
    by_text = {end for end in ENDS if TEXTS[end] != "</s>" or kinds[end] == CONTROL or TEXTS[end] in written}
    assert found == by_text | ({named} if named < len(TEXTS) else set())


@pytest.mark.parametrize(
    "tokens",
    [
        ("<|start|>", "<|end|>", "<|return|>", "<|call|>"),  # gpt-oss
        ("<|begin|>", "<|end|>", "<|flush|>", "<|calls|>"),  # Solar Open
        ("<|message|>", "<|eom|>", "<|eot|>", "<|end_of_text|>"),  # Muse
    ],
)
def test_the_end_of_a_message_is_no_end_of_a_turn_with_several(
    tokens: tuple[str, ...], tmp_path: Path
) -> None:
    metadata = {"tokenizer.ggml.tokens": list(tokens), "tokenizer.ggml.token_type": [CONTROL] * 4}
    assert file_ends(metadata) == {2, 3}
    added = [{"id": number, "content": text} for number, text in enumerate(tokens)]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}), "utf-8")
    (tmp_path / "chat_template.jinja").write_text("".join(tokens), "utf-8")
    assert folder_ends(tmp_path) == {2, 3}


@pytest.mark.parametrize("text", ["<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<｜end▁of▁sentence｜>"])
def test_an_end_that_a_file_types_normal_is_one_control_token(text: str, tmp_path: Path) -> None:
    """And ids that have no text, of the type UNUSED, are no text."""
    tokens = [*bytes_to_unicode().values(), "ab", "<|endoftext|>", text, "[PAD259]"]
    out = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen2")
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("qwen2")
    out.add_token_list(tokens)
    out.add_token_types([NORMAL] * 257 + [CONTROL, NORMAL, 5])
    out.add_token_merges(["a b"])
    out.add_eos_token_id(257)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.close()
    tokenizer = read_tokenizer(tmp_path / "a.gguf")
    assert tokenizer.encode_rendered(f"ab{text}") == [256, 258]
    assert 258 in tokenizer.special_ids
    tokenizer.pad_table(260)
    assert tokenizer.table[259] == b""
