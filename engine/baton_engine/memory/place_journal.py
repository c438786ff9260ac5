"""The journal of a prefix cache: which places it holds that others should know of, and what changed since last asked.

A place (`baton_wire.rules.prefix_digests`) is announced when its whole context can be hit, and one of these is true:
its length is sparse, no cached context continues it, or several do. So a context of 64k tokens has some 25 announced
places instead of 1,024. A reader that knows them finds any cached context exactly. Where a new context leaves a cached
one, it finds the sparse place before that.

Places of prompts that were accepted and are not computed yet are *promised*: they are announced as if they were cached,
because a prompt with the same beginning waits for them and computes only the rest. So gateways know of each other's
prompts. A promise that is withdrawn before its place is computed withdraws the announcement, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton_wire.rules.prefix_digests import is_sparse


@dataclass(frozen=True, slots=True)
class PlaceChanges:
    """Digests that became announced, with their lengths in blocks, and digests that are announced no longer."""

    added: tuple[tuple[bytes, int], ...] = ()
    dropped: tuple[bytes, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.dropped)


@dataclass(slots=True, eq=False)
class _Place:
    blocks: int
    """Length of its context."""
    parent: bytes
    groups: int = 0
    """The groups of layers that have a block here, one bit each."""
    is_whole: bool = False
    """Groups without a window have all blocks of its context."""
    promises: int = 0
    """Accepted prompts that will compute or receive it."""


class PlaceJournal:
    """The places of one pool. Linear in its blocks.

    >>> journal = PlaceJournal([None])
    >>> for blocks, (digest, parent) in enumerate([(b"a", b""), (b"b", b"a"), (b"c", b"b")], start=1):
    ...     journal.published(digest, parent, blocks, kv_group=0)
    >>> journal.take(block_tokens=1_025)  # b is 2 blocks long, a power of two, and c is a leaf of 3
    PlaceChanges(added=((b'a', 1), (b'b', 2), (b'c', 3)), dropped=())
    >>> journal.published(b"d", b"c", 4, kv_group=0)
    >>> journal.take(block_tokens=1_025)
    PlaceChanges(added=((b'd', 4),), dropped=(b'c',))
    """

    def __init__(self, reaches: Sequence[int | None]) -> None:
        """`reaches` as in `BlockPool`."""
        self._all_groups = (1 << len(reaches)) - 1
        self._unbounded = sum(1 << group for group, reach in enumerate(reaches) if reach is None)
        self._places: dict[bytes, _Place] = {}
        self._children: dict[bytes, list[bytes]] = {}
        self._touched: dict[bytes, None] = {}
        self._announced: set[bytes] = set()

    def published(self, digest: bytes, parent: bytes, blocks: int, kv_group: int) -> None:
        """A group has a block of this digest from now on; its context is `blocks` long."""
        place = self._places.get(digest) or self._enter(digest, parent, blocks)
        place.groups |= 1 << kv_group
        self._touched[digest] = None
        self._spread_whole(digest)

    def withdrawn(self, digest: bytes, kv_group: int) -> None:
        """A group lost its block of this digest."""
        place = self._places[digest]
        place.groups &= ~(1 << kv_group)
        self._touched[digest] = None
        if place.groups or place.promises:
            self._spread_whole(digest)
            return
        self._remove(digest, place)
        for child in self._children.get(digest, ()):
            self._spread_whole(child)

    def promise(self, digests: Sequence[bytes], root: bytes) -> int:
        """A prompt with these full blocks was accepted. Returns how many of them are cached, and not promised."""
        first = len(digests)
        while first and not self._is_cached(digests[first - 1]):
            first -= 1
        for index in range(first, len(digests)):
            parent = digests[index - 1] if index else root
            place = self._places.get(digests[index]) or self._enter(digests[index], parent, index + 1)
            place.promises += 1
            self._touched[digests[index]] = None
        return first

    def withdraw_promise(self, digests: Sequence[bytes]) -> None:
        """The promised blocks, in order, were computed or will not be. Cached ones stay announced."""
        for digest in reversed(digests):
            place = self._places[digest]
            place.promises -= 1
            self._touched[digest] = None
            if not place.promises and not place.groups:
                self._remove(digest, place)

    def take(self, block_tokens: int) -> PlaceChanges:
        """The changes since the last call."""
        added, dropped = [], []
        for digest in self._touched:
            place = self._places.get(digest)
            was = digest in self._announced
            if place is not None and self._is_announced(digest, place, block_tokens):
                if not was:
                    self._announced.add(digest)
                    added.append((digest, place.blocks))
            elif was:
                self._announced.discard(digest)
                dropped.append(digest)
        self._touched.clear()
        return PlaceChanges(tuple(added), tuple(dropped))

    def _enter(self, digest: bytes, parent: bytes, blocks: int) -> _Place:
        place = self._places[digest] = _Place(blocks, parent)
        self._children.setdefault(parent, []).append(digest)
        self._touch(parent)
        return place

    def _remove(self, digest: bytes, place: _Place) -> None:
        del self._places[digest]
        siblings = self._children[place.parent]
        siblings.remove(digest)
        if not siblings:
            del self._children[place.parent]
        self._touch(place.parent)
        if digest not in self._announced:
            del self._touched[digest]

    def _is_cached(self, digest: bytes) -> bool:
        place = self._places.get(digest)
        return place is not None and place.is_whole and place.groups == self._all_groups

    def _is_announced(self, digest: bytes, place: _Place, block_tokens: int) -> bool:
        if not place.promises and not self._is_cached(digest):
            return False
        return is_sparse(place.blocks, block_tokens) or len(self._children.get(digest, ())) != 1

    def _touch(self, digest: bytes) -> None:
        """Look at a place again, if it is one: the parent of a first block is none."""
        if digest in self._places:
            self._touched[digest] = None

    def _spread_whole(self, digest: bytes) -> None:
        """Follow a change of a place to all places after it."""
        pending = [digest]
        while pending:
            digest = pending.pop()
            place = self._places[digest]
            is_whole = self._unbounded & ~place.groups == 0 and self._has_whole_parent(place)
            if is_whole is not place.is_whole:
                place.is_whole = is_whole
                self._touched[digest] = None
                pending += self._children.get(digest, ())

    def _has_whole_parent(self, place: _Place) -> bool:
        if place.blocks == 1 or not self._unbounded:
            return True
        parent = self._places.get(place.parent)
        return parent is not None and parent.is_whole
