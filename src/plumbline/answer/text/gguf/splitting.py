"""How byte-level vocabularies of GGUF files split a text into words, by `tokenizer.ggml.pre`.

The patterns are those of the tokenizers that the models were published with. Each pattern of a list splits the pieces
that the one before it has left, and text that it does not match stays a piece. Texts are not normalised: the format
has no normaliser. A file that names a way to split that is not listed here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["SPLITS", "Splitting"]


@dataclass(frozen=True, slots=True)
class Splitting:
    """How a text is split, and what follows from `tokenizer.ggml.pre` besides."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    """Whether a word that is a token is that token, whatever the merges make of it."""
    starts: bool = False
    """Whether prompts begin with the sequence start where the file does not say."""
    as_bytes: bool = True
    """Whether tokens are written in the byte alphabet of GPT-2; otherwise they are text, with `▁` for a space."""


_SUFFIXES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(numbers: str = r"\p{N}", suffixes: str = _SUFFIXES + "|", spaces: str = _SPACES) -> str:
    """Return the pattern of tiktoken's cl100k_base with other numbers, suffixes or spaces."""
    return rf"{suffixes}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{numbers}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{spaces}"


def _cased(numbers: str, suffixes: str = _SUFFIXES + "?", but: str = "") -> str:
    """Return the pattern of o200k_base, whose words are cut between a small and a capital letter."""
    upper, lower = (rf"[\p{{L{case}}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]" for case in "ul")
    lower = lower.replace(r"\p{Lt}", "")
    first = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{first}{upper}*{lower}+{suffixes}|{first}{upper}+{lower}*{suffixes}|{numbers}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_UP_TO_3 = r"\p{N}{1,3}"
_QWEN, _LLAMA_3 = _words(), _words(_UP_TO_3)
_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_HAN = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


def _marked(lines: str = r"[\r\n]*", spaces: str = _SPACES) -> str:
    """Return the pattern of DeepSeek V3, whose words may begin with a punctuation mark."""
    words = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    return rf"{_PUNCTUATION}[A-Za-z]+|{words}| ?[\p{{P}}\p{{S}}]+{lines}|{spaces}"


# Groups of three digits are counted from the end of a number. The number of groups that are looked at is bounded, or a
# text of digits alone would take a time in proportion to the square of its length.
_GROUPS = "{0,84}"
_DIGITS_FROM_END = rf"\p{{N}}{{1,3}}(?=(?:\p{{N}}{{3}}){_GROUPS}(?!\p{{N}}))"
_DIGITS_BEFORE_WORD_END = rf"\d{{1,3}}(?=(?:\d{{3}}){_GROUPS}\b)"
_BEFORE_GROUPS = r"(?=(?:\d{3}){1,85}(?!\d))"
_LAST_SPACES = r"(?<!\s)\s+$"
"""As `\\s+$`, and does not try again from every space of a run that is followed by something else."""
_DEEPSEEK_CASED = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ"
    "-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰"
    "-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""The letters that have a case, as of the Unicode version of that tokenizer."""

_STARCODER = Splitting((r"\p{N}", _GPT_2))
_DEEPSEEK_3 = Splitting((_UP_TO_3, _HAN, _marked()))
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_BY_PATTERN: Mapping[tuple[str, ...], Splitting] = {
    ("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "mpt", "olmo",
     "modern-bert", "jina-v1-en", "jina-v2-code", "roberta-bpe", "jais", "exaone4", "trillion", "granite-docling"):
        Splitting((_GPT_2,)),
    ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"): _STARCODER,
    ("default", ""): Splitting((r"[\p{P}\$\+<=>\^~\|]+", _GPT_2, r"\p{N}+", "[0-9][0-9][0-9]")),
    ("falcon",): Splitting((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, "[0-9][0-9][0-9]")),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"):
        Splitting((_LLAMA_3,), whole_words=True, starts=True),
    ("dbrx", "smaug-bpe", "chatglm-bpe"): Splitting((_LLAMA_3,)),
    ("glm4", "glm5"): Splitting((_LLAMA_3,), whole_words=True),
    ("minicpm5",): Splitting((_UP_TO_3, _words(r"\p{N}+")), whole_words=True),
    ("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "hunyuan", "megrez", "grok-2", "solar-open"):
        Splitting((_QWEN,)),
    ("qwen35",): Splitting((
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    )),
    ("ufakzeka",): Splitting((_words(suffixes=""),)),
    ("laguna",): Splitting((r"[^\n]+|\n+", _QWEN)),
    ("jais-2",): Splitting((_words(
        _UP_TO_3,
        spaces=r"\s*[\r\n]+|" + "|".join(rf"\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
        + r"|\s{1,2}(?!\S)|\s",
    ),)),
    ("bailingmoe", "bailingmoe2", "llada-moe"): Splitting((
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    ("seed-coder",): Splitting((
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
    )),
    ("exaone-moe",): Splitting((
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    )),
    ("deepseek-llm",): Splitting((
        r"[\r\n]", rf"\s?[{_DEEPSEEK_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", _LAST_SPACES,
        r"[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
    )),
    ("deepseek-coder",): Splitting((
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}",
    )),
    ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"): _DEEPSEEK_3,
    ("spark2_5",): Splitting((_UP_TO_3, _HAN, _marked("", r"[\r\n]|\s+(?!\S)|\s+"), r"\p{N}")),
    ("youtu",): Splitting(
        (
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _HAN,
            _cased(r"\p{N}"),
        ),
        whole_words=True,
    ),
    ("poro-chat", "bloom", "gpt3-finnish"): Splitting((_BLOOM,)),
    ("viking",): Splitting((_BLOOM, r"\p{N}")),
    ("tekken",): Splitting((_cased(r"\p{N}", ""),), whole_words=True, starts=True),
    ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"): Splitting((_cased(_UP_TO_3),)),
    ("granite-embed-multi-97m",): Splitting((_cased(_UP_TO_3),), whole_words=True),
    ("tiny_aya", "cohere2moe"): Splitting((_DIGITS_BEFORE_WORD_END, _cased(_UP_TO_3))),
    ("kimi-k2",): Splitting((r"\p{Han}+|" + _cased(_UP_TO_3, but=r"&&[^\p{Han}]"),)),
    ("superbpe",): Splitting((r"\p{N}+", _BEFORE_GROUPS)),
    ("afmoe",): Splitting((
        _DIGITS_FROM_END,
        "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
        _marked(),
    )),
    ("chameleon",): Splitting(
        ("<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", r"[\t\n]|    |  ", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT_2),
        starts=True,
    ),
    ("gemma4", "granite-embed-multi-311m", "sarvam-moe"): Splitting((r"[^\n]+|\n+",), as_bytes=False),
}  # fmt: skip

SPLITS: Mapping[str, Splitting] = MappingProxyType(
    {name: splitting for names, splitting in _BY_PATTERN.items() for name in names}
)
"""By `tokenizer.ggml.pre`; an empty name is that of a file without one."""
