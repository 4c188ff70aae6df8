"""Logprobs over HTTP: their laws, their sentinel, echoed prompts and characters of several tokens (LP-*)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import models
from support.judges import (
    check_text_logprobs,
)
from support.models import (
    SPECIAL,
    TOKENIZER,
    answer_with,
    byte_level_definition,
    scripted,
    served,
    token_chunks,
)
from support.servers.api_calls import GREEDY, SEEDED, Json, chat, complete, native_server
from support.servers.asgi import serving

from plumbline.answer.events import Logprob
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.port.engine import TokenLogprob
from plumbline.server.protocols.completions.writer import _alternatives


@pytest.mark.parametrize("options", [GREEDY, {**SEEDED, "stop": ["e", "�"]}, SEEDED])
@pytest.mark.parametrize("k", [0, 1, 5, 20])
async def test_logprobs_follow_their_laws(options: Json, k: int) -> None:
    """LP-01 to LP-04."""
    async with native_server() as server:
        whole = await chat(
            server, logprobs=True, top_logprobs=k, max_completion_tokens=30, ignore_eos=True, **options
        )
        (choice,) = whole["choices"]
        entries = choice["logprobs"]["content"]
        content = choice["message"]["content"]

        raw = b"".join(bytes(entry["bytes"]) for entry in entries)
        assert raw.decode("utf-8", "replace") == content, "LP-03"
        if "stop" not in options:
            assert not any(entry["token"] in SPECIAL for entry in entries)
            assert len(entries) <= whole["usage"]["completion_tokens"] == 30
        for entry in entries:
            top = entry["top_logprobs"]
            values = [rival["logprob"] for rival in top]
            assert len(top) <= k, "LP-02"
            assert values == sorted(values, reverse=True)
            assert len({tuple(rival["bytes"]) for rival in top}) == len(top) or k == 20
            assert -9999.0 <= entry["logprob"] <= 0
            assert sum(map(math.exp, values)) <= 1 + 1e-3
            same = [rival for rival in top if rival["bytes"] == entry["bytes"]]
            if same:
                assert same[0]["logprob"] == pytest.approx(entry["logprob"], abs=1e-5), "LP-04"
            if options == GREEDY and k:
                assert values[0] == pytest.approx(entry["logprob"], abs=1e-5), "LP-04"
        assert (await chat(server, max_completion_tokens=2))["choices"][0]["logprobs"] is None, "LP-01"


async def test_an_impossible_token_has_the_services_sentinel(monkeypatch: pytest.MonkeyPatch) -> None:
    """LP-02: JSON has no infinities."""
    async with serving(served(scripted(answer_with("a")))) as server:
        monkeypatch.setattr(models, "fake_logprob", lambda _, token_id: TokenLogprob(token_id, float("-inf")))
        entry = (await chat(server, logprobs=True))["choices"][0]["logprobs"]["content"][0]
        legacy = (await complete(server, logprobs=1))["choices"][0]["logprobs"]

        assert entry["logprob"] == -9999.0
        assert legacy["token_logprobs"] == [-9999.0, -9999.0], "of the token and of the end"


async def test_an_echo_has_the_prompt_with_its_logprobs() -> None:
    """CMP-04: the first token has none, and the lists cover prompt and completion."""
    async with native_server() as server:
        prompt = "hello € world"
        whole = await complete(server, prompt=prompt, echo=True, logprobs=2, max_tokens=5, **GREEDY)
        (choice,) = whole["choices"]
        logprobs = choice["logprobs"]
        num_prompt = whole["usage"]["prompt_tokens"]

        assert choice["text"].startswith(prompt)
        check_text_logprobs(choice["text"], logprobs)
        assert logprobs["token_logprobs"][0] is None
        assert None not in logprobs["token_logprobs"][1:]
        assert "".join(logprobs["tokens"][:num_prompt]) == prompt
        assert len(logprobs["tokens"]) == num_prompt + 5
        assert all(len(top) <= 3 for top in logprobs["top_logprobs"][1:]), "CMP-05: at most k + 1"
        # What the model gives to a token does not depend on who wrote it.
        scored = await complete(
            server, prompt=choice["text"][: len(prompt)], echo=True, logprobs=2, max_tokens=0
        )
        assert scored["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(
            logprobs["token_logprobs"][1:num_prompt], abs=1e-4
        )


@pytest.mark.parametrize("logprobs", [{}, {"logprobs": 1}])
async def test_an_echo_does_not_show_the_sequence_start(logprobs: Json) -> None:
    """CMP-04: the text begins with the prompt, and the token lists still cover every prompt token."""
    definition = byte_level_definition()
    start = {"id": "<|endoftext|>", "type_id": 0}
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": start}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|endoftext|>": {
                "id": "<|endoftext|>",
                "ids": [TOKENIZER.added["<|endoftext|>"]],
                "tokens": ["<|endoftext|>"],
            }
        },
    }
    renderer = Renderer(TextTokenizer(definition, config={"bos_token": "<|endoftext|>"}), None)
    async with serving(served(scripted(answer_with("!")), renderer=renderer)) as server:
        whole = await complete(server, prompt="a €", echo=True, **logprobs)
        (choice,) = whole["choices"]

        assert choice["text"] == "a €!"
        assert whole["usage"]["prompt_tokens"] == 1 + len(TOKENIZER.encode_text("a €"))
        if logprobs:
            check_text_logprobs(choice["text"], choice["logprobs"])
            assert len(choice["logprobs"]["tokens"]) == whole["usage"]["total_tokens"]
        # Alone it is enough of a prompt, and where the client writes it, it is the client's.
        assert (await complete(server, prompt="", echo=True))["choices"][0]["text"] == "!"
        written = await complete(server, prompt="<|endoftext|>a", echo=True, **logprobs)
        assert written["choices"][0]["text"] == "<|endoftext|>a!"


async def test_a_character_over_several_tokens_comes_with_its_last_token() -> None:
    """CMP-05: the tokens join to the text, also where one ends inside a character."""
    pieces = [TOKENIZER.table.index(raw) for raw in (b"\xe2", b"\x82", b"\xac", b"\xf0", b"\x9f")]
    async with serving(served(scripted(lambda request: token_chunks(request, pieces)))) as server:
        (choice,) = (await complete(server, logprobs=1))["choices"]

        assert choice["text"] == "€�"
        assert choice["logprobs"]["tokens"] == ["", "", "€", "", "�", ""], "the last one is the end"
        assert choice["logprobs"]["text_offset"] == [0, 0, 0, 1, 1, 2]
        check_text_logprobs(choice["text"], choice["logprobs"])


RAWS = st.sampled_from(
    [b"", b"a", b"\xe2", b"\x82", b"\xe2\x82", "€".encode(), "\ufffd".encode(), b"bytes:\\x82"]
)


@given(
    raws=st.lists(RAWS, min_size=1, max_size=12),
    drawn=st.integers(0, 11),
    name=st.sampled_from(["", "a", "€"]),
)
def test_no_alternative_of_a_completion_is_lost(raws: list[bytes], drawn: int, name: str) -> None:
    """CMP-05: in a map by text, parts of characters, equal texts and tokens without text have names of their own."""
    top = tuple((i, raw.decode("utf-8", "replace"), raw, -1.0 - i) for i, raw in enumerate(raws))
    entry = Logprob(token="", token_id=drawn, raw=b"", text=name, logprob=-1.0 - drawn, top=top)
    found = _alternatives(entry, name)

    assert found[name] == -1.0 - drawn
    assert sorted(found.values()) == sorted({-1.0 - drawn, *(value for *_, value in top)})
    for place, (_, text, raw, value) in enumerate(top):
        if raw and text.encode() != raw and place != drawn and raws.count(raw) == 1:
            assert found[
                "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
            ] == value or b"bytes:" in b"".join(raws)
