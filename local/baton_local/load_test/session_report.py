"""The report of a load of sessions: what caches found of what an ideal cache would have found, and the speed that a
client sees end to end. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from baton_local.client import Answer, AnswerEnd
from baton_local.load_test.closed_loop import TurnAnswer
from baton_local.load_test.latency_spread import LatencySpread, latency
from baton_simulate.sessions.session_load import SessionLoad, ideal_cached_tokens


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Figures of a load of sessions. None: no turn ended that they could be measured on."""

    sessions: int
    turns: int
    planned_prompt_tokens: int
    """Prompt tokens of the sent turns, by the plan."""
    ideal_cached_tokens: int
    """Tokens of them that an infinite cache shared by all workers would have found."""
    cached_tokens: int | None
    """Tokens that the server's caches found, as it counts; None: it reports none."""
    cached_of_ideal: float | None
    """Share of the ideal, over the whole answers with a count."""
    interactivity_p50: float | None
    """Output tokens over the time from sending to the last token: half of the turns reach this."""
    interactivity_p90: float | None
    """90 % of the turns reach this."""
    first_turns_ttft_s: LatencySpread | None
    later_turns_ttft_s: LatencySpread | None
    unreported: int = 0
    """Whole answers without a count of cached tokens. They count neither as found nor as ideal."""


@dataclass(frozen=True, slots=True)
class SessionRun:
    """A load that was carried out, with its answers in the order in which its turns were sent."""

    load: SessionLoad
    answers: tuple[TurnAnswer, ...]


def session_figures(runs: Sequence[SessionRun]) -> SessionFigures:
    """The figures of some runs together. They have no prompts in common."""
    turns = [
        (run.load.turns[answer.place], answer.answer, ideal)
        for run in runs
        for answer, ideal in zip(run.answers, _ideal_of(run), strict=True)
    ]
    whole = [(turn, answer, ideal) for turn, answer, ideal in turns if answer.end is AnswerEnd.WHOLE]
    counted = [(cached, ideal) for _, answer, ideal in whole if (cached := answer.cached_tokens) is not None]
    cached_tokens, findable = sum(cached for cached, _ in counted), sum(ideal for _, ideal in counted)
    speeds = sorted(speed for _, answer, _ in whole if (speed := _interactivity(answer)) is not None)
    begun = [(turn, answer.ttft_s) for turn, answer, _ in whole if answer.times_s]
    return SessionFigures(
        sessions=sum(len({run.load.turns[answer.place].session for answer in run.answers}) for run in runs),
        turns=len(turns),
        planned_prompt_tokens=sum(turn.prompt_tokens for turn, _, _ in turns),
        ideal_cached_tokens=sum(ideal for _, _, ideal in turns),
        cached_tokens=cached_tokens if counted else None,
        cached_of_ideal=cached_tokens / findable if findable else None,
        interactivity_p50=_reached(speeds, 0.5),
        interactivity_p90=_reached(speeds, 0.9),
        first_turns_ttft_s=latency([ttft_s for turn, ttft_s in begun if not turn.after]),
        later_turns_ttft_s=latency([ttft_s for turn, ttft_s in begun if turn.after]),
        unreported=len(whole) - len(counted),
    )


def _ideal_of(run: SessionRun) -> list[int]:
    """Ideal tokens of each answer's turn."""
    ideal = ideal_cached_tokens(run.load, [answer.place for answer in run.answers])
    return [ideal[answer.place] for answer in run.answers]


def _interactivity(answer: Answer) -> float | None:
    seconds = answer.ended_s - answer.due_s
    return answer.tokens / seconds if seconds > 0.0 else None


def _reached(ordered: Sequence[float], share: float) -> float | None:
    """The greatest value that this share of the values reaches; `ordered` ascends."""
    return ordered[len(ordered) - math.ceil(share * len(ordered))] if ordered else None
