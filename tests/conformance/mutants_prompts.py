"""Servers that refuse or misread what a prompt may be made of."""

from __future__ import annotations

from mutants_basic import put
from mutations import Mutant, Mutation, body, status

__all__ = ["PROMPTS"]

ROWS: list[tuple[str, str, Mutation, str]] = [
    ("chat/roles", "no system messages", status(400, 1), "system"),
    ("chat/roles", "no developer messages", status(422, 2), "developer"),
    ("chat/roles", "no content parts", status(400, 3), "parts"),
    ("chat/roles", "no parts of an assistant", status(400, 4), "history"),
    ("chat/roles", "parts for nothing", body(put("usage", "prompt_tokens", 9), 3), "same-text"),
    ("chat/markers", "control tokens from users", body(put("usage", "prompt_tokens", 10), 3), "text"),
    ("chat/roles", "parts in Python", body(put("usage", "prompt_tokens", 130), 3), "same-text"),
]
PROMPTS: list[Mutant] = [
    (scenario, name, mutation, tuple(tripped.split())) for scenario, name, mutation, tripped in ROWS
]
