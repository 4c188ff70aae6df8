"""Response templates in the styles that transformers and model folders have, and what models of them write."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from plumbline.answer.dialects.parsers.answer_parser import AnswerParser
from plumbline.answer.dialects.parsers.response_templates.response_template import (
    ResponseTemplate,
    ResponseTemplateParser,
)
from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.spec.dialect import Utterance
from support.parsing.dialects import Dialect
from support.parsing.plans import Plan

__all__ = ["CHANNELS", "JSON_CALLS", "TAGGED_CALLS", "TEMPLATES", "Template"]

_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
JSON_CALLS: dict[str, Any] = {
    "start_anchor": "<turn>model\n",
    "defaults": {"role": "assistant"},
    "fields": {
        "reasoning_content": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<call>",
            "close": "</call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*(?:<eot>|<\|end\|>)"},
    },
}
TAGGED_CALLS: dict[str, Any] = {
    "start_anchor": "<turn>model\n",
    "fields": {
        "thinking": {"open": ["<think>", "<thought>"], "close": "</think>"},
        "tool_calls": {
            "open_pattern": r"\s*<call>\s*<fn=(?P<name>[^>\n]+)>",
            "close_pattern": r"</fn>\s*</call>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<p=(?P<key>[^>\n]+)>(?P<value>.*?)</p>"},
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {},
    },
}
CHANNELS: dict[str, Any] = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>[\w.-]+)[^<]*"
            r"(?:<\|constrain\|>json)?<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "content": {"open": "<|channel|>final<|message|>", "close": ["<|return|>", "<|end|>"]},
    },
}
"""No field is implicit: what stands between messages is none of the answer."""
_LAX: dict[str, Any] = {
    "start_anchor": ["<turn>model\n", "<response>"],
    "fields": {
        "reasoning": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|call>call:(?P<name>[\w.-]+)",
            "close": "<call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
            "transform": _CALL,
        },
        "content": {"close": ["<turn|>", "<|response>"]},
    },
}
_PATTERNS: dict[str, Any] = {
    "start_anchor_pattern": r"<turn>\w+\n",
    "fields": {
        "thinking": {"open_pattern": r"(?i)<think(?:ing)?>", "close_pattern": r"(?i)</think(?:ing)?>"},
        "tool_calls": {
            "open_pattern": r"[\[<]tool (?P<name>[^\]>\n]+)[\]>]\n",
            "close_pattern": r"[\[<]/tool[\]>]",
            "repeats": True,
            "content": "kv-lines",
            "content_args": {"kv_sep": " = ", "value_parser": {"name": "json"}},
            "transform": _CALL,
        },
        "content": {"close_pattern": r"\s*$"},
    },
}
"""Nothing begins with a text that is known."""
_LIST: dict[str, Any] = {
    "start_anchor": "<turn>model\n",
    "fields": {
        "thinking": {"open": "[THINK]", "close": "[/THINK]"},
        "tool_calls": {
            "open": "[CALLS]",
            "close": "[/CALLS]",
            "content": "json",
            "transform": {"function": {"name": "{tool}", "arguments": "{parameters}"}},
            "transform_each": True,
        },
        "content": {},
    },
}
"""All calls that follow each other in one region."""
_THINKS: dict[str, Any] = {
    "start_anchor": "<turn>model\n",
    "fields": {"reasoning_content": {}, "content": {"open": "</think>", "close": "<eot>"}},
}
"""An answer begins inside of the thinking."""

Write = Callable[[list[tuple[str, dict[str, Any]]]], str]
"""Writes calls that follow each other."""


class Template(Dialect):
    """A response template with what writes its calls, for the laws of dialects.

    Args:
        name: for messages.
        source: the template.
        thought: the texts around thinking.
        said: the texts around each text.
        calls: what writes calls, if there are any.
        forbidden: what a string in the arguments cannot contain.
        marker: what begins a call.
        markers: what else a text cannot contain and be read as text.
        typed: the calls show what is a string.
    """

    def __init__(
        self,
        name: str,
        source: dict[str, Any],
        *,
        thought: tuple[str, str],
        said: tuple[str, str] = ("", ""),
        calls: Write | None = None,
        forbidden: tuple[str, ...] = (),
        marker: str = "",
        markers: tuple[str, ...] = (),
        typed: bool = True,
    ) -> None:
        super().__init__(None, None)
        self.name, self.source = name, source
        self.template = ResponseTemplate(source)
        self.shows_types = typed
        self.has_calls = calls is not None
        self.forbidden = forbidden
        self._thought, self._said, self._calls = thought, said, calls
        self.marker = marker
        self.markers = sorted(filter(None, {*self.template.markers, marker, *markers}), key=len, reverse=True)
        self.atoms = [*self.markers, *(marker[: len(marker) // 2] for marker in self.markers)]

    def __repr__(self) -> str:
        return f"hf/{self.name}"

    def utterance(self, plan: Plan) -> Utterance:
        """The plan as an utterance that the template can carry."""
        parts: list[str | WrittenCall] = []
        for part in plan.parts:
            if isinstance(part, str):
                text = self.fill_text(part)
                if text and (not parts or isinstance(parts[-1], WrittenCall)):
                    parts.append(text)
            elif self._calls is not None:
                arguments = {key: self._writable(value) for key, value in part[1].items()}
                parts.append(WrittenCall(part[0], json.dumps(arguments, ensure_ascii=False)))
        reasoning = None if plan.reasoning is None else self.fill_text(plan.reasoning) or None
        return Utterance(tuple(parts), reasoning)

    def write(self, utterance: Utterance) -> str:
        """Write an utterance as the model does."""
        written: list[str] = []
        if utterance.reasoning is not None:
            written.append(utterance.reasoning.join(self._thought))
        for is_call, group in groupby(utterance.parts, lambda part: isinstance(part, WrittenCall)):
            parts = list(group)
            if is_call and self._calls is not None:
                calls = [part for part in parts if isinstance(part, WrittenCall)]
                written.append(self._calls([(call.name, json.loads(call.arguments)) for call in calls]))
            else:
                written += [str(part).join(self._said) for part in parts]
        return "".join(written)

    def parser(
        self,
        plan: Plan | None = None,
        *,
        logprobs: bool = False,
        schema: dict[str, Any] | None = None,
        tools: dict[str, dict[str, Any]] | None = None,
        inside: bool = False,
    ) -> AnswerParser:
        """A parser for one answer; see `Dialect.parser`."""
        if tools is None:
            tools = self.tools(plan) if schema is None else dict.fromkeys(self.tools(), schema)
        return ResponseTemplateParser(
            self.template,
            "",
            tools,
            new_id=lambda name, number: f"{name}-{number}",
            logprobs=logprobs,
        )


def _json(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(
        f"\n<call>\n{_dumped({'name': name, 'arguments': arguments})}\n</call>" for name, arguments in calls
    )


def _tagged(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(
        f"\n<call>\n<fn={name}>{''.join(_tags(arguments))}</fn>\n</call>" for name, arguments in calls
    )


def _tags(arguments: dict[str, Any]) -> Iterator[str]:
    for key, value in arguments.items():
        yield f"<p={key}>{value if isinstance(value, str) else _dumped(value)}</p>\n"


def _channels(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_dumped(arguments)}<|call|>"
        for name, arguments in calls
    )


def _lax(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(f"<|call>call:{name}{_lax_value(arguments)}<call|>" for name, arguments in calls)


def _lax_value(value: Any) -> str:
    match value:
        case str():
            return f'<|"|>{value}<|"|>'
        case list():
            return f"[{','.join(map(_lax_value, value))}]"
        case dict():
            named = ((key if key.isidentifier() else _dumped(key), item) for key, item in value.items())
            return "{" + ",".join(f"{key}:{_lax_value(item)}" for key, item in named) + "}"
    return _dumped(value)


def _lines(calls: list[tuple[str, dict[str, Any]]]) -> str:
    return "".join(
        f"<tool {name}>\n"
        + "".join(f"{key} = {_dumped(value)}\n" for key, value in arguments.items())
        + "</tool>"
        for name, arguments in calls
    )


def _list(calls: list[tuple[str, dict[str, Any]]]) -> str:
    listed = [{"tool": name, "parameters": arguments} for name, arguments in calls]
    return f"[CALLS]{_dumped(listed)}[/CALLS]"


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


TEMPLATES = [
    Template(
        "json",
        JSON_CALLS,
        thought=("<think>\n", "\n</think>\n\n"),
        calls=_json,
        forbidden=("</call>",),
        marker="<call>",
        markers=("<eot>", "<|end|>"),
    ),
    Template(
        "tags",
        TAGGED_CALLS,
        thought=("<thought>", "</think>"),
        calls=_tagged,
        forbidden=("</p>", "</fn>"),
        marker="<call>\n<fn=f>",
        markers=("<call>", "<fn=", "</fn>", "</call>"),
        typed=False,
    ),
    Template(
        "channels",
        CHANNELS,
        thought=("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        said=("<|channel|>final<|message|>", "<|end|><|start|>assistant"),
        calls=_channels,
        forbidden=("<|call|>",),
        marker="<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        markers=("<|channel|>",),
    ),
    Template(
        "lax json",
        _LAX,
        thought=("<|channel>thought\n", "<channel|>"),
        calls=_lax,
        forbidden=("<call|>", '<|"|>'),
        marker="<|call>call:f",
        markers=("<|call>",),
    ),
    Template(
        "patterns",
        _PATTERNS,
        thought=("<Think>", "</THINKING>"),
        calls=_lines,
        forbidden=("</tool>", "[/tool]", "</tool]", "[/tool>"),
        marker="<tool f>\n",
        markers=("</tool>", "[/tool]", "<think>", "</think>", "<Thinking>"),
    ),
    Template(
        "a list",
        _LIST,
        thought=("[THINK]", "[/THINK]"),
        calls=_list,
        forbidden=("[/CALLS]",),
        marker="[CALLS]",
    ),
    Template("inside", _THINKS, thought=("", ""), said=("</think>", "<eot>")),
]
"""With and without an implicit field, literals and patterns, JSON and tags."""
