"""How soon the contexts of sessions are used again, as gateways count it (`baton_wire.rules.context_reuse`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from baton_wire.messages.measures import ContextCounts
from baton_wire.rules.context_reuse import WINDOWS_S


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Contexts of the last minutes, of all gateways. All values but the windows are tokens."""

    prompt_tokens: int
    first_cached: int
    """Beginnings of new contexts that workers had cached."""
    cacheable_tokens: int
    """Tokens of the prompts that some worker had cached."""
    missing_tokens: int
    """Tokens of the prompts that the workers which computed them had not cached."""
    reused: tuple[int, ...]
    """Tokens of contexts that were continued within each window."""
    live: tuple[int, ...]
    """Tokens of the contexts that were used within each window before now."""
    windows_s: tuple[float, ...] = WINDOWS_S

    @property
    def hit_share(self) -> float | None:
        """Share of the prompt tokens that were cached where the prompts were computed; None: there was no prompt."""
        return 1.0 - self.missing_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def evicted_share(self) -> float:
        """Share of the prompt tokens that sessions had sent before, but no worker had any more."""
        known = self.reused[-1] + self.first_cached
        return max(0, known - self.cacheable_tokens) / max(1, self.prompt_tokens)

    @property
    def elsewhere_share(self) -> float:
        """Share of the prompt tokens that only other workers had cached."""
        return max(0, self.cacheable_tokens + self.missing_tokens - self.prompt_tokens) / max(1, self.prompt_tokens)


def merge_context_counts(flows: Iterable[ContextCounts], latest: Iterable[ContextCounts]) -> ContextUse:
    """The use over all `flows`. `latest`: the last counts of each gateway process, each with its own contexts."""
    flows, latest = list(flows), list(latest)
    return ContextUse(
        sum(counts.prompt_tokens for counts in flows),
        sum(counts.first_cached for counts in flows),
        sum(counts.cacheable_tokens for counts in flows),
        sum(counts.missing_tokens for counts in flows),
        tuple(sum(counts.reused[place] for counts in flows) for place in range(len(WINDOWS_S))),
        tuple(sum(counts.live[place] for counts in latest) for place in range(len(WINDOWS_S))),
    )
