"""Read which processors of logits a request names: vLLM's field, or SGLang's two."""

from __future__ import annotations

from plumbline.contract._generated.shared_fields import GenerationFields
from plumbline.contract.wire.errors import invalid_request, unsupported_value
from plumbline.port.engine import ProcessorCall
from plumbline.server.protocols.common.fields import or_default

__all__ = ["read_processors"]

_PICKLED = (
    "is pickled code, and this server runs no code of requests: it could do whatever the server may do. The operator "
    "registers processors (--logits-processor); send the name of one"
)


def read_processors(request: GenerationFields) -> tuple[ProcessorCall, ...]:
    """Return the processors in their order.

    Raises:
        ApiError: 400 for pickled code, and for parameters without a processor.
    """
    found: list[ProcessorCall] = []
    for index, entry in enumerate(or_default(request.logits_processors, [])):
        field = f"logits_processors[{index}]"
        if isinstance(entry, str):
            found.append(ProcessorCall(entry, field))
        else:
            args, kwargs = or_default(entry.args, []), or_default(entry.kwargs, {})
            found.append(ProcessorCall(entry.qualname, field, tuple(args), kwargs))
    custom = or_default(request.custom_logit_processor, None)
    params = or_default(request.custom_params, {})
    if custom is not None:
        if custom.lstrip().startswith("{"):
            raise unsupported_value("custom_logit_processor", custom, _PICKLED)
        found.append(ProcessorCall(custom, "custom_logit_processor", (), params))
    elif params:
        raise invalid_request(
            "'custom_params' has no effect without 'custom_logit_processor'; leave it out.",
            "custom_params",
            "invalid_value",
        )
    return tuple(found)
