"""A load of sessions: turns that wait for the turns before them, and prompts made of segments that other prompts share.

A segment's number stands for an endless stream of tokens, of which a prompt has the first ones. Two prompts have a
common prefix as far as their segments are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Segment = tuple[int, int]
"""(number, tokens)"""


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """One request of a session."""

    session: int
    prompt: tuple[Segment, ...]
    output_tokens: int
    after: tuple[int, ...] = ()
    """Places of the turns in the load that must have ended before; empty: it begins its session."""
    think_s: float = 0.0
    """Time from the end of those turns until this one is sent: a person's, or a tool's."""
    at_s: float = 0.0
    """Earliest time of the load at which it is sent."""

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for _, tokens in self.prompt)


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """All turns of a load. A turn comes after the turns that it waits for."""

    name: str
    turns: tuple[SessionTurn, ...]

    def __post_init__(self) -> None:
        assert all(place < number for number, turn in enumerate(self.turns) for place in turn.after)

    @property
    def sessions(self) -> int:
        return len({turn.session for turn in self.turns})

    @property
    def prompt_tokens(self) -> int:
        return sum(turn.prompt_tokens for turn in self.turns)


@dataclass(slots=True)
class _Node:
    """A place in the tree of prompts: between two segments."""

    longest: dict[int, int] = field(default_factory=dict)
    """Segment → its most tokens that a prompt had here."""
    following: dict[Segment, _Node] = field(default_factory=dict)


class IdealCache:
    """An infinite cache that all workers share: it has every prompt that was sent.

    The sum over a load does not depend on the order of its prompts.
    """

    def __init__(self) -> None:
        self._root = _Node()

    def add(self, prompt: Iterable[Segment]) -> int:
        """Add a prompt; returns the tokens of its beginning that were cached: at most all but one, since the last one
        is always computed."""
        node, cached, total, is_cached = self._root, 0, 0, True
        for number, tokens in prompt:
            total += tokens
            if is_cached:
                cached += min(tokens, node.longest.get(number, 0))
            following = node.following.get((number, tokens))
            if following is None:
                is_cached = False
                node.longest[number] = max(tokens, node.longest.get(number, 0))
                following = node.following[number, tokens] = _Node()
            node = following
        return max(0, min(cached, total - 1))


def ideal_cached_tokens(load: SessionLoad, order: Sequence[int] | None = None) -> list[int]:
    """Tokens that an infinite cache finds of each turn's prompt, sent in this order (by default the load's)."""
    cache = IdealCache()
    cached = [0] * len(load.turns)
    for place in range(len(load.turns)) if order is None else order:
        cached[place] = cache.add(load.turns[place].prompt)
    return cached
