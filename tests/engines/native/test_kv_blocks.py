"""Laws of the block pool."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.laws import EXPLORED

from plumbline.engines.native.scheduling import kv_blocks
from plumbline.engines.native.scheduling.kv_blocks import BlockPool, block_content, root_hash

SIZE = 4


def fill(pool: BlockPool, tokens: list[int], salt: str | None = None) -> list[int]:
    """Allocate blocks for a run of tokens and remember the full ones."""
    blocks = pool.allocate(-(-len(tokens) // SIZE))
    assert blocks is not None
    parent = root_hash(salt)
    for index in range(len(tokens) // SIZE):
        parent = pool.remember(blocks[index], parent, block_content(tokens, index * SIZE, SIZE))
    return blocks


class PoolMachine(RuleBasedStateMachine):
    """Any order of allocating, hitting, freeing and forgetting keeps the books balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, SIZE)
        self.tables: list[list[int]] = []

    @rule(tokens=st.lists(st.integers(0, 2), min_size=1, max_size=20), salt=st.sampled_from([None, "a"]))
    def request(self, tokens: list[int], salt: str | None) -> None:
        """What a scheduler does with a prompt: match, acquire, allocate the rest, remember."""
        blocks, hashes = self.pool.match_prefix(tokens, salt)
        assert len(blocks) * SIZE < len(tokens)
        self.pool.acquire(blocks)
        rest = self.pool.allocate(-(-len(tokens) // SIZE) - len(blocks))
        if rest is None:
            self.pool.free(blocks)
            return
        table = blocks + rest
        parent = hashes[-1] if hashes else root_hash(salt)
        for index in range(len(blocks), len(tokens) // SIZE):
            parent = self.pool.remember(table[index], parent, block_content(tokens, index * SIZE, SIZE))
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A request ends."""
        self.pool.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @rule()
    def reset(self) -> None:
        """Reset the cache; used blocks stay in use."""
        self.pool.reset_cache()

    @invariant()
    def books_balance(self) -> None:
        """free + used == total, and counts equal the tables."""
        self.pool.check_integrity(self.tables)
        assert self.pool.num_free + self.pool.num_used == 12


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=EXPLORED or 25, stateful_step_count=30, deadline=None)


def test_a_prefix_is_found_up_to_the_last_full_block_that_leaves_a_token() -> None:
    pool = BlockPool(16, SIZE)
    tokens = list(range(12))
    blocks = fill(pool, tokens)

    assert pool.match_prefix([*tokens, 99], None)[0] == blocks
    assert pool.match_prefix(tokens, None)[0] == blocks[:2]
    assert pool.match_prefix([*tokens[:8], 50, 51, 52, 53, 54], None)[0] == blocks[:2]
    assert pool.match_prefix([5, *tokens], None)[0] == []


def test_salts_do_not_share_prefixes() -> None:
    pool = BlockPool(16, SIZE)
    tokens = list(range(9))
    mine = fill(pool, tokens, "mine")

    assert pool.match_prefix(tokens, "mine")[0] == mine[:2]
    assert pool.match_prefix(tokens, "yours")[0] == []
    assert pool.match_prefix(tokens, None)[0] == []


def test_a_hash_collision_serves_no_foreign_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_blocks, "hash_block", lambda parent, tokens: b"same")
    pool = BlockPool(16, SIZE)
    fill(pool, [1, 2, 3, 4])

    assert pool.match_prefix([1, 2, 3, 4, 5], None)[0] == [0]
    assert pool.match_prefix([4, 3, 2, 1, 5], None)[0] == []


def test_the_tail_of_a_freed_prefix_is_evicted_before_its_head() -> None:
    pool = BlockPool(4, SIZE)
    tokens = list(range(16))
    pool.free(fill(pool, tokens))
    pool.allocate(1)

    assert len(pool.match_prefix([*tokens, 1], None)[0]) == 3


def test_allocating_more_than_there_is_changes_nothing() -> None:
    pool = BlockPool(3, SIZE)
    held = pool.allocate(2)

    assert pool.allocate(2) is None
    assert held is not None
    pool.check_integrity([held])


def test_a_double_free_is_an_error() -> None:
    pool = BlockPool(3, SIZE)
    held = pool.allocate(1)
    assert held is not None
    pool.free(held)

    with pytest.raises(RuntimeError, match="freed more often"):
        pool.free(held)


def test_lost_blocks_are_detected() -> None:
    pool = BlockPool(3, SIZE)
    pool.allocate(1)

    with pytest.raises(RuntimeError, match="ref counts differ"):
        pool.check_integrity([])
