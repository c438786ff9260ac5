"""The task of every agent: ten sums by a tool, one after the other, and at the end a total that keeps to a schema."""

import json
import sys
from typing import Any

from pydantic import BaseModel, ConfigDict

TURNS = 10
endpoint, question = sys.argv[1], sys.argv[2]
url = f"{endpoint}/v1"
calls: list[tuple[int, int]] = []


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
    calls.append((a, b))
    return a + b


def report(**ways: Any) -> None:
    """Print what each way came to, as the last line: the total, and how many calls led to it."""
    print(json.dumps(ways))


def outcome(total: Any) -> list[Any]:
    """The total with the calls so far, which begin anew."""
    value = total.model_dump() if isinstance(total, BaseModel) else total
    made = list(calls)
    calls.clear()
    return [value, made]
