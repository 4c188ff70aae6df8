"""The neutral form of a request: what every API surface is read into, and all that the road below knows of it.

A `Turn` holds no wire names, no optional-but-defaulted fields and nothing unchecked: a reader in `plumbline.protocols`
has filled in the defaults and refused what cannot be honoured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from plumbline.engines.port import SamplingParams

__all__ = [
    "ChatPrompt",
    "ChoiceFormat",
    "JsonFormat",
    "LarkFormat",
    "Message",
    "OutputFormat",
    "Prompt",
    "RegexFormat",
    "TextPrompt",
    "TokenPrompt",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Turn",
    "begun_text",
]

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """A call that an assistant made earlier in the conversation."""

    id: str
    name: str
    arguments: str
    """JSON text, exactly as the client sent it."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Role
    content: str | None = None
    """Text parts are joined; None only for an assistant message that consists of tool calls."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For a tool message: the call that it answers."""
    name: str | None = None
    parts: tuple[str, ...] | None = None
    """The texts of `content` as the client had cut it into parts, for templates that read parts; None: it had not."""


class JsonFormat(msgspec.Struct, frozen=True):
    """One JSON document."""

    schema: Mapping[str, Any] | bool | None = None
    """What it must satisfy; None means any JSON object (`json_object`)."""
    strict: bool = False
    """The schema keeps to OpenAI's strict subset (SO rules); only the reader looks at it."""


class RegexFormat(msgspec.Struct, frozen=True):
    """Text that matches this pattern from its first to its last character."""

    pattern: str


class ChoiceFormat(msgspec.Struct, frozen=True):
    """One of these texts."""

    choices: tuple[str, ...]


class LarkFormat(msgspec.Struct, frozen=True):
    """Text of this grammar, in llguidance's dialect of Lark, with a rule `start`."""

    grammar: str


OutputFormat = JsonFormat | RegexFormat | ChoiceFormat | LarkFormat
"""A form that the text of an answer is promised to have."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call, or a custom tool, whose input is text."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema object. A custom tool has the one string property `input`."""
    strict: bool | None = None
    custom: bool = False
    input_format: RegexFormat | LarkFormat | None = None
    """For a custom tool: the form of its input; None means any text."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls an answer may or must contain."""

    mode: Literal["none", "auto", "required"] = "auto"
    """`required`: at least one call, and no text but reasoning before it."""
    names: tuple[str, ...] | None = None
    """Only these tools may be called (a named tool or `allowed_tools`); None means all."""
    parallel: bool = True
    """False: at most one call in an answer."""
    forbidden: bool = False
    """With `none`: the client has tools and wants no calls, so that the markup of calls is kept out of the text."""


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages to be rendered by the model's chat template."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Variables of the client; they win over what `effort` sets."""
    effort: str | None = None
    """How much the model should think: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`; None leaves it to
    the chat template."""
    thinking_budget: int | None = None
    """Tokens of thinking at most, for templates that tell the model so."""
    documents: tuple[Mapping[str, Any], ...] | None = None
    """What the answer should rest on, for templates that read it."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class TextPrompt(msgspec.Struct, frozen=True):
    """Plain text, no template (CMP-10)."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids, taken as they are (CMP-09)."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


def begun_text(prompt: Prompt) -> str:
    """The text of the message that a prompt leaves open for the model to go on with; empty if there is none."""
    if not isinstance(prompt, ChatPrompt) or not prompt.continue_final_message or not prompt.messages:
        return ""
    last = prompt.messages[-1]
    return last.content or "" if last.role == "assistant" else ""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to answer it."""

    prompt: Prompt
    sampling: SamplingParams
    output_format: OutputFormat | None = None
    tool_choice: ToolChoice = ToolChoice(mode="none")
    """Over the tools of `prompt`. With `none` nothing in the answer is read as a call."""
    thinking_budget: int | None = None
    """Tokens of thinking at most; then its end is forced."""
    stop: tuple[str, ...] = ()
    """Generation ends at the first of these to be completed."""
    include_stop: bool = False
    """The stop string that ended the answer is part of it."""
    skip_special_tokens: bool = True
    num_choices: int = 1
    priority: int = 0
    cache_salt: str | None = None
    echo: bool = False
    """The answer begins with the text of the message that it continues."""
    truncate_prompt: bool = False
    """Drop the oldest messages rather than refuse a prompt that does not fit (R-18, `truncation: auto`)."""
