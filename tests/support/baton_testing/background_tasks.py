"""Tasks that run until they are cancelled: what ends one of them before is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks and awaits their ends. Raises the error that had ended one of them before."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    for result in await asyncio.gather(*cancelled, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
