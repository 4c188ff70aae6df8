"""Read the tokenizer files of a model folder as transformers' AutoTokenizer reads them.

`tokenizer.json` is the tokenizer. `tokenizer_config.json` may name further special and added tokens, or change their
flags. `special_tokens_map.json` and `added_tokens.json` are read only if `tokenizer_config.json` has no
`added_tokens_decoder`. Its `add_bos_token` and `add_eos_token` are ignored, because the post-processor of
`tokenizer.json` defines which tokens are set around a text.

Some classes of transformers replace the normalizer and the pre-tokenizer of `tokenizer.json` by their own. Models were
trained with those of the file, so this server uses them; `rebuilt_parts` names the parts that transformers replaces.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

__all__ = ["TokenizerFileError", "add_tokens", "named_tokens", "read_config", "rebuilt_parts"]

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


class TokenizerFileError(ValueError):
    """A file of the tokenizer has a value that cannot be read; the message names the file and the field."""


def read_config(folder: Path, definition: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the fields of `tokenizer_config.json`, with those of the older files beside it.

    Args:
        folder: of the model.
        definition: the content of `tokenizer.json`, whose added tokens override those of `added_tokens.json`.

    Raises:
        TokenizerFileError: a file is not a JSON object.
    """
    config = _read(folder / "tokenizer_config.json")
    if "added_tokens_decoder" in config:
        return config
    older = _read(folder / "special_tokens_map.json")
    # A special token with an unusual name is that of `tokenizer_config.json`, even if an older file has it too.
    own = {
        name: config[name]
        for name in _named(config)
        if name not in _NAMED and isinstance(config.get(name), str)
    }
    merged = {**config, **older, **own}
    named = {name: value for name, value in _named(merged).items() if isinstance(value, str) or name in older}
    special = {text for text in map(_content, (*named.values(), *_extra(merged))) if text is not None}
    added = _read(folder / "added_tokens.json")
    if not added:
        return merged
    decoder = {
        str(number): {"content": text, "normalized": text not in special, "special": text in special}
        for text, number in added.items()
    }
    decoder |= {str(token.get("id")): token for token in (definition or {}).get("added_tokens", [])}
    return {**merged, "added_tokens_decoder": decoder}


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of special tokens by their names, which templates may use as variables.

    >>> named_tokens({"bos_token": "<s>", "eos_token": None, "image_token": {"content": "<image>"}})
    {'bos_token': '<s>', 'image_token': '<image>'}
    """
    texts = {name: _content(value) for name, value in _named(config).items()}
    return {name: text for name, text in texts.items() if text is not None}


def add_tokens(tokenizer: FastTokenizer, config: Mapping[str, Any]) -> None:
    """Add the tokens that a configuration names to those of `tokenizer.json`, in the order of transformers.

    A token that `tokenizer.json` has already gets the flags of `added_tokens_decoder`, and is a control token if it has
    a name. If a text is listed several times, the last flags count.

    Raises:
        TokenizerFileError: `added_tokens_decoder` cannot be read.
    """
    known = tokenizer.get_added_tokens_decoder()
    named = [_token(value) for value in _named(config).values()]
    texts = {str(token) for token in named}
    decoder = config.get("added_tokens_decoder")
    listed = known if decoder is None else _listed(decoder)
    new: list[str | AddedToken] = [token for _, token in sorted(listed.items(), key=lambda item: item[0])]
    present = {token.content for token in (*known.values(), *listed.values())}
    for token in (*named, *map(_token, _extra(config))):
        if str(token) not in present and token not in new:
            new.append(token)
    tokens = [AddedToken(token, special=True) if isinstance(token, str) else token for token in new]
    for token in tokens:
        if token.content in texts:
            token.special = True
    tokenizer.add_tokens([token for token in tokens if token.content])


def rebuilt_parts(folder: Path) -> tuple[str, list[str]]:
    """Find the parts of `tokenizer.json` that transformers would replace by its own.

    Returns:
        The name of transformers' class, and the parts; both empty if transformers gives the same ids.
    """
    config, model = _read(folder / "tokenizer_config.json"), _read(folder / "config.json")
    kind = str(model.get("model_type"))
    name = _CLASS_OF_MODEL.get(kind) or config.get("tokenizer_class") or model.get("tokenizer_class")
    name = str(name).removesuffix("Fast")
    if name not in _REPLACEMENTS or kind in _KEEPS_FILE or config.get("auto_map"):
        return "", []
    definition = _read(folder / "tokenizer.json")
    own = {"normalizer": definition.get("normalizer"), "pre_tokenizer": definition.get("pre_tokenizer")}
    if name == "LlamaTokenizer" and '"ByteLevel"' in json.dumps([definition.get("decoder"), *own.values()]):
        return "", []  # Byte-level BPE: transformers keeps the file, although the class is LlamaTokenizer.
    space = config.get("add_prefix_space")
    scheme = "never" if space is False else "always" if config.get("legacy") else "first"
    text = (
        json.dumps(_REPLACEMENTS[name]).replace('"SPACE"', json.dumps(bool(space))).replace("SCHEME", scheme)
    )
    other = json.loads(text)
    return name, [part for part in own if _canonical(part, own[part]) != _canonical(part, other[part])]


def _canonical(part: str, value: Any) -> Any:
    """Return a part as the library writes it, without what does not change ids."""
    empty = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
    text = FastTokenizer.from_str(json.dumps({**empty, part: value})).to_str()
    return json.loads(text.replace('"trim_offsets":false', '"trim_offsets":true'))[part]


_BYTES: Any = {"type": "ByteLevel", "add_prefix_space": "SPACE", "trim_offsets": True, "use_regex": True}


def _qwen(letter: str, no_mark: str) -> Any:
    words = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}{no_mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = {"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}
    pieces = {"type": "Sequence", "pretokenizers": [split, {**_BYTES, "use_regex": False}]}
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": pieces}


_DIGITS = {"type": "Digits", "individual_digits": True}
_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_REPLACEMENTS: Mapping[str, Any] = {
    "Qwen2Tokenizer": _qwen(r"\p{L}", ""),
    "Qwen3_5Tokenizer": _qwen(r"[\p{L}\p{M}]", r"\p{M}"),
    "LlamaTokenizer": {
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "SCHEME", "split": False,
        },
    },
    "GemmaTokenizer": {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": _SPACES,
    },
    "GPT2Tokenizer": {"normalizer": None, "pre_tokenizer": _BYTES},
    "GPTNeoXTokenizer": {"normalizer": {"type": "NFC"}, "pre_tokenizer": _BYTES},
    "CohereTokenizer": {
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES]},
    },
}  # fmt: skip
"""The parts that transformers builds, by its class; of the classes that models of this server name."""
_CLASS_OF_MODEL = {
    "qwen2": "Qwen2Tokenizer",
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text"), "Qwen3_5Tokenizer"),
}
"""Models for which transformers uses a fixed class, whatever the files name."""
_KEEPS_FILE = frozenset(
    (
        *("arctic", "ernie4_5", "ernie4_5_moe", "flex_olmo", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "gpt_bigcode"),
        *("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "hyperclovax", "internlm2", "internlm3"),
        *("jamba", "kimi_k25", "kimi_linear", "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral"),
        *("mistral3", "mixtral", "nemotron", "olmo2", "olmo3", "olmo_hybrid", "phi3", "phimoe", "stablelm"),
    )
)  # fmt: skip
"""Models for which transformers reads `tokenizer.json` as it is, whatever class the files name."""


def _listed(decoder: Any) -> dict[int, AddedToken]:
    """Read the tokens of `added_tokens_decoder` by their ids."""
    where = "added_tokens_decoder of tokenizer_config.json"
    if not isinstance(decoder, Mapping):
        raise TokenizerFileError(f"{where} must be an object")
    tokens = {}
    for key, value in decoder.items():
        if not key.isdecimal() or not isinstance(value, Mapping) or _content(value) is None:
            raise TokenizerFileError(
                f"{where} has {key!r:.40}: {value!r:.80}, which is not the id of a token"
            )
        tokens[int(key)] = _added(value)
    return tokens


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise TokenizerFileError(f"{path.name} must be an object")
    return content


def _named(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with special tokens: the usual ones, and others such as `image_token`."""
    named = {name: config.get(name) for name in _NAMED}
    named |= {name: value for name, value in config.items() if name.endswith("_token")}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, Mapping):
        named |= extra
    return {name: value for name, value in named.items() if _content(value) is not None}


def _extra(config: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the special tokens that have no names."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens")
    yield from (token for token in (extra if isinstance(extra, list) else ()) if _content(token) is not None)


def _content(value: Any) -> str | None:
    """Return the text of a token entry such as `bos_token`: a string, an object with `content`, or null."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token(value: Any) -> str | AddedToken:
    """Return a token entry as the library takes it; a text alone is a control token."""
    return value if isinstance(value, str) else _added(value)


def _added(value: Mapping[str, Any]) -> AddedToken:
    return AddedToken(value["content"], **{name: bool(value[name]) for name in _FLAGS if name in value})
