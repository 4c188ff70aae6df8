"""Write the output of the reference, a pure function of the request; a token is a character."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["WORDS", "Call", "Output", "entry", "output", "sample"]

WORDS = "Grüße! 🌊 It is 21 °C."
COUNTED = ", ".join(map(str, range(1, 101)))
THOUGHT = "Hm 🌊."
WRITTEN = {
    "custom": "2024",
    "shell": '{"commands": ["ls -l", "echo Grüße"]}',
    "local_shell": '{"command": ["echo", "Grüße"]}',
    "tool_search": '{"query": "Grüße"}',
    "apply_patch": '{"type": "create_file", "path": "a.txt", "diff": "+Grüße"}',
}
"""What the model writes to call a tool that is not a function."""


@dataclass(frozen=True)
class Call:
    """A call; `arguments` has the input of a custom tool."""

    name: str
    arguments: str
    kind: str = "function"


@dataclass(frozen=True)
class Output:
    """The output of one choice or response."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[Call, ...] = field(default=())
    finish: str = "stop"

    @property
    def tokens(self) -> int:
        """The number of tokens: one per character."""
        return len(self.reasoning) + len(self.text) + sum(len(call.arguments) for call in self.calls)


def output(
    question: str,
    *,
    tools: list[dict[str, Any]],
    choice: Any = None,
    parallel: bool = True,
    thinks: bool = False,
    constraint: dict[str, Any] | None = None,
    stop: list[str] | None = None,
    limit: int | None = None,
) -> Output:
    """Return the output of the reference.

    Args:
        question: the last message of the user, or empty when a tool has just answered.
        tools: each `{"name", "parameters"}`, or `{"name", "kind"}`.
        choice: `none`, `auto`, `required`, or `{"names": [...], "mode": ...}`.
        parallel: whether several calls are allowed.
        thinks: whether to begin with reasoning.
        constraint: a JSON schema, `{"regex": ...}` or `{"choice": [...]}`.
        stop: stop strings.
        limit: maximum number of tokens.
    """
    names = choice["names"] if isinstance(choice, dict) else [tool["name"] for tool in tools]
    mode = choice["mode"] if isinstance(choice, dict) else choice or "auto"
    able = [tool for tool in tools if tool["name"] in names]
    wanted = [tool for tool in able if f"Use {tool['name']}" in question] if mode != "none" else []
    if not wanted and mode == "required":
        wanted = able[:1]
    thought = THOUGHT if thinks else ""
    if wanted:
        calls = tuple(_call(tool, question) for tool in (wanted if parallel else wanted[:1]))
        return _cut(Output(reasoning=thought, calls=calls, finish="tool_calls"), limit)
    words = COUNTED if "one to a hundred" in question else WORDS
    text = words if constraint is None else _structured_text(constraint)
    places = [place for word in stop or [] if (place := text.find(word)) >= 0]
    return _cut(Output(reasoning=thought, text=text[: min(places)] if places else text), limit)


def _call(tool: dict[str, Any], question: str) -> Call:
    kind = tool.get("kind", "function")
    if kind != "function":
        return Call(tool["name"], WRITTEN[kind], kind)
    arguments = sample(tool.get("parameters") or {})
    if "text" in arguments and " with text " in question:
        arguments["text"] = question.partition(" with text ")[2]
    return Call(tool["name"], json.dumps(arguments, ensure_ascii=False))


def _structured_text(constraint: dict[str, Any]) -> str:
    if "regex" in constraint:
        return "2024"
    return (
        str(constraint["choice"][0])
        if "choice" in constraint
        else json.dumps(sample(constraint), ensure_ascii=False)
    )


def sample(schema: dict[str, Any], whole: dict[str, Any] | None = None) -> Any:
    """Return a value that is valid under a simple schema.

    Args:
        schema: the schema.
        whole: the schema that it is a part of, which has the definitions.
    """
    whole = whole or schema
    if "$ref" in schema:
        return sample(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    if "anyOf" in schema:
        return sample(schema["anyOf"][0], whole)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "array":
            return [sample(schema.get("items", {}), whole)] * max(1, schema.get("minItems", 1))
        case "string":
            return _string(schema)
        case "integer":
            return _integer(schema)
        case "number":
            return 21.5
        case "boolean":
            return True
        case "null":
            return None
    return {name: sample(member, whole) for name, member in schema.get("properties", {}).items()}


def _string(schema: dict[str, Any]) -> str:
    if "pattern" in schema:
        return "ABC-12"
    if schema.get("format") == "date":
        return "2026-01-31"
    return "Zürich"[: schema.get("maxLength")]


def _integer(schema: dict[str, Any]) -> int:
    allowed = (
        value
        for value in (21, *range(100))
        if schema.get("minimum", 0) <= value <= schema.get("maximum", 99)
        and schema.get("exclusiveMinimum", -1) < value < schema.get("exclusiveMaximum", 100)
        and value % schema.get("multipleOf", 1) == 0
    )
    return next(allowed)  # type: ignore[no-any-return]


def _cut(whole: Output, limit: int | None) -> Output:
    if limit is None or whole.tokens <= limit:
        return whole
    thought = whole.reasoning[:limit]
    text = whole.text[: limit - len(thought)]
    left, calls = limit - len(thought) - len(text), []
    for call in whole.calls:
        calls += [replace(call, arguments=call.arguments[:left])] if left else []
        left -= len(calls[-1].arguments) if left else 0
    return replace(whole, reasoning=thought, text=text, calls=tuple(calls), finish="length")


def entry(char: str, alternatives: int) -> dict[str, Any]:
    """Return the logprob entry of a token, with the requested number of alternatives, up to two."""
    others = [_only(char, -0.5), _only("x" if char != "x" else "y", -1.5)]
    return {**_only(char, -0.5), "top_logprobs": others[:alternatives]}


def _only(char: str, logprob: float) -> dict[str, Any]:
    return {"token": char, "logprob": logprob, "bytes": list(char.encode())}


def pieces(text: str) -> list[str]:
    """Split a text into deltas of a few characters, of different lengths."""
    return re.findall(r"(?s).{1,3}", text)
