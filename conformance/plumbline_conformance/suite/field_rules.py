"""Whose sentence a fault of shape breaks: schemas say what is wrong with a member, rules say what it has to be.

A check of a shape observes several rules, and each of its problems names the one whose sentence speaks of the member.
What no sentence speaks of breaks the rule that the answer is what its schema says.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["rule_of", "rules_of_shape"]

_ECHOED = """
    temperature top_p tools tool_choice parallel_tool_calls instructions max_output_tokens metadata previous_response_id
    text truncation store background reasoning service_tier top_logprobs safety_identifier prompt_cache_key
"""
_SAID = "choices.*.message."
_ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "CreateChatCompletionResponse": (
        ("CHAT-01", "object id created"),
        ("CHAT-03", f"{_SAID}role {_SAID}content {_SAID}refusal"),
        ("CHAT-04", "choices.*.finish_reason"),
        ("CHAT-21", ""),
    ),
    "CreateChatCompletionStreamResponse": (
        ("CS-01", "object id created model"),
        ("CS-03", "choices.*.finish_reason"),
        ("CS-14", "choices.*.logprobs"),
        ("CS-20", ""),
    ),
    "CreateCompletionStreamResponse": (("CMP-08", "choices.*.finish_reason"), ("CMP-01", "")),
    "ChatCompletionLogprobs": (("LP-02", "content"), ("CHAT-21", "")),
    "Response": (
        ("R-01", "object id created_at model"),
        ("R-03", "completed_at error incomplete_details"),
        ("R-11", _ECHOED),
        ("R-21", ""),
    ),
}
"""By schema: a rule, and the members of which it speaks; the last one speaks of everything else."""
_PLACES = {
    name: [(rule, [tuple(place.split(".")) for place in places.split()]) for rule, places in rows]
    for name, rows in _ROWS.items()
}


def rules_of_shape(schema: str) -> tuple[str, ...]:
    """The rules that a value of this schema can break by its shape."""
    return tuple(rule for rule, _ in _ROWS[schema])


def rule_of(schema: str, path: Sequence[str | int]) -> str:
    """The rule that speaks of the member at this path; empty where one rule speaks of all that the schema has."""
    rows = _PLACES.get(schema)
    if rows is None:
        return ""
    for rule, places in rows:
        if any(_within(path, place) for place in places):
            return rule
    return rows[-1][0]


def _within(path: Sequence[str | int], place: tuple[str, ...]) -> bool:
    parts = zip(place, path, strict=False)
    return len(path) >= len(place) and all(wanted in ("*", part) for wanted, part in parts)
