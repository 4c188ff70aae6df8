"""Every way to split that a GGUF file may name.

Laws:
- The pieces are those of the patterns by another regex library.
- The pieces of a text are the text.
- No run of one character takes more steps than its length allows: the library gives up instead.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from plumbline.answer.text.gguf.splitting import SPLITS

ALPHABET = [
    *"abZÉǅʰßაกม中カー한ㄱᄀकि्́!'’“。，/_$+<|`^17½²٣Ⅷ٪ﬁ🙂™€",
    *(" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\x00"),
    *(
        "'s",
        "'S",
        "'ll",
        "'VE",
        "don't",
        "123",
        "1234567",
        "IMGIMGABZ",
        "<sentinel:3>",
        "snake_case",
        "HTTPServer",
    ),
]
texts = st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join)


@cache
def library(patterns: tuple[str, ...]) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(one), "isolated") for one in patterns])


@cache
def compiled(pattern: str) -> regex.Pattern[str]:
    # Here every number is part of a word, as in Oniguruma; in `regex` only decimal digits are.
    return regex.compile(pattern.replace(r"\b", r"(?![\w\p{N}])"), regex.V1)


def pieces(patterns: tuple[str, ...], text: str) -> list[str]:
    """Split with the package `regex`."""
    found = [text]
    for pattern in patterns:
        found = [part for piece in found for part in parts(compiled(pattern), piece)]
    return found


def parts(pattern: regex.Pattern[str], piece: str) -> list[str]:
    """Return the matches of a pattern, and what is between them."""
    ends = [0, *(end for match in pattern.finditer(piece) for end in match.span()), len(piece)]
    return [piece[start:end] for start, end in pairwise(ends) if start < end]


NAMES = sorted({splitting.patterns: name for name, splitting in SPLITS.items()}.values())


@pytest.mark.parametrize("name", NAMES)
@given(text=texts)
def test_a_text_is_split_by_the_patterns(name: str, text: str) -> None:
    patterns = SPLITS[name].patterns
    found = [piece for piece, _ in library(patterns).pre_tokenize_str(text)]
    assert found == pieces(patterns, text)
    assert "".join(found) == text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("smollm", "In 2024 ½²", "In| |2|0|2|4| |½|²"),
        ("gpt-2", "In 2024 ½²", "In| 2024| ½²"),
        ("llama-bpe", "1234567", "123|456|7"),
        ("afmoe", "1234567", "1|234|567"),
        ("superbpe", "a 1234567 b", "a |1|234|567| b"),
        ("tiny_aya", "1234567 12a", "1|234|567| |12|a"),
        ("falcon", "$1234", "$|123|4"),
        ("qwen2", "l'Été DON'T", "l|'Été| DON|'T"),
        ("ufakzeka", "DON'T", "DON|'T"),
        ("gpt-4o", "getHTTPServer's ÉCOLE", "get|HTTPServer's| ÉCOLE"),
        ("tekken", "getHTTPServer's", "get|HTTPServer|'s"),
        ("deepseek-v3", "中文abc", "中文|abc"),
        ("kimi-k2", "中文abc", "中文|abc"),
        ("deepseek-coder", "x\r\n\ty", "x|\r|\n|\ty"),
        ("bloom", "Hello, world", "Hello|,| world"),
        ("gemma4", "a b\n\nc", "a b|\n\n|c"),
        ("chameleon", "IMGIMGABZ    x", "IMGIMGABZ|    |x"),
    ],
)
def test_families_differ_where_they_are_known_to(name: str, text: str, expected: str) -> None:
    found = [piece for piece, _ in library(SPLITS[name].patterns).pre_tokenize_str(text)]
    assert found == expected.split("|")


@pytest.mark.long
@pytest.mark.parametrize(
    "run", ["1", " ", "\u3000", "a", "A", "中", "ก", "\u0301", "!", "'", "1½", "a ", ".\u0301"]
)
@pytest.mark.parametrize("after", ["", "x"])
def test_a_run_of_one_character_is_split_in_time(run: str, after: str) -> None:
    """A pattern whose time grows with the square of its text would take hours here, and CI end it."""
    text = run * 50_000 + after
    for name in NAMES:
        found = library(SPLITS[name].patterns).pre_tokenize_str(text)
        assert sum(len(piece) for piece, _ in found) == len(text)
