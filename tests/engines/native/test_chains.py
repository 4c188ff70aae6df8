"""Laws of sampler chains in the native engine.

- The tokens of a request with a chain depend neither on other requests, nor on chunking, nor on preemptions.
- A request without a chain draws the same beside requests with one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plumbline.port.engine import Dry, Mirostat, SamplerChain

CHAINS = [
    SamplerChain(typical_p=0.8, tfs=0.97, top_a=0.1, top_n_sigma=2.5),
    SamplerChain(xtc_probability=0.5, xtc_threshold=0.02, dynatemp_range=0.4, repeat_last_n=5),
    SamplerChain(dry=Dry(multiplier=2.0, allowed_length=0, breaker_ids=frozenset({9}))),
    SamplerChain(mirostat=Mirostat(version=1, tau=3.0, eta=0.3), order=("penalties", "temperature")),
    SamplerChain(mirostat=Mirostat(version=2, tau=3.0, eta=0.3), order=("temperature",)),
]
PROMPT = [5, 9, 2, 5, 9, 2, 5]
SEEDED: dict[str, Any] = {
    "temperature": 0.9,
    "seed": 11,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.2,
    "ignore_eos": True,
    "max_tokens": 40,
}


@pytest.mark.parametrize("chain", CHAINS)
def test_tokens_of_a_chain_depend_on_the_request_only(
    chain: SamplerChain, engine: Callable[..., Any]
) -> None:
    alone = engine()
    alone.add("a", PROMPT, chain=chain, **SEEDED)
    alone.run()

    # 12 blocks of 8 tokens cannot hold three requests of 47 tokens: the last of them is preempted.
    crowded = engine(num_blocks=14, max_model_len=64, max_num_batched_tokens=16, expected_output_len=1)
    for index, other in enumerate(CHAINS):
        crowded.add(f"b{index}", [index + 3] * 20, chain=other, **{**SEEDED, "seed": index})
    crowded.add("a", PROMPT, chain=chain, **SEEDED)
    crowded.run()

    assert crowded.core.scheduler.num_preemptions > 0
    assert len(alone.tokens["a"]) == 40
    assert crowded.tokens["a"] == alone.tokens["a"]


def test_a_request_without_a_chain_draws_the_same_beside_one(engine: Callable[..., Any]) -> None:
    alone = engine()
    alone.add("a", PROMPT, **SEEDED)
    alone.run()
    beside = engine()
    for index, chain in enumerate(CHAINS):
        beside.add(f"b{index}", PROMPT, chain=chain, **SEEDED)
    beside.add("a", PROMPT, **SEEDED)
    beside.run()

    assert beside.tokens["a"] == alone.tokens["a"]
    assert all(beside.tokens[f"b{index}"] != alone.tokens["a"] for index in range(len(CHAINS)))


def test_neutral_chains_change_no_token(engine: Callable[..., Any]) -> None:
    driver = engine()
    driver.add("plain", PROMPT, top_k=20, min_p=0.02, **SEEDED)
    driver.add("chain", PROMPT, top_k=20, min_p=0.02, chain=SamplerChain(), **SEEDED)
    driver.run()
    assert driver.tokens["chain"] == driver.tokens["plain"]


def test_dry_ends_a_loop(engine: Callable[..., Any]) -> None:
    """A greedy request that runs in a circle leaves it with DRY."""
    driver = engine()
    greedy = {"ignore_eos": True, "max_tokens": 60}
    driver.add("plain", PROMPT, **greedy)
    driver.add("dry", PROMPT, chain=SamplerChain(dry=Dry(multiplier=100.0, allowed_length=2)), **greedy)
    driver.run()

    def repeats(tokens: list[int]) -> int:
        triples = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
        return len(triples) - len(set(triples))

    assert repeats(driver.tokens["plain"]) > 0
    assert repeats(PROMPT + driver.tokens["dry"]) == repeats(PROMPT)
