"""Find the tokens that end a model's turn, in all places of a model that name one.

One rule for all engines: an end is what the config, the generation config, the tokenizer, the chat template or the
metadata of a GGUF file name. None of these overrides another, because each of them is incomplete in published models:
a generation config with `<|endoftext|>` alone beside a template that ends turns with `<|im_end|>`, a tokenizer with an
end that no config has. A null names nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

__all__ = [
    "CONTROL_FORM",
    "EndTokenError",
    "ends_in_template",
    "file_ends",
    "folder_ends",
    "is_end_key",
    "token_ids",
]

_TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_TEMPLATES = ("chat_template.jinja", "chat_template.json")
"""Besides those of `additional_chat_templates`."""
_VOCABULARY = ("tokenizer.json", "added_tokens.json")
_NAMED = ("eos_token", "eot_token", "eom_token")
"""Fields of a tokenizer's configuration with the text of an end."""
_INNER = ("text_config", "llm_config", "language_config", "thinker_config", "generation_config")
"""Objects in a config that may have ends of their own."""
_WORDS = frozenset({
    "assistantend", "end", "endassistant", "endofassistant", "endofmessage", "endofmsg", "endofsentence", "endoftext",
    "endofturn", "endofturntoken", "endofutterance", "eom", "eomid", "eos", "eot", "eotid", "imend", "roleend",
    "seedeos",
})  # fmt: skip
"""The letters of texts that end a turn, such as `<|im_end|>`, `[|endofturn|]` and `<｜end▁of▁sentence｜>`."""
_OTHERS = frozenset({"</s>", "<turn|>", "[e~[", "<|tool_response>"})
"""Ends whose letters do not show it."""
_BEGINNINGS = frozenset("<[_")
_HEADED = frozenset({"<|message|>", "<|content|>"})
"""What ends the header of a message in families whose turns have several, such as gpt-oss, Muse and Solar Open."""
_OF_MESSAGES = frozenset({"<|end|>", "<|eom|>"})
"""What ends such a message there, and a turn in other families."""
_OF_TURNS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))
"""What ends a turn there."""
_OF_GAPS = frozenset({
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<|file_sep|>",
})  # fmt: skip
"""Added tokens of GGUF files that llama.cpp takes for ends: what follows a gap that is filled."""
CONTROL_FORM = re.compile(r"<[|｜][^<>]+[|｜]>|<end_of_\w+>")
"""Texts that are control tokens whatever their type is; `</s>` is not, because Gemma has it for struck-out text."""
_CONTROL, _USER_DEFINED = 3, 4
"""Values of `tokenizer.ggml.token_type`."""
_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))


class EndTokenError(ValueError):
    """A file names ends in a form that cannot be read; the message names the file and the field."""


def token_ids(value: Any, where: str) -> frozenset[int]:
    """Return the token ids of a field: one, a list of them, or null. Null and negative ones name nothing.

    >>> sorted(token_ids([2, None, -1], "eos_token_id"))
    [2]

    Args:
        value: of the field.
        where: the name of the field, for errors.

    Raises:
        EndTokenError: it is something else.
    """
    ids = value if isinstance(value, list) else [value]
    if not all(one is None or (isinstance(one, int) and not isinstance(one, bool)) for one in ids):
        raise EndTokenError(f"{where} must be a token id or a list of them, not {value!r:.80}")
    return frozenset(one for one in ids if one is not None and one >= 0)


def ends_in_template(source: str, tokens: Mapping[str, int]) -> frozenset[int]:
    """Return the ends that a chat template writes.

    Args:
        source: of the template.
        tokens: the ids of the tokens that may be ends, by their text.
    """
    return frozenset(tokens[text] for text in _known(tokens) if text in source)


def folder_ends(folder: Path) -> frozenset[int]:
    """Return the ends that the files of a model folder name.

    Raises:
        EndTokenError: a file names them in a form that cannot be read.
        ValueError: a file is not JSON.
    """
    named = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    stamps = []
    for path in (*(folder / name for name in (*_TEXTS, *_TEMPLATES, *_VOCABULARY)), *named):
        if path.is_file():
            found = path.stat()
            stamps.append((str(path.relative_to(folder)), found.st_mtime_ns, found.st_size))
    return _folder_ends(folder, tuple(stamps))


@lru_cache(maxsize=16)
def _folder_ends(folder: Path, stamps: tuple[tuple[str, int, int], ...]) -> frozenset[int]:
    """See `folder_ends`; a vocabulary has up to 35 MB, and a model is described several times before it is served."""
    present = {name for name, *_ in stamps}

    def read(name: str) -> Mapping[str, Any]:
        found = json.loads((folder / name).read_text("utf-8")) if name in present else {}
        if not isinstance(found, dict):
            raise EndTokenError(f"{name} must be an object")
        return found

    config, generation, tokenizer, special = map(read, _TEXTS)
    found: set[int] = set()
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        for part in (fields, *(fields.get(inner) for inner in _INNER)):
            if isinstance(part, Mapping):
                found |= token_ids(part.get("eos_token_id"), f"eos_token_id in {name}")
    tokens = _tokens(read("tokenizer.json"), tokenizer, read("added_tokens.json"))
    extra = tokenizer.get("extra_special_tokens")
    for fields in (tokenizer, special, extra if isinstance(extra, Mapping) else {}):
        named = (_text(fields.get(name)) for name in _NAMED)
        found |= {tokens[text] for text in named if text in tokens}
    files = [(folder / name).read_text("utf-8") for name in sorted(present) if name.endswith(".jinja")]
    sources = "\n".join((*_templates(tokenizer, read("chat_template.json")), *files))
    return frozenset(found | ends_in_template(sources, tokens))


def is_end_key(key: str) -> bool:
    """Whether `file_ends` needs the value of a key of a GGUF file."""
    return (
        key in _KEYS
        or key in ("tokenizer.ggml.tokens", "tokenizer.ggml.token_type")
        or key.startswith("tokenizer.chat_template")
    )


def file_ends(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Return the ends that the metadata of a GGUF file name.

    As in llama.cpp, tokens are ends by their text as well, also those that a converter has typed NORMAL. Unlike there,
    a text that may be ordinary, such as `</s>`, is one only where it is typed CONTROL or the template writes it.
    """
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [])
    named = {metadata.get(key) for key in _KEYS}
    found = {token for token in named if isinstance(token, int) and 0 <= token < len(tokens)}
    # A vocabulary has hundreds of thousands of texts, and few that begin like a marker, as all ends do.
    ids = {text: number for number, text in enumerate(tokens) if text[:1] in _BEGINNINGS}
    known = _known(ids.keys())
    kind_of = {number: kinds[number] for number in ids.values() if number < len(kinds)}
    template = "\n".join(
        value
        for key, value in metadata.items()
        if key.startswith("tokenizer.chat_template") and isinstance(value, str)
    )
    for text in known:
        kind = kind_of.get(ids[text])
        if kind == _CONTROL or CONTROL_FORM.fullmatch(text) or text in template:
            found.add(ids[text])
    gaps = (ids[text] for text in _OF_GAPS if text in ids)
    return frozenset(found | {token for token in gaps if kind_of.get(token) in (_CONTROL, _USER_DEFINED)})


def _known(texts: Collection[str]) -> set[str]:
    """Return those of the texts that end a turn wherever they are control tokens."""
    markers = (text for text in texts if text[:1] in _BEGINNINGS)
    found = {text for text in markers if text in _OTHERS or _letters(text) in _WORDS}
    if any(text in texts for text in _HEADED):
        found -= _OF_MESSAGES
    for ends in _OF_TURNS:
        if all(text in texts for text in ends):
            found = found - _OF_MESSAGES | ends
    return found


def _letters(text: str) -> str:
    """Return the letters of a marker in lower case; an empty string for a text without brackets, such as `end`."""
    if len(text) < 3 or len(text) > 64 or text[0] not in _BEGINNINGS or text[-1] not in ">]":
        return ""
    return "".join(re.findall("[a-z]", text.lower())) if "/" not in text else ""


def _tokens(
    definition: Mapping[str, Any], config: Mapping[str, Any], added: Mapping[str, Any]
) -> dict[str, int]:
    """Return the ids of a folder's tokens by their text; the added ones win over those of the vocabulary."""
    found = _vocabulary(definition.get("model"))
    found |= {text: number for text, number in added.items() if isinstance(number, int)}
    decoder = config.get("added_tokens_decoder")
    for number, entry in (decoder if isinstance(decoder, Mapping) else {}).items():
        text = _text(entry)
        if text is not None and number.isdecimal():
            found[text] = int(number)
    entries = definition.get("added_tokens")
    for entry in entries if isinstance(entries, list) else ():
        text = _text(entry) if isinstance(entry, Mapping) else None
        if text is not None and isinstance(entry.get("id"), int):
            found[text] = entry["id"]
    return found


def _vocabulary(model: Any) -> dict[str, int]:
    """Return the ids of a vocabulary, which is a mapping or, in Unigram models, a list."""
    vocab = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocab, Mapping):
        return {text: number for text, number in vocab.items() if isinstance(number, int)}
    entries = enumerate(vocab if isinstance(vocab, list) else ())
    pairs = ((entry[0], number) for number, entry in entries if isinstance(entry, list) and entry)
    return {text: number for text, number in pairs if isinstance(text, str)}


def _text(value: Any) -> str | None:
    """Return the text of a token: a string, or an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _templates(*configs: Mapping[str, Any]) -> Iterator[str]:
    """Yield the chat templates of JSON files: one, or a list of named ones."""
    for config in configs:
        found = config.get("chat_template")
        for entry in found if isinstance(found, list) else [found]:
            source = entry.get("template") if isinstance(entry, Mapping) else entry
            if isinstance(source, str):
                yield source
