"""Read the samplers that llama.cpp and TabbyAPI share, and the order in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from plumbline.contract._generated.shared_fields import GenerationFields
from plumbline.contract.wire.errors import invalid_request
from plumbline.port.engine import SAMPLER_ORDER, Dry, Mirostat, SamplerChain
from plumbline.server.protocols.common.fields import given, or_default

__all__ = ["read_breakers", "read_chain"]

_BREAKERS = ("\n", ":", '"', "*")
"""llama.cpp's and TabbyAPI's default for `dry_sequence_breakers`."""
_PLAIN = ("repeat_last_n", "typical_p", "top_a", "tfs", "top_n_sigma", "xtc_probability", "xtc_threshold")
_NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})
_STEERED_ORDER = ("penalties", "dry", "temperature")
"""The samplers that run before Mirostat, which replaces all samplers that cut."""


def read_chain(
    request: GenerationFields, defaults: Mapping[str, Any] = _NO_DEFAULTS, repetition: float = 1.0
) -> SamplerChain | None:
    """Read the samplers of a request of any API; None if it uses only the usual ones.

    Args:
        request: a decoded request.
        defaults: the model's values for fields that it leaves out.
        repetition: its repetition penalty.

    Raises:
        ApiError: 400 if `samplers` comes with `mirostat`.
    """
    neutral = SamplerChain()
    values = {
        name: or_default(getattr(request, name), defaults.get(name, getattr(neutral, name)))
        for name in _PLAIN
    }
    multiplier = or_default(request.dry_multiplier, 0.0)
    version = or_default(request.mirostat, None)
    order = or_default(request.samplers, None)
    if version and order is not None:
        raise invalid_request(
            "'samplers' cannot be combined with 'mirostat', which replaces the samplers that cut; leave one out.",
            "samplers",
        )
    # Each of the two replaces the other one of the model.
    if version is None:
        version = defaults.get("mirostat", 0) if order is None else 0
    if order is None:
        order = defaults.get("samplers")
    chain = SamplerChain(
        order=_STEERED_ORDER if version else SAMPLER_ORDER if order is None else tuple(order),
        dynatemp_range=or_default(request.dynatemp_range, 0.0),
        dynatemp_exponent=or_default(request.dynatemp_exponent, 1.0),
        dry=_read_dry(request, multiplier) if multiplier else None,
        mirostat=None
        if not version
        else Mirostat(
            version=1 if version == 1 else 2,
            tau=or_default(request.mirostat_tau, defaults.get("mirostat_tau", 5.0)),
            eta=or_default(request.mirostat_eta, defaults.get("mirostat_eta", 0.1)),
        ),
        **values,
    )
    # These three only shape samplers that are off.
    shaped = {"xtc_threshold": neutral.xtc_threshold} if not chain.xtc_probability else {}
    shaped |= {"dynatemp_exponent": 1.0} if not chain.dynatemp_range else {}
    if repetition == 1.0 and not given(request.repeat_last_n):
        shaped["repeat_last_n"] = neutral.repeat_last_n
    return None if _replaced(chain, shaped) == neutral else chain


def read_breakers(request: GenerationFields) -> tuple[str, ...]:
    """Read the texts that end a repeated sequence; empty where DRY is off."""
    if not or_default(request.dry_multiplier, 0.0):
        return ()
    return tuple(or_default(request.dry_sequence_breakers, _BREAKERS))


def _read_dry(request: GenerationFields, multiplier: float) -> Dry:
    return Dry(
        multiplier=multiplier,
        base=or_default(request.dry_base, 1.75),
        allowed_length=or_default(request.dry_allowed_length, 2),
        last_n=or_default(request.dry_penalty_last_n, -1),
    )


def _replaced(chain: SamplerChain, changes: dict[str, float]) -> SamplerChain:
    return SamplerChain(**{name: getattr(chain, name) for name in chain.__struct_fields__} | changes)
