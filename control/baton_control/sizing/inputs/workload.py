"""Requests as sizing sees them: when they arrive and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from baton_control.sizing.inputs.request_shape import RequestShape

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival; all arrays have one entry per request."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    name: str = "workload"

    def __post_init__(self) -> None:
        sizes = {len(self.arrival_s), len(self.prompt_tokens), len(self.output_tokens), len(self.cached_tokens)}
        assert len(sizes) == 1, "arrays of one workload are equally long"
        assert np.all(np.diff(self.arrival_s) >= 0), "requests are in order of arrival"

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def named(self, name: str) -> Workload:
        return replace(self, name=name)

    def between(self, start_s: float, end_s: float) -> Workload:
        """The requests of [start, end), counted from `start`."""
        low, high = np.searchsorted(self.arrival_s, (start_s, end_s))
        return self._taken(np.arange(low, high), self.arrival_s[low:high] - start_s)

    def taken(self, index: NDArray[np.intp]) -> Workload:
        """These of the requests, in order."""
        return self._taken(index, self.arrival_s[index])

    def time_scaled(self, factor: float) -> Workload:
        """The same requests over `factor` times the time."""
        return replace(self, arrival_s=self.arrival_s * factor)

    def rate_scaled(self, factor: float, random: np.random.Generator) -> Workload:
        """`factor` times as many requests over the same time: copies move by up to 2 s, lengths re-drawn nearby."""
        copies = random.poisson(factor, len(self)) if factor != round(factor) else np.full(len(self), round(factor))
        index = np.repeat(np.arange(len(self)), copies)
        moved = self.arrival_s[index] + random.uniform(-2.0, 2.0, len(index))
        order = np.argsort(np.clip(moved, 0.0, self.duration_s), kind="stable")
        shuffled = np.clip(index + random.integers(-20, 21, len(index)), 0, len(self) - 1)
        return self._taken(shuffled[order], np.clip(moved, 0.0, self.duration_s)[order])

    def then(self, other: Workload) -> Workload:
        """This workload with `other` appended."""
        start = self.duration_s
        return Workload(
            np.concatenate([self.arrival_s, other.arrival_s + start]),
            np.concatenate([self.prompt_tokens, other.prompt_tokens]),
            np.concatenate([self.output_tokens, other.output_tokens]),
            np.concatenate([self.cached_tokens, other.cached_tokens]),
            self.name,
        )

    def _taken(self, index: NDArray[np.intp] | Ints, arrival_s: Floats) -> Workload:
        return Workload(
            arrival_s, self.prompt_tokens[index], self.output_tokens[index], self.cached_tokens[index], self.name
        )


def workload_of(
    arrival_s: Sequence[float] | Floats, shapes: Sequence[RequestShape], name: str = "workload"
) -> Workload:
    """One request of `shapes` at each time."""
    return Workload(
        np.asarray(arrival_s, dtype=np.float64),
        np.array([shape.prompt_tokens for shape in shapes], dtype=np.int64),
        np.array([shape.output_tokens for shape in shapes], dtype=np.int64),
        np.array([shape.cached_tokens for shape in shapes], dtype=np.int64),
        name,
    )
