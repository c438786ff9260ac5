"""Errors of the gateway. A client gets a `Problem`: one value, written as an OpenAI error object.

GatewayError
├── RefusedError             the client gets the problem that it carries
├── BundleError              a worker's tokenizer bundle cannot be used: the worker is not linked
├── TokenizerError           the library failed on a text, or on ids
├── ProcessNotStartedError   a helper process does not start
├── TurnTimeoutError         others held a turn for too long
└── ProcessesDownError       processes of a gateway do not start

Every `Problem` is constructed here, so that status, type and code of one situation are the same everywhere. Messages
never contain addresses, paths or another client's text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton_wire.suggestions import suggestion

INVALID = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
QUOTA = "insufficient_quota"
"""Type and code of OpenAI's where retrying is of no use."""
SERVER = "server_error"
STARTING_RETRY_S = 5
"""Seconds after which a client is asked to retry while workers start."""
SLOW_CLIENT = "slow_client"
"""The code in logs and records of a connection that was closed because its client read too slowly. No error object has
it: the client reads none."""
TOKENIZER_FAILED = "tokenizer_failed"
MAX_PATH_CHARS = 64
MAX_NAMED = 16
"""Models that an error names."""


class GatewayError(Exception):
    """Base of every error that this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An HTTP status and the fields of an OpenAI error object."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after_s: int | None = None
    allow: str | None = None
    """Methods of the path, for 405."""
    is_final: bool = False
    """True: clients' libraries are asked not to retry by themselves, though the status is one that they retry."""


class ProcessesDownError(GatewayError):
    """Processes of a gateway do not start."""


class TokenizerError(GatewayError):
    """The tokenizers library failed on a text, or on ids. Names only the kind of error, because the library's message
    may quote the text.
    """


class ProcessNotStartedError(GatewayError):
    """A helper process does not start, for the reason in the message: no descriptors, memory or processes are left."""


class TurnTimeoutError(GatewayError):
    """A turn did not come in time."""


class RefusedError(GatewayError):
    """The request cannot be served for the reason in `problem`."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class BundleError(GatewayError):
    """A tokenizer bundle is incomplete, does not match its hash, or is not understood."""


def invalid(param: str | None, message: str, code: str = "invalid_value", status: int = 400) -> RefusedError:
    """The client's request breaks a rule; `param` is the path of the offending field."""
    return RefusedError(Problem(status, INVALID, message, param, code))


def library_error(error: BaseException) -> TokenizerError:
    """The error to raise where the tokenizers library raised: it has no error classes, and its panics derive from
    BaseException. Re-raises errors that are not the library's, such as a cancellation.
    """
    if not is_library_error(error):
        raise error
    return TokenizerError(type(error).__name__)


def is_library_error(error: BaseException) -> bool:
    """Return whether a native library may have raised it: an error of any kind, or a panic."""
    return isinstance(error, Exception) or is_panic(error)


def ends_task(error: BaseException) -> bool:
    """Return whether the error must end the running task: the process ends, or the task itself is cancelled. If
    something that the task waits for was cancelled, that is a failure like others.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust panicked: the class cannot be imported."""
    return type(error).__module__ == "pyo3_runtime"


def unsupported(param: str, reason: str) -> RefusedError:
    """The field is known, and not supported for the reason given."""
    return invalid(param, f"'{param}' is not supported: {reason}", "unsupported_parameter")


def context_exceeded(param: str, limit: int, prompt_tokens: int, max_tokens: int | None) -> RefusedError:
    asked = f"your prompt has {prompt_tokens} tokens"
    if max_tokens is not None:
        asked += f" and you asked for {max_tokens} more"
    message = f"This model's maximum context length is {limit} tokens, but {asked}."
    return invalid(param, message, "context_length_exceeded")


def prompt_too_long(param: str, limit: int, size: int) -> RefusedError:
    """The prompt is too long, which was noticed before all its tokens were counted."""
    message = f"This model's maximum context length is {limit} tokens, but your prompt of {size} bytes has more."
    return invalid(param, message, "context_length_exceeded")


def model_not_found(model: str, served: Sequence[str]) -> Problem:
    """The model is unknown. `served`: the known models, of which the first few are named."""
    names = ", ".join(f"'{name}'" for name in served[:MAX_NAMED]) + (", …" if len(served) > MAX_NAMED else "")
    message = f"The model '{model[:253]}' does not exist; served here: {names}."
    return Problem(404, INVALID, message, "model", "model_not_found")


def task_not_served(model: str, verb: str, reason: str) -> Problem:
    """The model is served, for other tasks. `verb`: what the request wants of it."""
    message = f"The model '{model[:253]}' does not {verb} here: {reason}."
    return Problem(400, INVALID, message, "model", "task_not_served")


def model_not_allowed(model: str, allowed: Sequence[str]) -> Problem:
    """The tenant may not ask for the model. `allowed`: the models that it may ask for."""
    names = ", ".join(f"'{name}'" for name in allowed[:MAX_NAMED]) + (", …" if len(allowed) > MAX_NAMED else "")
    message = f"You may not ask for the model '{model[:253]}'; you may ask for {names}."
    return Problem(403, INVALID, message, "model", "model_not_allowed")


def rate_limited(limit_name: str, limit: int) -> Problem:
    """The tenant is at its own limit. `limit_name`: the field of the LLMTenant."""
    message = f"Your limit {limit_name} of {limit} is reached; try again later."
    return Problem(429, RATE_LIMIT, message, None, "rate_limit_exceeded", 1)


def quota_used_up(limit_name: str, limit: int, used: int, retry_after_s: int) -> Problem:
    """The tenant has used up its tokens of the month. `limit_name`: the field of the LLMTenant."""
    message = f"Of your limit {limit_name} of {limit}, {used} are used or reserved: too few are left for this request."
    return Problem(429, QUOTA, message, None, QUOTA, retry_after_s, is_final=True)


def quota_unknown(limit_name: str) -> Problem:
    message = f"It is not known yet how much of your limit {limit_name} is used; try again later."
    return Problem(503, SERVER, message, None, "quota_unknown", 2)


def unknown_url(path: str, served: Iterable[str]) -> Problem:
    """The path is not served. The message names the served one that is most like it; all are in a document."""
    shown = path[:MAX_PATH_CHARS] + ("…" if len(path) > MAX_PATH_CHARS else "")
    meant = suggestion(path[:MAX_PATH_CHARS], served) or "."
    return Problem(404, INVALID, f"{shown} is not served{meant} /openapi.json lists all paths.", None, "unknown_url")


def method_not_allowed(methods: Sequence[str]) -> Problem:
    message = f"This path only answers {' and '.join(methods)}."
    return Problem(405, INVALID, message, None, "method_not_allowed", allow=", ".join(methods))


def no_workers(retry_after_s: int = 1) -> Problem:
    message = "No fitting pair of prefill and decode workers is available at present."
    return Problem(503, SERVER, message, None, "no_routable_workers", retry_after_s)


def workers_starting(ready: int, wanted: int | None, retry_after_s: int = 1) -> Problem:
    """No workers have served yet since this process started. `wanted`: how many there are to be; None: not known."""
    count = f"{ready}" if wanted is None else f"{ready} of {wanted}"
    message = f"The workers are still starting ({count} ready); try again."
    return Problem(503, SERVER, message, None, "no_routable_workers", max(retry_after_s, STARTING_RETRY_S))


def no_capacity(retry_after_s: int = 1) -> Problem:
    return Problem(
        429, RATE_LIMIT, "The workers have no room for this request at present.", None, "no_capacity", retry_after_s
    )


def out_of_memory() -> Problem:
    message = "This gateway holds as many bytes of requests as it may, or as one client may; try again."
    return Problem(503, SERVER, message, None, "out_of_memory", 1)


def overloaded(wait_s: float, bound_s: float, retry_after_s: int) -> Problem:
    """The predicted wait is too long. Returned on arrival, before any work for the request."""
    message = f"The predicted wait of {wait_s:.1f} s is longer than the {bound_s:.1f} s that a request may wait now."
    return Problem(429, RATE_LIMIT, message, None, "overloaded", retry_after_s)


def queue_full(retry_after_s: int) -> Problem:
    return Problem(429, RATE_LIMIT, "Too many requests are waiting.", None, "queue_full", retry_after_s)


def queue_timeout(retry_after_s: int) -> Problem:
    return Problem(429, RATE_LIMIT, "The request waited too long for its turn.", None, "queue_timeout", retry_after_s)


def deadline_exceeded() -> Problem:
    return Problem(504, SERVER, "The request did not finish within the maximum duration.", None, "deadline_exceeded")


def retries_exhausted() -> Problem:
    return Problem(502, SERVER, "The workers failed this request repeatedly.", None, "workers_failed", 1)


def worker_refused() -> Problem:
    return Problem(500, SERVER, "A worker refused this request.", None, "worker_refused")


def not_sendable(detail: str) -> Problem:
    """A value of the request, its model or the configuration exceeds what messages to workers allow. `detail` names
    the field and what is allowed."""
    return Problem(500, SERVER, f"This request cannot be sent to a worker: {detail}.", None, "not_sendable")


def links_ended() -> Problem:
    """The request is given up, because each further attempt could end a link that other requests use."""
    message = "Links to workers ended again and again as soon as this request was sent; it is not tried again."
    return Problem(502, SERVER, message, None, "request_ends_links")


def internal_error() -> Problem:
    return Problem(500, SERVER, "Internal error.", None, "internal_error")


def too_long_for_workers() -> Problem:
    return Problem(400, INVALID, "The request does not fit any worker.", None, "context_length_exceeded")


def grammar_failed() -> Problem:
    """A worker's grammar matcher failed, perhaps in the middle of the answer."""
    message = "The answer cannot follow the requested schema or grammar any further: it is too complex to match."
    return Problem(400, INVALID, message, None, "grammar_failed")


def grammars_unavailable() -> Problem:
    message = "Schemas and grammars cannot be read at the moment: the process for it does not start."
    return Problem(503, SERVER, message, None, "grammars_unavailable", 1)


def tokenizer_unavailable() -> Problem:
    message = "Text cannot be tokenised at the moment: the process for it does not answer."
    return Problem(503, SERVER, message, None, "tokenizer_unavailable", 1)


def tokenizer_failed(field: str) -> Problem:
    """The library failed on a client's text or ids."""
    return Problem(400, INVALID, f"The model's tokenizer fails with this '{field}'.", field, TOKENIZER_FAILED)


def template_failed() -> Problem:
    """The template fails with any messages."""
    return Problem(500, SERVER, "The model's chat template failed.", None, "template_failed")


def template_fails_with(reason: str) -> Problem:
    """The template fails with these messages, though it renders others."""
    message = f"The model's chat template cannot render these messages: {reason}."
    return Problem(400, INVALID, message, "messages", "template_failed")


def template_unavailable() -> Problem:
    message = "Chats cannot be rendered at the moment: the process for chat templates does not answer."
    return Problem(503, SERVER, message, None, "template_unavailable", 1)


def ledger_unavailable() -> Problem:
    """The request cannot be recorded, and the installation demands that every request is."""
    message = "The use of this request cannot be recorded at present, and it must be; try again later."
    return Problem(503, SERVER, message, None, "ledger_unavailable", 5)


def shutting_down() -> Problem:
    return Problem(503, SERVER, "This gateway is shutting down.", None, "shutting_down", 1)
