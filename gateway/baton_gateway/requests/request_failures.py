"""What ends a request whose work failed in this process, for a reason that nobody foresaw."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError, TokenizerError
from baton_wire.listening.complaints import Complaints


def problem_of(error: BaseException, field: str | None, complaints: Complaints) -> Problem:
    """What the client is told; the log has the rest. Raises what is meant for this task. `field` has the prompt that a
    tokenizer may have failed with; None: it is no longer at that.
    """
    if errors.ends_task(error):
        raise error
    if isinstance(error, RefusedError):
        return error.problem
    if isinstance(error, TokenizerError) and field is not None:
        return errors.tokenizer_failed(field)
    complaints.say("a request failed", type(error).__name__, error)
    return errors.internal_error()
