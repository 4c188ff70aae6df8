"""Define response templates to benchmark in addition to the dialects: calls in JSON, and calls in tags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from plumbline.answer.dialects.parsers.response_templates.response_template import ResponseTemplate
from plumbline.answer.dialects.spec.dialect import Utterance

__all__ = ["RESPONSE_TEMPLATES", "ResponseTemplateCase"]


class ResponseTemplateCase:
    """A response template, and a renderer of its model's output."""

    def __init__(
        self, name: str, calls: Mapping[str, Any], write: Callable[[str, dict[str, Any]], str]
    ) -> None:
        self.name = name
        self.template = ResponseTemplate(
            {
                "start_anchor": "<|im_start|>assistant\n",
                "fields": {
                    "reasoning_content": {"open": "<think>", "close": "</think>"},
                    "tool_calls": {"repeats": True, **calls},
                    "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|endoftext\|>)"},
                },
            }
        )
        self._write = write

    def write(self, utterance: Utterance) -> str:
        """Render the utterance as the model writes it."""
        thought = "" if utterance.reasoning is None else f"<think>{utterance.reasoning}</think>"
        return thought + "".join(
            part if isinstance(part, str) else self._write(part.name, json.loads(part.arguments))
            for part in utterance.parts
        )


def _in_json(name: str, arguments: dict[str, Any]) -> str:
    return f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _in_tags(name: str, arguments: dict[str, Any]) -> str:
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in arguments.items()}
    tags = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"\n<tool_call>\n<function={name}>\n{tags}</function>\n</tool_call>"


RESPONSE_TEMPLATES = (
    ResponseTemplateCase(
        "hf, json",
        {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        _in_json,
    ),
    ResponseTemplateCase(
        "hf, tags",
        {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>"},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        _in_tags,
    ),
)
"""The delimiters begin with optional white space, as in published templates, which makes them slow to find."""
