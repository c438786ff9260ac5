"""Which worker of a pool takes a prompt: the one that has the fewest tokens to compute until the prompt is done.

A session goes home: the worker that holds its context has few tokens of it missing. It goes elsewhere only when the
wait at home costs more than computing its missing tokens there. A token that is computed again counts three times,
because it also delays what comes after it, and displaces what is cached. New contexts spread, because prompts that were
just sent count as queued, and they prefer workers whose cache has room: elsewhere they displace other contexts, however
much of their beginning is cached. Among equal workers a draw decides that every gateway process makes alike.

Pure; gateways and the simulator call it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MISSING_WEIGHT: Final = 3
"""A missing token counts as much as this many queued ones."""
DISPLACED_WEIGHT: Final = 6
"""A new token of the prompt for which cached ones must go counts as much as this many queued ones: they, too, will be
computed again."""
SEQUENCE_TOKENS: Final = 64
"""One more sequence at a worker that decodes weighs as much as this many tokens that it would have to receive."""
LATELY_S: Final = 1.0
"""Seconds of a worker's usual work that count as queued, so that new sessions prefer the worker that computed least in
the last minute where no worker has a queue."""
_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class WorkerOption(NamedTuple):
    """A worker that may take the prompt."""

    missing_tokens: int
    """Tokens of the prompt that it has to compute or receive."""
    queued_tokens: int
    """Tokens that it has to compute or receive before: what is cached there is left out. For a worker that decodes also
    the tokens of KV that its sequences need: each of its steps reads them."""
    sequences: int = 0
    """Sequences that it decodes or will decode."""
    lately_tokens_s: float = 0.0
    """Tokens a second that it computed in the last minute."""
    seed: int = 0
    """A number of the worker's own, for draws."""
    displaced_tokens: int = 0
    """Cached tokens that must go for tokens of the prompt that no worker has yet."""
    is_last_resort: bool = False
    """True when the worker failed this request, or its steps do not end."""
    is_full: bool = False
    """True when the worker has no room: the prompt would wait until an answer ends."""

    @property
    def cost_tokens(self) -> int:
        """Tokens before the prompt's end there, the missing ones weighted."""
        own = MISSING_WEIGHT * self.missing_tokens + SEQUENCE_TOKENS * self.sequences
        own += DISPLACED_WEIGHT * self.displaced_tokens
        return self.queued_tokens + own + int(LATELY_S * self.lately_tokens_s)


def choose_worker(options: Sequence[WorkerOption], tie: int) -> int:
    """The index of the chosen option. `tie`: a number of the prompt's whole context, or of its session.

    >>> home, other = WorkerOption(400, 6_000), WorkerOption(16_000, 0)
    >>> choose_worker([other, home], tie=7)
    1
    >>> choose_worker([other, home._replace(queued_tokens=48_000)], tie=7)
    0
    """
    ranks = [(option.is_last_resort, option.is_full, option.cost_tokens) for option in options]
    best = min(ranks)
    return draw_index(((options[place].seed, place) for place, rank in enumerate(ranks) if rank == best), tie)


def draw_index(seeds: Iterable[tuple[int, int]], tie: int) -> int:
    """One of several (seed, index) by highest random weight: when a worker comes or goes, only its own draws change."""
    return max((mixed(seed ^ tie), place) for seed, place in seeds)[1]


def mixed(number: int) -> int:
    """A number of 64 bits that looks random."""
    number = (number ^ (number >> 31)) * _MIX & _MASK
    number = (number ^ (number >> 29)) * _MIX & _MASK
    return number ^ (number >> 32)
