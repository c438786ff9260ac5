"""An open loop: each request is sent when it is due, however many earlier ones are unanswered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import aiohttp

from baton_local.client import Answer, ClientRequest, send


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request with the time at which it is due: seconds from the start of the load."""

    due_s: float
    request: ClientRequest


async def open_loop(
    session: aiohttp.ClientSession,
    endpoint: str,
    plan: Sequence[PlannedRequest],
    on_answer: Callable[[Answer], None] = lambda answer: None,
) -> list[Answer]:
    """Send a plan; returns the answers in the order in which they ended. The session's timeout bounds each of them.

    A cancelled loop cancels its requests; `on_answer` got the answers that had ended.
    """
    began = time.monotonic()
    answers: list[Answer] = []

    async def one(planned: PlannedRequest) -> None:
        answer = await send(session, endpoint, planned.request, due_s=began + planned.due_s)
        answers.append(answer)
        on_answer(answer)

    async with asyncio.TaskGroup() as running:
        for planned in plan:
            await asyncio.sleep(max(0.0, began + planned.due_s - time.monotonic()))
            running.create_task(one(planned))
    return answers
