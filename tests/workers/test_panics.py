"""A panic of a library in Rust is an ordinary error, with a reason; nothing else is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.text.tokenizer import TextTokenizer, UnencodableTextError, UnsupportedTokenizerError
from plumbline.answer.turn import TextPrompt
from plumbline.base.workers.panics import panics
from plumbline.pocket import MODEL_DIR

BACKTRACKING = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}


def definition(**changes: Any) -> dict[str, Any]:
    return {**json.loads((MODEL_DIR / "tokenizer.json").read_text("utf-8")), **changes}


def test_a_regex_that_backtracks_without_end_is_an_error_of_the_text() -> None:
    tokenizer = TextTokenizer(definition(pre_tokenizer=BACKTRACKING))
    text = "x" * 60
    assert tokenizer.encode_text("xy")
    for encode in (tokenizer.encode_text, tokenizer.encode_rendered, tokenizer.encode_generated):
        with pytest.raises(UnencodableTextError, match="cannot encode this text"):
            encode(text)
    with pytest.raises(TemplateError, match="cannot encode this text"):
        Renderer(tokenizer, None).token_ids(TextPrompt(text))


def test_a_broken_normalizer_is_an_error_of_the_folder(tmp_path: Path) -> None:
    broken = definition(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(broken), "utf-8")
    with pytest.raises(UnsupportedTokenizerError, match=r"tokenizer\.json"):
        TextTokenizer.from_folder(tmp_path)


def test_a_vocabulary_without_an_unknown_token_is_an_error_of_the_text() -> None:
    """The library raises a plain `Exception` for a character that a unigram vocabulary does not have."""
    model = {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0], ["b", -2.0]], "byte_fallback": False}
    replaced = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    parts = {"pre_tokenizer": None, "normalizer": None, "post_processor": None, "decoder": replaced}
    tokenizer = TextTokenizer(definition(model=model, added_tokens=[], **parts))
    assert tokenizer.encode_text("ab")
    for encode in (tokenizer.encode_text, tokenizer.encode_rendered, tokenizer.encode_generated):
        with pytest.raises(UnencodableTextError, match="unknown token"):
            encode("abc")


def test_other_exceptions_pass() -> None:
    for raised in (KeyError, KeyboardInterrupt, SystemExit):
        with pytest.raises(raised), panics(ValueError, "never"):
            raise raised
