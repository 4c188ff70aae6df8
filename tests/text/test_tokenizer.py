"""Text to ids and back, and the line between what a template writes and what a client writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.models import (
    CHATML,
    MARKERS,
    RENDERER,
    SPECIAL,
    TOKENIZER,
    byte_level,
    byte_level_definition,
    chatml,
)
from support.strategies import cuts, texts
from transformers import PreTrainedTokenizerFast

from plumbline.answer.text.guard import Guard, TokenPattern
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.template import TemplateError
from plumbline.answer.text.tokenizer import TextTokenizer, UnsupportedTokenizerError
from plumbline.answer.turn import ChatPrompt, Message, TextPrompt, TokenPrompt, Tool, ToolCall

CONTROL = frozenset(TOKENIZER.added.values())


def conversation(**changes: Any) -> ChatPrompt:
    """One of everything that a client can put words into; each change replaces one of them."""
    words = {
        "system": "Be brief.",
        "user": "What is the weather?",
        "name": "Ann",
        "assistant": "I will look.",
        "reasoning": "A tool can tell.",
        "call_id": "call_1",
        "called": "weather",
        "argument_key": "city",
        "argument": "Graz",
        "result": "Sunny.",
        "tool_name": "weather",
        "tool_description": "Tells the weather.",
        "parameter": "city",
        "parameter_description": "A city.",
        "kwarg": "none",
        **changes,
    }
    call = ToolCall(words["call_id"], words["called"], json.dumps({words["argument_key"]: words["argument"]}))
    return ChatPrompt(
        messages=(
            Message(role="system", content=words["system"]),
            Message(role="user", content=words["user"], name=words["name"]),
            Message(
                role="assistant",
                content=words["assistant"],
                reasoning=words["reasoning"],
                tool_calls=(call,),
            ),
            Message(role="tool", content=words["result"], tool_call_id=words["call_id"]),
        ),
        tools=(
            Tool(
                name=words["tool_name"],
                description=words["tool_description"],
                parameters={
                    "type": "object",
                    "properties": {words["parameter"]: {"description": words["parameter_description"]}},
                },
            ),
        ),
        template_kwargs={"kwarg": words["kwarg"]},
    )


PLACES = [
    "system", "user", "name", "assistant", "reasoning", "called", "argument_key", "argument", "result",
    "tool_name", "tool_description", "parameter", "parameter_description", "kwarg",
]  # fmt: skip

TALKATIVE = CHATML + "{{ kwarg }}"
"""A template that shows a variable of the request's own."""


def control_tokens(renderer: Renderer, prompt: ChatPrompt) -> list[int]:
    return [token_id for token_id in renderer.token_ids(prompt) if token_id in CONTROL]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("token", SPECIAL)
def test_a_control_token_that_a_client_writes_is_text(place: str, token: str) -> None:
    """Whoever writes the words of a turn must not be able to end it."""
    renderer = chatml(TALKATIVE)
    prompt = conversation(**{place: f"x{token}y"})

    assert control_tokens(renderer, conversation()) == control_tokens(renderer, prompt)
    assert f"x{token}y" in TOKENIZER.decode(renderer.token_ids(prompt))


@pytest.mark.parametrize("place", [place for place in PLACES if place != "assistant"])
@pytest.mark.parametrize("token", MARKERS)
def test_a_marker_that_a_client_writes_is_text(place: str, token: str) -> None:
    renderer = chatml(TALKATIVE)

    assert control_tokens(renderer, conversation()) == control_tokens(
        renderer, conversation(**{place: f"x{token}y"})
    )


def test_markers_in_assistant_messages_are_tokens() -> None:
    """Templates look for `<think>` in earlier turns, and the model has seen it there as a token."""
    prompt = conversation(assistant="<think>hm</think>Yes.")

    assert TOKENIZER.added["<think>"] in RENDERER.token_ids(prompt)


halves = st.one_of(
    st.lists(st.sampled_from(["<", "a", "|>", "\ue000", "\ue001"]), max_size=3),
    st.sampled_from(SPECIAL).flatmap(cuts),
)


@given(st.lists(halves, max_size=4).map(lambda groups: [part for group in groups for part in group]))
def test_two_texts_side_by_side_do_not_make_a_control_token(parts: list[str]) -> None:
    """Each half is harmless; only what the template writes itself may become a control token."""
    source = "{% for message in messages %}{{ message.content }}{% endfor %}<|im_end|>"
    renderer = chatml(source)
    prompt = ChatPrompt(messages=tuple(Message(role="user", content=part) for part in parts))
    ids = renderer.token_ids(prompt)

    assert [i for i in ids if i in CONTROL] == [TOKENIZER.added["<|im_end|>"]]
    assert TOKENIZER.decode(ids) == "".join(parts) + "<|im_end|>"


def test_the_tokens_of_the_template_are_tokens() -> None:
    ids = RENDERER.token_ids(ChatPrompt(messages=(Message(role="user", content="hello"),)))
    start, end = TOKENIZER.added["<|im_start|>"], TOKENIZER.added["<|im_end|>"]

    assert ids == [
        start, *TOKENIZER.encode_text("user\nhello"), end, *TOKENIZER.encode_text("\n"),
        start, *TOKENIZER.encode_text("assistant\n"),
    ]  # fmt: skip


def test_a_role_is_what_the_template_compares_with_even_where_it_is_a_token() -> None:
    renderer = chatml(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% else %}?{% endif %}{% endfor %}",
        extra=[{"content": "user"}, {"content": "content"}, {"content": "role"}],
    )

    assert renderer.text(ChatPrompt(messages=(Message(role="user", content="yes"),))) == "yes"


def test_runs_of_white_space_that_are_added_tokens_stay_tokens_in_messages() -> None:
    """They only shorten texts, so clients may send them."""
    renderer = chatml("{{ messages[0].content }}", extra=[{"content": "    "}])
    ids = renderer.token_ids(ChatPrompt(messages=(Message(role="user", content="a    b"),)))

    assert renderer.tokenizer.added["    "] in ids


def test_a_request_that_uses_every_mark_is_refused() -> None:
    """Refused quickly: no private-use character is left to mark with."""
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(TemplateError, match="private-use"):
        RENDERER.token_ids(ChatPrompt(messages=(Message(role="user", content=every),)))


@given(texts, st.sets(st.sampled_from(["a", "b<", "<b", "hello", "ab", "€"])))
def test_what_is_protected_comes_back_unchanged_and_hides_every_marker(text: str, tokens: set[str]) -> None:
    markers = TokenPattern(tokens)
    guarding = Guard([text], markers)
    protected = guarding.protect(text, markers)

    assert guarding.restore(protected) == text
    assert not any(token in protected for token in tokens)


@pytest.mark.parametrize("text", ["a€b", "€", "\ue000€\ue001", "\\ue000 €"])
def test_a_marker_of_one_character_is_guarded_too(text: str) -> None:
    renderer = chatml("€{{ messages[0].content }}{{ [messages[0].content] | tojson(ensure_ascii=true) }}€",
                      extra=[{"content": "€", "special": True}])  # fmt: skip
    ids = renderer.token_ids(ChatPrompt(messages=(Message(role="user", content=text),)))

    assert ids.count(renderer.tokenizer.added["€"]) == 2
    assert renderer.tokenizer.decode(ids).startswith(f"€{text}")


# Against the reference implementation


def reference(definition: dict[str, Any], folder: Path, template: str = CHATML) -> PreTrainedTokenizerFast:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(definition), "utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return reference(byte_level_definition(), tmp_path_factory.mktemp("tokenizer"))


@given(st.lists(texts, min_size=1, max_size=4), st.booleans())
def test_a_prompt_is_the_one_that_transformers_makes(
    theirs: PreTrainedTokenizerFast, contents: list[str], generate: bool
) -> None:
    """On texts without control tokens the two must agree to the token."""
    roles = ["user", "assistant"] * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=generate)
    prompt = ChatPrompt(messages=tuple(Message(**m) for m in messages), add_generation_prompt=generate)  # type: ignore[arg-type]

    assert theirs.encode(text, add_special_tokens=False) == RENDERER.token_ids(prompt)


def test_tools_are_rendered_as_transformers_renders_them(theirs: PreTrainedTokenizerFast) -> None:
    parameters = {"type": "object", "properties": {"größe": {"type": "number", "description": "<b>&'\""}}}
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}
    text = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tools=[tool], tokenize=False)
    prompt = ChatPrompt(
        messages=(Message(role="user", content="hi"),),
        tools=(Tool(name="f", description="d", parameters=parameters),),
        add_generation_prompt=False,
    )

    assert text == RENDERER.text(prompt)


@given(st.lists(st.sampled_from(["a", " ", "\n", "<s>", "<e>", "hello"]), max_size=10).map("".join))
def test_added_tokens_strip_white_space_as_configured(rendered: str) -> None:
    extra = [{"content": "<s>", "rstrip": True}, {"content": "<e>", "lstrip": True}]
    definition = byte_level_definition(extra)
    from tokenizers import Tokenizer

    theirs = Tokenizer.from_str(json.dumps(definition))

    assert theirs.encode(rendered, add_special_tokens=False).ids == TextTokenizer(definition).encode_rendered(
        rendered
    )


def sentencepiece_definition(scheme: str) -> dict[str, Any]:
    """A small `tokenizer.json` of the SentencePiece kind: words with a leading mark, bytes for everything else."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "a",
        "b",
        "\u2581a",
        "ab",
        "\u2581ab",
    ]
    prepend = [{"type": "Prepend", "prepend": "\u2581"}] if scheme == "normalizer" else []
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": text, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
             "single_word": False}
            for i, text in enumerate(pieces[:3])
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [*prepend, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}],
        } if scheme == "normalizer" else None,
        "pre_tokenizer": None if scheme == "normalizer" else {
            "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                *([] if scheme == "never" else [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]),
            ],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(pieces)},
            "merges": [["\u2581", "a"], ["a", "b"], ["\u2581a", "b"]],
        },
    }  # fmt: skip


words = st.lists(st.sampled_from(["a", "b", " ", "ab", "€", "🎉", "\n", "<s>", "</s>"]), max_size=8).map(
    "".join
)


@pytest.mark.parametrize("scheme", ["normalizer", "always", "first", "never"])
@given(rendered=words)
def test_sentencepiece_prompts_are_encoded_as_the_reference_does(scheme: str, rendered: str) -> None:
    """Characters outside the vocabulary become their bytes; the space before the first word is where it belongs."""
    from tokenizers import Tokenizer

    definition = sentencepiece_definition(scheme)
    theirs = Tokenizer.from_str(json.dumps(definition))
    ours = TextTokenizer(definition, config={"bos_token": "<s>"})

    assert theirs.encode(rendered, add_special_tokens=False).ids == ours.encode_rendered(rendered)


@pytest.mark.parametrize("scheme", ["normalizer", "always", "first", "never"])
@given(text=words.map(lambda text: text.replace("<s>", "").replace("</s>", "")))
def test_sentencepiece_text_survives_the_round_trip(scheme: str, text: str) -> None:
    ours = TextTokenizer(sentencepiece_definition(scheme), config={"bos_token": "<s>"})
    if scheme in ("always", "first"):
        text = text.lstrip(" ")  # A space that is there already is taken for the one that would be put there.
    ids = ours.encode_prompt(text)

    assert ids[0] == ours.added["<s>"]
    assert ours.num_around(ids) == (1, 0)
    assert ours.decode(ids) == f"<s>{text}"


@given(texts)
def test_byte_level_text_survives_the_round_trip(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode_text(text)) == text


def test_bytes_of_a_sentencepiece_vocabulary_are_bytes() -> None:
    ours = TextTokenizer(sentencepiece_definition("always"))

    assert [ours.table[3 + byte] for byte in (0, 0x41, 0xFF)] == [b"\x00", b"A", b"\xff"]
    assert ours.table[ours.encode_text("ab")[0]] == b" ab"


def test_plain_completions_may_write_control_tokens() -> None:
    """Raw prompts have no template, so the client may write control tokens."""
    ids = RENDERER.token_ids(TextPrompt("<|im_start|>user"))

    assert ids[0] == TOKENIZER.added["<|im_start|>"]
    assert RENDERER.token_ids(TokenPrompt((5, 6))) == [5, 6]


def test_a_sequence_start_is_set_also_before_one_of_the_text() -> None:
    """As transformers does it; a client that writes it itself sends `add_special_tokens: false`."""
    ours = TextTokenizer(sentencepiece_definition("always"), config={"bos_token": {"content": "<s>"}})

    assert ours.encode_prompt("<s>a") == [
        ours.added["<s>"],
        *ours.encode_prompt("<s>a", add_special_tokens=False),
    ]


def test_a_padded_vocabulary_has_empty_tokens_at_its_end() -> None:
    ours = byte_level()
    ours.pad_table(ours.vocab_size + 3)

    assert ours.decode([ours.vocab_size + 2]) == ""


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        (
            {**byte_level_definition(), "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
            "WordPiece",
        )
    ],
)
def test_a_vocabulary_of_another_kind_is_refused(definition: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=words):
        TextTokenizer(definition)


def test_a_folder_without_a_tokenizer_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTokenizerError, match=r"tokenizer\.json"):
        TextTokenizer.from_folder(tmp_path)
