"""The journal of announced places follows the pool through publication, parting, eviction and orphans."""

from __future__ import annotations

import random

import pytest

from baton_engine.memory.blocks import GONE, BlockOwner, BlockPool, BlockState
from baton_wire.messages.values import RequestKey
from baton_wire.rules.prefix_digests import block_digest, is_sparse, root_digest

ROOT = root_digest("")
BLOCK_TOKENS = 512
"""Places of 1, 2, 4, 8, … blocks are sparse."""


def owner(number: int) -> BlockOwner:
    return BlockOwner(RequestKey(number.to_bytes(16, "big"), 1), 0)


def chain(*ids: int) -> list[bytes]:
    digests = [ROOT]
    for token in ids:
        digests.append(block_digest(digests[-1], (token,)))
    return digests[1:]


class Cache:
    """A pool with contexts that come and go, and a reader that knows what its journal announced."""

    def __init__(self, num_blocks: int, reaches: tuple[int | None, ...] = (None,)) -> None:
        self.pool = BlockPool(num_blocks, reaches)
        self.known: dict[bytes, int] = {}
        self._owners = 0

    def hold(self, *ids: int) -> BlockOwner:
        self._owners += 1
        holder, digests, groups = owner(self._owners), chain(*ids), self.pool.groups
        hits = self.pool.match(digests, len(digests))
        self.pool.share(holder, hits)
        first = len(hits) // groups
        self.pool.allocate(holder, len(ids) - first)
        self.publish(holder, digests, first)
        return holder

    def publish(self, holder: BlockOwner, digests: list[bytes], first: int) -> None:
        table, groups = self.pool.table(holder), self.pool.groups
        for index in range(first, len(digests)):
            for group in range(groups):
                if (block := table[index * groups + group]) != GONE:
                    parent = digests[index - 1] if index else ROOT
                    self.pool.publish(block, digests[index], parent, index + 1, group)

    def read(self) -> dict[bytes, int]:
        changes = self.pool.places.take(BLOCK_TOKENS)
        for digest in changes.dropped:
            del self.known[digest]
        for digest, blocks in changes.added:
            assert digest not in self.known
            self.known[digest] = blocks
        return self.known

    def expected(self) -> dict[bytes, int]:
        """The same from the pool's own index, without a journal."""
        index = self.pool._indexes[0]
        lengths: dict[bytes, int] = {}
        pending = [(ROOT, 0)]
        while pending:
            parent, length = pending.pop()
            for block in index._children.get(parent, ()):
                lengths[index._digests[block][0]] = length + 1
                pending.append((index._digests[block][0], length + 1))
        children = {digest: len(index._children.get(digest, ())) for digest in lengths}
        return {
            digest: length
            for digest, length in lengths.items()
            if is_sparse(length, BLOCK_TOKENS) or children[digest] != 1
        }


def test_a_long_context_has_few_announced_places() -> None:
    cache = Cache(1_100)
    cache.hold(*range(1_000))
    assert sorted(cache.read().values()) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_000]


def test_the_place_where_contexts_part_is_announced_until_they_do_no_longer() -> None:
    cache = Cache(64)
    cache.pool.release(cache.hold(*range(11)), 0)
    assert 11 in cache.read().values()
    cache.pool.release(cache.hold(*range(7), 50, 51), 0)
    assert sorted(cache.read().values()) == [1, 2, 4, 7, 8, 8, 9, 11]
    cache.pool.allocate(owner(99), cache.pool.num_blocks - 11)  # takes the end of the first context
    assert sorted(cache.read().values())[-1] == 9
    assert cache.read() == cache.expected()


def test_what_comes_and_goes_between_two_looks_is_not_mentioned() -> None:
    cache = Cache(8)
    cache.pool.release(cache.hold(1, 2, 3), 0)
    cache.pool.allocate(owner(9), 8)
    assert not cache.pool.places.take(BLOCK_TOKENS)
    assert not cache.pool.places._touched


def test_a_context_that_lost_its_beginning_is_not_announced() -> None:
    cache = Cache(2)
    first = cache.hold(1)
    second = owner(50)
    cache.pool.allocate(second, 1)
    digests = chain(1, 2)
    cache.pool.publish(cache.pool.table(second)[0], digests[1], digests[0], 2)
    assert set(cache.read()) == set(digests)
    cache.pool.release(first, 0)
    cache.pool.allocate(owner(51), 1)  # takes the first block; the second is still in use
    assert cache.read() == {}


def test_groups_with_a_window_announce_only_what_they_can_continue() -> None:
    cache = Cache(29, (None, 1))
    holder = cache.hold(1, 2, 3, 4)
    assert sorted(cache.read().values()) == [1, 2, 4]
    cache.pool.drop(holder, [0, 3], 0)
    cache.pool.allocate(owner(60), 12)  # evicts the blocks that the window left
    assert sorted(cache.read().values()) == [4]
    assert len(cache.pool.match(chain(1, 2, 3, 4), 4)) == 8


@pytest.mark.parametrize("seed", range(8))
def test_the_journal_agrees_with_the_index_after_any_history(seed: int) -> None:
    dice = random.Random(seed)
    cache = Cache(40)
    holders: list[BlockOwner] = []
    for _ in range(300):
        ids = [dice.randrange(2) for _ in range(dice.randint(1, 9))]
        if holders and (dice.random() < 0.5 or cache.pool.available < 12):
            cache.pool.release(holders.pop(dice.randrange(len(holders))), 0)
        else:
            holders.append(cache.hold(*ids))
        if dice.random() < 0.3:
            assert cache.read() == cache.expected()
    assert all(cache.pool.state(block) is not BlockState.FREE for block in cache.pool._index_of)
    assert cache.read() == cache.expected()
