"""Define encoders: prompt formats in Python, for models without a chat template.

An encoder has the interface of `ChatTemplate` and replaces it where a model family defines its prompts by a program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from plumbline.answer.text.templates.content_format import ContentFormat
from plumbline.answer.text.templates.template import TemplateError

__all__ = ["Conversation", "PromptEncoder", "PromptFormat"]

Conversation = Sequence[Mapping[str, Any]]
"""Messages in the format of the chat completions API, with tool arguments as objects."""


class PromptFormat(Protocol):
    """Render conversations to prompts; implemented by chat templates and encoders."""

    source: str

    def content_format(self, *, tools: bool) -> ContentFormat:
        """Return the format of message content that it expects."""
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
    """Check variables and messages, and leave the encoding to a subclass."""

    source = ""
    """An encoder has no template source."""
    variables: frozenset[str] = frozenset()
    """The template variables of a request that the encoder reads."""

    def content_format(self, *, tools: bool) -> ContentFormat:
        """Return `string`: encoders expect text."""
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
            TemplateError: the format cannot represent these messages.
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
        """Return the prompt of a conversation that is not empty.

        Args:
            messages: the conversation.
            tools: in the format of the chat completions API.
            kwargs: template variables of the request.
            opens: end with the opening of the assistant's turn.
        """
