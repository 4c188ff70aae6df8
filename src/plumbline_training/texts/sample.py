"""Define one training or evaluation case, before it becomes text."""

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass
class SampleCall:
    """One function call the model should make."""

    name: str
    arguments: dict[str, Any]

    def text(self) -> str:
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)

    def as_message(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class SampleTurn:
    """A request, its answer, and the short thought before the answer when thinking is on."""

    user: str
    answer: str
    thought: str


@dataclass
class Sample:
    """Messages up to the reply, and the reply: text or calls, with or without a thought."""

    skill: str
    messages: list[Message]
    answer: str = ""
    thought: str = ""
    calls: list[SampleCall] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = False
    must_contain: list[str] = field(default_factory=list)
    """For the evaluation: strings that the answer must contain; empty if the whole answer is compared."""

    def completion(self) -> str:
        """Return the reply as the model writes it after the generation prompt, without the end token."""
        if self.calls:
            body = "\n".join(f"<tool_call>\n{c.text()}\n</tool_call>" for c in self.calls)
        else:
            body = self.answer
        return f"<think>\n{self.thought}\n</think>\n\n{body}" if self.thinking else body
