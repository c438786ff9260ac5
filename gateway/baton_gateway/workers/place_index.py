"""The index of announced places: which workers hold which place, compactly, for millions of places.

A hash table of small byte strings that grows bucket by bucket (linear hashing), so that no growth stops the process.
A record is a place's name and the number of a *holder set*; places that the same workers hold share a set. A worker
that is forgotten leaves all sets at once, and records of empty sets are swept out later. Plain bookkeeping.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from baton_wire.messages.values import PLACE_BYTES

SET_BYTES: Final = 4
RECORD_BYTES: Final = PLACE_BYTES + SET_BYTES
PER_BUCKET: Final = 16
"""Records of an average bucket: some 17 bytes of memory each."""
FIRST_BUCKETS: Final = 256
SWEPT_BUCKETS: Final = 4
"""Buckets that are swept with every message of a worker."""


class HolderSets:
    """Sets of holders by number. A set is a bit mask; holders are numbered from 0, and numbers are used again."""

    def __init__(self) -> None:
        self.masks: list[int] = []
        self._uses: list[int] = []
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self.masks) - len(self._free)

    def take(self, mask: int) -> int:
        """The number of this set, used by one more record."""
        number = self._numbers.get(mask)
        if number is None:
            number = self._free.pop() if self._free else len(self.masks)
            if number == len(self.masks):
                self.masks.append(mask)
                self._uses.append(0)
            self.masks[number] = mask
            self._numbers[mask] = number
        self._uses[number] += 1
        return number

    def give_back(self, number: int) -> None:
        """One record less uses the set."""
        self._uses[number] -= 1
        if not self._uses[number]:
            mask = self.masks[number]
            if self._numbers.get(mask) == number:
                del self._numbers[mask]
            self._free.append(number)

    def forget(self, holder: int) -> None:
        """Take the holder out of all sets."""
        bit = 1 << holder
        for number, mask in enumerate(self.masks):
            if mask & bit:
                if self._numbers.get(mask) == number:
                    del self._numbers[mask]
                self.masks[number] = mask & ~bit
                if self._uses[number]:
                    self._numbers.setdefault(mask & ~bit, number)


class PlaceIndex:
    """Places by name.

    >>> index = PlaceIndex()
    >>> index.add(0, b"place--1place--2"), index.add(3, b"place--2")
    (2, 1)
    >>> index.longest(b"place--1place--2place--9")
    {0: 2, 3: 2}
    >>> index.drop(0, b"place--2"), index.longest(b"place--1place--2")
    (1, {3: 2, 0: 1})
    """

    def __init__(self) -> None:
        self._buckets: list[bytes] = [b""] * FIRST_BUCKETS
        self._records = 0
        self._sets = HolderSets()
        self._low = FIRST_BUCKETS - 1
        """Mask of the hash before the present doubling; buckets up to len - low - 1 are split already."""
        self._swept = 0

    def __len__(self) -> int:
        """Records, those of forgotten holders included until they are swept out."""
        return self._records

    def add(self, holder: int, names: bytes) -> int:
        """The holder holds these places from now on. Returns how many it did not hold before."""
        bit, new = 1 << holder, 0
        for number, name in _named(names):
            place = self._bucket_of(number)
            bucket = self._buckets[place]
            at = _find(bucket, name)
            old = None if at < 0 else _set_number(bucket, at)
            mask = 0 if old is None else self._sets.masks[old]
            if mask & bit:
                continue
            new += 1
            record = name + self._sets.take(mask | bit).to_bytes(SET_BYTES, "little")
            if old is None:
                self._buckets[place] = bucket + record
                self._records += 1
                self._grow()
            else:
                self._buckets[place] = bucket[:at] + record + bucket[at + RECORD_BYTES :]
                self._sets.give_back(old)
        self._sweep()
        return new

    def drop(self, holder: int, names: bytes) -> int:
        """The holder holds these places no longer. Returns how many it held."""
        bit, held = 1 << holder, 0
        for number, name in _named(names):
            place = self._bucket_of(number)
            bucket = self._buckets[place]
            at = _find(bucket, name)
            if at < 0 or not (mask := self._sets.masks[old := _set_number(bucket, at)]) & bit:
                continue
            held += 1
            rest = b""
            if mask != bit:
                rest = name + self._sets.take(mask & ~bit).to_bytes(SET_BYTES, "little")
            else:
                self._records -= 1
            self._buckets[place] = bucket[:at] + rest + bucket[at + RECORD_BYTES :]
            self._sets.give_back(old)
        self._sweep()
        return held

    def forget(self, holder: int) -> None:
        """The holder is gone, and its number may be given to another."""
        self._sets.forget(holder)

    def longest(self, names: bytes) -> dict[int, int]:
        """For each holder of a place among these, the longest context that it holds, in blocks. `names`: all places of
        a prompt, in order."""
        lengths: dict[int, int] = {}
        if not self._records:
            return lengths
        buckets, masks, low, count = self._buckets, self._sets.masks, self._low, len(self._buckets)
        high, seen = 2 * low + 1, 0
        numbers = struct.unpack(f"<{len(names) // PLACE_BYTES}Q", names)
        for length in range(len(numbers), 0, -1):
            number = numbers[length - 1]
            place = number & high
            bucket = buckets[place if place < count else number & low]
            if not bucket or bucket.find(name := names[(length - 1) * PLACE_BYTES : length * PLACE_BYTES]) < 0:
                continue
            at = _find(bucket, name)
            if at >= 0 and (new := masks[_set_number(bucket, at)] & ~seen):
                seen |= new
                while new:
                    lengths[(new & -new).bit_length() - 1] = length
                    new &= new - 1
        return lengths

    def _bucket_of(self, number: int) -> int:
        place = number & (2 * self._low + 1)
        return place if place < len(self._buckets) else number & self._low

    def _grow(self) -> None:
        """Split one bucket when they are fuller than they should be on average."""
        if self._records <= PER_BUCKET * len(self._buckets):
            return
        place = len(self._buckets) - self._low - 1
        bucket = self._buckets[place]
        self._buckets.append(b"")
        if len(self._buckets) == 2 * (self._low + 1):
            self._low = len(self._buckets) - 1
        parts: dict[int, list[bytes]] = {place: [], len(self._buckets) - 1: []}
        for record in _records(bucket):
            parts[self._bucket_of(int.from_bytes(record[:PLACE_BYTES], "little"))].append(record)
        for target, records in parts.items():
            self._buckets[target] = b"".join(records)

    def _sweep(self) -> None:
        """Remove the records of forgotten holders from some buckets."""
        for _ in range(SWEPT_BUCKETS):
            self._swept = (self._swept + 1) % len(self._buckets)
            bucket = self._buckets[self._swept]
            kept = [record for record in _records(bucket) if self._sets.masks[_set_number(record, 0)]]
            if len(kept) * RECORD_BYTES < len(bucket):
                for record in _records(bucket):
                    if not self._sets.masks[number := _set_number(record, 0)]:
                        self._sets.give_back(number)
                self._records -= len(bucket) // RECORD_BYTES - len(kept)
                self._buckets[self._swept] = b"".join(kept)


def _named(names: bytes) -> Iterable[tuple[int, bytes]]:
    """Each name, with the number that it is hashed by."""
    numbers = struct.unpack(f"<{len(names) // PLACE_BYTES}Q", names)
    return ((number, names[at * PLACE_BYTES : (at + 1) * PLACE_BYTES]) for at, number in enumerate(numbers))


def _records(bucket: bytes) -> list[bytes]:
    return [bucket[at : at + RECORD_BYTES] for at in range(0, len(bucket), RECORD_BYTES)]


def _find(bucket: bytes, name: bytes) -> int:
    """Where the name's record begins; -1: nowhere."""
    at = bucket.find(name)
    while at > 0 and at % RECORD_BYTES:  # the end of one record and the beginning of the next
        at = bucket.find(name, at + 1)
    return at


def _set_number(bucket: bytes, at: int) -> int:
    return int.from_bytes(bucket[at + PLACE_BYTES : at + RECORD_BYTES], "little")
