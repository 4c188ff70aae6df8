"""Refuse fields of another API or server, where ignoring them would change the answer.

Unknown fields are ignored (HTTP-09), because most do not affect an answer. A field of another API does: `max_tokens` in
a Responses request would be ignored, and the client would get a longer answer without notice. Such fields are refused
with the right name, as OpenAI's service does. Values without effect, such as null, pass.
"""

from __future__ import annotations

import msgspec

from plumbline.contract.wire.errors import unsupported_parameter

__all__ = ["check_places"]

_OURS = "'structured_outputs'"
_IN_CHAT = "it in /v1/chat/completions"
_ANSWERS = "one request for each answer"
_GUIDED = dict.fromkeys(("guided_json", "guided_regex", "guided_choice", "guided_grammar"), _OURS)
_LLAMA_CPP = {"n_cmpl": "'n'", "return_tokens": "'return_token_ids'"}
_FOREIGN = {
    "banned_tokens": "'logit_bias' with -100",
    "cfg_scale": "",
    "grammar_string": "'grammar'",
    "lora": "the adapter as the 'model'",
    "max_temp": "'dynatemp_range'",
    "min_keep": "",
    "min_temp": "'dynatemp_range'",
    "negative_prompt": "",
    "post_sampling_probs": "",
    "reasoning_format": "'separate_reasoning'",
    "repetition_decay": "'repeat_last_n'",
    "return_routed_experts": "",
    "skew": "",
    "smoothing_factor": "",
    "t_max_predict_ms": "",
    "temperature_last": "'samplers'",
    "token_healing": "",
    "vllm_xargs": "'logits_processors'",
}
"""Fields of other servers that change an answer, and what does the same here; empty where nothing does."""
_PLACES = {
    "CreateChatCompletionRequest": {
        "n_predict": "'max_completion_tokens'",
        **_LLAMA_CPP,
        **_FOREIGN,
        "text.format": "'response_format'",
        "reasoning.effort": "'reasoning_effort'",
        "max_output_tokens": "'max_completion_tokens'",
        "instructions": "a message of the role 'developer'",
        "previous_response_id": "/v1/responses",
    },
    "CreateCompletionRequest": {
        "n_predict": "'max_tokens'",
        **_LLAMA_CPP,
        **_FOREIGN,
        "response_format": _OURS,
        "text.format": _OURS,
        "max_completion_tokens": "'max_tokens'",
        "max_output_tokens": "'max_tokens'",
        "messages": _IN_CHAT,
        "tools": _IN_CHAT,
        "documents": _IN_CHAT,
        "response_prefix": _IN_CHAT,
        "continue_final_message": _IN_CHAT,
        "chat_template_kwargs": _IN_CHAT,
        "reasoning_effort": _IN_CHAT,
        "thinking_token_budget": _IN_CHAT,
    },
    "CreateResponse": {
        "n_predict": "'max_output_tokens'",
        "n_cmpl": _ANSWERS,
        **_FOREIGN,
        "response_format": "'text.format'",
        **_GUIDED,
        "max_tokens": "'max_output_tokens'",
        "max_completion_tokens": "'max_output_tokens'",
        "reasoning_effort": "'reasoning.effort'",
        "messages": "'input'",
        "functions": "'tools'",
        "n": _ANSWERS,
        "documents": _IN_CHAT,
        "response_prefix": _IN_CHAT,
        "continue_final_message": _IN_CHAT,
        "add_generation_prompt": _IN_CHAT,
        "echo": _IN_CHAT,
    },
}
"""For each request the misplaced fields, and what to use instead."""
_NOTHING = (b"null", b"false", b"[]", b"{}", b'""')
_ONE = (b"null", b"1", b"1.0")
_ZERO = (*_NOTHING, b"0", b"0.0")
_NEUTRAL = {
    **dict.fromkeys(("cfg_scale", "min_temp", "max_temp"), _ONE),
    **dict.fromkeys(("min_keep", "repetition_decay", "skew", "smoothing_factor", "t_max_predict_ms"), _ZERO),
    "reasoning_format": (b"null", b'"auto"', b'"deepseek"'),
    "n": _ONE,
    "n_cmpl": _ONE,
    "n_predict": (b"null", b"-1"),
    "add_generation_prompt": (b"null", b"true"),
}
"""Values without effect, as JSON."""
_LARGE = 100_000
"""Bytes."""
_EMPTY = (b"", *_ZERO)
_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_places(root: type, body: bytes) -> None:
    """Refuse misplaced fields in a body that has been decoded.

    Raises:
        ApiError: 400 naming the field and the right one.
    """
    # Some twenty searches are faster than decoding only in a small body.
    fields = _decoder.decode(body) if len(body) > _LARGE else None
    for param, right in _PLACES.get(root.__name__, {}).items():
        name, _, inner = param.partition(".")
        if fields is not None:
            value = fields.get(name)
        # These searches are fast, and nearly every body ends here.
        elif f'"{name}"'.encode() not in body or (inner and f'"{inner}"'.encode() not in body):
            continue
        else:
            value = _decoder.decode(body).get(name)
        if value is None or bytes(value) in _NEUTRAL.get(name, _NOTHING):
            continue
        if inner and bytes(_member(value, inner)) in _EMPTY:
            continue
        raise unsupported_parameter(
            param, f"is not a field of this API; use {right}" if right else "is not supported by this server"
        )


def _member(value: msgspec.Raw, name: str) -> msgspec.Raw:
    """Return the member of an object, as JSON; nothing if there is none."""
    return _decoder.decode(value).get(name, msgspec.Raw()) if bytes(value).startswith(b"{") else msgspec.Raw()
