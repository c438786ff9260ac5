"""Tasks of several scripted turns with calls, during which workers are killed or drained.

A task's answers are drawn from the renderers of a format, so each turn is known in advance. A kill happens within the
call of its turn: when a drawn number of characters of the arguments has arrived.
"""

from __future__ import annotations

import enum
import json
import random
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

from baton_gateway.answers.output_parts import WholeAnswer
from baton_testing.engine.scripted_model import NEXT
from baton_testing.gateway.answer_transcripts import draw_answer
from baton_testing.processes.deployment import Deployment, Worker
from baton_testing.processes.scripted_answers import LONGEST, Asked, expected_answer, token_marks, transcripts

LEAST, MOST = 250, 900
"""Bytes of a turn in which a worker is killed: the answer takes long enough for that."""
DRAWS = 10_000
HAND_OVER_S = 0.5
"""The latest kill of a hand-over: by then the prompt of a free machine has long arrived."""
LEAVES_S = 120.0


class Kill(enum.StrEnum):
    """A loss of workers within a call."""

    PREFILL = "prefill"
    HAND_OVER = "hand_over"
    """A prefill worker is killed soon after the request was sent: while it prepares the prompt or hands it over."""
    DECODE = "decode"
    RETARGET = "retarget"
    """The decode worker is drained (SIGTERM) and hands its sequence over."""
    BOTH = "both"
    """The decode worker and a prefill worker are killed at once, so that another one has to prepare the rest."""


@dataclass(frozen=True)
class ScriptedTask:
    """Answers of the model for each turn, and the kill within it. The last turns have none."""

    family: str
    texts: tuple[str, ...]
    kills: tuple[Kill | None, ...]
    on_call_at: tuple[int, ...]
    """The characters of arguments that arrive before each kill."""
    as_tokens: bool

    @property
    def marks(self) -> list[str]:
        """The marks that are special tokens of the model."""
        return token_marks(self.family) if self.as_tokens else []

    def expected(self) -> list[WholeAnswer]:
        """Return what the format's reader alone makes of each turn."""
        return [expected_answer(self.family, text, self.as_tokens) for text in self.texts]


def draw_task(dice: random.Random, family: str, kills: Sequence[Kill], as_tokens: bool, number: int) -> ScriptedTask:
    """Draw a task with one turn for each kill, and then a turn written by hand, another one for each `number`."""
    by_hand = transcripts(family, 0, seed=0)
    long = [_draw_call(dice, family, as_tokens) for _ in kills]
    lengths = [sum(len(call.arguments) for call in expected_answer(family, text, as_tokens).calls) for text in long]
    return ScriptedTask(
        family,
        (*long, by_hand[number % len(by_hand)]),
        (*kills, None),
        (*(dice.randrange(1, 1 + max(1, length // 2)) for length in lengths), 1),
        as_tokens,
    )


def _draw_call(dice: random.Random, family: str, as_tokens: bool) -> str:
    """Draw an answer whose reader finds calls with arguments in it."""
    for _ in range(DRAWS):
        text = draw_answer(dice, family, with_thoughts=dice.random() < 0.5).text
        if LEAST <= len(text.encode()) <= min(MOST, LONGEST):
            calls = expected_answer(family, text, as_tokens).calls
            if sum(len(call.arguments) for call in calls) >= LEAST // 4:
                return text
    raise AssertionError(f"{family}: no answer of {LEAST} to {MOST} bytes in {DRAWS} draws")


class TaskRun:
    """Runs tasks against a gateway of a deployment, one request at a time, and replaces the workers it kills."""

    def __init__(self, deployment: Deployment, client: openai.OpenAI, dice: random.Random) -> None:
        self._deployment = deployment
        self._client = client
        self._dice = dice
        self.killed = 0
        """Workers that were killed or drained within a call."""

    def do(self, task: ScriptedTask, *, with_kills: bool) -> list[WholeAnswer]:
        """Return the answer of each turn. Turns with kills are streamed; without kills, each second turn is."""
        script, history, answers = NEXT.join(task.texts), list[dict[str, Any]](), list[WholeAnswer]()
        for turn, (kill, at) in enumerate(zip(task.kills, task.on_call_at, strict=True)):
            victims: list[Worker] = []
            asked = Asked(self._client, script, marks=task.marks, history=history, on_call_at=at)
            if with_kills and kill is not None:
                answer = self._do_with_kill(asked, kill, victims)
            else:
                answer = asked.streamed() if turn % 2 else asked.whole()
            self._replace(victims)
            answers.append(answer)
            history += _resent(answer, turn)
        return answers

    def _do_with_kill(self, asked: Asked, kill: Kill, victims: list[Worker]) -> WholeAnswer:
        """Return the streamed answer, and add the workers that were lost within it to `victims`."""
        if kill is Kill.HAND_OVER:
            timer = threading.Timer(self._dice.uniform(0, HAND_OVER_S), self._harm, (kill, victims))
            timer.start()
            try:
                return asked.streamed()
            finally:
                timer.join()
        asked.on_call = lambda: self._harm(kill, victims)
        answer = asked.streamed()
        assert victims, f"no call to lose a worker in: {answer}"
        return answer

    def _harm(self, kill: Kill, victims: list[Worker]) -> None:
        if kill in (Kill.DECODE, Kill.RETARGET, Kill.BOTH):
            victims.append(busiest(self._deployment.of_role("decode")))
        if kill in (Kill.PREFILL, Kill.HAND_OVER, Kill.BOTH):
            victims.append(busiest(self._deployment.of_role("prefill")))
        for victim in victims:
            victim.child.send(signal.SIGTERM if kill is Kill.RETARGET else signal.SIGKILL)

    def _replace(self, victims: Sequence[Worker]) -> None:
        for victim in victims:
            victim.child.wait(LEAVES_S)
            self._deployment.replace(victim)
            self.killed += 1


def busiest(workers: Sequence[Worker]) -> Worker:
    """Return the worker with the most running sequences."""
    return max(workers, key=lambda worker: (worker.state() or {"running": 0})["running"])


def _resent(answer: WholeAnswer, turn: int) -> list[dict[str, Any]]:
    """Return the messages that a client appends: the answer as it came, and the results of its calls."""
    calls = [
        {"id": f"call_{turn}_{place}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for place, call in enumerate(answer.calls)
    ]
    message = {"role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning}
    if not calls:
        return [message, {"role": "user", "content": "Go on."}]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": json.dumps({"turn": turn})} for call in calls]
    return [message | {"tool_calls": calls}, *results]
