"""List the extension fields that this server refuses, with the reason that the error gives."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNSUPPORTED"]

_NOT_YET = "is not supported by this server yet"

UNSUPPORTED: Mapping[str, str] = {
    "repeat_penalty": _NOT_YET,
    "repeat_last_n": _NOT_YET,
    "typical_p": _NOT_YET,
    "top_a": _NOT_YET,
    "tfs": _NOT_YET,
    "xtc_probability": _NOT_YET,
    "xtc_threshold": _NOT_YET,
    "dry_multiplier": _NOT_YET,
    "dry_base": _NOT_YET,
    "dry_allowed_length": _NOT_YET,
    "dry_penalty_last_n": _NOT_YET,
    "dry_sequence_breakers": _NOT_YET,
    "mirostat": _NOT_YET,
    "mirostat_tau": _NOT_YET,
    "mirostat_eta": _NOT_YET,
    "dynatemp_range": _NOT_YET,
    "dynatemp_exponent": _NOT_YET,
    "samplers": _NOT_YET,
    "n_probs": _NOT_YET,
    "banned_strings": _NOT_YET,
    "cache_prompt": _NOT_YET,
    "id_slot": _NOT_YET,
    "grammar": _NOT_YET,
    "json_schema": _NOT_YET,
    "regex": _NOT_YET,
    "ebnf": _NOT_YET,
    "structural_tag": _NOT_YET,
    "prompt_logprobs": _NOT_YET,
    "logprob_token_ids": _NOT_YET,
    "return_tokens_as_token_ids": _NOT_YET,
    "use_beam_search": _NOT_YET,
    "length_penalty": _NOT_YET,
    "add_special_tokens": _NOT_YET,
    "add_bos_token": _NOT_YET,
    "request_id": _NOT_YET,
    "rid": _NOT_YET,
    "kv_transfer_params": "is not supported: this server does not run disaggregated",
    "mm_processor_kwargs": "is not supported: this server reads text only",
    "lora_path": "is not supported: this server has no adapters",
    "return_hidden_states": "is not supported by this server",
    "session_params": "is not supported: this server has no sessions",
    "chat_template": _NOT_YET,
    "input_ids": _NOT_YET,
    "bad_words": _NOT_YET,
    "return_token_ids": _NOT_YET,
    "truncate_prompt_tokens": _NOT_YET,
}
"""By the name of a field: the end of the error message."""
