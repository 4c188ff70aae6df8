"""Test that prompt checks accept servers that count other units than tokens."""

from __future__ import annotations

import pytest
from example_servers.good_server import transcripts
from mutants.basic import put
from mutants.mutations import body

from plumbline_conformance.checks.chat.prompts import COPIES, MARKERS, TEMPLATE_TOKENS
from plumbline_conformance.judge.verdicts import judge
from plumbline_conformance.transcript.exchange import Transcript


def counting(scenario: str, *counts: int) -> str:
    """Return the verdict for a server with this counting."""
    seen = transcripts()[scenario]
    asked = seen.exchanges[: len(counts)]
    for one, count in zip(asked, counts, strict=True):
        seen = body(put("usage", "prompt_tokens", count), one.name)(seen)
    exchanges = [one for one in seen.exchanges if one.name in {sent.name for sent in asked}]
    slug = {"chat/markers": "text", "chat/roles": "same-text"}[scenario]
    found = judge(Transcript(scenario=scenario, exchanges=exchanges))
    return next(finding.verdict for finding in found if finding.check == f"{scenario}/{slug}")


def test_a_server_that_counts_words_is_not_accused_of_control_tokens() -> None:
    words = [1 + COPIES] * len(MARKERS)

    assert counting("chat/markers", 1, 1 + COPIES, *words) == "inconclusive"
    assert counting("chat/markers", 1, 1 + 2 * COPIES, *words) == "warn"


@pytest.mark.parametrize("cost", [0, 2 * COPIES, 2 * COPIES + 1, 9 * COPIES])
def test_markers_may_be_taken_out_or_be_text(cost: int) -> None:
    assert counting("chat/markers", 5, 5 + 7 * COPIES, *[5 + cost] * len(MARKERS)) == "pass"


@pytest.mark.parametrize("dress", range(-TEMPLATE_TOKENS, TEMPLATE_TOKENS + 1))
def test_a_template_may_dress_a_part(dress: int) -> None:
    assert counting("chat/roles", 50, 60, 60, 50 + dress, 70) == "pass"
    assert counting("chat/roles", 50, 60, 60, 51 + TEMPLATE_TOKENS, 70) == "fail"
