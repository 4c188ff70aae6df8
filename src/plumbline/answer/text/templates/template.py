"""Render messages to prompt text with chat templates, in a sandbox.

Templates come from the model folder or, if the operator trusts the clients, from a request. They run in jinja2's
immutable sandbox with the same filters and settings that transformers uses, so that a prompt here is the prompt that
the model was trained on. The sandbox keeps a template from other objects, not from the time and the memory that it
takes: a server renders in worker processes (`workers.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import msgspec
from jinja2 import meta

from plumbline.answer.text.templates.content_format import ContentFormat, content_format
from plumbline.answer.text.templates.sandbox import template_environment
from plumbline.answer.text.templates.values import GivenList
from plumbline.answer.text.tokenizer_files import named_tokens, read_config
from plumbline.base.exact_number import dumps

__all__ = ["ChatTemplate", "TemplateError", "TemplateFacts", "TemplateSpec", "named_templates", "read_facts"]

_INDENTED = json.JSONEncoder(indent=4, ensure_ascii=False)
_LONGEST = 1_048_576
"""Characters of a template; the longest of a published model has 25,000."""

_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions that a template can raise for values that it does not expect."""


class TemplateError(ValueError):
    """The template refused the conversation or failed; the text can be shown to the client."""


class TemplateSpec(NamedTuple):
    """The arguments of a `ChatTemplate` as values that a worker process can receive; see its constructor."""

    source: str
    tool_source: str
    tokens: tuple[tuple[str, str], ...]
    content_format: ContentFormat | None


class TemplateFacts(msgspec.Struct, frozen=True):
    """Facts from the syntax trees of a template.

    Each pair has the value for conversations without tools first, and the one for conversations with tools second.
    """

    formats: tuple[ContentFormat, ContentFormat]
    variables: tuple[frozenset[str], frozenset[str]]

    def content_format(self, *, tools: bool) -> ContentFormat:
        """Return the format of message content for conversations with or without tools."""
        return self.formats[tools]

    def uses(self, variable: str, *, tools: bool) -> bool:
        """Return whether the template for conversations with or without tools reads this variable."""
        return variable in self.variables[tools]


class ChatTemplate:
    """Render conversations with a model's template, or with its template for tools if it has two.

    Immutable; rendering is safe from several threads.

    >>> ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").render(
    ...     [{"role": "user", "content": "Hi"}]
    ... )
    '<user>Hi'

    Args:
        source: the Jinja source.
        tool_use: the source of the model's template named `tool_use`.
        bos_token: the text of the sequence start; None leaves the variable undefined.
        eos_token: the text of the sequence end.
        tokens: further tokens by their names in `tokenizer_config.json`.
        content_format: the format of message content; by default each template's own, by its syntax tree.
        read: reads the facts of a template that is not trusted, in a worker; by default the template is trusted.

    Attributes:
        source: the source of the template for conversations without tools.
        spec: the arguments of the constructor, for a worker process.
        facts: the content format and the variables of the sources.
        is_trusted: whether the server may parse and render the template in its own process.
        tool_source: the source for conversations with tools; the same unless the model has two.

    Raises:
        TemplateError: a source is too long, or not valid Jinja.
    """

    def __init__(
        self,
        source: str,
        *,
        tool_use: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        content_format: ContentFormat | None = None,
        read: Callable[[TemplateSpec], TemplateFacts] | None = None,
    ) -> None:
        self.source = source
        self.tool_source = source if tool_use is None else tool_use
        named = {"bos_token": bos_token, "eos_token": eos_token, **(tokens or {})}
        self._tokens = {name: text for name, text in named.items() if text is not None}
        self.spec = TemplateSpec(source, self.tool_source, tuple(self._tokens.items()), content_format)
        self.facts = (read or read_facts)(self.spec)
        self.is_trusted = read is None

    @classmethod
    def from_spec(cls, spec: TemplateSpec) -> ChatTemplate:
        """Return the template with this `spec`."""
        return cls(
            spec.source,
            tool_use=None if spec.tool_source == spec.source else spec.tool_source,
            tokens=dict(spec.tokens),
            content_format=spec.content_format,
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        source: str | None = None,
        content_format: ContentFormat | None = None,
        read: Callable[[TemplateSpec], TemplateFacts] | None = None,
    ) -> ChatTemplate | None:
        """Load the templates of a model folder; returns None if it has no template.

        Args:
            folder: the folder, with the templates that `named_templates` finds.
            bos_token: as for the constructor.
            eos_token: as for the constructor.
            source: the source of a template that replaces all templates of the folder.
            content_format: as for the constructor.
            read: as for the constructor.

        Raises:
            TemplateError: a template is not valid, or no named template is called `default`.
        """
        named = named_templates(folder) if source is None else {"default": source}
        if not named:
            return None
        if "default" not in named:
            # transformers asks the user which one to use; a server cannot.
            raise TemplateError(
                f"The model has chat templates named {', '.join(sorted(named))}, but none named 'default'."
            )
        return cls(
            named["default"],
            tool_use=named.get("tool_use"),
            bos_token=bos_token,
            eos_token=eos_token,
            tokens=named_tokens(read_config(folder)),
            content_format=content_format,
            read=read,
        )

    @property
    def sources(self) -> str:
        """The sources of all templates; the one for tools may be the only one with the markers of calls."""
        return self.source if self.tool_source == self.source else f"{self.source}\n{self.tool_source}"

    def content_format(self, *, tools: bool) -> ContentFormat:
        """See `TemplateFacts.content_format`."""
        return self.facts.content_format(tools=tools)

    def uses(self, variable: str, *, tools: bool) -> bool:
        """See `TemplateFacts.uses`."""
        return self.facts.uses(variable, tools=tools)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        mark: str = "\ue000",
    ) -> str:
        """Render a conversation.

        Args:
            messages: in the format of the chat completions API, with tool arguments as objects.
            tools: in the format of the chat completions API, or None.
            documents: documents for retrieval-augmented templates, or None.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: leave the last message open, so that the model continues it.
            kwargs: further template variables, which cannot replace those above or the model's tokens.
            mark: a character that occurs in none of the texts.

        Raises:
            TemplateError: the template raised, or used a feature that the sandbox forbids.
        """
        conversation = list(messages)
        end = f"{mark}{_OPEN_END}"
        if continue_final_message:
            if not conversation:
                raise TemplateError("There is no message to continue.")
            conversation[-1] = _left_open(conversation[-1], end)
        variables = {
            **self._older_variables(tools),
            **(kwargs or {}),
            **self._tokens,
            "messages": GivenList(conversation),
            "tools": GivenList(tools) if tools else None,
            "documents": None if documents is None else GivenList(documents),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            rendered = _compiled(self.tool_source if tools else self.source).render(variables)
        except _ERRORS as error:
            raise TemplateError(
                f"The model's chat template could not render these messages: {error}"
            ) from error
        return _up_to(rendered, end, _text_of(messages[-1])) if continue_final_message else rendered

    def _older_variables(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
        """Return the tools and the time as FireFunction v2 takes them, from before transformers had `tools`."""
        if not self.uses("functions", tools=bool(tools)):
            return {}
        functions = [tool.get("function", tool) for tool in tools or ()]
        return {
            "functions": dumps(functions, _INDENTED),
            "datetime": datetime.now().strftime("%Y-%m-%d %H:%M:%S"),
        }


def read_facts(spec: TemplateSpec) -> TemplateFacts:
    """Parse the sources of a template.

    jinja2 computes constants for this, such as `'x' * 10**9`, so a server does it in a worker.

    Raises:
        TemplateError: a source is too long, or not valid Jinja.
    """
    (plain, first), (with_tools, second) = (_parsed(source) for source in (spec.source, spec.tool_source))
    chosen = spec.content_format
    return TemplateFacts((chosen or plain, chosen or with_tools), (first, second))


@lru_cache(maxsize=32)
def _parsed(source: str) -> tuple[ContentFormat, frozenset[str]]:
    """Return the format of content and the variables of a source; parsing takes some 50 ms."""
    if len(source) > _LONGEST:
        raise TemplateError(f"The chat template has {len(source)} characters, more than {_LONGEST}.")
    try:
        tree = template_environment().parse(source)
        return content_format(tree), frozenset(meta.find_undeclared_variables(tree))
    except (jinja2.TemplateSyntaxError, *_ERRORS) as error:
        raise TemplateError(f"The chat template is not valid: {error}") from error


@lru_cache(maxsize=32)
def _compiled(source: str) -> jinja2.Template:
    return template_environment().from_string(source)


_OPEN_END = "end "
"""Appended to the final message with the mark before it, it shows where that message ends in the rendered prompt.

If its final space is missing there, the template strips text, and white space at the end of the message is lost too.
"""


def _left_open(message: Mapping[str, Any], end: str) -> dict[str, Any]:
    """Return the message with the mark after its text, or after its last text part."""
    content = message.get("content")
    if not isinstance(content, list):
        return {**message, "content": f"{content or ''}{end}"}
    last = next((i for i in reversed(range(len(content))) if "text" in content[i]), None)
    if last is None:
        raise TemplateError("The final message has no text that could be continued.")
    changed = {**content[last], "text": content[last]["text"] + end}
    return {**message, "content": [*content[:last], changed, *content[last + 1 :]]}


def _text_of(message: Mapping[str, Any]) -> str:
    """Return the text to continue."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return next((part["text"] for part in reversed(content) if "text" in part), "")


def _up_to(rendered: str, end: str, text: str) -> str:
    """Return the prompt up to the end of the message that stays open."""
    before, found, after = rendered.rpartition(end.strip())
    # transformers accepts the text anywhere in the prompt, even in an earlier message.
    if not found or not before.rstrip().endswith(text.strip()):
        raise TemplateError(
            "The final message cannot be continued (continue_final_message, response_prefix): the chat template does "
            "not keep its text as it is."
        )
    return before if after.startswith(" ") else before.rstrip()


def named_templates(folder: Path) -> dict[str, str]:
    """Return the sources of a model folder's templates by name; empty if it has none.

    As in transformers, the later of these override the earlier:

    1. `chat_template` of `tokenizer_config.json`: one template, or a list of named ones.
    2. `chat_template.jinja`, named `default`, and `additional_chat_templates/NAME.jinja`.
    3. `chat_template.json`, the template of the processor of a vision-language model. If it does not render tools, the
       one above renders conversations with tools, as in vLLM: Qwen2.5-VL has one for images and one for tools.

    Raises:
        TemplateError: `chat_template.json` has no template.
    """
    entry = _tokenizer_config(folder).get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(entry, str):
        sources["default"] = entry
    elif isinstance(entry, list):
        sources = {named["name"]: named["template"] for named in entry}
    elif isinstance(entry, Mapping):
        sources = dict(entry)
    main = folder / "chat_template.jinja"
    if main.is_file():
        sources = {"default": main.read_text("utf-8")}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[path.stem] = path.read_text("utf-8")
    return _with_processor_template(folder, sources)


def _with_processor_template(folder: Path, of_tokenizer: dict[str, str]) -> dict[str, str]:
    """Return the templates of the tokenizer, overridden by `chat_template.json` if the folder has that."""
    path = folder / "chat_template.json"
    if not path.is_file():
        return of_tokenizer
    entry = json.loads(path.read_text("utf-8"))
    source = entry.get("chat_template") if isinstance(entry, Mapping) else None
    if not isinstance(source, str):
        raise TemplateError("chat_template.json has no 'chat_template', a text.")
    tools = of_tokenizer.get("tool_use", of_tokenizer.get("default"))
    return (
        {"default": source} if tools is None or "tools" in source else {"default": source, "tool_use": tools}
    )


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return config
