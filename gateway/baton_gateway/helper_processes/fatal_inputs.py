"""Inputs that ended a helper process: no process is ended by the same input again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Generic, TypeVar

MAX_INPUTS = 1_024

V = TypeVar("V")


class FatalInputs(Generic[V]):
    """The latest fatal inputs by digest, each with what its clients are answered."""

    def __init__(self, max_inputs: int = MAX_INPUTS) -> None:
        self._max_inputs = max_inputs
        self._answers: OrderedDict[bytes, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, *parts: bytes) -> V | None:
        """Return the answer for an input, given in parts; None: the input is not known to be fatal."""
        return self._answers.get(_digest(parts)) if self._answers else None

    def add(self, answer: V, *parts: bytes) -> None:
        """Remember that this input is fatal; the oldest one is forgotten beyond `max_inputs`."""
        self._answers[_digest(parts)] = answer
        if len(self._answers) > self._max_inputs:
            self._answers.popitem(last=False)


def _digest(parts: tuple[bytes, ...]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()
