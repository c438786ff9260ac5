"""The tasks of agents: the calls that a script has the model make, and the total that it ends with."""

from __future__ import annotations

import json
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


def task_argument(tasks: list[AdditionTask]) -> str:
    """Return the tasks as the programs of this folder read them, with the characters that script a model."""
    marks = {mark: tokens_for(mark) for mark in ("<tool_call>", "</tool_call>")}
    symbols = {"begin": BEGIN, "next": NEXT, "end": END, **marks}
    return json.dumps({"symbols": symbols, "tasks": [asdict(task) for task in tasks]})
