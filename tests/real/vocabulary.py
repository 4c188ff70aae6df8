"""Judge the tokenizer of one GGUF file."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from plumbline.answer.text.gguf.vocabulary import read_tokenizer
from plumbline.answer.text.guard import Guard
from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.base.end_tokens import file_ends
from plumbline.base.gguf_file import read_metadata

from .reference import by_definition, by_llama_cpp
from .texts import drawn

__all__ = ["Verdict", "judge"]

_BETWEEN = "\n__ggml_vocab_test__\n"
_TEXTS = 2_000
_UNUSED = 5
LOSSY = {"ggml-vocab-falcon.gguf": 4, "ggml-vocab-deepseek-llm.gguf": 12}
"""Drawn texts that may differ from llama.cpp: bytes without a token, and classes of white space in its patterns."""


class Verdict(NamedTuple):
    """What was found of a file: a line for the table, and what is wrong."""

    line: str
    problems: list[str]
    refused: bool = False
    row: Mapping[str, str] = {}
    """Cells of the table at the end, by their columns."""


def judge(file: Path) -> Verdict:
    """Compare the ids of published and drawn texts with their references, and hold the laws of added tokens."""
    began = time.process_time()
    try:
        tokenizer = read_tokenizer(file)
    except UnsupportedTokenizerError as error:
        return Verdict(f"refused: {error}", [], refused=True)
    seconds = time.process_time() - began
    metadata = read_metadata(file, lambda key: key.startswith("tokenizer."))
    published, problems = _published(tokenizer, file)
    markers = sorted(tokenizer.added)
    step = -(-len(markers) // 80) or 1
    texts = drawn(_TEXTS, markers[::step])
    compared = []
    encode = by_definition(metadata)
    if encode is not None:
        problems += _different(tokenizer.encode_text, encode, texts, "the definition", 0)
        compared.append("definition")
    with by_llama_cpp(file) as encode:
        if encode is not None:
            most = LOSSY.get(file.name, 0)
            problems += _different(tokenizer.encode_prompt, encode, texts, "llama.cpp", most)
            compared.append("llama.cpp")
    problems += _laws(tokenizer, file)
    line = (
        f"{published} published ids, {_TEXTS:,} drawn texts by {' and '.join(compared) or 'no reference'}, "
        f"{len(tokenizer.special_ids)} control tokens, built in {seconds:.2f} s of CPU"
    )
    return Verdict(line, problems)


def _published(tokenizer: TextTokenizer, file: Path) -> tuple[int, list[str]]:
    """Compare with the texts beside the file."""
    texts, ids = (file.with_name(f"{file.name}.{end}") for end in ("inp", "out"))
    if not texts.is_file():
        return 0, []
    cases = texts.read_text("utf-8").split(_BETWEEN)
    expected = [[int(one) for one in line.split()] for line in ids.read_text("utf-8").split("\n")]
    wrong = [
        text for text, right in zip(cases, expected, strict=False) if tokenizer.encode_rendered(text) != right
    ]
    return len(cases), [f"published text {text!r:.60} has other ids" for text in wrong]


def _different(ours: object, theirs: object, texts: list[str], name: str, most: int) -> list[str]:
    assert callable(ours)
    assert callable(theirs)
    wrong = [text for text in texts if ours(text) != theirs(text)]
    if len(wrong) <= most:
        return []
    return [f"{len(wrong)} of {len(texts)} drawn texts differ from {name}, such as {wrong[0]!r:.80}"]


def _laws(tokenizer: TextTokenizer, file: Path) -> list[str]:
    """Ends are control tokens, which no text of a message makes; others are read and shown; unused ids are no text."""
    metadata = read_metadata(file, lambda key: key.startswith("tokenizer."))
    ends, problems = file_ends(metadata), []
    if not ends or not ends <= tokenizer.special_ids:
        problems.append(f"its ends {sorted(ends)} are not all control tokens")
    for text, number in tokenizer.added.items():
        if tokenizer.encode_rendered(text) != [number]:
            problems.append(f"{text!r} is not itself in a prompt")
        is_control = number in tokenizer.special_ids
        if (tokenizer.visible_table[number] == b"") != is_control:
            problems.append(f"{text!r} is shown though it is a control token, or is not shown")
        if is_control and not re.search(r"^\s*$", text):
            guard = Guard([text], tokenizer.control)
            if number in tokenizer.encode_rendered(guard.protect(text, tokenizer.control), guard):
                problems.append(f"{text!r} in a message is a control token")
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", [])
    unused = [number for number, kind in enumerate(kinds) if kind == _UNUSED and number not in ends]
    tokenizer.pad_table(len(tokens))
    if any(tokens[number] in tokenizer.added or tokenizer.table[number] for number in unused):
        problems.append("an unused id has a text")
    return problems[:10]
