"""Agents do a whole task against a model that follows a script: ten calls, and a schema at the end.

The answers are known, so a call that gets lost, an argument that changes or an answer outside the schema shows.
"""

from __future__ import annotations

import pytest
from e2e.clients.addition_tasks import plain_task, task_argument
from e2e.clients.agent_programs import PROGRAMS
from e2e.clients.environment import Environment
from e2e.clients.runs import Clients


@pytest.mark.parametrize(("name", "environment"), PROGRAMS.items(), ids=list(PROGRAMS))
def test_an_agent_makes_ten_calls_and_ends_with_its_schema(
    scripted: Clients, name: str, environment: Environment
) -> None:
    task = plain_task()
    ways = scripted.of(environment).program(name, task_argument([task]))
    assert ways == {way: [task.outcome()] for way in ways}
