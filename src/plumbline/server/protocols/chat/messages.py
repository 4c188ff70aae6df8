"""Read the messages and tools of a chat request, and check them against each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import UNSET

from plumbline.answer.turn import Message, Part, Tool, ToolCall, ToolChoice
from plumbline.contract._generated.chat import (
    ChatCompletionAllowedToolsChoice,
    ChatCompletionCustomGrammarFormat,
    ChatCompletionMessageToolCall,
    ChatCompletionNamedToolChoice,
    ChatCompletionNamedToolChoiceCustom,
    ChatCompletionRequestAssistantMessage,
    ChatCompletionRequestDeveloperMessage,
    ChatCompletionRequestFunctionMessage,
    ChatCompletionRequestMessage,
    ChatCompletionRequestMessageContentPartAudio,
    ChatCompletionRequestMessageContentPartFile,
    ChatCompletionRequestMessageContentPartImage,
    ChatCompletionRequestMessageContentPartRefusal,
    ChatCompletionRequestMessageContentPartText,
    ChatCompletionRequestMessageContentPartVideo,
    ChatCompletionRequestSystemMessage,
    ChatCompletionRequestToolMessage,
    ChatCompletionRequestUserMessage,
    ChatCompletionTool,
    ChatCompletionToolUnion,
    CreateChatCompletionRequest,
)
from plumbline.contract.wire.errors import ApiError, invalid_request, unsupported_parameter
from plumbline.server.protocols.chat.functions import read_functions
from plumbline.server.protocols.common.fields import given, or_default
from plumbline.server.protocols.common.media import (
    audio_reference,
    image_reference,
    joined_text,
    unread_part,
    video_reference,
)
from plumbline.server.protocols.common.text_files import FileSource, file_text
from plumbline.server.protocols.common.tools.tool_choice import (
    allowed_choice,
    check_names,
    custom_arguments,
    custom_tool,
    is_cut,
    named_choice,
    plain_choice,
    wants_parallel,
    with_checked_parameters,
)

__all__ = ["read_messages", "read_tool_list", "read_tools"]


def read_messages(
    messages: Sequence[ChatCompletionRequestMessage], modalities: Collection[str] = ()
) -> tuple[Message, ...]:
    """Read a conversation (CHAT-13).

    Deprecated calls and results (`function_call`, the role `function`) become tool calls and tool messages.

    Args:
        messages: the conversation.
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 for parts that the model does not read, and for tool messages that answer no call (CHAT-14).
    """
    found: list[Message] = []
    for index, message in enumerate(messages):
        found.append(_read_message(message, index, found, modalities))
    _check_pairing(found)
    return tuple(found)


def read_tools(request: CreateChatCompletionRequest) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Read the tools for the prompt, and which of them the model may or must call.

    With `tool_choice: none` the prompt has no tools, so the model calls none (TOOL-03).

    Raises:
        ApiError: 400 for tools and choices that the server does not support.
    """
    if given(request.functions) or given(request.function_call):
        return read_functions(request)
    tools = read_tool_list(or_default(request.tools, []))
    choice = _read_choice(or_default(request.tool_choice, "auto" if tools else "none"), tools, request)
    return (() if choice.mode == "none" else tools), choice


def _read_choice(choice: Any, tools: tuple[Tool, ...], request: CreateChatCompletionRequest) -> ToolChoice:
    parallel = wants_parallel(request.parallel_tool_calls)
    match choice:
        case ChatCompletionNamedToolChoice():
            return named_choice(choice.function.name, "function", tools, "tool_choice.function.name")
        case ChatCompletionNamedToolChoiceCustom():
            return named_choice(choice.custom.name, "custom", tools, "tool_choice.custom.name")
        case ChatCompletionAllowedToolsChoice(allowed_tools=allowed):
            param = "tool_choice.allowed_tools.tools"
            return allowed_choice(allowed.mode, allowed.tools, tools, parallel=parallel, param=param)
        case mode:
            return plain_choice(mode, tools, parallel=parallel)


def read_tool_list(tools: Sequence[ChatCompletionToolUnion]) -> tuple[Tool, ...]:
    """Read the entries of `tools`.

    Raises:
        ApiError: 400 for strict parameters outside the strict subset (SO-03), and for a name that occurs twice.
    """
    found: list[Tool] = []
    names = [
        (tool.function.name, f"tools[{index}].function.name")
        if isinstance(tool, ChatCompletionTool)
        else (tool.custom.name, f"tools[{index}].custom.name")
        for index, tool in enumerate(tools)
    ]
    check_names(names)
    for index, tool in enumerate(tools):
        if isinstance(tool, ChatCompletionTool):
            function = tool.function
            read = Tool(
                name=function.name,
                description=or_default(function.description, None),
                parameters=or_default(function.parameters, None),
                strict=or_default(function.strict, None),
            )
            read = with_checked_parameters(read, f"tools[{index}].function.parameters")
        else:
            custom = tool.custom
            input_format = or_default(custom.format, None)
            grammar = (
                input_format.grammar if isinstance(input_format, ChatCompletionCustomGrammarFormat) else None
            )
            read = custom_tool(
                custom.name,
                or_default(custom.description, None),
                None if grammar is None else grammar.syntax,
                "" if grammar is None else grammar.definition,
            )
        found.append(read)
    return tuple(found)


def _read_message(
    message: ChatCompletionRequestMessage, index: int, before: Sequence[Message], modalities: Collection[str]
) -> Message:
    where = f"messages[{index}]"
    match message:
        case ChatCompletionRequestAssistantMessage():
            return _read_assistant(message, index)
        case ChatCompletionRequestFunctionMessage():
            return _read_result(message, before, where)
    content, parts = _content(message.content, where, modalities)
    match message:
        case ChatCompletionRequestSystemMessage():
            return Message(role="system", content=content, parts=parts, name=_name(message))
        case ChatCompletionRequestDeveloperMessage():
            return Message(role="developer", content=content, parts=parts, name=_name(message))
        case ChatCompletionRequestUserMessage():
            return Message(role="user", content=content, parts=parts, name=_name(message))
        case ChatCompletionRequestToolMessage():
            return Message(role="tool", content=content, parts=parts, tool_call_id=message.tool_call_id)


def _read_result(
    message: ChatCompletionRequestFunctionMessage, before: Sequence[Message], where: str
) -> Message:
    """Read a `function` message (CHAT-13). It has no call id, so it must directly follow its call.

    Raises:
        ApiError: 400 if the message before it does not call this function.
    """
    called = before[-1].tool_calls if before else ()
    if len(called) != 1 or called[0].name != message.name:
        raise invalid_request(
            "Messages with role 'function' must follow an assistant message with a 'function_call' of that name.",
            f"{where}.role" if len(called) != 1 else f"{where}.name",
        )
    return Message(role="tool", content=message.content or "", tool_call_id=called[0].id)


def _read_assistant(message: ChatCompletionRequestAssistantMessage, index: int) -> Message:
    where = f"messages[{index}]"
    if given(message.audio):
        raise unsupported_parameter(f"{where}.audio")
    calls: list[ToolCall] = []
    legacy = or_default(message.function_call, None)
    if legacy is not None:
        if or_default(message.tool_calls, []):
            raise invalid_request(
                f"'{where}' has both 'function_call' and 'tool_calls'; send one of them.",
                f"{where}.function_call",
            )
        # A deprecated call has no id. Mistral templates require ids of nine letters and digits.
        calls.append(ToolCall(f"fn{index % 10**7:07}", legacy.name, legacy.arguments))
    for call in or_default(message.tool_calls, []):
        if isinstance(call, ChatCompletionMessageToolCall):
            calls.append(ToolCall(call.id, call.function.name, call.function.arguments))
        else:
            calls.append(ToolCall(call.id, call.custom.name, custom_arguments(call.custom.input)))
    content, parts = (None, None) if not given(message.content) else _content(message.content, where)
    if content is None and given(message.refusal):
        content = or_default(message.refusal, "")
    if content is None and not calls:
        raise invalid_request(
            f"'{where}' must have 'content' or 'tool_calls'.",
            f"{where}.content",
            "missing_required_parameter",
        )
    # vLLM calls this field `reasoning`, other servers and clients `reasoning_content`.
    # Some clients fill one and send the other empty.
    texts = [text for text in (message.reasoning_content, message.reasoning) if given(text) and text]
    reasoning = texts[0] if texts else ""
    if texts[1:] not in ([], [reasoning]):
        raise invalid_request(
            f"'{where}' has different texts in 'reasoning' and 'reasoning_content'; send one of them.",
            f"{where}.reasoning",
        )
    return Message(
        role="assistant",
        content=content,
        parts=parts,
        reasoning=reasoning or None,
        tool_calls=tuple(calls),
        name=_name(message),
    )


def _content(
    content: Any, where: str, modalities: Collection[str] = ()
) -> tuple[str, tuple[Part, ...] | None]:
    """Return the text of a content, and its parts unless it is a string. Other kinds of parts are refused (CHAT-18)."""
    if isinstance(content, str):
        return content, None
    parts: list[Part] = []
    for index, part in enumerate(content):
        field = f"{where}.content[{index}]"
        match part:
            case ChatCompletionRequestMessageContentPartText():
                parts.append(part.text)
            case ChatCompletionRequestMessageContentPartRefusal():
                parts.append(part.refusal)
            case ChatCompletionRequestMessageContentPartImage() if "image" in modalities:
                image = part.image_url
                parts.append(
                    image_reference(image.url, or_default(image.detail, None), f"{field}.image_url.url")
                )
            case ChatCompletionRequestMessageContentPartAudio() if "audio" in modalities:
                audio = part.input_audio
                parts.append(audio_reference(audio.data, audio.format, f"{field}.input_audio.data"))
            case ChatCompletionRequestMessageContentPartVideo() if "video" in modalities:
                parts.append(video_reference(part.video_url.url, f"{field}.video_url.url"))
            case ChatCompletionRequestMessageContentPartFile(file=file):
                parts.append(
                    file_text(FileSource(file.file_data, file.filename, file.file_id), f"{field}.file")
                )
            case _:
                raise unread_part(part, field, modalities)
    return joined_text(parts), tuple(parts)


def _name(message: Any) -> str | None:
    name = message.name
    return None if name is UNSET else str(name)


def _check_pairing(messages: Sequence[Message]) -> None:
    """Check that tool messages answer all calls of the assistant message before them, and only those (CHAT-14).

    A call that a limit cut needs no answer, because no client can carry it out (CHAT-24).
    """
    open_calls: list[str] = []
    cut: list[str] = []
    caller = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id in cut:
                cut.remove(message.tool_call_id)
                continue
            if message.tool_call_id not in open_calls:
                raise invalid_request(
                    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'.",
                    f"messages[{index}].role" if not open_calls else f"messages[{index}].tool_call_id",
                )
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise _unanswered(open_calls, f"messages[{index}].role")
        cut = [call.id for call in message.tool_calls if is_cut(call.arguments)]
        open_calls = [call.id for call in message.tool_calls if call.id not in cut]
        caller = index
    if open_calls:
        raise _unanswered(open_calls, f"messages[{caller}].tool_calls")


def _unanswered(calls: Sequence[str], param: str) -> ApiError:
    return invalid_request(
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(calls)}",
        param,
    )
