"""The block pool: owners, fences, cached content, eviction."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from baton_engine.memory.blocks import GONE, BlockOwner, BlockPool, BlockState
from baton_testing.engine.toy_engine import key
from baton_wire.rules.prefix_digests import block_digest, root_digest

A, B, C = (BlockOwner(key(number), 0) for number in (1, 2, 3))
ROOT = root_digest("")


def publish_chain(pool: BlockPool, owner: BlockOwner, contents: str) -> list[bytes]:
    """Give the owner's first blocks contents, one letter each; returns their digests."""
    digests = [ROOT]
    for block, letter in zip(pool.table(owner), contents, strict=False):
        digests.append(block_digest(digests[-1], (ord(letter),)))
        pool.publish(block, digests[-1], digests[-2], len(digests) - 1)
    return digests[1:]


def states(pool: BlockPool) -> dict[str, int]:
    return {state.name.lower(): count for state in BlockState if (count := pool.count(state))}


def test_blocks_go_round_free_reserved_in_use_cached_free() -> None:
    pool = BlockPool(4)
    pool.allocate(A, 2, reserved=True)
    assert states(pool) == {"free": 2, "reserved": 2}
    pool.activate(A)
    assert states(pool) == {"free": 2, "in_use": 2}
    publish_chain(pool, A, "x")
    pool.release(A, fence=0)
    assert states(pool) == {"free": 3, "cached": 1}
    pool.allocate(B, 4)
    assert states(pool) == {"in_use": 4}
    pool.check()


def test_release_is_by_owner_and_only_once() -> None:
    pool = BlockPool(4)
    pool.allocate(A, 2)
    pool.release(A, fence=0)
    pool.allocate(B, 4)
    pool.release(A, fence=0)  # a late clean-up of the first owner
    assert states(pool) == {"in_use": 4}
    pool.release(C, fence=0)
    assert states(pool) == {"in_use": 4}
    pool.check()


def test_another_attempt_of_the_same_request_is_another_owner() -> None:
    pool = BlockPool(4)
    first, second = BlockOwner(key(1, attempt=1), None), BlockOwner(key(1, attempt=2), None)
    pool.allocate(second, 2)
    pool.release(first, fence=0)
    assert states(pool) == {"free": 2, "in_use": 2}


def test_a_block_is_not_given_out_before_the_step_that_may_touch_it_is_collected() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 2)
    pool.release(A, fence=7)
    assert states(pool) == {"fenced": 2}
    assert pool.available == 0
    pool.collect(6)
    assert pool.available == 0
    pool.check()
    pool.collect(7)
    assert states(pool) == {"free": 2}


def test_the_latest_fence_of_several_owners_counts() -> None:
    pool = BlockPool(1)
    pool.allocate(A, 1)
    pool.share(B, pool.table(A))
    pool.release(A, fence=5)
    pool.release(B, fence=3)
    pool.collect(3)
    assert states(pool) == {"fenced": 1}
    pool.collect(5)
    assert states(pool) == {"free": 1}


def test_fences_may_be_set_in_any_order() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 1)
    pool.allocate(B, 1)
    pool.release(A, fence=5)
    pool.release(B, fence=4)
    pool.collect(4)
    assert states(pool) == {"free": 1, "fenced": 1}
    pool.check()


def test_a_hit_on_a_fenced_block_keeps_it() -> None:
    pool = BlockPool(1)
    pool.allocate(A, 1)
    digests = publish_chain(pool, A, "x")
    pool.release(A, fence=5)
    pool.share(B, pool.match(digests, 1))
    pool.collect(5)
    assert states(pool) == {"in_use": 1}
    pool.check()


def test_shared_blocks_stay_until_the_last_owner_lets_go() -> None:
    pool = BlockPool(3)
    pool.allocate(A, 2)
    pool.share(B, pool.table(A))
    pool.release(A, fence=0)
    assert states(pool) == {"free": 1, "in_use": 2}
    pool.release(B, fence=0)
    assert states(pool) == {"free": 3}


def test_a_table_changes_hands_whole() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(A, 2)
    pool.move(A, B)
    pool.release(A, fence=0)
    assert list(pool.table(B)) == blocks
    pool.check()


def test_generations_count_the_lives_of_a_block() -> None:
    pool = BlockPool(1)
    for life in (1, 2, 3):
        pool.allocate(A, 1)
        assert pool.generation(0) == life
        pool.share(B, [0])
        assert pool.generation(0) == life
        pool.release(A, fence=0)
        pool.release(B, fence=0)


def test_the_least_recently_released_content_goes_first() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 1)
    (old,) = publish_chain(pool, A, "a")
    pool.allocate(B, 1)
    (young,) = publish_chain(pool, B, "b")
    pool.release(A, fence=0)
    pool.release(B, fence=0)
    pool.share(C, pool.match([old], 1))
    pool.release(C, fence=0)  # the older one was used again
    pool.allocate(C, 1)
    assert pool.match([old], 1) == [0]
    assert pool.match([young], 1) == []


def test_leaves_go_before_what_they_hang_on() -> None:
    pool = BlockPool(4)
    pool.allocate(A, 4)
    digests = publish_chain(pool, A, "abcd")
    pool.release(A, fence=0)
    for left in (3, 2, 1, 0):
        pool.allocate(BlockOwner(key(10 + left), 0), 1)
        assert len(pool.match(digests, 4)) == left


def test_a_parent_released_before_its_child_still_outlives_it() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 1)
    parent = publish_chain(pool, A, "a")
    pool.allocate(B, 1)
    child = block_digest(parent[0], (ord("b"),))
    pool.publish(pool.table(B)[0], child, parent[0], 2)
    pool.release(A, fence=0)
    pool.release(B, fence=0)
    pool.allocate(C, 1)
    assert pool.match([parent[0], child], 2) == [0]


def test_a_cached_parent_of_a_block_in_use_can_be_evicted() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 1)
    parent = publish_chain(pool, A, "a")
    pool.allocate(B, 1)
    pool.publish(pool.table(B)[0], block_digest(parent[0], (1,)), parent[0], 2)
    pool.release(A, fence=0)
    assert pool.available == 1
    pool.allocate(C, 1)  # else a pool full of one sequence's orphans would be stuck
    assert pool.table(C) == [0]
    pool.check()


def test_held_blocks_are_never_evicted() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 2)
    publish_chain(pool, A, "ab")
    assert pool.available == 0
    with pytest.raises(RuntimeError, match="1 blocks were asked for, 0 are available"):
        pool.allocate(B, 1)
    pool.check()


def test_a_sequence_grows_next_to_its_last_block() -> None:
    pool = BlockPool(10)
    pool.allocate(A, 2)
    assert pool.allocate(A, 2) == [2, 3]
    assert list(pool.table(A)) == [0, 1, 2, 3]


def test_a_match_ends_where_the_group_with_a_window_has_its_last_block() -> None:
    pool = BlockPool(8, reaches=(None, 1))
    table, digests = pool.allocate(A, 3), [bytes([number]) for number in range(3)]
    for index, parent in enumerate((ROOT, *digests[:2])):
        pool.publish(table[2 * index], digests[index], parent, index + 1, kv_group=0)
    pool.publish(table[3], digests[1], digests[0], 2, kv_group=1)
    assert pool.match(digests, 3) == [table[0], GONE, table[2], table[3]], "one block less than was published"


def test_the_check_of_the_books_finds_an_owner_that_holds_a_block_twice() -> None:
    pool = BlockPool(2)
    pool.allocate(A, 1)
    pool.share(A, list(pool.table(A)))
    with pytest.raises(AssertionError, match="holds a block twice"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Any order of moves keeps the books right, and a block never changes hands under a launched step."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.launched = self.collected = self.names = 0
        self.touched: list[tuple[int, dict[int, int]]] = []  # (step, generations of the blocks it touches)

    def _new(self) -> BlockOwner:
        self.names += 1
        return BlockOwner(key(self.names), None)

    @rule(target=owners, count=st.integers(0, 6), reserved=st.booleans())
    def allocate(self, count: int, reserved: bool) -> BlockOwner:
        owner = self._new()
        if count <= self.pool.available:
            before = {block: self.pool.generation(block) for block in range(12)}
            blocks = self.pool.allocate(owner, count, reserved=reserved)
            assert len(set(blocks)) == count
            assert all(self.pool.generation(block) == before[block] + 1 for block in blocks)
        return owner

    @rule(owner=owners)
    def grow(self, owner: BlockOwner) -> None:
        if self.pool.available and self.pool.table(owner):
            self.pool.allocate(owner, 1)

    @rule(owner=owners)
    def activate(self, owner: BlockOwner) -> None:
        self.pool.activate(owner)

    @rule(owner=owners, letters=st.text("ab", min_size=1, max_size=4))
    def publish(self, owner: BlockOwner, letters: str) -> None:
        if all(self.pool.state(block) is BlockState.IN_USE for block in self.pool.table(owner)):
            publish_chain(self.pool, owner, letters)

    @rule(target=owners, letters=st.text("ab", min_size=1, max_size=4))
    def hit(self, letters: str) -> BlockOwner:
        owner, digests = self._new(), [ROOT]
        for letter in letters:
            digests.append(block_digest(digests[-1], (ord(letter),)))
        blocks = self.pool.match(digests[1:], 4)
        generations = [self.pool.generation(block) for block in blocks]
        self.pool.share(owner, blocks)
        assert [self.pool.generation(block) for block in blocks] == generations
        return owner

    @rule(target=owners, owner=owners)
    def fork(self, owner: BlockOwner) -> BlockOwner:
        other = self._new()
        if all(self.pool.state(block) is BlockState.IN_USE for block in self.pool.table(owner)):
            self.pool.share(other, self.pool.table(owner))
        return other

    @rule(target=owners, owner=consumes(owners))
    def move(self, owner: BlockOwner) -> BlockOwner:
        other = self._new()
        if self.pool.table(owner):
            self.pool.move(owner, other)
        return other

    @rule(owner=owners)
    def launch(self, owner: BlockOwner) -> None:
        self.launched += 1
        self.touched.append((self.launched, {b: self.pool.generation(b) for b in self.pool.table(owner)}))

    @precondition(lambda self: self.collected < self.launched)
    @rule()
    def collect(self) -> None:
        self.collected += 1
        self.pool.collect(self.collected)

    @rule(owner=owners)
    def release(self, owner: BlockOwner) -> None:
        self.pool.release(owner, self.launched)
        assert not self.pool.table(owner)

    @invariant()
    def books_agree(self) -> None:
        self.pool.check()

    @invariant()
    def no_block_changes_hands_under_a_step(self) -> None:
        for step, generations in self.touched:
            if step > self.collected:
                assert all(self.pool.generation(block) == was for block, was in generations.items())

    def teardown(self) -> None:
        self.pool.collect(self.launched)
        for owner in self.pool.owners():
            self.pool.release(owner, self.launched)
        assert self.pool.available == 12
        self.pool.check()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(derandomize=True, deadline=None, max_examples=80, stateful_step_count=40)
