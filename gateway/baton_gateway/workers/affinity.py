"""Prefix affinity: a bounded memory of which prompt beginnings were sent where, so that a request meets the worker that
probably has its prefix cached.

Only a guess: workers decide by their own caches. Keys are chained hashes over fixed steps of tokens and the tenant's
salt.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from baton_wire.messages.values import PACKED_ID_BYTES

STEP_TOKENS = 64
MAX_STEPS = 64
"""Beginnings are compared up to 4,096 tokens."""
_WORKERS_PER_KEY = 4
_STEP_BYTES = STEP_TOKENS * PACKED_ID_BYTES


def prefix_keys(packed: bytes, salt: str) -> tuple[bytes, ...]:
    """One key for every whole step of the prompt's beginning, shortest first. `packed`: its ids, by `pack_ids`."""
    steps = min(len(packed) // _STEP_BYTES, MAX_STEPS)
    keys = []
    key = salt.encode()
    for step in range(steps):
        chunk = packed[step * _STEP_BYTES : (step + 1) * _STEP_BYTES]
        key = hashlib.blake2b(chunk, digest_size=16, key=key[-64:]).digest()
        keys.append(key)
    return tuple(keys)


@dataclass(slots=True)
class PrefixAffinity:
    """The workers that got each beginning; the least recently used are forgotten beyond `capacity` keys."""

    capacity: int = 65_536
    _seen: OrderedDict[bytes, tuple[bytes, ...]] = field(default_factory=OrderedDict)

    def record(self, workers: Sequence[bytes], prefix: Sequence[bytes]) -> None:
        """A prompt with these keys went to these workers."""
        for key in prefix:
            others = [worker for worker in self._seen.pop(key, ()) if worker not in workers]
            self._seen[key] = (*workers, *others)[:_WORKERS_PER_KEY]
        while len(self._seen) > self.capacity:
            self._seen.popitem(last=False)

    def seen_tokens(self, prefix: Sequence[bytes]) -> int:
        """Length of the longest beginning that went to any worker."""
        return STEP_TOKENS * next((step for step in range(len(prefix), 0, -1) if prefix[step - 1] in self._seen), 0)

    def known_tokens(self, worker: bytes, prefix: Sequence[bytes]) -> int:
        """Length of the longest beginning that went to this worker."""
        known = 0
        for step, key in enumerate(prefix, start=1):
            if worker not in self._seen.get(key, ()):
                break
            known = step * STEP_TOKENS
        return known
