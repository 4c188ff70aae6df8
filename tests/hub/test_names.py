"""Names of models on the hub are read as people copy them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.hub.names import HubName, read_name

_WORD = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
_PART = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,12}", fullmatch=True)


@st.composite
def _names(draw: st.DrawFn) -> HubName:
    return HubName(f"{draw(_WORD)}/{draw(_WORD)}", draw(st.just("") | _PART), draw(st.just("") | _WORD))


@given(_names(), st.sampled_from(["", "hf.co/", "huggingface.co/", "https://huggingface.co/", "hf://"]))
def test_a_written_name_is_read_as_itself(name: HubName, host: str) -> None:
    assert read_name(f"{host}{name}") == name


@given(_names(), st.sampled_from(["tree", "blob", "resolve"]))
def test_an_address_names_its_revision_and_file(name: HubName, kind: str) -> None:
    revision = name.revision or "main"
    file = f"/{name.part}.gguf" if name.part else ""
    found = read_name(f"https://huggingface.co/{name.repository}/{kind}/{revision}{file}?download=true")
    assert found == HubName(name.repository, file[1:], revision)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "qwen",
        "a/b/c",
        "./a/b",
        "/a/b",
        "~/a",
        "../a",
        "a/..",
        "./a",
        "a b/c",
        "a/b:",
        "a/b@",
        "ä/b",
        "a/" + "b" * 999,
    ],
)
def test_what_can_be_no_name_is_none(text: str) -> None:
    assert read_name(text) is None
