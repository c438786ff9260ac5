"""Content hashes, which decide what is rolled out and what fits: equal input gives equal hashes, on every machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

HASH_LENGTH = 10
"""Hex digits of a hash: 40 bits are enough for the few templates of one deployment."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Revision of a worker: the hashes of its template."""

    fit: str
    """Hash of the fields that a prefill and a decode worker must have in common. The workers themselves compare the
    whole pair fingerprint, model content included."""
    template: str
    """Hash of the whole worker template: the unit of a rollout."""

    def __str__(self) -> str:
        return f"{self.fit}-{self.template}"


def content_hash(value: object) -> str:
    """Short hash of plain data (text, numbers, None, lists, mappings with text keys), independent of key order.

    >>> content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
