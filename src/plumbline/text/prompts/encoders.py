"""Prompt encoders: for models that come with a prompt format but without a chat template.

An encoder renders a conversation as `ChatTemplate` does and can stand in its place. It is written in Python because its
family defines its prompts by a program and not by a template.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from plumbline.text.templates.content_format import ContentForm
from plumbline.text.templates.template import TemplateError

__all__ = ["Conversation", "PromptEncoder", "PromptFormat"]

Conversation = Sequence[Mapping[str, Any]]
"""Messages in the form of the chat completions API, with tool arguments as objects."""


class PromptFormat(Protocol):
    """What renders conversations: a chat template or an encoder."""

    source: str

    def form(self, *, tools: bool) -> ContentForm:
        """How it reads a message's content."""
        ...

    def uses(self, variable: str, *, tools: bool) -> bool:
        """Whether it reads this variable."""
        ...

    def render(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        mark: str = "\ue000",
    ) -> str:
        """Render a conversation; see `ChatTemplate.render`."""
        ...


class PromptEncoder(ABC):
    """The parts that all encoders share."""

    source = ""
    """An encoder has no template source."""
    variables: frozenset[str] = frozenset()
    """The template variables of a request that it reads."""

    def form(self, *, tools: bool) -> ContentForm:
        """Encoders read text."""
        return "string"

    def uses(self, variable: str, *, tools: bool) -> bool:
        """Whether it reads this variable."""
        return variable in self.variables

    def render(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        mark: str = "\ue000",
    ) -> str:
        """Render a conversation; see `ChatTemplate.render`.

        Raises:
            TemplateError: the format has no way to say these messages.
        """
        if documents:
            raise TemplateError("The model's prompt format has no place for documents.")
        conversation = [dict(message) for message in messages]
        if not conversation:
            raise TemplateError("A prompt needs at least one message.")
        if not continue_final_message:
            return self.encode(conversation, tools or (), kwargs or {}, opens=add_generation_prompt)
        final = conversation[-1]
        if final["role"] != "assistant" or final.get("tool_calls"):
            raise TemplateError("continue_final_message needs a last message of the assistant without calls.")
        final["content"] = f"{final.get('content') or ''}{mark}{mark}"
        rendered = self.encode(conversation, tools or (), kwargs or {}, opens=False)
        return rendered.rpartition(mark + mark)[0]

    @abstractmethod
    def encode(
        self,
        messages: Conversation,
        tools: Sequence[Mapping[str, Any]],
        kwargs: Mapping[str, Any],
        *,
        opens: bool,
    ) -> str:
        """The prompt of a conversation that is not empty.

        Args:
            messages: the conversation.
            tools: in the form of the chat completions API.
            kwargs: template variables of the request.
            opens: end with the opening of the assistant's turn.
        """
