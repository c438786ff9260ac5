"""The task of every agent: ten sums by a tool, one after the other, and at the end a total that keeps to a schema.

The second argument is JSON: the characters with which a message scripts the model's answers, and the tasks.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

endpoint = sys.argv[1]
url = f"{endpoint}/v1"
_given: Any = json.loads(sys.argv[2])
_symbols: dict[str, str] = _given["symbols"]
calls: list[list[int]] = []
LIMIT = 30
"""The most turns of a loop; a task has eleven or twelve."""


class Total(BaseModel):
    """What all sums come to."""

    model_config = ConfigDict(extra="forbid")

    total: int
    note: str | None = None


SCHEMA: dict[str, Any] = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    "additionalProperties": False,
}  # fmt: skip


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    calls.append([a, b])
    return a + b


def script(*answers: str) -> str:
    """The text that makes the model give these answers, one for each turn."""
    return _symbols["begin"] + _symbols["next"].join(answers) + _symbols["end"]


def call(name: str, **arguments: Any) -> str:
    """A call as Hermes and Qwen write it, with its marks as tokens."""
    return (
        f"{_symbols['<tool_call>']}\n{json.dumps({'name': name, 'arguments': arguments})}\n{_symbols['</tool_call>']}"
    )


@dataclass(frozen=True)
class Task:
    """The calls that the model shall make, and its last answer."""

    calls: list[list[int]]
    total: dict[str, Any]

    def adding(self) -> list[str]:
        """The calls of `add`, as the model writes them."""
        return [call("add", a=a, b=b) for a, b in self.calls]

    @property
    def question(self) -> str:
        """The message that makes the model call `add` and end with JSON."""
        return "Add them. " + script(*self.adding(), json.dumps(self.total))


def run(**ways: Callable[[Task], Any]) -> None:
    """Do each task in each way. The last line printed has, by way, the total and the calls of each task."""
    outcomes: dict[str, list[Any]] = {}
    tasks = [Task(**task) for task in _given["tasks"]]
    with asyncio.Runner() as runner:
        for name, way in ways.items():
            for task in tasks:
                calls.clear()
                answer = way(task)
                total: Any = runner.run(_await(answer)) if inspect.isawaitable(answer) else answer
                total = total.model_dump() if isinstance(total, BaseModel) else total
                outcomes.setdefault(name, []).append([total, list(calls)])
    print()  # some clients draw on the terminal and leave a line unfinished
    print(json.dumps(outcomes))


async def _await(answer: Any) -> Any:
    return await answer
