"""Define a request independent of any API: readers in `plumbline.server.protocols` build it, the road answers it.

A `Turn` has no wire names and nothing unchecked: the reader has filled in the defaults and refused what the server does
not support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from plumbline.answer.remote_tools import Offered, RemoteTools
from plumbline.port.engine import MediaItem, Modality, SamplingParams

__all__ = [
    "ChatPrompt",
    "ChoiceFormat",
    "GbnfFormat",
    "JsonFormat",
    "LarkFormat",
    "MediaReference",
    "Message",
    "OutputFormat",
    "Part",
    "Prompt",
    "RegexFormat",
    "Tag",
    "TagsFormat",
    "TextPrompt",
    "TokenPrompt",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "Turn",
    "begun_text",
    "choice_among",
    "media_of",
    "with_media",
    "with_remote_tools",
]

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """A call that an assistant made earlier in the conversation."""

    id: str
    name: str
    arguments: str
    """JSON text, exactly as the client sent it."""


class MediaReference(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a message names and that is not loaded yet."""

    modality: Modality = "image"
    url: str
    """With the scheme `data`, `http` or `https`."""
    reduced: bool = False
    """Whether the client asks for little detail (`detail: low`)."""
    field: str
    """The field of the request that has the URL, for errors."""


Part = str | MediaReference | MediaItem
"""A part of a message: text or a file."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: Role
    content: str | None = None
    """Text parts are joined by line breaks. None only for an assistant message that consists of tool calls."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For a tool message: the call that it answers."""
    name: str | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    """Whether the assistant spoke on its way or gave its answer, for prompts that tell them apart."""
    parts: tuple[Part, ...] | None = None
    """The parts of `content`, for templates that read parts; None if the client sent a string."""


class JsonFormat(msgspec.Struct, frozen=True):
    """One JSON document."""

    schema: Mapping[str, Any] | bool | None = None
    """A JSON Schema; None allows any JSON object (`json_object`)."""
    strict: bool = False
    """The client asks for OpenAI's strict subset (SO rules); only the reader checks it."""


class RegexFormat(msgspec.Struct, frozen=True):
    """Text that matches this regex from its first to its last character."""

    pattern: str


class ChoiceFormat(msgspec.Struct, frozen=True):
    """One of these texts."""

    choices: tuple[str, ...]


class LarkFormat(msgspec.Struct, frozen=True):
    """Text of this grammar: llguidance's dialect of Lark, with a rule `start`."""

    grammar: str


class GbnfFormat(msgspec.Struct, frozen=True):
    """Text of this grammar: llama.cpp's GBNF, with a rule `root`."""

    grammar: str


class Tag(msgspec.Struct, frozen=True, kw_only=True):
    """JSON between two texts."""

    trigger: str
    """The beginning of `begin`; after it the rest of the tag must follow."""
    begin: str
    schema: Mapping[str, Any] | bool
    end: str


class TagsFormat(msgspec.Struct, frozen=True):
    """Free text in which each trigger begins a tag."""

    tags: tuple[Tag, ...]


OutputFormat = JsonFormat | RegexFormat | ChoiceFormat | LarkFormat | GbnfFormat | TagsFormat
"""A constraint on the text of an answer (structured output)."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call, or a custom tool that takes text."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    """A JSON Schema object. A custom tool has the one string property `input`."""
    strict: bool | None = None
    custom: bool = False
    member: tuple[str, str] | None = None
    """The namespace that the client put it into, and its name there; `name` joins them."""
    input_format: RegexFormat | LarkFormat | None = None
    """The constraint on a custom tool's input; None allows any text."""


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which calls an answer may or must contain."""

    mode: Literal["none", "auto", "required"] = "auto"
    """`required`: at least one call, and no text but reasoning before it."""
    names: tuple[str, ...] | None = None
    """Only these tools may be called (a named tool or `allowed_tools`); None means all."""
    servers: tuple[str, ...] = ()
    """With `names`: all tools of the remote servers with these labels may also be called."""
    parallel: bool = True
    """False: at most one call in an answer."""
    forbidden: bool = False
    """With `none`: the client has tools but wants no calls, so the markup of calls is kept out of the text."""


class ChatPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for the model's chat template."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Template variables from the client; they win over those that `effort` sets."""
    effort: str | None = None
    """How much the model should think: `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`; None leaves it to
    the chat template."""
    thinking_budget: int | None = None
    """Maximum number of thinking tokens, for templates that mention it."""
    documents: tuple[Mapping[str, Any], ...] | None = None
    """Documents for the answer, for templates that read them."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    """Whether the prompt begins with the tokenizer's sequence start even if the template does not write it."""
    chat_template: str | None = None
    """The source of a template to render with instead of the model's own."""
    token_ids: tuple[int, ...] | None = None
    """The rendered prompt, if the client has rendered it."""


class TextPrompt(msgspec.Struct, frozen=True):
    """Plain text without a template (CMP-10)."""

    text: str
    add_special_tokens: bool = True
    """Whether the prompt begins with the tokenizer's sequence start."""
    suffix: str | None = None
    """Text that comes after the answer: the model fills in the middle (CMP-07)."""


class TokenPrompt(msgspec.Struct, frozen=True):
    """Token ids, used unchanged (CMP-09)."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


def begun_text(prompt: Prompt) -> str:
    """Return the text of the open assistant message that the model continues, or an empty string."""
    if not isinstance(prompt, ChatPrompt) or not prompt.continue_final_message or not prompt.messages:
        return ""
    last = prompt.messages[-1]
    return last.content or "" if last.role == "assistant" else ""


def media_of(prompt: Prompt) -> tuple[MediaReference | MediaItem, ...]:
    """Return the files of a prompt, in order."""
    if not isinstance(prompt, ChatPrompt):
        return ()
    parts = (part for message in prompt.messages for part in message.parts or ())
    return tuple(part for part in parts if not isinstance(part, str))


def with_media(prompt: ChatPrompt, loaded: Mapping[MediaReference, MediaItem]) -> ChatPrompt:
    """Return a prompt with files in the place of their references."""

    def part(given: Part) -> Part:
        return loaded[given] if isinstance(given, MediaReference) else given

    return msgspec.structs.replace(
        prompt,
        messages=tuple(
            message
            if message.parts is None
            else msgspec.structs.replace(message, parts=tuple(part(given) for given in message.parts))
            for message in prompt.messages
        ),
    )


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and how to answer it."""

    prompt: Prompt
    sampling: SamplingParams
    output_format: OutputFormat | None = None
    tool_choice: ToolChoice = ToolChoice(mode="none")
    """Refers to the tools of `prompt`. With `none` nothing in the answer is parsed as a call."""
    thinking_budget: int | None = None
    """Maximum number of thinking tokens; then the end of thinking is forced."""
    stop: tuple[str, ...] = ()
    """Stop strings: generation ends when the first of them is complete."""
    include_stop: bool = False
    """Keep the stop string that ended the answer in the text."""
    skip_special_tokens: bool = True
    num_choices: int = 1
    adapter: str | None = None
    """The adapter that answers; None is the model itself."""
    priority: int = 0
    cache_salt: str | None = None
    echo: bool = False
    """Repeat the text of the continued message at the beginning of the answer."""
    dry_breakers: tuple[str, ...] = ()
    """Texts that end a repeated sequence for the DRY penalty."""
    length_penalty: float | None = None
    """Search for the likeliest answers with this exponent of their length; None draws them."""
    return_token_ids: bool = False
    """Emit the ids of the answer's tokens."""
    keep_tokens: int | None = None
    """Keep this many tokens of the prompt; -1 keeps what fits, None all."""
    keep_beginning: bool = False
    """Whether `keep_tokens` are the first ones; by default they are the last."""
    bad_words: tuple[str, ...] = ()
    """Words that the answer must not contain, as sequences of their tokens."""
    report_progress: bool = False
    """Send `Progress` events with the number of tokens so far, and of the prompt's tokens from the cache."""
    repair_calls: bool = False
    """Ask the model once more for a call that cannot be read, or whose arguments its parameters do not allow."""
    remote: RemoteTools | None = None
    """Remote servers; `with_remote_tools` shows the model their tools."""
    shorten_answer: bool = False
    """Let the context end an answer whose limit does not fit, rather than refuse the request."""
    truncate_prompt: bool = False
    """Drop the oldest messages rather than refuse a prompt that does not fit (R-18, `truncation: auto`)."""


def with_remote_tools(prompt: ChatPrompt, offered: Offered) -> ChatPrompt:
    """Return a prompt that also has the tools of remote servers."""
    shown: list[Tool] = []
    introduced: set[str] = set()
    for name, (server, tool) in offered.items():
        description = tool.description or ""
        if server.description and server.label not in introduced:
            description = f"{description}\n\nAbout all tools {server.label}__*: {server.description}".strip()
        introduced.add(server.label)
        shown.append(Tool(name=name, description=description or None, parameters=tool.input_schema))
    return msgspec.structs.replace(prompt, tools=(*prompt.tools, *shown))


def choice_among(choice: ToolChoice, tools: Sequence[Tool], offered: Offered) -> ToolChoice:
    """Return a choice among the tools that are there.

    If it names none of them, nothing is called: a remote server that does not answer must not end the answer.

    Args:
        choice: the choice, which may name tools that were not known yet.
        tools: all tools of the prompt.
        offered: those of remote servers.
    """
    if choice.mode == "none":
        return choice
    if choice.names is not None:
        wanted = {*choice.names, *(name for name, (one, _) in offered.items() if one.label in choice.servers)}
        names = tuple(tool.name for tool in tools if tool.name in wanted)
        choice = msgspec.structs.replace(choice, names=names, servers=())
    if not tools or choice.names == ():
        return ToolChoice(mode="none", parallel=choice.parallel, forbidden=bool(tools))
    return choice
