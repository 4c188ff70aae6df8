"""The families that can be served are listed, in the documentation and by `plumbline models --supported`."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from plumbline.cli import main
from plumbline.engines.native.models.families import FAMILIES, WRAPPED
from plumbline.server.loading.overview.supported import _REASONS, table


def test_the_documentation_has_the_table_of_families() -> None:
    """After a change: `plumbline models --supported --markdown`."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "engines.md").read_text("utf-8")
    assert table() in page


def test_every_language_model_of_transformers_is_listed_with_its_engine(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["models", "--supported"]) == 0
    ours, others = capsys.readouterr().out.split("llama.cpp", 1)
    lines = [line.split()[0] for line in ours.splitlines() if line.startswith("  ")]
    assert sorted(lines) == sorted([*FAMILIES, *WRAPPED])
    listed = {word.strip(",") for word in others.split()}
    assert listed >= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys() - WRAPPED.keys()
    assert not listed & FAMILIES.keys()


def test_every_type_with_a_reason_is_one_that_our_engine_lacks() -> None:
    named = " ".join(_REASONS.values()).split()
    assert len(named) == len(set(named))
    assert set(named) <= MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.keys() - FAMILIES.keys() - WRAPPED.keys()


def test_the_table_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--supported", "--markdown"]) == 0
    assert capsys.readouterr().out == table() + "\n"
