"""Mutants that refuse or misread parts of a prompt."""

from __future__ import annotations

from typing import Any

from mutants.basic import counted, put
from mutants.mutations import LAST, Mutant, Mutation, body, changed, each, status, without
from plumbline_conformance.checks.laws import WHOLE

__all__ = ["PROMPTS"]


def phaseless(page: Any) -> None:
    for item in page["data"]:
        item.pop("phase", None)


def early(answer: Any) -> None:
    answer["completed_at"] = answer["created_at"] - 60


SAID = b'{"choices": [{"message": {"role": "assistant", "content": "Hi"}}]}'
AS_TEXT = each(LAST, lambda exchange: changed(exchange, status=200, frames=[(0.0, SAID)]))
ROWS: list[tuple[str, str, Mutation, str]] = [
    ("errors/functions", "functions ignored", AS_TEXT, "called"),
    ("errors/rare-fields", "a crash at audio", status(500, "modalities"), "no-crash"),
    ("errors/rare-fields", "a crash at a search", status(500, "web_search_options"), "no-crash"),
    ("chat/service-tier", "no tier", body(without("service_tier")), "echoed"),
    ("errors/unknown-include", "anything is included", status(200), "refused"),
    ("errors/unknown-item", "forgotten", status(200), "refused"),
    ("responses/instructions", "forgotten", body(counted("input_tokens", 2), "long"), "longer"),
    (
        "responses/instructions-once",
        "inherited instructions",
        body(counted("input_tokens", 1200), "continued"),
        "not-inherited",
    ),
    (
        "responses/instructions-once",
        "instructions of the turn before",
        body(put("instructions", " ".join(["Be kind."] * 120)), "continued"),
        "unnamed",
    ),
    ("responses/tool", "an end before its beginning", body(early, WHOLE), "ended state"),
    ("responses/two-parents", "one of them forgotten", status(200, "two_parents"), "refused sound"),
    ("responses/phase", "no phases", body(phaseless, "items"), "kept"),
    ("chat/roles", "no system messages", status(400, "system"), "system"),
    ("chat/roles", "no developer messages", status(422, "developer"), "developer"),
    ("chat/roles", "no content parts", status(400, "parts"), "parts"),
    ("chat/roles", "no parts of an assistant", status(400, "history"), "history"),
    ("chat/roles", "parts for nothing", body(counted("prompt_tokens", 9), "parts"), "same-text"),
    ("chat/cut-call", "cut calls refused", status(400, "cut"), "taken"),
    ("chat/cut-call", "cut arguments dropped", body(counted("prompt_tokens", 9), "long_cut"), "read"),
    ("chat/markers", "control tokens from users", body(counted("prompt_tokens", 10), "endoftext"), "text"),
    ("chat/roles", "parts in Python", body(counted("prompt_tokens", 130), "parts"), "same-text"),
]
PROMPTS: list[Mutant] = [
    (scenario, name, mutation, tuple(tripped.split())) for scenario, name, mutation, tripped in ROWS
]
