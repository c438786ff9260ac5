"""The generator of session loads: draws the turns of a shape by a seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from baton_simulate.sessions.session_load import Segment, SessionLoad, SessionTurn
from baton_simulate.sessions.session_shapes import SessionShape


def generated_load(shape: SessionShape, seed: int, name: str) -> SessionLoad:
    """The load of a shape. The same seed gives the same load; the heads of a shape are the first segments."""
    return _Generator(shape, seed).load(name)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A turn of the load, with the prompt that continues it."""

    place: int
    history: tuple[Segment, ...]
    """Its prompt and its answer."""


class _Generator:
    def __init__(self, shape: SessionShape, seed: int) -> None:
        self._shape = shape
        self._seed = seed
        self._numbers = itertools.count(shape.heads)
        self._turns: list[SessionTurn] = []

    def load(self, name: str) -> SessionLoad:
        for session in range(self._shape.sessions):
            self._add_session(session, random.Random(f"{self._seed} {session}"))
        return SessionLoad(name, tuple(self._turns))

    def _add_session(self, session: int, dice: random.Random) -> None:
        shape = self._shape
        start_s = dice.uniform(0.0, shape.start_s)
        head = ((dice.randrange(shape.heads), shape.head_tokens),) if shape.head_tokens else ()
        first = (*head, self._segment(shape.first_tokens.draw_tokens(dice)))
        sent = [self._add(SessionTurn(session, first, _output(shape, dice), at_s=start_s))]
        for _ in range(shape.turns.draw_tokens(dice) - 1):
            last = dice.choice(sent) if dice.random() < shape.branch_share else sent[-1]
            after: tuple[int, ...] = (sent[-1].place,)  # a person goes back only after having read the last answer
            if dice.random() < shape.agent_share:
                after = self._add_agents(session, last, dice) or after
            sent.append(self._add_next(session, last, after, dice))

    def _add_agents(self, session: int, parent: _Sent, dice: random.Random) -> tuple[int, ...]:
        """Add the sub-agents of a turn; returns their last turns."""
        ends = []
        for _ in range(self._shape.agents.draw_tokens(dice)):
            last = parent
            for _ in range(self._shape.agent_turns.draw_tokens(dice)):
                last = self._add_next(session, last, (last.place,), dice)
            ends.append(last.place)
        return tuple(ends)

    def _add_next(self, session: int, last: _Sent, after: tuple[int, ...], dice: random.Random) -> _Sent:
        """Add the turn that continues `last`, once the turns `after` have ended."""
        shape = self._shape
        prompt = (*last.history, self._segment(shape.new_tokens.draw_tokens(dice)))
        think_s = (shape.tool_s if dice.random() < shape.tool_share else shape.person_s).draw(dice)
        if dice.random() < shape.pause_share:
            think_s = shape.pause_s.draw(dice)
        return self._add(SessionTurn(session, prompt, _output(shape, dice), after, think_s))

    def _add(self, turn: SessionTurn) -> _Sent:
        self._turns.append(turn)
        return _Sent(len(self._turns) - 1, (*turn.prompt, self._segment(turn.output_tokens)))

    def _segment(self, tokens: int) -> Segment:
        """A segment that no other prompt has, unless it continues this one."""
        return next(self._numbers), max(1, tokens)


def _output(shape: SessionShape, dice: random.Random) -> int:
    return max(1, shape.output_tokens.draw_tokens(dice))
