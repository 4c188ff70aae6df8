"""The features that each engine declares, and the table of docs/reference/engines.md that shows them.

`tests/engines/contract` proves the cells on each engine that is installed: what an engine declares it answers, and what
it does not declare it refuses by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from plumbline.engines.features import CHAIN_FEATURES
from plumbline.engines.threaded.threaded_engine import FEATURES as THREADED
from plumbline.engines.vllm.parameters import FEATURES as VLLM

__all__ = ["DECLARED", "feature_table"]

_GRAMMARS = frozenset({"grammar", "banned_strings"})
"""What a grammar compiler adds to any engine."""

DECLARED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "plumbline": THREADED | _GRAMMARS | {"return_hidden_states"},
        "vllm": VLLM | _GRAMMARS,
        "llama_cpp": THREADED | _GRAMMARS,
        "transformers": THREADED | _GRAMMARS,
    }
)
"""By the name of `--engine`: `EngineInfo.features` without options."""


def feature_table() -> list[str]:
    """Return the lines of the table: a row for all features that the same engines have."""
    rows: dict[tuple[bool, ...], list[str]] = {}
    chains = frozenset({"sampler chains"})
    declared = {
        name: (features - CHAIN_FEATURES) | (chains if features >= CHAIN_FEATURES else frozenset())
        for name, features in DECLARED.items()
    }
    for feature in sorted(frozenset[str]().union(*declared.values())):
        rows.setdefault(tuple(feature in features for features in declared.values()), []).append(feature)
    named = {
        "sampler chains": f"sampler chains ({', '.join(f'`{name}`' for name in sorted(CHAIN_FEATURES))})"
    }
    return [
        f"| request features | {' | '.join(DECLARED)} |",
        "|---" * (len(DECLARED) + 1) + "|",
        *(
            f"| {', '.join(named.get(name, f'`{name}`') for name in features)} "
            f"| {' | '.join('yes' if one else 'refused' for one in has)} |"
            for has, features in sorted(rows.items(), reverse=True)
        ),
    ]
