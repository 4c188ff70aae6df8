"""Documents and results of searches in Messages: their text is read, and anything else is refused by its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .message_requests import CALL, Json, prompt, refusal

TEXT = st.text("ab \n", min_size=1, max_size=8)


def document(text: str, way: str, **fields: Any) -> Json:
    if way == "search_result":
        return {"type": way, "content": [{"type": "text", "text": text}], **fields}
    sources: dict[str, Json] = {
        "text": {"type": "text", "media_type": "text/plain", "data": text},
        "string": {"type": "content", "content": text},
        "content": {"type": "content", "content": [{"type": "text", "text": text}]},
    }
    return {"type": "document", "source": sources[way], **fields}


@given(
    TEXT,
    st.sampled_from(["text", "string", "content", "search_result"]),
    st.booleans(),
    st.sampled_from(
        [
            {},
            {"title": None},
            {"title": "T"},
            {"cache_control": {"type": "ephemeral"}},
            {"citations": {"enabled": False}},
        ]
    ),
)
def test_the_text_of_a_document_is_read_like_text(text: str, way: str, in_result: bool, fields: Json) -> None:
    """In a message and in the result of a tool."""
    shown = f"{fields['title']}\n{text}" if fields.get("title") else text

    def messages(block: Json) -> list[Json]:
        question = {"type": "text", "text": "Read it."}
        if not in_result:
            return [{"role": "user", "content": [block, question]}]
        result = {"type": "tool_result", "tool_use_id": CALL["id"], "content": [block, question]}
        return [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [result]},
        ]

    assert prompt(messages=messages(document(text, way, **fields))) == prompt(
        messages=messages({"type": "text", "text": shown})
    )


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ({"type": "document"}, "source.type"),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
            },
            "source.type",
        ),
        ({"type": "document", "source": {"type": "url", "url": "https://a"}}, "source.type"),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {}}]}},
            "source.content[0].type",
        ),
        ({"type": "search_result", "content": [3]}, "content[0].type"),
    ],
)
def test_what_is_not_text_is_refused_by_its_field(block: Json, field: str) -> None:
    error = refusal(messages=[{"role": "user", "content": [block]}])
    assert error.param == f"messages[0].content[0].{field}"


@given(st.lists(st.sampled_from(["tool", "text"]), min_size=1, max_size=3))
def test_the_names_of_found_tools_are_lines_of_a_result(kinds: list[str]) -> None:
    """Claude Code's search of tools returns references instead of text."""
    blocks = [
        {"type": "tool_reference", "tool_name": "f"} if kind == "tool" else {"type": "text", "text": "so"}
        for kind in kinds
    ]
    result = {"type": "tool_result", "tool_use_id": CALL["id"], "content": blocks}
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result]},
    ]
    shown = "\n".join("Found tool: f" if kind == "tool" else "so" for kind in kinds)
    assert prompt(messages=turns).messages[-1].content == shown
