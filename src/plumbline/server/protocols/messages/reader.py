"""Read a Messages request into a turn."""

from __future__ import annotations

from collections.abc import Collection

from plumbline.answer.turn import ChatPrompt, ToolChoice, Turn
from plumbline.contract._generated.messages import (
    CreateMessageRequest,
    MessagePromptFields,
    ThinkingDisabled,
    ThinkingEnabled,
)
from plumbline.contract._generated.shared_fields import GenerationFields
from plumbline.contract.wire.error_forms import THREAD_UNSUPPORTED
from plumbline.contract.wire.errors import (
    invalid_request,
    invalid_value,
    unsupported_parameter,
    unsupported_value,
)
from plumbline.server.protocols.common.fields import given, or_default, refuse_given
from plumbline.server.protocols.common.output_formats import read_format
from plumbline.server.protocols.common.sampling.parameters import Defaults, read_sampling
from plumbline.server.protocols.common.sealing import Sealer
from plumbline.server.protocols.common.tools.tool_choice import with_repair
from plumbline.server.protocols.messages.history import read_conversation
from plumbline.server.protocols.messages.message_tools import read_tools

__all__ = ["read_message", "read_message_prompt"]

_REFUSED = {
    "access_programs": "is not supported by this server",
    "background_options": "is not supported: answers of Messages end with their connection",
    "billing_policy": "is not supported: this server bills nobody",
    "compaction": "is not supported in Messages; send the whole conversation, or use Responses",
    "container": "is not supported: this server has no hosted tools",
    "diagnostics": "is not supported by this server",
    "fallback_credit_token": "is not supported: this server bills nobody",
    "fallbacks": "is not supported: name another model in 'model'",
    "image": "is not supported: this server answers with text",
    "inference_geo": "is not supported: this server computes where it runs",
    "mcp_servers": "is not supported in Messages; Responses call tools of MCP servers",
    "output_format": "is not supported: send 'output_config.format'",
}
_NO_EDIT = "clear_thinking_20251015"


def read_message(
    request: CreateMessageRequest,
    defaults: Defaults,
    sealer: Sealer,
    *,
    thinks: bool,
    modalities: Collection[str] = (),
) -> Turn:
    """Read a request into a turn.

    Args:
        request: the request.
        defaults: sampling values for fields that it leaves out.
        sealer: opens signatures of thinking.
        thinks: whether the model thinks in a way that the server knows. For another one a budget changes nothing.
        modalities: what the model reads besides text.

    Raises:
        ApiError: 400 naming a field that contradicts another one or is not supported.
    """
    refuse_given(request, _REFUSED)
    _check_thread(request)
    prompt, choice = read_message_prompt(request, sealer, modalities)
    budget = prompt.thinking_budget
    if budget is not None and budget >= request.max_tokens:
        raise invalid_request(
            f"'thinking.budget_tokens' ({budget}) must be less than 'max_tokens' ({request.max_tokens}).",
            "thinking.budget_tokens",
            "invalid_value",
        )
    output_format = read_format(request)
    if prompt.continue_final_message:
        _check_prefill(prompt, output_format is not None)
    asked = GenerationFields(temperature=request.temperature, top_p=request.top_p, top_k=request.top_k)
    turn = Turn(
        prompt=prompt,
        sampling=read_sampling(
            asked, defaults, max_tokens=request.max_tokens, max_tokens_param="max_tokens", logprobs=None
        ),
        output_format=output_format,
        tool_choice=choice,
        thinking_budget=budget if thinks else None,
        stop=_stop(or_default(request.stop_sequences, [])),
        shorten_answer=True,
        report_progress=request.stream is True,  # for the counts that a stream begins with
    )
    return with_repair(request, turn)


def read_message_prompt(
    request: MessagePromptFields,
    sealer: Sealer,
    modalities: Collection[str] = (),
) -> tuple[ChatPrompt, ToolChoice]:
    """Read what the model sees, and which calls it may make; raises as `read_message`."""
    _check_edits(request)
    tools, choice = read_tools(request)
    messages, continued = read_conversation(
        or_default(request.system, None), request.messages, sealer, modalities
    )
    thinking = or_default(request.thinking, None)
    if (
        thinking is not None
        and not isinstance(thinking, ThinkingDisabled)
        and or_default(thinking.block_binding, {})
    ):
        raise unsupported_parameter("thinking.block_binding", "is not supported by this server")
    config = or_default(request.output_config, None)
    effort: str | None = None if config is None else or_default(config.effort, None)
    if isinstance(thinking, ThinkingDisabled):
        effort = "none"
    elif thinking is not None and effort is None:
        effort = "medium"  # Templates whose models do not think by default need one.
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        effort=effort,
        thinking_budget=thinking.budget_tokens if isinstance(thinking, ThinkingEnabled) else None,
        add_generation_prompt=not continued,
        continue_final_message=continued,
    )
    return prompt, choice


def _check_thread(request: CreateMessageRequest) -> None:
    """Refuse a conversation that the server would keep, with the code at which clients send all of it (MSG-11).

    Raises:
        ApiError: 400.
    """
    if given(request.thread):
        raise invalid_request(
            "'thread' is not supported: send the whole conversation in 'messages'.",
            "thread",
            THREAD_UNSUPPORTED,
        )


def _check_edits(request: MessagePromptFields) -> None:
    """Check that no edit of the context is asked for but the one that leaves nothing out, which Claude Code sends.

    Raises:
        ApiError: 400 that names the edit.
    """
    management = or_default(request.context_management, None)
    edits = [] if management is None else or_default(management.edits, [])
    for index, edit in enumerate(edits):
        where = f"context_management.edits[{index}]"
        if edit.type != _NO_EDIT:
            raise unsupported_value(f"{where}.type", edit.type, "is not supported: nothing is left out here")
        keep = or_default(edit.keep, None)
        if keep not in ("all", {"type": "all"}):
            raise unsupported_value(f"{where}.keep", keep, "is not supported: all thinking is kept here")


def _check_prefill(prompt: ChatPrompt, has_format: bool) -> None:
    """Check that an answer can begin with the last message of the assistant (MSG-03).

    Raises:
        ApiError: 400 if there is nothing to continue, or if the answer must begin otherwise.
    """
    if not prompt.messages[-1].content:
        raise invalid_request("The last message of the assistant has no text to continue.", "messages")
    if has_format:
        raise invalid_request(
            "'output_config.format' describes a whole answer; it cannot be combined with a last message of the "
            "assistant.",
            "output_config.format",
        )
    if prompt.effort not in (None, "none"):
        raise invalid_request(
            "'thinking' comes before the answer; it cannot be combined with a last message of the assistant.",
            "thinking",
        )


def _stop(sequences: list[str]) -> tuple[str, ...]:
    """Read `stop_sequences`. The empty text would end every answer at once, so it is refused."""
    for index, sequence in enumerate(sequences):
        if not sequence:
            raise invalid_value(f"stop_sequences[{index}]", sequence)
    return tuple(sequences)
