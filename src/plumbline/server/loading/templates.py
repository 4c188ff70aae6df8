"""Load the chat template of a model, its own or the one that `--chat-template` names, and its default variables."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from plumbline.answer.text.earlier_thinking import dropped_thinking
from plumbline.answer.text.prompts.encoders import PromptFormat
from plumbline.answer.text.render import Renderer
from plumbline.answer.text.templates.content_format import ContentFormat
from plumbline.answer.text.templates.template import (
    ChatTemplate,
    TemplateError,
    TemplateFacts,
    TemplateSpec,
    named_templates,
)
from plumbline.answer.text.tokenizer import TextTokenizer
from plumbline.pocket import MODEL_DIR
from plumbline.server.loading.model_files import read_template
from plumbline.server.protocols.common.fields import SERVER_VARIABLES
from plumbline.server.settings import OptionError, Settings
from plumbline_conformance.console.options import shown

__all__ = ["load_template", "template_defaults", "template_notes"]

_FORMATS: Mapping[str, ContentFormat] = MappingProxyType({"string": "string", "openai": "parts"})
"""The formats of message content by `--chat-template-content-format`."""


def load_template(
    settings: Settings,
    folder: Path,
    tokenizer: TextTokenizer,
    read: Callable[[TemplateSpec], TemplateFacts] | None = None,
) -> ChatTemplate | None:
    """Load the template that `--chat-template` names, or the model's own; returns None if there is none.

    Args:
        settings: with `chat_template` and `chat_template_content_format`.
        folder: the model's. Its own templates may be broken if the option names a file.
        tokenizer: the model's, with the tokens that templates write.
        read: reads the facts of the template; see `ChatTemplate`.

    Raises:
        OptionError: `--chat-template` names nothing that can be used, or there is no template whose content has a
            format.
        TemplateError: the model's own template cannot be used.
    """
    given = settings.chat_template
    if folder == MODEL_DIR and not given:
        read = (
            None  # The template of the pocket model is ours, and takes a time in proportion to its messages.
        )
    source = _source(given, folder) if given else None
    try:
        template = ChatTemplate.from_folder(
            folder,
            bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token,
            source=source,
            content_format=_FORMATS.get(settings.chat_template_content_format),
            read=read,
        )
    except TemplateError as error:
        if source is not None:
            raise OptionError(
                "--chat-template", f"is {shown(given)}, which cannot be used: {error}"
            ) from error
        raise TemplateError(f"{error} Give another template with --chat-template.") from error
    if template is None and settings.chat_template_content_format != "auto":
        raise OptionError(
            "--chat-template-content-format",
            "needs a chat template, and this model has none: leave it out, or give one with --chat-template",
        )
    return template


def template_defaults(settings: Settings, prompt_format: PromptFormat | None) -> dict[str, Any]:
    """Return the template variables of `--default-chat-template-kwargs`.

    Raises:
        OptionError: it is not a JSON object, or has a variable that the server sets or that no template reads.
    """
    given = settings.default_chat_template_kwargs
    if not given:
        return {}
    try:
        found = msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise _bad_defaults(
            f'must be a JSON object such as {{"enable_thinking": false}}, got {shown(given)}'
        ) from None
    for name in found:
        if name in SERVER_VARIABLES:
            raise _bad_defaults(
                f"has {shown(name)}, which the server sets from fields of requests: leave it out"
            )
        if prompt_format is None or not any(prompt_format.uses(name, tools=tools) for tools in (False, True)):
            raise _bad_defaults(
                f"has {shown(name)}, which the model's chat template does not read: leave it out"
            )
    return found


def template_notes(renderer: Renderer, *, reads_thinking: bool) -> tuple[str, ...]:
    """Return what an operator should know of the chat template, each a sentence.

    Args:
        renderer: renders the model's prompts.
        reads_thinking: whether thinking is told apart from the text of answers.
    """
    if renderer.template is None:
        return ()
    notes = []
    if renderer.writes_tools():
        notes.append("The chat template has no place for tools, so they are written into the system message")
    if reads_thinking and (dropped := dropped_thinking(renderer)):
        notes.append(dropped)
    if left_out := renderer.left_out():
        notes.append(
            f"The chat template shows no {' and no '.join(left_out)}, so the model does not see them"
        )
    return tuple(notes)


def _bad_defaults(problem: str) -> OptionError:
    return OptionError("--default-chat-template-kwargs", problem)


def _source(given: str, folder: Path) -> str:
    """Return the source of the file, or of the model's named template, that `--chat-template` gives.

    Raises:
        OptionError: it is neither, or a file that cannot be read.
    """
    if os.path.isfile(os.path.expanduser(given)):
        return read_template(given)
    named = named_templates(folder)
    if given not in named:
        known = ", ".join(sorted(named)) or "none"
        raise OptionError(
            "--chat-template",
            f"must be a Jinja file or a named template of the model ({known}), and {shown(given)} is neither",
        )
    return named[given]
