"""Files that are text are read like text after their name, in chat and in Responses; others are refused by field.

Laws: any text in any encoding that a data URL names gives the same prompt as the text itself; bytes that are not text,
and files that the request only names, are a 400 and never a prompt.
"""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.answer.turn import Message
from plumbline.server.protocols.common import text_files

from .minimal_requests import read, refusal

APIS = ("chat", "responses")
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
LINES = st.lists(WORDS, max_size=4).map("\r\n\t".join).filter(lambda text: not text.startswith("%PDF-"))
NAMES = st.sampled_from([None, "notes.md", "data.csv", "größe.py"])
KINDS = st.sampled_from(
    [
        "text/plain",
        "text/markdown",
        "text/csv",
        "application/json",
        "application/octet-stream",
        "image/svg+xml",
        "",
    ]
)


def part(api: str, **members: Any) -> dict[str, Any]:
    return {"type": "input_file", **members} if api == "responses" else {"type": "file", "file": members}


def request(api: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"input" if api == "responses" else "messages": [{"role": "user", "content": list(parts)}]}


def text_part(api: str, text: str) -> dict[str, Any]:
    return {"type": "input_text" if api == "responses" else "text", "text": text}


def messages(api: str, *parts: dict[str, Any]) -> tuple[Message, ...]:
    found: tuple[Message, ...] = read(api, **request(api, *parts)).prompt.messages
    return found


def refused(api: str, **members: Any) -> tuple[str | None, str | None]:
    error = refusal(api, **request(api, part(api, **members)))
    where = "input[0].content[0]" if api == "responses" else "messages[0].content[0].file"
    return (error.param or "").removeprefix(where), error.code


def url(data: bytes, kind: str = "text/plain") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def ways(text: str, kind: str) -> list[str]:
    """Return the forms in which a client may send a text."""
    data = text.encode()
    plain = base64.b64encode(data).decode()
    found = [
        url(data, kind),
        url(data, f"{kind}; charset=UTF-8"),
        url(b"\xef\xbb\xbf" + data, kind),
        url(text.encode("utf-16"), kind),
        url(text.encode("utf-16"), f"{kind};charset=utf-16"),
        f"data:{kind},{quote(text)}",
        plain,
        plain.rstrip("="),
        "\n".join(plain[i : i + 5] for i in range(0, len(plain), 5)),
    ]
    if text.encode("latin-1", "ignore").decode("latin-1") == text:
        found.append(url(text.encode("latin-1"), f"{kind};charset=ISO-8859-1"))
    return found


@given(st.sampled_from(APIS), LINES.filter(lambda text: text[:1] != "\ufeff"), NAMES, KINDS, st.data())
def test_a_file_of_text_is_read_like_its_text(
    api: str, text: str, name: str | None, kind: str, data: st.DataObject
) -> None:
    sent = data.draw(st.sampled_from(ways(text, kind)))
    members = {"file_data": sent} if name is None else {"file_data": sent, "filename": name}
    shown = text if name is None else f"{name}\n{text}"
    question = text_part(api, "Read it.")
    assert messages(api, part(api, **members), question) == messages(api, text_part(api, shown), question)


@given(
    st.sampled_from(APIS),
    st.one_of(
        st.binary(max_size=40).map(lambda data: data + b"\0"),
        st.binary(max_size=40).map(lambda data: b"\xff\xd8" + data),
        st.sampled_from([b"%PDF-1.7\n1 0 obj", b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\x7fELF\x02\x01"]),
    ),
    KINDS,
)
def test_bytes_that_are_not_text_are_refused(api: str, data: bytes, kind: str) -> None:
    assert refused(api, file_data=url(data, kind), filename="a.txt") == (".file_data", "unsupported_value")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["application/pdf", "image/png", "audio/wav", "application/zip"])
def test_a_file_of_a_kind_that_is_no_text_is_refused_whatever_it_has(api: str, kind: str) -> None:
    assert refused(api, file_data=url(b"abc", kind)) == (".file_data", "unsupported_value")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"file_id": "file-1"}, (".file_id", "unsupported_parameter")),
        ({"filename": "a.txt"}, (".file_data", "missing_required_parameter")),
        ({"file_data": "data:text/plain;base64"}, (".file_data", "invalid_value")),
        ({"file_data": "data:text/plain;base64,a"}, (".file_data", "invalid_value")),
        ({"file_data": "*"}, (".file_data", "invalid_value")),
        ({"file_data": "data:text/plain;charset=idna;base64,YQ=="}, (".file_data", "unsupported_value")),
    ],
)
def test_a_file_without_bytes_is_refused_by_its_field(
    api: str, members: dict[str, str], expected: tuple[str, str]
) -> None:
    assert refused(api, **members) == expected


def test_a_file_by_address_is_refused() -> None:
    assert refused("responses", file_url="https://a.b/c.txt") == (".file_url", "unsupported_parameter")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("way", ["base64", "percent"])
def test_the_bytes_of_a_file_are_bounded(api: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_BYTES", 100)
    monkeypatch.setattr(text_files, "MAX_ESCAPED", 300)

    def sent(size: int) -> str:
        return url(b"a" * size) if way == "base64" else "data:," + "%61" * size

    assert messages(api, part(api, file_data=sent(100))) == messages(api, text_part(api, "a" * 100))
    assert refused(api, file_data=sent(101)) == (".file_data", "invalid_value")
    assert refused(api, file_data=sent(1000)) == (".file_data", "invalid_value")
