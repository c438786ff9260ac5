"""The blocks of a KV pool: who holds which, whose content may be reused, and when a block may be given to another.

    FREE ──allocate──▶ RESERVED ──activate──▶ IN_USE ──release──▶ [FENCED ──collected──▶] CACHED ──evict──▶ (reuse)
      ▲                                          ▲                        │                  │
      └──────────────── not published ───────────┼────────────────────────┘                  │
                                                 └───────────── share (prefix hit) ──────────┘

A block may have several owners (shared prefixes, forked choices): it stays in use until the last of them lets go. What
is released while a launched step may still read or write it waits in FENCED for that step's result. Every time a block
is given out anew its generation counts up, so that checks can tell two lives of one block apart.

One pool serves one `kv_group` (layers that share block tables); there is one today. Bytes and tokens are not known
here.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from baton_engine.memory.free_runs import FreeRuns
from baton_engine.memory.prefix import PrefixIndex
from baton_wire.messages.values import RequestKey


class BlockState(enum.IntEnum):
    FREE = 0
    RESERVED = 1
    """Held for KV that is still to arrive from another worker."""
    IN_USE = 2
    FENCED = 3
    """Released by all owners; a launched step may still touch it."""
    CACHED = 4
    """Held by nobody; its KV is kept until the room is needed."""


@dataclass(frozen=True, slots=True)
class BlockOwner:
    """Who holds blocks: one choice of a request, or (None) the beginning that its choices share."""

    key: RequestKey
    choice: int | None

    def __hash__(self) -> int:
        return hash((self.key.request, self.key.attempt, self.choice))  # half the time of the generated, nested one


class BlockPool:
    """Block ids 0 … num_blocks - 1. Knows the collected steps through `collected`."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
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
        self._index = PrefixIndex()

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
        return block in self._index

    def table(self, owner: BlockOwner) -> Sequence[int]:
        """The owner's blocks in logical order: a live view, valid until its release."""
        return self._tables.get(owner, ())

    def owners(self) -> tuple[BlockOwner, ...]:
        return tuple(self._tables)

    def match(self, digests: Sequence[bytes], limit: int) -> list[int]:
        """Blocks of the longest beginning whose KV is published, at most `limit`; they are not held yet."""
        return self._index.match(digests, limit)

    def evictable(self, blocks: Sequence[int]) -> int:
        """How many of `blocks` count as available at present."""
        return sum(self._state[block] is BlockState.CACHED for block in blocks)

    # Holding ----------------------------------------------------------------------------------------------------------

    def share(self, owner: BlockOwner, blocks: Sequence[int]) -> None:
        """Append blocks whose content stands to the owner's table."""
        for block in blocks:
            if self._state[block] is BlockState.CACHED:
                del self._cached[block]
            self._references[block] += 1
            self._set(block, BlockState.IN_USE)
        self._tables.setdefault(owner, []).extend(blocks)

    def allocate(self, owner: BlockOwner, count: int, *, reserved: bool = False) -> list[int]:
        """Append `count` fresh blocks to the owner's table, evicting cached ones if needed. All or nothing.

        Raises RuntimeError when fewer are available: callers ask first.
        """
        if count > self.available:
            raise RuntimeError(f"{count} blocks were asked for, {self.available} are available")
        self._evict(count - self._free.count)
        table = self._tables.setdefault(owner, [])
        blocks = self._free.take(count, table[-1] + 1 if table else None) if count else []
        state = BlockState.RESERVED if reserved else BlockState.IN_USE
        for block in blocks:
            self._generation[block] += 1
            self._references[block] = 1
            self._state[block] = state
        self._counts[BlockState.FREE] -= len(blocks)
        self._counts[state] += len(blocks)
        table.extend(blocks)
        return blocks

    def activate(self, owner: BlockOwner) -> None:
        """The owner's reserved blocks hold verified KV from now on."""
        for block in self._tables.get(owner, ()):
            self._set(block, BlockState.IN_USE)

    def move(self, owner: BlockOwner, to: BlockOwner) -> None:
        """The whole table changes hands."""
        if owner != to:
            self._tables[to] = self._tables.pop(owner)

    def release(self, owner: BlockOwner, fence: int) -> None:
        """Delete what this very owner holds; an owner that holds nothing is no error.

        `fence` is the last launched step that may touch the blocks: none is given out before that step is collected.
        """
        for block in reversed(self._tables.pop(owner, ())):  # leaves first: they are evicted before their parents
            self._fence[block] = max(self._fence[block], fence)
            self._references[block] -= 1
            if self._references[block] == 0:
                self._retire(block)

    def publish(self, block: int, digest: bytes, parent: bytes) -> None:
        """The block's KV is complete and computed or verified: later requests may share it."""
        self._index.publish(block, digest, parent)

    def collected(self, step: int) -> None:
        """Every step up to this one is over: what waited for it becomes available."""
        self._collected = step
        for fence in sorted(fence for fence in self._fenced if fence <= step):
            for block in self._fenced.pop(fence):
                if self._state[block] is BlockState.FENCED and self._fence[block] <= step:
                    self._settle(block)

    # Inside -----------------------------------------------------------------------------------------------------------

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
        if block in self._index:
            self._set(block, BlockState.CACHED)
            self._cached[block] = None
        else:
            self._set(block, BlockState.FREE)
            self._free.add((block,))

    def _evict(self, count: int) -> None:
        """Forget so many cached blocks: the least recently used, or the end of the cached chain that hangs on it."""
        evicted = []
        for _ in range(count):
            block = next(iter(self._cached))
            while (child := self._cached_child(block)) is not None:
                block = child
            del self._cached[block]
            self._index.withdraw(block)
            self._state[block] = BlockState.FREE
            evicted.append(block)
        self._counts[BlockState.CACHED] -= len(evicted)
        self._counts[BlockState.FREE] += len(evicted)
        self._free.add(evicted)

    def _cached_child(self, block: int) -> int | None:
        for child in self._index.children(block):
            if self._state[child] is BlockState.CACHED:
                return child
        return None

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if the books do not agree. For tests and simulation: linear in the pool."""
        held = Counter(block for table in self._tables.values() for block in table)
        assert len(self._state) == self.num_blocks
        for owner, table in self._tables.items():
            assert len(set(table)) == len(table), f"{owner} holds a block twice: {table}"
        references = {block: count for block, count in enumerate(self._references) if count}
        assert references == held, f"references {references}, holders {held}"
        of: dict[BlockState, set[int]] = {state: set() for state in BlockState}
        for block, state in enumerate(self._state):
            of[state].add(block)
        assert all(len(of[state]) == self._counts[state] for state in BlockState), (of, self._counts)
        assert held.keys() == of[BlockState.RESERVED] | of[BlockState.IN_USE], (held, of)
        assert self._cached.keys() == of[BlockState.CACHED], (self._cached, of)
        assert self._free.blocks() == of[BlockState.FREE], (self._free.blocks(), of)
        published = self._index.blocks()
        assert of[BlockState.CACHED] <= published, f"blocks {of[BlockState.CACHED] - published}: cached, unpublished"
        assert not published & (of[BlockState.FREE] | of[BlockState.RESERVED]), (published, of)
        for block in of[BlockState.FENCED]:
            assert self._fence[block] > self._collected, f"block {block} waits for a step that is over"
            assert block in self._fenced[self._fence[block]]
        fenced = {block for block, fence in enumerate(self._fence) if fence > self._collected}
        late = fenced & (of[BlockState.FREE] | of[BlockState.CACHED])
        assert not late, f"blocks {late} are given out before their step is over"
