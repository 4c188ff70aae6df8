"""Protect the texts of one request, so that no text of a client becomes a control token in the prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.answer.dialects.spec.call_format import WrittenCall
from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.guard import Guard, TokenPattern
from plumbline.answer.text.prompts.encoders import PromptFormat
from plumbline.answer.text.prompts.joined_messages import as_objects
from plumbline.answer.text.prompts.template_values import guarded, template_message
from plumbline.answer.text.prompts.written_tools import tools_text
from plumbline.answer.text.templates.template import ChatTemplate
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.answer.turn import Message
from plumbline.base.end_tokens import CONTROL_FORM
from plumbline.base.json_text import is_object

__all__ = ["Protection", "guarded_tokens"]

_OURS = 3
"""Marks in a row around markup that the server wrote. Protected texts that meet have two at most."""


class Protection:
    """Protect the texts of one request.

    Args:
        guard: the marks of the request.
        marks: what a text of a client must not become.
        control: what a text of the assistant must not become: earlier answers may contain the plain markers of the
            model family (`<think>`, `<tool_call>`), because templates look for them there.
    """

    def __init__(self, guard: Guard, marks: TokenPattern, control: TokenPattern) -> None:
        self._guard = guard
        self._marks = marks
        self._control = control
        self._ours = guard.mark * _OURS

    def client(self, text: str) -> str:
        """Protect a text of a client."""
        return self._guard.protect(text, self._marks)

    def message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Protect a message for a template."""
        return guarded(
            message, self._said if message["role"] == "assistant" else self.instruction, self.client
        )

    def instruction(self, text: str) -> str:
        """Protect a text of a client that may have what `tools` has written."""
        return self._but_for_ours(text, self._marks)

    def tools(self, tools: Sequence[Mapping[str, Any]], write: CallWriter) -> str:
        """Describe tools; the markup of the calls in it may become control tokens."""
        return f"{self._ours}{tools_text(tools, write, self.client)}{self._ours}"

    def written(self, message: Message, write: CallWriter) -> str:
        """Return the text of a message with its calls after it; their markup may become control tokens."""
        (shown,) = as_objects([message])
        functions = [call["function"] for call in template_message(shown, "string")["tool_calls"]]
        calls = [
            WrittenCall(
                self.client(function["name"]), _object(self.client(str(function["arguments"]))), number
            )
            for number, function in enumerate(functions)
        ]
        text = message.content or ""
        return f"{text}{self._ours}{write(calls, bool(text.strip()))}{self._ours}"

    def _said(self, text: str) -> str:
        """Protect a text of the assistant, but for what `written` has written."""
        return self._but_for_ours(text, self._control)

    def _but_for_ours(self, text: str, marks: TokenPattern) -> str:
        """Protect a text, but for what the server has written."""
        return "".join(
            part if number % 2 else self._guard.protect(part, marks)
            for number, part in enumerate(text.split(self._ours))
        )


def _object(arguments: str) -> str:
    """Return arguments as a JSON object: an object that cannot be read is a text of one."""
    if is_object(arguments):
        return arguments
    return json.dumps({"arguments": arguments}, ensure_ascii=False)


def guarded_tokens(tokenizer: TextTokenizer, template: PromptFormat | None) -> TokenPattern:
    """Return the tokens that text of clients must not become: control tokens, and what the prompt format writes.

    Tokens with the form of control tokens count whatever the vocabulary says, and although no template shows them as a
    whole: templates build them from parts, such as a bar and a role.

    All other added tokens are words of the vocabulary, such as the HTML tags of Gemma and the runs of white space of
    many models: as in transformers, text becomes them wherever it is. White space that a template writes is also text.
    """
    source = (
        template.sources
        if isinstance(template, ChatTemplate)
        else ""
        if template is None
        else template.source
    )
    return TokenPattern(
        text
        for text, number in tokenizer.added.items()
        # An encoder has no source, and its models have no such words.
        if number in tokenizer.special_ids
        or CONTROL_FORM.fullmatch(text)
        or (not text.isspace() and (not source or text in source))
    )
