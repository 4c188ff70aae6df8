"""Tokenizer files are read as transformers reads them.

The laws, for drawn added tokens with drawn flags, post-processors, names and files that name tokens:

* A prompt of text has the ids that transformers gives it, with special tokens and without.
* A conversation has the ids of transformers, which takes control tokens in messages for text where it is asked to;
  ordinary added tokens are tokens in messages, too.
* Templates get the variables that transformers gives them.
* The echo of a prompt is the prompt.
* Where transformers replaces a part of `tokenizer.json` by another one, the part is named.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support.models import CHATML, byte_level_definition
from transformers import AutoTokenizer, TokenizersBackend

from plumbline.answer.text.echo import echoed
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.answer.text.tokenizer_files import _canonical, rebuilt_parts
from plumbline.answer.turn import ChatPrompt, Message, TextPrompt

FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "image_token")
ORDINARY = ("<b>", "<td>", "12", "  ", "the")
"""Texts of added tokens that are words of the vocabulary."""
ATOMS = ("a", " ", "\n", "É", "é", "😀", "hello", "<z>", "<|im_end|>", "<|im_start|>", *ORDINARY)


def flags(draw: random.Random) -> dict[str, bool]:
    return {name: draw.random() < 0.3 for name in FLAGS}


def token(draw: random.Random, text: str) -> Any:
    """A token as the files have it: its text, or an object."""
    return text if draw.random() < 0.5 else {"__type": "AddedToken", "content": text, **flags(draw)}


def sets_around(definition: dict[str, Any], before: list[str], after: list[str]) -> dict[str, Any]:
    """A post-processor that sets these tokens before and after each text."""
    ids = {entry["content"]: entry["id"] for entry in definition["added_tokens"]}
    first, last = (
        [{"SpecialToken": {"id": text, "type_id": 0}} for text in texts] for texts in (before, after)
    )
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [*first, a, *last],
        "pair": [*first, a, *last, b],
        "special_tokens": {
            text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in {*before, *after}
        },
    }


def post_processor(draw: random.Random, definition: dict[str, Any]) -> Any:
    start, end = "<|im_start|>", "<|im_end|>"
    ids = {entry["content"]: entry["id"] for entry in definition["added_tokens"]}
    trims = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: trims,
        lambda: sets_around(definition, [start], []),
        lambda: sets_around(definition, [start, end], [end]),
        lambda: {"type": "Sequence", "processors": [trims, sets_around(definition, [], [end])]},
        lambda: {
            "type": "RobertaProcessing", "sep": [end, ids[end]], "cls": [start, ids[start]], "trim_offsets": True,
            "add_prefix_space": False,
        },
    ]  # fmt: skip
    return draw.choice(kinds)()


NORMALISERS = (None, {"type": "Lowercase"}, {"type": "NFC"}, {"type": "NFKD"})


def write(draw: random.Random, folder: Path) -> None:
    """Write drawn tokenizer files."""
    texts = draw.sample(ORDINARY, draw.randint(0, 3))
    definition = byte_level_definition([{"content": text, **flags(draw)} for text in texts])
    definition["normalizer"] = draw.choice(NORMALISERS)
    definition["post_processor"] = post_processor(draw, definition)
    config: dict[str, Any] = {
        name: draw.choice([None, token(draw, draw.choice(["<|im_start|>", "<|im_end|>", "<z>", *texts]))])
        for name in draw.sample(NAMES, draw.randint(0, 4))
    }
    for name in ("add_bos_token", "add_eos_token", "split_special_tokens"):
        if draw.random() < 0.2:
            config[name] = draw.random() < 0.5
    if draw.random() < 0.3:
        config["extra_special_tokens"] = draw.choice([["<z>"], {"boi_token": "<z>"}, ["<b>"], []])
    elif draw.random() < 0.3:
        config["additional_special_tokens"] = ["<z>"]
    if draw.random() < 0.3:
        listed = draw.sample(definition["added_tokens"], 3)
        config["added_tokens_decoder"] = {
            str(entry["id"]): {"content": entry["content"], **flags(draw)} for entry in listed
        }
    more = max(entry["id"] for entry in definition["added_tokens"]) + 1
    files = {
        "tokenizer.json": definition,
        "tokenizer_config.json": config,
        "special_tokens_map.json": {draw.choice(NAMES): draw.choice(["<|im_end|>", "<z>"])},
        "added_tokens.json": draw.choice([{"<z>": more}, {"<y>": more, "<z>": more + 1}, {"<|im_end|>": 2}]),
    }
    optional = [name for name in files if name != "tokenizer.json"]
    for name in {"tokenizer.json", *draw.sample(optional, draw.randint(1, 3))}:
        (folder / name).write_text(json.dumps(files[name]), "utf-8")
    (folder / "chat_template.jinja").write_text(CHATML + "{{ bos_token }}{{ image_token }}", "utf-8")


def text(draw: random.Random, atoms: tuple[str, ...] = ATOMS) -> str:
    return "".join(draw.choices(atoms, k=draw.randint(0, 8)))


def compare(seed: int, folder: Path, count: int) -> None:
    draw = random.Random(seed)
    write(draw, folder)
    theirs, ours = TokenizersBackend.from_pretrained(folder), TextTokenizer.from_folder(folder)
    template = ChatTemplate.from_folder(folder)
    assert template is not None
    renderer = Renderer(ours, template)
    assert ours.named == theirs.special_tokens_map
    assert dict(template.spec.tokens) == theirs.special_tokens_map
    for _ in range(count):
        given, special = text(draw), draw.random() < 0.7
        prompt = TextPrompt(given, add_special_tokens=special)
        ids = renderer.token_ids(prompt)
        assert ids == theirs(given, add_special_tokens=special)["input_ids"], given
        assert echoed(ours, prompt, ids, None)[0] == given
        control = {text for text, number in ours.added.items() if number in ours.special_ids} | {"<|"}
        plain = tuple(atom for atom in ATOMS if not any(each in atom or atom in each for each in control))
        messages = [{"role": role, "content": text(draw, plain)} for role in ("user", "assistant", "user")]
        conversation = ChatPrompt(messages=tuple(Message(**message) for message in messages))  # type: ignore[arg-type]
        assert renderer.token_ids(conversation) == theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        ), messages


@given(seed=st.integers(0, 1 << 32))
def test_ids_are_those_of_transformers(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    compare(seed, tmp_path_factory.mktemp("files"), 20)


@pytest.mark.long
def test_ids_of_2000_texts_are_those_of_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    for seed in range(100):
        compare(seed, tmp_path_factory.mktemp("files"), 20)


@given(seed=st.integers(0, 1 << 32), role=st.sampled_from(["user", "tool", "system"]))
def test_control_tokens_in_messages_are_text_and_others_are_tokens(seed: int, role: str) -> None:
    """Whatever else is in the message: what is not a control token has the ids that it has alone."""
    draw = random.Random(seed)
    extra = [{"content": each, "normalized": draw.random() < 0.3} for each in ORDINARY]
    ours = TextTokenizer(byte_level_definition(extra), config={"eos_token": "<|im_end|>"})
    renderer = Renderer(ours, ChatTemplate("<|im_start|>{{ messages[0].content }}<|im_end|>"))
    given = text(draw, ("a", "<b>", "<td>", "\n", "<|im_end|>", "<|im_start|>", "12"))
    ids = renderer.token_ids(ChatPrompt(messages=(Message(role=role, content=given),)))  # type: ignore[arg-type]
    start, end = ours.added["<|im_start|>"], ours.added["<|im_end|>"]
    pieces: list[int] = []
    for piece in given.replace("<|im_end|>", "\0E\0").replace("<|im_start|>", "\0S\0").split("\0"):
        known = {"E": "<|im_end|>", "S": "<|im_start|>"}
        pieces += ours.encode_text(known[piece]) if piece in known else ours.encode_rendered(piece)
    assert [one for one in ids if one in (start, end)] == [start, end]
    assert ours.decode(ids[1:-1]) == given
    wanted = {"<b>", "<td>", "12"}
    assert [one for one in ids if one in {ours.added[each] for each in wanted}] == [
        one for one in pieces if one in {ours.added[each] for each in wanted}
    ]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tokenizer_config.json": []}, "tokenizer_config.json must be an object"),
        ({"special_tokens_map.json": "x"}, "special_tokens_map.json must be an object"),
        ({"tokenizer_config.json": {"added_tokens_decoder": []}}, "added_tokens_decoder of"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"x": {"content": "a"}}}}, "'x'"),
        ({"tokenizer_config.json": {"added_tokens_decoder": {"1": {}}}}, "not the id of a token"),
    ],
)
def test_what_cannot_be_read_is_named(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level_definition()), "utf-8")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), "utf-8")
    with pytest.raises(UnsupportedTokenizerError, match=words):
        TextTokenizer.from_folder(tmp_path)


def test_a_vocabulary_that_draws_its_tokens_is_refused() -> None:
    definition = byte_level_definition()
    definition["model"]["dropout"] = 0.1
    with pytest.raises(UnsupportedTokenizerError, match="dropout"):
        TextTokenizer(definition)


PARTS: dict[str, list[Any]] = {
    "normalizer": [None, {"type": "NFC"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}],
    "pre_tokenizer": [
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        None,
    ],
}  # fmt: skip
KINDS = (
    "qwen2",
    "qwen3",
    "llama",
    "gemma2",
    "gpt_neox",
    "phi",
    "cohere",
    "granite",
    "mistral",
    "olmo2",
    "glm4",
)
CLASSES = (
    "Qwen2Tokenizer",
    "LlamaTokenizer",
    "GemmaTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "CohereTokenizer",
)


@pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23), reason="older releases replace others"
)
@pytest.mark.parametrize("kind", KINDS)
def test_parts_that_transformers_replaces_are_named(kind: str, tmp_path: Path) -> None:
    """Whether the file's parts or others count is as transformers decides it, for drawn files of each model."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    draw = random.Random(kind)
    for name in (*CLASSES, f"{draw.choice(CLASSES)}Fast", "PreTrainedTokenizerFast"):
        definition = byte_level_definition() | {part: draw.choice(some) for part, some in PARTS.items()}
        definition["decoder"] = draw.choice([definition["decoder"], None])
        (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
        config: dict[str, Any] = {"tokenizer_class": name}
        config |= draw.choice([{}, {"add_prefix_space": False}, {"add_prefix_space": True}, {"legacy": True}])
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        theirs = json.loads(AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer.to_str())
        expected = [
            part for part in PARTS if _canonical(part, definition[part]) != _canonical(part, theirs[part])
        ]
        assert rebuilt_parts(tmp_path)[1] == expected, (kind, config, definition["pre_tokenizer"])
