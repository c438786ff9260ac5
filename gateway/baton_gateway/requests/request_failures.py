"""What ends a request whose work failed in this process, for a reason that nobody foresaw."""

from __future__ import annotations

import asyncio

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError, TokenizerError
from baton_wire.listening.complaints import Complaints


def problem_of(error: BaseException, field: str, complaints: Complaints) -> Problem:
    """What the client is told; the log has the rest. Raises what is meant for this task: the end of the process, and
    its own cancellation. A cancellation of something that it waited for is a failure like others.

    `field` is the one that has the prompt. Libraries in Rust panic with exceptions that are no `Exception`.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit) or _is_own(error):
        raise error
    if isinstance(error, RefusedError):
        return error.problem
    if isinstance(error, TokenizerError):
        return errors.tokenizer_failed(field)
    complaints.say("a request failed", type(error).__name__, error)
    return errors.internal_error()


def _is_own(error: BaseException) -> bool:
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    return task is not None and task.cancelling() > 0
