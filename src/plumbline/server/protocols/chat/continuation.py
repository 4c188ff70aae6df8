"""Read the fields that make the model continue a message: `continue_final_message`, `response_prefix`, `echo`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UnsetType

from plumbline.answer.turn import Message
from plumbline.contract._generated.chat import CreateChatCompletionRequest
from plumbline.contract.wire.errors import invalid_request
from plumbline.server.protocols.common.fields import or_default

__all__ = ["check_echo", "check_ending", "with_prefix"]


def with_prefix(
    request: CreateChatCompletionRequest, messages: tuple[Message, ...]
) -> tuple[tuple[Message, ...], bool]:
    """Add a `response_prefix` to the messages, and return whether the last message stays open.

    The prefix becomes an open assistant message. So the template puts it after the reasoning that a generation
    prompt may open, not inside it.

    Raises:
        ApiError: 400 for fields that contradict each other.
    """
    continue_final = or_default(request.continue_final_message, False)
    check_ending(continue_final, request.add_generation_prompt)
    prefix = or_default(request.response_prefix, None)
    if prefix is None:
        return messages, continue_final
    if continue_final:
        raise invalid_request(
            "'response_prefix' begins a message and 'continue_final_message' continues one; send one of them.",
            "response_prefix",
        )
    if request.add_generation_prompt is False:
        raise invalid_request(
            "'response_prefix' needs the assistant's turn that 'add_generation_prompt' opens.",
            "response_prefix",
        )
    return (*messages, Message(role="assistant", content=prefix)), True


def check_echo(
    request: CreateChatCompletionRequest, messages: Sequence[Message], continue_final: bool
) -> None:
    """Check that there is text that `echo` can repeat.

    Raises:
        ApiError: 400 if the request has no such text, or if logprobs would not cover it (LP-03).
    """
    if request.echo is not True:
        return
    if not continue_final or not messages or messages[-1].role != "assistant":
        raise invalid_request(
            "'echo' repeats what the answer continues: it needs 'response_prefix', or 'continue_final_message' with "
            "an assistant message at the end.",
            "echo",
        )
    if request.logprobs is True:
        raise invalid_request(
            "'echo' cannot be combined with 'logprobs': the text that is repeated has no logprobs.", "echo"
        )


def check_ending(continue_final: bool, add_generation_prompt: bool | UnsetType | None) -> None:
    """Check that the prompt ends either with an open final message or with the opening of a new one.

    Raises:
        ApiError: 400 if the request asks for both.
    """
    if continue_final and add_generation_prompt is True:
        raise invalid_request(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true.",
            "continue_final_message",
        )
