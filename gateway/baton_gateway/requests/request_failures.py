"""Turns unforeseen failures of this process into the client's error."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError, TokenizerError
from baton_wire.listening.complaints import Complaints


def to_problem(error: BaseException, field: str | None, complaints: Complaints) -> Problem:
    """The client's error; the log has the details. Re-raises what is meant for this task. `field`: the one with the
    prompt that a tokenizer may have failed on; None: tokenising is over.
    """
    if errors.ends_task(error):
        raise error
    if isinstance(error, RefusedError):
        return error.problem
    if isinstance(error, TokenizerError) and field is not None:
        return errors.tokenizer_failed(field)
    complaints.say("a request failed", type(error).__name__, error)
    return errors.internal_error()
