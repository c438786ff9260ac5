"""The waiting line of each served model: what a request will take, and whether its predicted wait is too long."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.http_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.requests.live_request import LiveRequest, text_bytes
from baton_gateway.requests.waiting_line import (
    WaitingLine,
    WaitRules,
    Work,
    predicted_wait_s,
    retry_after_s,
)
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import pool_services

CHARS_A_TOKEN = 4
"""Of text that is not tokenised yet. Sizes wrong by a factor change only how fast a line seems to grow."""


class ModelLines:
    """Lines of models that are served; requests for others share one, which is never measured."""

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        self._lines: dict[str, WaitingLine] = {}
        self._other = WaitingLine()

    def of(self, live: LiveRequest) -> WaitingLine:
        """The line that the request joined, or joins."""
        if live.line is None:
            live.line = self._line(live.request.options.model)
        return live.line

    def _line(self, model: str) -> WaitingLine:
        line = self._lines.get(model)
        if line is not None:
            return line
        if model not in self._table.served_names():
            return self._other
        self._lines[model] = WaitingLine()  # one for each name that a worker of ours serves: bounded
        return self._lines[model]

    def expected(self, request: ChatRequest | CompletionRequest) -> Work:
        """Of its first prompt: what follows is let out when there is room."""
        options = request.options
        usual = self._line(options.model).output_tokens
        asked = usual if options.max_tokens is None else float(options.max_tokens)
        outputs = asked if options.ignore_eos else min(asked, usual)
        return Work(_prompt_tokens(request), outputs * options.n)

    def overload(
        self, request: ChatRequest | CompletionRequest, work: Work, rules: WaitRules, now: float
    ) -> Problem | None:
        """Why the request may not join its model's line; None: it may. An unknown wait refuses nobody."""
        model = request.options.model
        line = self._line(model)
        prefill, decode = pool_services(self._table.views(), model, line.output_tokens)
        wait_s = predicted_wait_s(line.held, prefill, decode)
        if wait_s is None:
            return None
        bound_s = line.bound.of(wait_s, work.prompt_tokens * (prefill.token_s or 0.0), rules, now)
        if wait_s <= bound_s:
            return None
        return errors.overloaded(wait_s, bound_s, retry_after_s(wait_s, bound_s))


def _prompt_tokens(request: ChatRequest | CompletionRequest) -> float:
    if isinstance(request, ChatRequest):
        return text_bytes(request) / CHARS_A_TOKEN
    first = request.prompts[0]
    return len(first) / CHARS_A_TOKEN if isinstance(first, str) else float(len(first))
