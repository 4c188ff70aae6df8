"""Translate sampling parameters to vLLM's, and refuse those that it does not honour."""

from __future__ import annotations

from typing import Any

import msgspec

from plumbline.port.engine import RefusedRequestError, SamplingParams

__all__ = ["FEATURES", "MatcherSpec", "matcher_spec", "vllm_parameters"]

FEATURES = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "prompt_logprobs",
        "repetition_penalty",
        "stop_token_ids",
        "thinking_budget",
        "top_k",
    }
)
"""The `SamplingParams` fields that this engine honours. It has no sampler chains."""

_MAX_TEMPERATURE = 2.0
_MAX_IDS = {"allowed_token_ids": 1024, "logit_bias": 1024, "stop_token_ids": 128}
"""Most entries per request in the buffers of vLLM's model runner on GPUs."""


class MatcherSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The constraints on the tokens of a request, as sent to vLLM's core process."""

    sampling: SamplingParams
    """Only grammar, thinking budget, bans, `allowed_token_ids`, `min_tokens` and `ignore_eos` are set."""
    ends: frozenset[int]
    """Tokens that end the request."""


def matcher_spec(sampling: SamplingParams, eos_token_ids: frozenset[int]) -> MatcherSpec | None:
    """Return the constraints on a request's tokens, or None if vLLM's own sampler suffices."""
    bans = sampling.bad_words or sampling.banned_strings
    if sampling.grammar is None and sampling.thinking_budget is None and not bans:
        return None
    return MatcherSpec(
        SamplingParams(
            grammar=sampling.grammar,
            thinking_budget=sampling.thinking_budget,
            bad_words=sampling.bad_words,
            banned_strings=sampling.banned_strings,
            allowed_token_ids=sampling.allowed_token_ids if bans else None,
            min_tokens=sampling.min_tokens if sampling.grammar is not None else 0,
            ignore_eos=sampling.ignore_eos,
        ),
        sampling.stop_token_ids | eos_token_ids,
    )


def vllm_parameters(
    sampling: SamplingParams, eos_token_ids: frozenset[int], spec: MatcherSpec | None, *, on_gpu: bool
) -> Any:
    """Return vLLM's parameters. The ends are always named, because vLLM defines `ignore_eos` differently.

    Raises:
        RefusedRequestError: vLLM refuses or changes a value.
    """
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    if sampling.temperature > _MAX_TEMPERATURE:
        raise RefusedRequestError("'temperature' is at most 2 with the vllm engine", param="temperature")
    for name, most in _MAX_IDS.items() if on_gpu else ():
        if len(getattr(sampling, name) or ()) > most:
            raise RefusedRequestError(f"{name!r} has at most {most} ids with the vllm engine", param=name)
    grammar = sampling.grammar is not None
    stop = set(sampling.stop_token_ids)
    if not sampling.ignore_eos or grammar:
        stop |= eos_token_ids
    max_tokens = None if sampling.max_tokens is None else max(sampling.max_tokens, 1)
    # With a grammar the mask delays the end: only the grammar knows whether another token is allowed.
    min_tokens = 0 if grammar or not stop else min(sampling.min_tokens, max_tokens or sampling.min_tokens)
    return _checked_class()(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        # vLLM takes -1 for none.
        seed=None if sampling.seed is None else sampling.seed & ((1 << 63) - 1),
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias) or None,
        allowed_token_ids=None if sampling.allowed_token_ids is None else sorted(sampling.allowed_token_ids),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=sorted(stop),
        ignore_eos=True,
        logprobs=sampling.logprobs,
        prompt_logprobs=sampling.prompt_logprobs,
        detokenize=False,
        skip_clone=True,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=None
        if spec is None
        else StructuredOutputsParams(grammar=msgspec.json.encode(spec).decode()),
    )


_classes: list[Any] = []


def _checked_class() -> Any:
    """Return vLLM's class of parameters without its check of grammars, which have been compiled by us.

    vLLM checks them without the tokenizer, and so refuses all with special tokens. The core process decodes the
    parameters as the class itself.
    """
    if not _classes:
        from vllm.sampling_params import SamplingParams as VllmSamplingParams

        class EngineParameters(VllmSamplingParams):  # type: ignore[misc,unused-ignore]
            def _validate_structured_outputs(self, *_: Any) -> None:
                if self.structured_outputs is not None:
                    self.structured_outputs._backend = "guidance"

        _classes.append(EngineParameters)
    return _classes[0]
