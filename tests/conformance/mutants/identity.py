"""Mutants with equal ids or wrong creation times."""

from __future__ import annotations

import re

from mutants.basic import put
from mutants.mutations import Mutant, Mutation, body, body_bytes, header
from plumbline_conformance.checks.laws import WHOLE

__all__ = ["IDENTITY"]


def one_id(prefix: str) -> Mutation:
    """Give every answer the same id, in all of its events."""
    pattern = re.compile(prefix.encode() + rb"[0-9]+")
    return body_bytes(lambda content: pattern.sub(prefix.encode() + b"0", content), None)


ONE_REQUEST = header("x-request-id", "req_0", None)
ROWS: list[tuple[str, str, Mutation, str]] = [
    ("chat/text", "made at no time", body(put("created", 0)), "created shape"),
    (
        "chat/text",
        "made in milliseconds",
        body(lambda a: a.update(created=a["created"] * 1000)),
        "created shape",
    ),
    ("chat/text", "made two hours ago", body(lambda a: a.update(created=a["created"] - 7200)), "created"),
    ("chat/stream-text", "one id for all answers", one_id("chatcmpl-"), "ids"),
    ("chat/stream-text", "one id for all requests", ONE_REQUEST, "request-ids"),
    ("completions/text", "made at no time", body(put("created", 0)), "created"),
    ("completions/stop", "one id for all answers", one_id("cmpl-"), "ids"),
    ("responses/stream-text", "made at no time", body(put("created_at", 0), WHOLE), "created state"),
    ("responses/stream-text", "one id for all answers", one_id("resp_"), "ids"),
    ("responses/stream-text", "one id for all requests", ONE_REQUEST, "request-ids"),
]
IDENTITY: list[Mutant] = [
    (scenario, name, mutation, tuple(slugs.split())) for scenario, name, mutation, slugs in ROWS
]
