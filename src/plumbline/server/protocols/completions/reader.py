"""Read a legacy completion request into one turn per prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from plumbline.answer.turn import Prompt, TextPrompt, TokenPrompt, Turn
from plumbline.contract._generated.completions import CreateCompletionRequest
from plumbline.contract.wire.errors import invalid_request, invalid_value, missing_required_parameter
from plumbline.server.protocols.common.fields import (
    check_stream_options,
    or_default,
    refuse_given,
)
from plumbline.server.protocols.common.output_formats import read_format
from plumbline.server.protocols.common.sampling.parameters import (
    Defaults,
    check_token_ids,
    read_num_probs,
    read_sampling,
)
from plumbline.server.protocols.common.shared_fields import with_shared_fields
from plumbline.server.protocols.common.token_facts import read_facts
from plumbline.server.protocols.common.unsupported import UNSUPPORTED

__all__ = ["CompletionPlan", "count_prompts", "read_completion"]

_DEFAULT_MAX_TOKENS = 16
"""CMP-03."""


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """A legacy completion request: one turn per prompt, and what to do with the choices."""

    turns: list[Turn]
    num_choices: int
    """Choices to return for each prompt."""
    best_of: int
    """Choices to generate for each prompt; the best are returned (CMP-06)."""
    echo: bool
    logprobs: int | None


def read_completion(request: CreateCompletionRequest, defaults: Defaults) -> CompletionPlan:
    """Read a request into turns.

    Raises:
        ApiError: 400 naming a field that contradicts another one or is not supported.
    """
    refuse_given(request, UNSUPPORTED)
    suffix = _read_suffix(request)
    check_stream_options(request)
    num_choices = or_default(request.n, 1)
    # The schema allows 0, which means the default.
    best_of = or_default(request.best_of, 0) or num_choices
    if best_of < num_choices:
        raise invalid_request(
            f"'best_of' ({best_of}) must be greater than or equal to 'n' ({num_choices}).",
            "best_of",
            "invalid_value",
        )
    if best_of > num_choices and request.stream is True:
        raise invalid_request("'best_of' cannot be greater than 'n' when 'stream' is enabled.", "best_of")
    max_tokens = or_default(request.max_tokens, _DEFAULT_MAX_TOKENS)
    logprobs: int | None = or_default(request.logprobs, read_num_probs(request))
    read_facts(request, logprobs=logprobs is not None)
    # The best choices are those with the highest mean logprob, so candidates need logprobs.
    wanted = logprobs if logprobs is not None or best_of == num_choices else 0
    sampling = read_sampling(
        request,
        defaults,
        max_tokens=max_tokens,
        max_tokens_param="max_tokens",
        logprobs=wanted,
        choices=best_of * count_prompts(request),
    )
    output_format = read_format(request)
    prompts = _read_prompts(
        request.prompt, defaults.vocab_size, or_default(request.add_special_tokens, True), suffix
    )
    turn = Turn(
        prompt=prompts[0],
        sampling=sampling,
        output_format=output_format,
        num_choices=best_of,
    )
    turn = with_shared_fields(turn, request)
    turns = [turn, *(msgspec.structs.replace(turn, prompt=prompt) for prompt in prompts[1:])]
    return CompletionPlan(turns, num_choices, best_of, or_default(request.echo, False), logprobs)


def count_prompts(request: CreateCompletionRequest) -> int:
    """Return how many prompts a request has, without reading them."""
    prompt = request.prompt
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _read_suffix(request: CreateCompletionRequest) -> str | None:
    """Return the text after the answer (CMP-07).

    Raises:
        ApiError: 400 if combined with token ids, which are the prompt as the model sees it, or with `echo`.
    """
    suffix = or_default(request.suffix, None)
    if suffix is None:
        return None
    prompts = request.prompt if isinstance(request.prompt, list) else [request.prompt]
    if request.echo is True or not all(isinstance(prompt, str) for prompt in prompts):
        raise invalid_request(
            "'suffix' needs prompts of text, and cannot be combined with 'echo'.", "suffix", "invalid_value"
        )
    return suffix


def _read_prompts(prompt: object, vocab_size: int, special: bool, suffix: str | None) -> list[Prompt]:
    """Read a string, strings, one list of token ids, or lists of token ids (CMP-02)."""
    match prompt:
        case str():
            return [TextPrompt(prompt, special, suffix)]
        case None:
            raise missing_required_parameter("prompt")  # HTTP-10
        case list() if prompt and all(isinstance(item, int) for item in prompt):
            return [_token_prompt(prompt, "prompt", vocab_size)]
        case list() if prompt:
            return [
                TextPrompt(item, special, suffix)
                if isinstance(item, str)
                else _token_prompt(item, f"prompt[{index}]", vocab_size)
                for index, item in enumerate(prompt)
            ]
        case _:
            raise invalid_value("prompt", prompt)


def _token_prompt(ids: Sequence[int], where: str, vocab_size: int) -> TokenPrompt:
    check_token_ids(where, ids, vocab_size)
    return TokenPrompt(tuple(ids))
