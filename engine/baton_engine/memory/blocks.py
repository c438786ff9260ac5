"""The blocks of a KV pool: their owners, which content may be reused, and when a block may be given to another owner.

    FREE ──allocate──▶ RESERVED ──activate──▶ IN_USE ──release──▶ [FENCED ──collect────▶] CACHED ──evict──▶ (reuse)
      ▲                                          ▲                        │                  │
      └──────────────── not published ───────────┼────────────────────────┘                  │
                                                 └───────────── share (prefix hit) ──────────┘

A block may have several owners (shared prefixes, forked choices): it stays in use until the last owner releases it. A
block that is released while a launched step may still read or write it waits in FENCED for that step's result. Every
time a block is given out anew its generation counts up, so that checks can tell two lives of one block apart.

One pool serves all groups of layers that share block tables (`kv_group`). An owner's table is flat: its entry
`index · groups + kv_group` is the block of a group for the index-th stretch of tokens. A group with a window gives up
its oldest blocks one after the other: their entries are `GONE`. The pool knows neither bytes nor tokens.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from baton_engine.memory.free_runs import FreeRuns
from baton_engine.memory.place_journal import PlaceJournal
from baton_engine.memory.prefix import PrefixIndex
from baton_wire.messages.values import RequestKey

GONE: Final = -1
"""Table entry of a block that its group needs no more, or never needed."""


class BlockState(enum.IntEnum):
    FREE = 0
    RESERVED = 1
    """Held for KV that is still to arrive from another worker."""
    IN_USE = 2
    FENCED = 3
    """Released by all owners; a launched step may still touch it."""
    CACHED = 4
    """Without an owner; its KV is kept until the block is needed."""


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """An owner of blocks: one choice of a request, or (None) the prefix that its choices share."""

    key: RequestKey
    choice: int | None

    def __hash__(self) -> int:
        return hash((self.key.request, self.key.attempt, self.choice))  # half the time of the generated, nested one


class BlockPool:
    """Block ids 0 … num_blocks - 1. `collect` reports finished steps to it.

    >>> pool = BlockPool(num_blocks=4)
    >>> owner = BlockOwner(RequestKey(b"request-0000001.", 1), 0)
    >>> pool.allocate(owner, 2)
    [0, 1]
    >>> pool.publish(0, digest=b"first", parent=b"root", length=1)  # block 0 is full and its KV is computed
    >>> pool.release(owner, fence=1)  # step 1 was launched, and may still write to both
    >>> pool.available
    2
    >>> pool.collect(1)
    >>> pool.available, pool.count(BlockState.CACHED), pool.match([b"first"], limit=1)
    (4, 1, [0])
    """

    def __init__(self, num_blocks: int, reaches: Sequence[int | None] = (None,)) -> None:
        """`reaches`: for each group, how many blocks before the end of a context are needed to continue it; None:
        all."""
        self.num_blocks = num_blocks
        self.groups = len(reaches)
        self.gains = 0
        """Counts blocks that became available; unchanged means that a failed attempt need not be repeated."""
        self._state = [BlockState.FREE] * num_blocks
        self._counts = [0] * len(BlockState)  # by state
        self._counts[BlockState.FREE] = num_blocks
        self._generation = [0] * num_blocks
        self._references = [0] * num_blocks
        self._fence = [0] * num_blocks
        self._tables: dict[BlockOwner, list[int]] = {}
        self._free = FreeRuns(num_blocks)
        self._cached: dict[int, None] = {}  # least recently released first
        self._fenced: dict[int, list[int]] = {}  # step → blocks that wait for it
        self._collected = 0
        self._reaches = tuple(reaches)
        self._indexes = tuple(PrefixIndex() for _ in reaches)
        self._index_of: dict[int, PrefixIndex] = {}  # published block → its group's index
        self.places = PlaceJournal(reaches)

    # Questions --------------------------------------------------------------------------------------------------------

    @property
    def available(self) -> int:
        """Blocks that can be given out now."""
        return self._free.count + len(self._cached)

    def count(self, state: BlockState) -> int:
        return self._counts[state]

    def state(self, block: int) -> BlockState:
        return self._state[block]

    def generation(self, block: int) -> int:
        return self._generation[block]

    def references(self, block: int) -> int:
        return self._references[block]

    def is_published(self, block: int) -> bool:
        return block in self._index_of

    def is_held(self, digest: bytes) -> bool:
        """True when some group has published a block with this digest."""
        return any(index.block(digest) is not None for index in self._indexes)

    def table(self, owner: BlockOwner) -> Sequence[int]:
        """The owner's blocks in logical order, `GONE` among them: a live view, valid until its release."""
        return self._tables.get(owner, ())

    def held(self, owner: BlockOwner) -> int:
        """Number of blocks that the owner holds."""
        table = self._tables.get(owner, ())
        return len(table) - table.count(GONE)

    def owners(self) -> tuple[BlockOwner, ...]:
        return tuple(self._tables)

    def match(self, digests: Sequence[bytes], limit: int, first: Sequence[int] | None = None) -> list[int]:
        """Table entries of the longest prefix whose KV is published, at most `limit` blocks of every group; they are
        not held yet. A group with a window has only the blocks from its index `first` on, and `GONE` before them;
        without `first`, the blocks that computing the next token needs."""
        lengths = [
            len(index.match(digests, limit))
            for index, reach in zip(self._indexes, self._reaches, strict=True)
            if reach is None
        ]
        end = min(limit, len(digests), *lengths)
        while not self._is_complete(digests, end, first):
            end -= 1
        entries = [GONE] * (end * self.groups)
        for group, index in enumerate(self._indexes):
            for at in range(self._needed(group, end, first), end):
                block = index.block(digests[at])
                assert block is not None
                entries[at * self.groups + group] = block
        return entries

    def evictable(self, blocks: Sequence[int]) -> int:
        """Number of `blocks` that count as available at present."""
        return sum(block != GONE and self._state[block] is BlockState.CACHED for block in blocks)

    # Holding ----------------------------------------------------------------------------------------------------------

    def share(self, owner: BlockOwner, blocks: Sequence[int]) -> None:
        """Append published blocks to the owner's table, all groups in turn."""
        for block in blocks:
            if block == GONE:
                continue
            if self._state[block] is BlockState.CACHED:
                del self._cached[block]
            self._references[block] += 1
            self._set(block, BlockState.IN_USE)
        self._tables.setdefault(owner, []).extend(blocks)

    def allocate(
        self, owner: BlockOwner, count: int, *, reserved: bool = False, first: Sequence[int] | None = None
    ) -> list[int]:
        """Append `count` fresh blocks of every group to the owner's table, evicting cached ones if needed. All or
        nothing. Returns the entries.

        `first`: for each group the first index that it needs; those before it are `GONE`. Raises RuntimeError when
        too few are available: callers ask first.
        """
        table = self._tables.setdefault(owner, [])
        begin, groups = len(table) // self.groups, self.groups
        gone = [0 if first is None else min(max(0, first[group] - begin), count) for group in range(groups)]
        needed = count * groups - sum(gone)
        if needed > self.available:
            raise RuntimeError(f"{needed} blocks were asked for, {self.available} are available")
        self._evict(needed - self._free.count)
        entries = [GONE] * (count * groups)
        for group in range(groups):
            if count > gone[group]:
                last = table[group - groups] if table else GONE
                taken = self._free.take(count - gone[group], None if last == GONE else last + 1)
                entries[gone[group] * groups + group :: groups] = taken
        blocks = entries if needed == len(entries) else [block for block in entries if block != GONE]
        state = BlockState.RESERVED if reserved else BlockState.IN_USE
        for block in blocks:
            self._generation[block] += 1
            self._references[block] = 1
            self._state[block] = state
        self._counts[BlockState.FREE] -= len(blocks)
        self._counts[state] += len(blocks)
        table.extend(entries)
        return entries

    def activate(self, owner: BlockOwner) -> None:
        """Mark the owner's reserved blocks as in use: they hold verified KV from now on."""
        for block in self._tables.get(owner, ()):
            if block != GONE:
                self._set(block, BlockState.IN_USE)

    def move(self, owner: BlockOwner, to: BlockOwner) -> None:
        """Give the whole table to another owner."""
        if owner != to:
            self._tables[to] = self._tables.pop(owner)

    def release(self, owner: BlockOwner, fence: int) -> None:
        """Release the blocks of exactly this owner; an owner without blocks is no error.

        `fence` is the last launched step that may touch the blocks: none is given out before that step is collected.
        """
        for block in reversed(self._tables.pop(owner, ())):  # leaves first: they are evicted before their parents
            if block != GONE:
                self._unreference(block, fence)

    def drop(self, owner: BlockOwner, first: Sequence[int], fence: int) -> None:
        """Release the entries of each group g before index `first[g]`. `fence` as in `release`."""
        table = self._tables.get(owner)
        if table is None:
            return
        for group, end in enumerate(first):
            place = min(end * self.groups, len(table)) - self.groups + group
            while place >= 0 and table[place] != GONE:
                self._unreference(table[place], fence)
                table[place] = GONE
                place -= self.groups

    def publish(self, block: int, digest: bytes, parent: bytes, length: int, kv_group: int = 0) -> None:
        """Publish a full block whose KV is computed or verified: later requests may share it. `length`: blocks of the
        context that ends with it."""
        if block not in self._index_of and self._indexes[kv_group].publish(block, digest, parent):
            self._index_of[block] = self._indexes[kv_group]
            self.places.published(digest, parent, length, kv_group)

    def collect(self, step: int) -> None:
        """Make blocks available that waited for a step up to this one: all of these steps are over."""
        self._collected = step
        for fence in sorted(fence for fence in self._fenced if fence <= step):
            for block in self._fenced.pop(fence):
                if self._state[block] is BlockState.FENCED and self._fence[block] <= step:
                    self._settle(block)

    # Inside -----------------------------------------------------------------------------------------------------------

    def _needed(self, group: int, end: int, first: Sequence[int] | None) -> int:
        """The first index that the group needs of a context of `end` blocks."""
        reach = self._reaches[group]
        if reach is None:
            return 0
        return min(end, max(0, end - reach) if first is None else first[group])

    def _is_complete(self, digests: Sequence[bytes], end: int, first: Sequence[int] | None) -> bool:
        """True when groups with a window have all that they need of `end` blocks; the other groups have."""
        return all(
            all(index.block(digest) is not None for digest in digests[self._needed(group, end, first) : end])
            for group, index in enumerate(self._indexes)
            if self._reaches[group] is not None
        )

    def _unreference(self, block: int, fence: int) -> None:
        self._fence[block] = max(self._fence[block], fence)
        self._references[block] -= 1
        if self._references[block] == 0:
            self._retire(block)

    def _set(self, block: int, state: BlockState) -> None:
        self._counts[self._state[block]] -= 1
        self._counts[state] += 1
        self._state[block] = state

    def _retire(self, block: int) -> None:
        if self._fence[block] <= self._collected:
            self._settle(block)
        else:
            self._set(block, BlockState.FENCED)
            self._fenced.setdefault(self._fence[block], []).append(block)

    def _settle(self, block: int) -> None:
        self.gains += 1
        if block in self._index_of:
            self._set(block, BlockState.CACHED)
            self._cached[block] = None
        else:
            self._set(block, BlockState.FREE)
            self._free.add((block,))

    def _evict(self, count: int) -> None:
        """Evict `count` cached blocks: each time the end of the cached chain that the least recently used one
        begins."""
        evicted = []
        for _ in range(count):
            block = next(iter(self._cached))
            while (child := self._cached_child(block)) is not None:
                block = child
            del self._cached[block]
            index = self._index_of.pop(block)
            self.places.withdrawn(index.withdraw(block), self._indexes.index(index))
            self._state[block] = BlockState.FREE
            evicted.append(block)
        self._counts[BlockState.CACHED] -= len(evicted)
        self._counts[BlockState.FREE] += len(evicted)
        self._free.add(evicted)

    def _cached_child(self, block: int) -> int | None:
        for child in self._index_of[block].children(block):
            if self._state[child] is BlockState.CACHED:
                return child
        return None

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if the books do not agree. For tests and simulation: linear in the pool."""
        held = Counter(block for table in self._tables.values() for block in table if block != GONE)
        assert len(self._state) == self.num_blocks
        for owner, table in self._tables.items():
            assert len({*table} - {GONE}) == self.held(owner), f"{owner} holds a block twice: {table}"
            for group, reach in enumerate(self._reaches):
                column = table[group :: self.groups]
                gone = column.count(GONE)
                assert column[:gone] == [GONE] * gone, f"{owner} lacks a block within its context: {column}"
                assert reach is not None or not gone, f"{owner} lost a block of a group without a window: {column}"
        references = {block: count for block, count in enumerate(self._references) if count}
        assert references == held, f"references {references}, holders {held}"
        of: dict[BlockState, set[int]] = {state: set() for state in BlockState}
        for block, state in enumerate(self._state):
            of[state].add(block)
        assert all(len(of[state]) == self._counts[state] for state in BlockState), (of, self._counts)
        assert held.keys() == of[BlockState.RESERVED] | of[BlockState.IN_USE], (held, of)
        assert self._cached.keys() == of[BlockState.CACHED], (self._cached, of)
        assert self._free.blocks() == of[BlockState.FREE], (self._free.blocks(), of)
        published = {block for index in self._indexes for block in index.blocks()}
        assert published == self._index_of.keys()
        assert of[BlockState.CACHED] <= published, f"blocks {of[BlockState.CACHED] - published}: cached, unpublished"
        assert not published & (of[BlockState.FREE] | of[BlockState.RESERVED]), (published, of)
        for block in of[BlockState.FENCED]:
            assert self._fence[block] > self._collected, f"block {block} waits for a step that is over"
            assert block in self._fenced[self._fence[block]]
        fenced = {block for block, fence in enumerate(self._fence) if fence > self._collected}
        late = fenced & (of[BlockState.FREE] | of[BlockState.CACHED])
        assert not late, f"blocks {late} are given out before their step is over"
