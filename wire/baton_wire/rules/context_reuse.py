"""How soon contexts are used again, and how much KV that keeps in use: what prefix caches must hold to find them.

A context that is continued after a gap is found only by caches that hold everything that was used within that gap. For
some windows this counts the tokens that were used within the window, and the tokens that prompts had in common with
contexts of that age. Pure; gateways count it, and the simulator does. Bounded: the least recently used are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from baton_wire.messages.measures import NUM_WINDOWS, ContextCounts

WINDOWS_S: Final = (15.0, 22.0, 34.0, 51.0, 76.0, 114.0, 171.0, 256.0, 384.0, 577.0, 865.0, 1297.0)
assert len(WINDOWS_S) == NUM_WINDOWS
MOST_CONTEXTS: Final = 16_384
MOST_TURNS: Final = 256
"""Contexts that one continues, and those that these continue; earlier ones are not marked as used."""


@dataclass(slots=True)
class _Context:
    used_s: float
    own_tokens: int
    """Tokens that no context had before it."""
    before: bytes | None
    """The context that it continues."""


@dataclass(slots=True)
class ContextReuse:
    """The contexts that this process has sent lately, by the names of their last places."""

    capacity: int = MOST_CONTEXTS
    _contexts: OrderedDict[bytes, _Context] = field(default_factory=OrderedDict)
    """The least recently used first."""
    _prompt_tokens: int = 0
    _first_cached: int = 0
    _cacheable_tokens: int = 0
    _missing_tokens: int = 0
    _reused: list[int] = field(default_factory=lambda: [0] * len(WINDOWS_S))

    def count(self, places: Iterable[tuple[bytes, int]], tokens: int, cached: int, missing: int, now: float) -> None:
        """Count a prompt that was routed. `places`: (name, tokens up to it) of its places, the longest first; `cached`:
        tokens that some worker had cached; `missing`: tokens that its own worker had not."""
        first: tuple[bytes, int] | None = None
        known: tuple[bytes, int] | None = None
        for place in places:
            first = place if first is None else first
            if place[0] in self._contexts:
                known = place
                break
        self._prompt_tokens += tokens
        self._cacheable_tokens += min(cached, tokens)
        self._missing_tokens += missing
        if known is None:
            self._first_cached += min(cached, tokens)
        else:
            gap_s = now - self._contexts[known[0]].used_s
            for window, limit_s in enumerate(WINDOWS_S):
                self._reused[window] += known[1] if gap_s <= limit_s else 0
            self._use(known[0], now)
        if first is not None and (known is None or known[0] != first[0]):
            own = max(0, first[1] - max(cached, 0 if known is None else known[1]))
            self._contexts[first[0]] = _Context(now, own, None if known is None else known[0])
            while len(self._contexts) > self.capacity:
                self._contexts.popitem(last=False)

    def take(self, now: float) -> ContextCounts:
        """The counts since the last call."""
        live, total, window = [], 0, 0
        for context in reversed(self._contexts.values()):
            while window < len(WINDOWS_S) and now - context.used_s > WINDOWS_S[window]:
                live.append(total)
                window += 1
            if window == len(WINDOWS_S):
                break
            total += context.own_tokens
        live += [total] * (len(WINDOWS_S) - len(live))
        counts = ContextCounts(
            self._prompt_tokens,
            self._first_cached,
            self._cacheable_tokens,
            self._missing_tokens,
            tuple(self._reused),
            tuple(live),
        )
        self._prompt_tokens = self._first_cached = self._cacheable_tokens = self._missing_tokens = 0
        self._reused = [0] * len(WINDOWS_S)
        return counts

    def _use(self, name: bytes, now: float) -> None:
        """Mark a context and those that it continues as used."""
        chain: bytes | None = name
        for _ in range(MOST_TURNS):
            context = None if chain is None else self._contexts.get(chain)
            if chain is None or context is None:
                return
            context.used_s = now
            self._contexts.move_to_end(chain)
            chain = context.before
