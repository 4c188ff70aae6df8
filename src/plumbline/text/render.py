"""Prompts to token ids: the chat template's text with its control tokens, message text without any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from plumbline.text.prompts.encoders import PromptFormat
from plumbline.text.templates.content_format import ContentForm
from plumbline.text.templates.template import TemplateError
from plumbline.text.templates.values import Arguments, NoContent
from plumbline.text.tokenizer import Guard, TextTokenizer, UnguardableTextError
from plumbline.turn import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt, Tool

__all__ = ["Renderer", "UnusedVariableError"]


class UnusedVariableError(TemplateError):
    """The request gives the template something that it would pass over without a word.

    Attributes:
        field: what the client sent.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


_NORMALISED = 4
"""How many times shorter a normaliser may make a text."""


class Renderer:
    """Turns prompts into token ids for one model. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: PromptFormat | None,
        thinking: Callable[[str | None, int | None], Mapping[str, Any]] | None = None,
    ) -> None:
        """Join a model's tokenizer with its prompt format.

        Args:
            tokenizer: the model's.
            template: what renders its conversations.
            thinking: the variables by which this template takes a reasoning effort and a number of tokens for thinking,
                beside the usual two.
        """
        self.tokenizer = tokenizer
        self.template = template
        self._thinking = thinking

    def token_ids(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt.

        Raises:
            UnusedVariableError: documents for a template that does not read them.
            TemplateError: the model has no chat template, or it refused the messages.
        """
        try:
            return self._token_ids(prompt)
        except RecursionError as error:
            raise TemplateError("The messages or tools are nested too deeply.") from error
        except UnguardableTextError as error:
            raise TemplateError(str(error)) from error

    def least_tokens(self, prompt: Prompt) -> int:
        """A number of tokens that the prompt certainly has, from the length of its text alone.

        Encoding megabytes costs seconds and gigabytes; a prompt that cannot fit is known without it. No token has more
        bytes than the longest; the factor leaves room for normalisers, which may shorten a text.
        """
        match prompt:
            case TokenPrompt():
                return len(prompt.token_ids)
            case TextPrompt():
                size = len(prompt.text)
            case ChatPrompt():
                size = sum(len(message.content or "") for message in prompt.messages)
        return size // (self.tokenizer.longest_token * _NORMALISED)

    def _token_ids(self, prompt: Prompt) -> list[int]:
        match prompt:
            case TokenPrompt():
                return list(prompt.token_ids)
            case TextPrompt():
                return self.tokenizer.encode_prompt(prompt.text)
            case ChatPrompt():
                rendered, guard = self._render(prompt)
                return self.tokenizer.encode_rendered(rendered, guard)

    def text(self, prompt: Prompt) -> str:
        """The text of a prompt as the model sees it, control tokens included."""
        return self.tokenizer.decode(self.token_ids(prompt))

    def _effort(self, effort: str | None, budget: int | None) -> dict[str, Any]:
        """Template variables for a reasoning effort and its budget: `none` turns thinking off, anything else on."""
        found: dict[str, Any] = {}
        if effort is not None:
            found = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return found if self._thinking is None else {**found, **self._thinking(effort, budget)}

    def _render(self, prompt: ChatPrompt) -> tuple[str, Guard]:
        if self.template is None:
            raise TemplateError(
                "This model has no chat template, so it cannot be used with messages. Use /v1/completions instead."
            )
        form = self.template.form(tools=bool(prompt.tools))
        messages = [_message(message, form) for message in prompt.messages]
        tools = [_tool(tool) for tool in prompt.tools]
        kwargs = {**self._effort(prompt.effort, prompt.thinking_budget), **prompt.template_kwargs}
        documents = prompt.documents
        if documents is not None and not self.template.uses("documents", tools=bool(prompt.tools)):
            raise UnusedVariableError("documents", "The model's chat template does not read documents.")
        # What a client writes never becomes a control token. The words of an assistant's own earlier turn may carry
        # the plain markers of its family (`<think>`, `<tool_call>`), because templates look for them there.
        tokenizer = self.tokenizer
        guard = Guard(list(_strings([messages, tools, kwargs, documents])), tokenizer.markers)

        def client(text: str) -> str:
            return guard.protect(text, tokenizer.markers)

        def assistant(text: str) -> str:
            return guard.protect(text, tokenizer.control)

        template = self.template

        def rendered(conversation: list[dict[str, Any]]) -> str:
            return template.render(
                conversation,
                tools=[_mapped(tool, client) for tool in tools],
                documents=None
                if documents is None
                else [_mapped(document, client) for document in documents],
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                kwargs={name: _mapped(value, client) for name, value in kwargs.items()},
                mark=guard.mark,
            )

        conversation = [
            _guarded(message, assistant if message["role"] == "assistant" else client, client)
            for message in messages
        ]
        try:
            return rendered(conversation), guard
        except TemplateError:
            # Some templates refuse null outright, though a turn of calls has no other text to give them.
            if not any(isinstance(message["content"], NoContent) for message in conversation):
                raise
        return rendered([_told(message) for message in conversation]), guard


def _guarded(
    message: Mapping[str, Any], in_content: Callable[[str], str], elsewhere: Callable[[str], str]
) -> dict[str, Any]:
    """The message with its texts protected. Its role is not the client's to word, so it is left as it is."""
    return {
        name: value if name == "role" else _mapped(value, in_content if name == "content" else elsewhere)
        for name, value in message.items()
    }


def _content(message: Message, form: ContentForm) -> str | NoContent | list[dict[str, str]]:
    """The content as the template wants it: a string, or parts even where the client sent a string."""
    text = message.content if message.content is not None else ""
    if form == "string" or (form == "either" and message.parts is None):
        return NoContent() if message.content is None else text
    return [{"type": "text", "text": part} for part in ((text,) if message.parts is None else message.parts)]


def _told(message: dict[str, Any]) -> dict[str, Any]:
    """The message with an empty string for content that is null."""
    return {**message, "content": ""} if isinstance(message["content"], NoContent) else message


def _message(message: Message, form: ContentForm) -> dict[str, Any]:
    """A message in the form that templates know, which is that of the chat completions API."""
    fields: dict[str, Any] = {
        # Templates know `system`; `developer` is OpenAI's newer name for the same role.
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, form),
    }
    if message.reasoning is not None:
        # Templates know it under either name; transformers gives them both as well.
        fields["reasoning_content"] = fields["thinking"] = message.reasoning
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        fields["name"] = message.name
    return fields


def _arguments(text: str) -> Arguments | str:
    """The arguments as templates take them, be it the object or its JSON; text that is no JSON object stays text."""
    try:
        value = json.loads(text) if text.strip() else {}
        json.dumps(
            value, ensure_ascii=False
        ).encode()  # Half a surrogate pair can be escaped, but not encoded.
    except (ValueError, RecursionError):
        return text
    return Arguments(value, text if text.strip() else "{}") if isinstance(value, dict) else text


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = (
        dict(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    )
    return {"type": "function", "function": function}


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            if isinstance(value, Arguments):
                yield str(value)
            for key, item in value.items():
                yield str(key)
                yield from _strings(item)
        case list() | tuple():
            for item in value:
                yield from _strings(item)


_OUR_KEYS = frozenset(
    {"type", "function", "name", "arguments", "description", "parameters", "id", "text", "title"}
)
"""Keys that templates ask for."""


def _key(key: Any, change: Callable[[str], str]) -> str:
    return key if key in _OUR_KEYS else change(str(key))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            mapped = {_key(key, change): _mapped(item, change) for key, item in value.items()}
            return Arguments(mapped, change(str(value))) if isinstance(value, Arguments) else mapped
        case list() | tuple():
            return [_mapped(item, change) for item in value]
        case _:
            return value
