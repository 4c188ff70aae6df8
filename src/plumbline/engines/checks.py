"""Check a request before an engine takes it, so that it cannot fail in the middle of a step that others share."""

from __future__ import annotations

from plumbline.engines.features import check_features
from plumbline.port.checks import check_media
from plumbline.port.engine import EngineInfo, GenerateRequest, RefusedRequestError

__all__ = ["check_request", "no_adapters"]


def no_adapters(info: EngineInfo) -> RefusedRequestError:
    """Return the error of an engine that does not support adapters."""
    return RefusedRequestError(
        f"the {info.name} engine does not support adapters; "
        "start the server with --engine plumbline or vllm, and with --lora or --lora-dir",
        "model",
    )


def check_request(request: GenerateRequest, info: EngineInfo) -> None:
    """Check the prompt, the ids and the sampling fields that the engine must honour.

    Raises:
        RefusedRequestError: the engine cannot compute the request; `param` names the sampling field.
    """
    sampling, vocab_size = request.sampling, info.vocab_size
    check_features(sampling, info)
    if request.adapter is not None and "adapters" not in info.features:
        raise no_adapters(info)
    prompt = request.prompt_token_ids
    if not prompt:
        raise RefusedRequestError("the prompt has no tokens")
    if request.media is not None:
        check_media(request.media, info)
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RefusedRequestError(f"prompt token ids must be in [0, {vocab_size})")
    room = info.max_model_len - len(prompt)
    if room < 0 or (room == 0 and sampling.max_tokens != 0):
        raise RefusedRequestError(f"the prompt has {len(prompt)} tokens; the limit is {info.max_model_len}")
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids", "logprob_token_ids"):
        ids = getattr(sampling, name)
        if ids and (min(ids) < 0 or max(ids) >= vocab_size):
            raise RefusedRequestError(f"{name} has a token id outside [0, {vocab_size})", param=name)
    for sequence in sampling.bad_words:
        if not sequence or min(sequence) < 0 or max(sequence) >= vocab_size:
            raise RefusedRequestError("bad_words has a sequence that is not token ids", param="bad_words")
    _check_tokens_remain(request, info)


def _check_tokens_remain(request: GenerateRequest, info: EngineInfo) -> None:
    """Refuse bias and allowed ids that leave no token to draw."""
    sampling = request.sampling
    banned = {token for token, bias in sampling.logit_bias.items() if bias == float("-inf")}
    if len(banned) == info.vocab_size:
        raise RefusedRequestError("logit_bias bans every token of the model", param="logit_bias")
    allowed = sampling.allowed_token_ids
    if allowed is None:
        return
    if sampling.grammar is not None:
        raise RefusedRequestError(
            "allowed_token_ids cannot be combined with a grammar", param="allowed_token_ids"
        )
    # `min_tokens` forbids the stop ids at first, so another id must remain.
    stops = sampling.stop_token_ids | info.eos_token_ids
    if not (allowed - stops if sampling.min_tokens else allowed) - banned:
        raise RefusedRequestError(
            "allowed_token_ids must name at least one token that can be drawn", param="allowed_token_ids"
        )
