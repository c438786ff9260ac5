"""A closed loop of sessions: a turn is sent some time after the turns before it have ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from baton_local.client import Answer
from baton_simulate.sessions.session_load import SessionLoad, SessionTurn
from baton_simulate.sessions.turn_order import LoopLimits


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """A turn's place in its load, and its answer."""

    place: int
    answer: Answer


async def closed_loop(
    load: SessionLoad,
    send_turn: Callable[[SessionTurn], Awaitable[Answer]],
    limits: LoopLimits,
    on_answer: Callable[[TurnAnswer], None] = lambda answer: None,
) -> list[TurnAnswer]:
    """Carry out a load; returns the answers in the order in which the turns were sent.

    A turn whose predecessor failed is sent all the same: its prompt has what a client would have kept. A cancelled loop
    cancels its requests; `on_answer` got the answers that had ended.
    """
    began_s = time.monotonic()
    ended = [asyncio.Event() for _ in load.turns]
    session_ended = _Countdown(load)
    users = None if limits.users is None else asyncio.Semaphore(limits.users)
    slots = None if limits.in_flight is None else asyncio.Semaphore(limits.in_flight)
    answers: list[TurnAnswer] = []
    left_out: set[int] = set()

    async def run_turn(place: int, turn: SessionTurn) -> None:
        for earlier in turn.after:
            await ended[earlier].wait()
        now_s = time.monotonic() - began_s
        due_s = max(turn.at_s * limits.time_scale, now_s + turn.think_s * limits.think_scale)
        is_late = limits.duration_s is not None and due_s > limits.duration_s
        if is_late or not left_out.isdisjoint(turn.after):
            left_out.add(place)
        else:
            await asyncio.sleep(due_s - now_s)
            async with AsyncExitStack() as stack:
                if slots is not None:
                    await stack.enter_async_context(slots)
                answer = TurnAnswer(place, await send_turn(turn))
            answers.append(answer)
            on_answer(answer)
        ended[place].set()
        if session_ended.is_last(turn.session) and users is not None:
            users.release()

    async with asyncio.TaskGroup() as running:
        for session, places in session_ended.places.items():
            if users is not None:
                await users.acquire()
            for place in places:
                running.create_task(run_turn(place, load.turns[place]), name=f"session {session}, turn {place}")
    return sorted(answers, key=lambda answer: answer.answer.sent_s)


class _Countdown:
    """The turns of each session that have not ended."""

    def __init__(self, load: SessionLoad) -> None:
        self.places: dict[int, list[int]] = {}
        """Session → places of its turns."""
        for place, turn in enumerate(load.turns):
            self.places.setdefault(turn.session, []).append(place)
        self._left = {session: len(places) for session, places in self.places.items()}

    def is_last(self, session: int) -> bool:
        """Count an ended turn; return whether it was the session's last."""
        self._left[session] -= 1
        return not self._left[session]
