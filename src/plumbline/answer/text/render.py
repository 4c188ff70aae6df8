"""Render prompts to token ids; only the template can write control tokens, message text cannot."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from plumbline.answer.dialects.written_calls import CallWriter
from plumbline.answer.text.guard import Guard, UnguardableTextError
from plumbline.answer.text.prompts.encoders import PromptFormat
from plumbline.answer.text.prompts.joined_messages import FORMS, FORMS_APART, INSTRUCTED, Form, instructions
from plumbline.answer.text.prompts.omissions import Omissions, Render
from plumbline.answer.text.prompts.protection import Protection, guarded_tokens
from plumbline.answer.text.prompts.template_values import (
    mapped,
    strings,
    template_message,
    template_tool,
    with_descriptions,
    without_null,
)
from plumbline.answer.text.templates.template import ChatTemplate, TemplateError, TemplateSpec
from plumbline.answer.text.templates.values import NoContent
from plumbline.answer.text.templates.workers import Rendering, WorkerTemplate
from plumbline.answer.text.tokenizer import TextTokenizer, UnencodableTextError
from plumbline.answer.turn import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt, Tool

__all__ = ["Renderer", "TooManyTokensError", "UnusedVariableError"]


class UnusedVariableError(TemplateError):
    """The request has a field that the chat template would silently ignore.

    Attributes:
        field: the name of the field.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class TooManyTokensError(Exception):
    """The prompt has more tokens than the caller takes; it was not encoded in full.

    Attributes:
        least: a number of tokens that the prompt has at least.
    """

    def __init__(self, least: int) -> None:
        super().__init__(f"the prompt has at least {least} tokens")
        self.least = least


_NORMALISED = 4
"""The factor by which a normaliser may at most shorten a text."""
_PIECE = 1 << 18
"""Characters that are counted at a time. A tokenizer needs about 130 bytes of memory for each of them."""
_CUT = 64
"""Tokens by which counting in pieces may exceed the true count at each cut, besides the token that is cut in two."""
_USUAL = 4
"""Characters of a usual token. Shorter texts are encoded at once, because that costs little."""


class Renderer:
    """Render prompts of one model to token ids. Safe to use from several threads."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        template: PromptFormat | None,
        thinking: Callable[[str | None, int | None], Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        write_calls: CallWriter | None = None,
    ) -> None:
        """Join a model's tokenizer with its prompt format.

        Args:
            tokenizer: the model's tokenizer.
            template: renders its conversations.
            thinking: returns the template variables for a reasoning effort and a thinking budget, in addition to the
                usual ones.
            variables: template variables that prompts have by default; those of a request win.
            write_calls: writes earlier calls as text where a template shows none; None shows what the template shows.
        """
        self.tokenizer = tokenizer
        self.template = template
        self._thinking = thinking
        self._variables = variables or {}
        self._write_calls = write_calls
        self._guarded = guarded_tokens(tokenizer, template)
        self._omissions = Omissions()
        self._rendering: Rendering | None = None

    def within(self, rendering: Rendering) -> Renderer:
        """Return a renderer of the same model whose templates render in a worker, while `rendering` is lent."""
        found = copy.copy(self)
        found._rendering = rendering
        if isinstance(self.template, ChatTemplate) and not self.template.is_trusted:
            found.template = WorkerTemplate(self.template.spec, self.template.facts, rendering)
        return found

    def needs_worker(self, prompt: Prompt) -> bool:
        """Return whether a prompt is rendered by a template that is not trusted, of the model or of the request."""
        if not isinstance(prompt, ChatPrompt) or prompt.token_ids is not None:
            return False
        if prompt.chat_template is not None:
            return True
        return isinstance(self.template, ChatTemplate) and not self.template.is_trusted

    def token_ids(self, prompt: Prompt, most: int | None = None) -> list[int]:
        """Return the token ids of a prompt.

        Args:
            prompt: the prompt.
            most: tokens that it may have. A much longer one is counted in pieces until it has more: encoding 10 MB at
                once costs gigabytes. One that is hardly longer is returned all the same.

        Raises:
            TooManyTokensError: the prompt has more tokens than `most`.
            UnusedVariableError: the prompt has documents and the template does not read them.
            TemplateError: the model has no chat template, or the template refused the messages.
        """
        try:
            return self._token_ids(prompt, most)
        except RecursionError as error:
            raise TemplateError("The messages or tools are nested too deeply.") from error
        except (UnguardableTextError, UnencodableTextError) as error:
            raise TemplateError(str(error)) from error

    def least_tokens(self, prompt: Prompt) -> int:
        """Return a lower bound on the tokens of a prompt, from the length of its text.

        Encoding megabytes costs seconds and gigabytes, so a prompt that cannot fit is refused without encoding it. The
        bound assumes that every token is as long as the longest, after a normaliser has shortened the text.
        """
        match prompt:
            case TokenPrompt():
                return len(prompt.token_ids)
            case TextPrompt():
                size = len(prompt.text) + len(prompt.suffix or "")
            case ChatPrompt(token_ids=tuple(token_ids)):
                return len(token_ids)
            case ChatPrompt():
                size = sum(len(message.content or "") for message in prompt.messages)
        return size // (self.tokenizer.longest_token * _NORMALISED)

    def _token_ids(self, prompt: Prompt, most: int | None) -> list[int]:
        match prompt:
            case TokenPrompt():
                return list(prompt.token_ids)
            case TextPrompt():
                self._check_length(prompt.text + (prompt.suffix or ""), None, most)
                if prompt.suffix is not None:
                    return self.tokenizer.encode_gap(
                        prompt.text, prompt.suffix, add_special_tokens=prompt.add_special_tokens
                    )
                return self.tokenizer.encode_prompt(prompt.text, add_special_tokens=prompt.add_special_tokens)
            case ChatPrompt(token_ids=tuple(token_ids)):
                return list(token_ids)
            case ChatPrompt():
                rendered, guard = self._render(prompt)
                self._check_length(rendered, guard, most)
                ids = self.tokenizer.encode_rendered(rendered, guard)
                return self.tokenizer.with_special(ids) if prompt.add_special_tokens else ids

    def _check_length(self, text: str, guard: Guard | None, most: int | None) -> None:
        """Refuse a long text that has more tokens than `most`, without encoding all of it."""
        if most is None or len(text) <= max(_PIECE, _USUAL * most):
            return
        found = 0
        cut = _CUT + self.tokenizer.longest_token
        for start in range(0, len(text), _PIECE):
            found += len(self.tokenizer.encode_rendered(text[start : start + _PIECE], guard)) - cut
            if found > most:
                raise TooManyTokensError(found)

    def text(self, prompt: Prompt) -> str:
        """Return the text of a prompt as the model sees it, control tokens included."""
        return self.tokenizer.decode(self.token_ids(prompt))

    def _effort(self, effort: str | None, budget: int | None) -> dict[str, Any]:
        """Return the template variables for a reasoning effort and budget: `none` turns thinking off, others on."""
        found: dict[str, Any] = {}
        if effort is not None:
            found = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
        return found if self._thinking is None else {**found, **self._thinking(effort, budget)}

    def left_out(self) -> list[str]:
        """Return what the template shows in no form of earlier calls, with tools in the request."""
        if self.template is None or self._write_calls is None:
            return []
        trial, protection = self._tried(self.template)
        write = partial(protection.written, write=self._write_calls)
        found = [kind.name for kind in self._omissions.left_out(True, trial, write)]
        return [*(["tools"] if self.writes_tools() is None else []), *found]

    def writes_tools(self) -> bool | None:
        """Return whether tools stand in the system message, because the template has no place for them.

        None if it shows no system message either, so that the model sees no tools.
        """
        if self.template is None or self._write_calls is None:
            return False
        trial, protection = self._tried(self.template)
        return self._omissions.writes_tools(trial, partial(protection.tools, write=self._write_calls))

    def _tried(self, template: PromptFormat) -> tuple[Render, Protection]:
        """Return how examples with tools are rendered and protected."""
        guard = Guard([], self._guarded)
        return (
            _in_any_form(partial(self._trial, template, True, guard.mark)),
            Protection(guard, self._guarded, self.tokenizer.control),
        )

    def _trial(
        self, template: PromptFormat, tools: bool, mark: str, sent: Sequence[Message], tool: Tool
    ) -> str:
        """Render without anything of the request: what is found out holds for all of them."""
        content_format = template.content_format(tools=tools)
        return _with_or_without_null(
            [template_message(message, content_format) for message in sent],
            lambda conversation: template.render(
                conversation,
                tools=[template_tool(tool)] if tools else [],
                add_generation_prompt=True,
                kwargs=self._variables,
                mark=mark,
            ),
        )

    def _own_template(self, source: str) -> PromptFormat:
        """Return the template of a request.

        Raises:
            TemplateError: it is not valid Jinja.
        """
        spec = TemplateSpec(source, source, tuple(self.tokenizer.named.items()), None)
        if self._rendering is None:
            return ChatTemplate.from_spec(spec)
        return WorkerTemplate(spec, self._rendering.facts(spec), self._rendering)

    def _render(self, prompt: ChatPrompt) -> tuple[str, Guard]:
        template = self.template if prompt.chat_template is None else self._own_template(prompt.chat_template)
        if template is None:
            raise TemplateError(
                "This model has no chat template, so it cannot be used with messages. Use /v1/completions, or start "
                "the server with --chat-template."
            )
        content_format = template.content_format(tools=bool(prompt.tools))
        tools = [template_tool(tool) for tool in prompt.tools]
        kwargs = {
            **self._variables,
            **self._effort(prompt.effort, prompt.thinking_budget),
            **prompt.template_kwargs,
        }
        documents = prompt.documents
        if documents is not None and not template.uses("documents", tools=bool(prompt.tools)):
            raise UnusedVariableError("documents", "The model's chat template does not read documents.")
        # Text from a client never becomes a control token.
        tokenizer = self.tokenizer
        marks = self._guarded if prompt.chat_template is None else guarded_tokens(tokenizer, template)
        messages = [template_message(message, content_format) for message in prompt.messages]
        guard = Guard(list(strings([messages, tools, kwargs, documents])), marks)

        protection = Protection(guard, marks, tokenizer.control)
        client = protection.client

        def rendered(conversation: list[dict[str, Any]]) -> str:
            return template.render(
                conversation,
                tools=[mapped(tool, client) for tool in tools],
                documents=None if documents is None else [mapped(document, client) for document in documents],
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                kwargs={name: mapped(value, client) for name, value in kwargs.items()},
                mark=guard.mark,
            )

        def attempt(sent: Sequence[Message]) -> str:
            found = [template_message(message, content_format) for message in sent]
            return _with_or_without_null([protection.message(message) for message in found], rendered)

        omissions = self._omissions if prompt.chat_template is None else Omissions()
        trial = partial(self._trial, template, bool(tools), guard.mark)
        whole: Sequence[Message] = prompt.messages
        if tools and self._write_calls is not None:
            write_tools = partial(protection.tools, write=self._write_calls)
            whole = omissions.with_tools(whole, tools, _in_any_form(trial), write_tools)
        whole = omissions.whole(whole, bool(tools), trial)
        forms: Sequence[Form] = FORMS
        if self._write_calls is not None:
            write = partial(protection.written, write=self._write_calls)
            whole = omissions.with_calls(whole, bool(tools), _in_any_form(trial), write)
            if any(message.tool_calls for message in whole) and omissions.drops_texts(
                bool(tools), _in_any_form(trial), write
            ):
                forms = FORMS_APART

        def shown() -> str:
            return _first_that_shows(whole, attempt, protection.instruction, forms)

        try:
            return shown(), guard
        except TemplateError:
            # Descriptions are optional, and some templates take a tool without one for a mistake.
            described = [with_descriptions(tool) for tool in tools]
            if described == tools:
                raise
            tools[:] = described
        return shown(), guard


def _with_or_without_null(
    conversation: list[dict[str, Any]], rendered: Callable[[list[dict[str, Any]]], str]
) -> str:
    """Render a conversation. Some templates refuse null, although a message with calls has no other content."""
    try:
        return rendered(conversation)
    except TemplateError:
        if not any(isinstance(message["content"], NoContent) for message in conversation):
            raise
    return rendered([without_null(message) for message in conversation])


def _in_any_form(render: Render) -> Render:
    """Render conversations in a form that the template takes."""

    def rendered(sent: Sequence[Message], tool: Tool) -> str:
        return _first_that_shows(sent, lambda changed: render(changed, tool), str, FORMS_APART)

    return rendered


def _first_that_shows(
    messages: Sequence[Message],
    attempt: Callable[[Sequence[Message]], str],
    client: Callable[[str], str],
    forms: Sequence[Form],
) -> str:
    """Render a conversation as it is, or in a form that says the same and that the template takes.

    Many templates know one system message, at the beginning, and drop or refuse others; some want users and assistants
    to take turns, one call in a message, an object for arguments that are none, or ids of nine characters.

    Args:
        messages: the conversation.
        attempt: renders one.
        client: protects a text of the client, as the rendered text has it.
        forms: what to change, one after the other, until the template takes the conversation.

    Raises:
        TemplateError: the template takes none of the forms; the error is that of the conversation as it is.
    """
    wanted = [client(text) for text in instructions(messages)]
    first, refusal = None, None
    try:
        first = attempt(messages)
        if all(text in first for text in wanted):
            return first
    except TemplateError as error:
        refusal = error
    for other in forms if first is None else INSTRUCTED:
        changed = other(messages)
        if changed != messages:
            messages = changed
            try:
                found = attempt(messages)
            except TemplateError:
                continue
            if first is None or all(text in found for text in wanted):
                return found
    if first is None:
        assert refusal is not None
        raise refusal
    return first
