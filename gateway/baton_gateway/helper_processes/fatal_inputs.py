"""Questions that ended a process apart: nobody's process is ended by the same one again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, TypeVar

MAX_KEPT = 1_024

V = TypeVar("V")


class FatalInputs(Generic[V]):
    """By digest, the latest ones, with what is to be said of each."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._verdicts: OrderedDict[bytes, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._verdicts)

    def verdict(self, *parts: bytes) -> V | None:
        """None: nothing bad is known."""
        return self._verdicts.get(_digest(parts)) if self._verdicts else None

    def keep(self, verdict: V, *parts: bytes) -> None:
        self._verdicts[_digest(parts)] = verdict
        if len(self._verdicts) > self._max_kept:
            self._verdicts.popitem(last=False)


def _digest(parts: tuple[bytes, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
