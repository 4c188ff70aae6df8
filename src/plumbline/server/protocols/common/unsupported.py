"""List the extension fields that this server refuses, with the reason that the error gives."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNSUPPORTED"]

UNSUPPORTED: Mapping[str, str] = {
    "kv_transfer_params": "is not supported: this server does not run disaggregated",
    "mm_processor_kwargs": "is not supported: processors of images run with the model's settings",
    "lora_path": "is not supported: name the adapter as the 'model'",
    "session_params": "is not supported: send the conversation again, whose tokens are cached, or "
    "'previous_response_id' of Responses",
}
"""By the name of a field: the end of the error message."""
