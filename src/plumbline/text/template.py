"""Chat templates: messages to prompt text, in a sandbox.

Templates come from the model folder only, never from a request, and run in jinja2's immutable sandbox with the same
filters and settings that transformers uses, so that a prompt here is the prompt that the model was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["ChatTemplate", "TemplateError"]


class TemplateError(ValueError):
    """The template refused the conversation, or cannot render it; the text is fit for the client."""


class ChatTemplate:
    """A compiled template. Immutable; rendering is safe from several threads.

    Raises:
        TemplateError: the source is not valid Jinja.
    """

    def __init__(self, source: str, *, bos_token: str | None = None, eos_token: str | None = None) -> None:
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self._variables = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"The chat template is not valid: {error}") from error

    @classmethod
    def from_folder(
        cls, folder: Path, *, bos_token: str | None = None, eos_token: str | None = None
    ) -> ChatTemplate | None:
        """The template of a model folder: `chat_template.jinja`, or the entry of `tokenizer_config.json`."""
        path = folder / "chat_template.jinja"
        if path.is_file():
            return cls(path.read_text("utf-8"), bos_token=bos_token, eos_token=eos_token)
        config_path = folder / "tokenizer_config.json"
        config = json.loads(config_path.read_text("utf-8")) if config_path.is_file() else {}
        source = config.get("chat_template")
        if isinstance(source, list):
            named = {entry["name"]: entry["template"] for entry in source}
            source = named.get("default")
        return None if source is None else cls(source, bos_token=bos_token, eos_token=eos_token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        mark: str = "\ue000",
    ) -> str:
        """Render a conversation.

        Args:
            messages: in the form of the chat completions API, with tool arguments as objects.
            tools: in the form of the chat completions API, or None.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: leave the last message open, so that the model continues it.
            kwargs: further template variables; they cannot replace the ones above or the model's tokens.
            mark: a character that is in none of the texts.

        Raises:
            TemplateError: the template raised, or used something that the sandbox forbids.
        """
        conversation = list(messages)
        if continue_final_message:
            if not conversation:
                raise TemplateError("continue_final_message needs a message to continue.")
            final = {
                **conversation[-1],
                "content": f"{conversation[-1].get('content') or ''}{mark}{_OPEN_END}",
            }
            conversation[-1] = final
        variables = {
            **(kwargs or {}),
            **self._variables,
            "messages": conversation,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            rendered = self._template.render(variables)
        except (
            jinja2.TemplateError,
            ArithmeticError,
            AttributeError,
            LookupError,
            TypeError,
            ValueError,
        ) as error:
            raise TemplateError(
                f"The model's chat template could not render these messages: {error}"
            ) from error
        if not continue_final_message:
            return rendered
        before, found, _ = rendered.rpartition(f"{mark}{_OPEN_END}")
        if not found:
            raise TemplateError(
                "continue_final_message needs a last message whose text the chat template keeps as it is."
            )
        return before


_OPEN_END = "end"
"""With the mark before it, this shows where the final message's own text ends in the rendered prompt."""


class _Generation(Extension):
    """`{% generation %}` marks an assistant's words for training; to a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[Node]:
        """The body stands for itself."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON. jinja2's own filter escapes HTML, which no model has seen in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
