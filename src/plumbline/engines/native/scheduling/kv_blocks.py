"""Manage the pool of KV-cache blocks: allocation, reference counts and the prefix cache.

A block is `block_size` token positions of every layer's K and V. It is in exactly one of three states:

    used     ref_count > 0: in the block table of at least one request
    cached   ref_count == 0, with the KV of a known run of tokens; in the free list, reusable by a hit
    blank    ref_count == 0, without known content; in the free list

The free list is in order of reuse: its first block is allocated next. A plain dict keeps that order and
removes from the middle in O(1), which a hit on a cached block needs. A request's blocks are freed from the last to the
first, so the tail of a prefix is evicted before its head.

A full block is known by the hash of (the hash of the block before it, its own tokens); the first block's parent is the
hash of the salt and of the adapter. Of a block with a part of an image, the hash of the image's file and the place of
the part count as well. The tokens are compared on a hit, so even a hash collision cannot serve a foreign KV.
Blocks with equal content are not merged: a block table is append-only while its request runs.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from plumbline.engines.request import PlacedImage, images_within

__all__ = ["BlockPool", "block_content", "hash_block", "root_hash"]


def root_hash(salt: str | None, adapter: int = 0) -> bytes:
    """Return the parent hash of a first block. Different salts never share a prefix, nor do different adapters.

    Args:
        salt: of the request.
        adapter: the number of its adapter, which is never used again; 0 for none.
    """
    secret = b"" if salt is None else b"\x01" + salt.encode()
    if adapter:
        secret = b"\x02" + adapter.to_bytes(8, "little") + secret
    return hashlib.blake2b(secret, digest_size=16).digest()


def hash_block(parent: bytes, tokens: bytes) -> bytes:
    """Return the hash of a full block from its parent's hash and its own content (`block_content`)."""
    return hashlib.blake2b(parent + tokens, digest_size=16).digest()


def block_content(
    token_ids: Sequence[int], start: int, size: int, images: Sequence[PlacedImage] = ()
) -> bytes:
    """Return what a block computes: its tokens (int32 little-endian), and each image that has positions in it.

    Args:
        token_ids: of the sequence.
        start: the block's first position.
        size: tokens of a block.
        images: of the sequence.
    """
    content = array("i", token_ids[start : start + size]).tobytes()
    for image in images_within(images, start, start + size):
        content += image.digest + (image.start - start).to_bytes(8, "little", signed=True)
    return content


class BlockPool:
    """Allocate and free blocks, and find cached prefixes. Not thread-safe: the engine thread owns it."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_caching: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self._ref_counts = [0] * num_blocks
        self._free: dict[int, None] = dict.fromkeys(range(num_blocks))
        # Per block: its hash and (parent hash, token bytes), or None while it is not a known full block.
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._contents: list[tuple[bytes, bytes] | None] = [None] * num_blocks
        self._cached: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated, cached ones included."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Blocks in the table of at least one request."""
        return self.num_blocks - len(self._free)

    def match_prefix(
        self,
        token_ids: Sequence[int],
        salt: str | None,
        adapter: int = 0,
        images: Sequence[PlacedImage] = (),
    ) -> tuple[list[int], list[bytes]]:
        """Return the longest cached run of full blocks at the start of `token_ids`, and their hashes.

        At least one token is always left out, because the logits of the last token must be computed.
        The blocks are not reserved yet: call `acquire` before anything else is allocated.
        """
        blocks: list[int] = []
        hashes: list[bytes] = []
        if not self.enable_caching:
            return blocks, hashes
        parent = root_hash(salt, adapter)
        size = self.block_size
        for start in range(0, len(token_ids) - size, size):
            tokens = block_content(token_ids, start, size, images)
            name = hash_block(parent, tokens)
            block = self._cached.get(name)
            if block is None or self._contents[block] != (parent, tokens):
                break
            blocks.append(block)
            hashes.append(name)
            parent = name
        return blocks, hashes

    def acquire(self, blocks: Sequence[int]) -> None:
        """Take one reference on each of these blocks (a prefix hit)."""
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free[block]
            self._ref_counts[block] += 1

    def allocate(self, count: int) -> list[int] | None:
        """Return `count` blocks with one reference each, or None (and change nothing) if there are not enough."""
        free = self._free
        if count > len(free):
            return None
        taken: list[int] = []
        for _ in range(count):
            block = next(iter(free))
            del free[block]
            self._forget(block)
            self._ref_counts[block] = 1
            taken.append(block)
        return taken

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference on each block; those without references become free, the last one first.

        Raises:
            RuntimeError: a block had no reference. That is a bug of the caller and would corrupt another request.
        """
        for block in reversed(blocks):
            count = self._ref_counts[block] - 1
            if count < 0:
                raise RuntimeError(f"block {block} was freed more often than it was acquired")
            self._ref_counts[block] = count
            if count == 0:
                self._free[block] = None

    def remember(self, block: int, parent: bytes, tokens: bytes) -> bytes:
        """Record the content of a full block (`block_content`); returns its hash, the parent of the next block.

        If another block with the same content is already known, prefix hits keep finding that one.
        """
        name = hash_block(parent, tokens)
        if self.enable_caching and self._hashes[block] is None and name not in self._cached:
            self._hashes[block] = name
            self._contents[block] = (parent, tokens)
            self._cached[name] = block
        return name

    def reset_cache(self) -> None:
        """Forget every cached prefix. Used blocks stay in use."""
        for block in range(self.num_blocks):
            self._forget(block)

    def check_integrity(self, block_tables: Sequence[Sequence[int]]) -> None:
        """Assert that free + used == total and that the counts match the requests' block tables.

        Raises:
            RuntimeError: they do not match; the text names the blocks.
        """
        expected = [0] * self.num_blocks
        for table in block_tables:
            for block in table:
                expected[block] += 1
        if expected != self._ref_counts:
            wrong = [b for b in range(self.num_blocks) if expected[b] != self._ref_counts[b]]
            raise RuntimeError(f"ref counts differ from the block tables at blocks {wrong[:8]}")
        used = sum(1 for count in expected if count)
        if used + len(self._free) != self.num_blocks or any(expected[block] for block in self._free):
            raise RuntimeError(f"{used} used + {len(self._free)} free != {self.num_blocks} blocks")
        for name, block in self._cached.items():
            if self._hashes[block] != name:
                raise RuntimeError(
                    f"the prefix cache has block {block} under a hash that is not the block's own"
                )

    def _forget(self, block: int) -> None:
        name = self._hashes[block]
        if name is not None:
            del self._cached[name]
            self._hashes[block] = None
            self._contents[block] = None
