"""One served path: its methods, its handler and the form of its errors. And the known paths that are not served."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from baton_gateway.apis.messages_answer import message_error_body
from baton_gateway.errors import INVALID, SERVER, Problem
from baton_gateway.http_api.lookups import JSON
from baton_gateway.openai_api.response_encoding import error_body
from baton_gateway.requests.tenant import Tenant

Handler = Callable[[web.BaseRequest, Tenant], Awaitable[web.StreamResponse]]
ErrorForm = Callable[[Problem, str | None], bytes]
"""Writes the body of an error: the problem, and the id of the request."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """One path that is served."""

    methods: tuple[str, ...]
    handler: Handler
    is_open: bool = False
    """True if it is served without an API key: probes and monitoring."""
    is_probe: bool = False
    """True if the time that it takes is charged to the gateway itself: a tenant's load may not delay it."""
    error_form: ErrorForm = error_body
    takes_viewers: bool = False
    """True if the installation's operator may call it, without a tenant's key."""
    is_open_here: bool = False
    """True if programs on this machine may call it where clients need no key."""
    key_header: str | None = None
    """A header that may carry the API key if there is no `Authorization`."""

    def credentials(self, request: web.BaseRequest) -> str | None:
        """Return the request's `Authorization`, or what it would be for a key in `key_header`."""
        authorization = request.headers.get("Authorization")
        if authorization is None and self.key_header is not None:
            key = request.headers.get(self.key_header)
            return None if key is None else f"Bearer {key}"
        return authorization


def messages_endpoint(handler: Handler) -> HttpEndpoint:
    """Build an endpoint of Anthropic's API, with its errors and its clients' header for the key."""
    return HttpEndpoint(("POST",), handler, error_form=message_error_body, key_header="X-Api-Key")


def problem_response(problem: Problem, request_id: str | None = None, form: ErrorForm = error_body) -> web.Response:
    """Build the response for a problem, in the form of its endpoint."""
    headers = dict(JSON)
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(problem.retry_after_s)
    if problem.is_final:
        headers["x-should-retry"] = "false"
    if problem.allow is not None:
        headers["Allow"] = problem.allow
    response = web.Response(status=problem.status, body=form(problem, request_id), headers=headers)
    if problem.status in (408, 413, 415):
        response.force_close()
    return response


_NOT_HTTP = {431: "headers_too_large"}
"""Codes of requests that no handler saw."""


def not_http(status: int, message: str) -> web.StreamResponse:
    """Build the response to bytes that are no HTTP request."""
    kind, code = (INVALID, _NOT_HTTP.get(status, "bad_request")) if status < 500 else (SERVER, "internal_error")
    return problem_response(Problem(status, kind, message, None, code))


# Known paths that are not served --------------------------------------------------------------------------------------

_AUDIO = "Run a speech model on a server such as vLLM or Speaches."
_IMAGES = "Run an image model on a server of its own."
_STORED = "Answers are not stored: send the whole conversation with each request."
_BATCHES = "This gateway has no --batch-folder; `baton batch` answers files of requests without one."

_REASONS = {
    "/embeddings": "This path is not served; embeddings are at /v1/embeddings.",
    "/pooling": "This path is not served; embeddings are at /v1/embeddings, labels at /classify.",
    "/v1/moderations": "Moderation is not served here. Run a classifier on a server of its own.",
    "/v1/files": f"Files are not stored here. {_BATCHES}",
    "/v1/batches": f"Batches are not stored here. {_BATCHES}",
    "/v1/messages/batches": f"Batches are not stored here. {_BATCHES}",
}
_FAMILIES = {
    "/v1/audio/": f"Speech is not served here: the models generate text. {_AUDIO}",
    "/v1/images/": f"Images are not served here: the models generate text. {_IMAGES}",
    "/v1/responses/": f"A response cannot be retrieved. {_STORED}",
    "/v1/conversations": f"Conversations are not stored here. {_STORED}",
}
"""Reasons by the prefix of a path."""


def find_unsupported(path: str) -> Problem | None:
    """Return the problem of a known path that is not served; None: the path is unknown."""
    reason = _REASONS.get(path)
    if reason is None:
        reason = next((text for prefix, text in _FAMILIES.items() if path.startswith(prefix)), None)
    return None if reason is None else Problem(404, INVALID, reason, None, "unsupported_path")
