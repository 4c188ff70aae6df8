"""The families that can be served are listed, in the documentation and by `plumbline list --supported`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from plumbline.cli import main
from plumbline.engines.native.models.families import FAMILIES, WRAPPED
from plumbline.engines.native.models.gguf import ARCHITECTURES
from plumbline.engines.native.models.quantised import FORMATS
from plumbline.engines.native.models.vision.families import VISIONS
from plumbline.server.loading.overview.page import page
from plumbline.server.loading.overview.supported import _REASONS

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"


@pytest.fixture(scope="module")
def text() -> str:
    return page()


def test_the_documentation_has_the_page_of_models(text: str) -> None:
    """The other models are those of the installed transformers, so another version has another page."""
    written = (Path(__file__).parents[3] / "docs" / "reference" / "models.md").read_text("utf-8")
    if f"transformers, {transformers.__version__} here" not in written:
        pytest.skip("the page is of another version of transformers")
    assert written == text, "run `nox -s generate`"


def test_the_page_has_a_row_for_every_family_and_every_other_model(text: str) -> None:
    ours, others = (re.findall(r"`([^` ]+)`", part) for part in text.split("## Models of other engines"))
    further = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys() - WRAPPED.keys()
    assert {*FAMILIES, *WRAPPED, *FORMATS, *ARCHITECTURES} <= {*ours}
    assert sorted(others[1:]) == sorted(further)


def test_a_row_has_what_its_family_declares(text: str) -> None:
    rows = {row.split(" | ")[1]: row for row in text.splitlines() if row.startswith("| ") and " | " in row}
    assert rows["`llama`"].endswith(" | | `llama` | `llava` | `rope_interleaved` |")
    assert " | a state, experts | " in rows["`qwen3_next`"]
    assert " | latent attention, experts | " in rows["`kimi_k2`"]
    assert rows["`gemma3_text`"].endswith(" | `gemma3` | `gemma3` | `use_bidirectional_attention` |")


def test_images_are_read_for_every_model_of_images_whose_text_runs() -> None:
    assert WRAPPED.keys() == VISIONS.keys()


def test_every_language_model_of_transformers_is_listed_with_its_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "--supported"]) == 0
    ours, others = capsys.readouterr().out.split("llama.cpp", 1)
    lines = [line.split()[0] for line in ours.splitlines() if line.startswith("  ")]
    assert sorted(lines) == sorted([*FAMILIES, *WRAPPED])
    listed = {word.strip(",") for word in others.split()}
    assert listed >= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys() - WRAPPED.keys()
    assert not listed & FAMILIES.keys()


def test_every_type_with_a_reason_is_one_that_our_engine_lacks() -> None:
    named = " ".join(_REASONS.values()).split()
    assert len(named) == len(set(named))
    assert not set(named) & (FAMILIES.keys() | WRAPPED.keys())
    if f"transformers=={transformers.__version__}" in CONSTRAINTS.read_text("utf-8").split():
        assert set(named) <= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys(), "older releases lack some"


def test_the_page_can_be_printed(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert main(["list", "--supported", "--markdown"]) == 0
    assert capsys.readouterr().out == text
