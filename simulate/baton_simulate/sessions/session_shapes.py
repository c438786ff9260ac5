"""Shapes of session loads: the named ones, and those that a number draws."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class LogUniform:
    """A log-uniform distribution from `low` to `high`; the number itself where both are equal."""

    low: float
    high: float

    def draw(self, dice: random.Random) -> float:
        if self.low >= self.high:
            return self.low
        return math.exp(dice.uniform(math.log(self.low), math.log(self.high)))

    def draw_tokens(self, dice: random.Random) -> int:
        return round(self.draw(dice))


def fixed(value: float) -> LogUniform:
    return LogUniform(value, value)


@dataclass(frozen=True, slots=True)
class SessionShape:
    """The lengths, turns and pauses of sessions. A turn's tokens follow the prompt and answer before."""

    sessions: int
    turns: LogUniform
    head_tokens: int
    """Tokens at the beginning that sessions have in common, as a system prompt with tools is."""
    heads: int
    """Number of different common beginnings."""
    first_tokens: LogUniform
    """Tokens of the first prompt after the common beginning."""
    new_tokens: LogUniform
    """Tokens of a tool's result or a person's message."""
    output_tokens: LogUniform
    tool_share: float
    """Share of the turns that follow a tool; the others follow a person."""
    tool_s: LogUniform
    person_s: LogUniform
    branch_share: float = 0.0
    """Share of the turns that go back to an earlier turn of the session and continue from there."""
    agent_share: float = 0.0
    """Share of the turns after which sub-agents begin with the session's prompt; the session waits for all of them."""
    agents: LogUniform = LogUniform(2, 4)
    agent_turns: LogUniform = LogUniform(2, 4)
    pause_share: float = 0.0
    """Share of the turns before which the person is away."""
    pause_s: LogUniform = LogUniform(3_000, 4_200)
    start_s: float = 0.0
    """Sessions begin within this time."""


_TOOLS: Final = LogUniform(0.3, 5)
_PEOPLE: Final = LogUniform(8, 90)

SHAPES: Final[Mapping[str, SessionShape]] = {
    # 64,000 tokens in, 400 out, 90 % of the prompt seen before.
    "agents": SessionShape(
        *(
            48,
            LogUniform(12, 16),
            12_000,
            1,
            LogUniform(13_000, 25_000),
            LogUniform(3_000, 7_000),
            LogUniform(250, 600),
        ),
        *(0.8, _TOOLS, _PEOPLE),
    ),
    "short": SessionShape(
        *(200, LogUniform(1, 4), 400, 4, LogUniform(100, 2_000), LogUniform(30, 400), LogUniform(60, 400)),
        *(0.0, _TOOLS, _PEOPLE),
    ),
    "head": SessionShape(
        *(60, LogUniform(3, 6), 50_000, 1, LogUniform(300, 3_000), LogUniform(200, 1_500), LogUniform(100, 500)),
        *(0.5, _TOOLS, _PEOPLE),
    ),
    "branching": SessionShape(
        *(40, LogUniform(6, 12), 2_000, 2, LogUniform(4_000, 16_000), LogUniform(300, 3_000), LogUniform(150, 600)),
        *(0.3, _TOOLS, _PEOPLE),
        branch_share=0.3,
    ),
    "subagents": SessionShape(
        *(24, LogUniform(4, 8), 8_000, 1, LogUniform(8_000, 32_000), LogUniform(1_000, 5_000), LogUniform(200, 600)),
        *(0.8, _TOOLS, _PEOPLE),
        agent_share=0.35,
    ),
    "returning": SessionShape(
        *(48, LogUniform(4, 8), 4_000, 1, LogUniform(4_000, 30_000), LogUniform(500, 4_000), LogUniform(150, 600)),
        *(0.5, _TOOLS, _PEOPLE),
        pause_share=0.25,
    ),
}
"""The named shapes."""


def drawn_shape(number: int) -> SessionShape:
    """The shape of a number: every figure is drawn, so that loads can be judged on which nobody tuned anything."""
    dice = random.Random(f"shape of sessions {number}")

    def span(low: float, high: float, width: float = 4.0) -> LogUniform:
        """A span of up to `width` times its own beginning, within the bounds."""
        start = LogUniform(low, high).draw(dice)
        return LogUniform(start, min(high, start * dice.uniform(1.0, width)))

    turns = span(1, 24)
    final_tokens = 100_000.0  # so that most sessions fit into 128k tokens
    new = span(50, min(8_000.0, final_tokens / 2 / turns.high))
    return SessionShape(
        sessions=round(LogUniform(16, 200).draw(dice)),
        turns=turns,
        head_tokens=dice.choice((0, round(LogUniform(64, 50_000).draw(dice)))),
        heads=round(LogUniform(1, 12).draw(dice)),
        first_tokens=span(100, 30_000),
        new_tokens=new,
        output_tokens=span(20, 800),
        tool_share=dice.random(),
        tool_s=span(0.1, 10.0),
        person_s=span(2.0, 120.0),
        branch_share=dice.choice((0.0, dice.uniform(0.0, 0.4))),
        agent_share=dice.choice((0.0, dice.uniform(0.0, 0.4))),
        agents=span(1, 5),
        agent_turns=span(1, 5),
        pause_share=dice.choice((0.0, dice.uniform(0.0, 0.3))),
        start_s=dice.choice((0.0, LogUniform(10.0, 300.0).draw(dice))),
    )
