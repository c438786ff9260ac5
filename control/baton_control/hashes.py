"""Content hashes that decide what rolls and what fits: equal input, equal hash, on every machine and Python version."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

HASH_LENGTH = 10
"""Hex digits kept: 40 bits, for a handful of templates that ever meet in one deployment."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What a worker was made from."""

    fit: str
    """Hash of what must be equal between a prefill and a decode worker, as far as the manifest decides it. The workers
    compare the whole pair fingerprint, model content included, themselves."""
    template: str
    """Hash of the whole worker template: the unit of a rollout."""

    def __str__(self) -> str:
        return f"{self.fit}-{self.template}"


def content_hash(value: object) -> str:
    """Short hash of plain data (text, numbers, None, lists, mappings with text keys), independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]
