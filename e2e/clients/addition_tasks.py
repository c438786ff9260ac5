"""The tasks of agents: the calls that a script has the model make, and the total that it ends with."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any

from baton_testing.engine.scripted_model import BEGIN, END, NEXT, tokens_for

TURNS = 10


@dataclass(frozen=True)
class AdditionTask:
    """Sums that the model asks its tool for, one after the other, and its last answer."""

    calls: list[list[int]]
    total: dict[str, Any]

    def outcome(self) -> list[Any]:
        """What an agent reports of the task if nothing was lost: the total, and the calls in their order."""
        return [self.total, self.calls]


def plain_task() -> AdditionTask:
    """The task that every client does: ten calls with arguments that grow."""
    calls = [[turn, turn * turn] for turn in range(1, TURNS + 1)]
    return AdditionTask(calls, {"total": sum(map(sum, calls)), "note": None})


def drawn_task(dice: random.Random) -> AdditionTask:
    """Draw ten calls with numbers of any sign and length, and a note that is a text or nothing."""
    calls = [[_drawn_number(dice), _drawn_number(dice)] for _ in range(TURNS)]
    note = dice.choice([None, "", "done", 'a "quoted" one', "two\nlines", "a\\b {c} [d] <e>"])
    return AdditionTask(calls, {"total": sum(map(sum, calls)), "note": note})


def _drawn_number(dice: random.Random) -> int:
    return dice.choice([-1, 1]) * dice.randrange(10 ** dice.randrange(1, 10))


def task_argument(tasks: list[AdditionTask]) -> str:
    """Return the tasks as the programs of this folder read them, with the characters that script a model."""
    marks = {mark: tokens_for(mark) for mark in ("<tool_call>", "</tool_call>")}
    symbols = {"begin": BEGIN, "next": NEXT, "end": END, **marks}
    return json.dumps({"symbols": symbols, "tasks": [asdict(task) for task in tasks]})
