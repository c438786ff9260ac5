"""The line of each served model: what a request will take, and whether its predicted wait is too long."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.live_request import LiveRequest, text_bytes
from baton_gateway.requests.model_line import ModelLine
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import (
    STANDING_SHARE,
    WaitBound,
    WaitRules,
    Work,
    predicted_wait_s,
    retry_after_s,
)
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.pool_load import num_prefill, pool_services

CHARS_A_TOKEN = 4
"""Of text that is not tokenised yet. Sizes wrong by a factor change only how fast a line seems to grow."""


class ModelLines:
    """Lines of models that are served; requests for others share one, which is never measured."""

    def __init__(self, table: WorkerTable, admission: Admission) -> None:
        self._table = table
        self._admission = admission
        self._lines: dict[str, ModelLine] = {}
        self._other = ModelLine()

    def of(self, live: LiveRequest) -> ModelLine:
        """The line that the request joined, or joins."""
        if live.line is None:
            live.line = self._line(live.request.options.model)
        return live.line

    def _line(self, model: str) -> ModelLine:
        line = self._lines.get(model)
        if line is not None:
            return line
        if model not in self._table.served_names():
            return self._other
        self._lines[model] = ModelLine()  # one for each name that a worker of ours serves: bounded
        return self._lines[model]

    def expected(self, request: ChatRequest | CompletionRequest) -> Work:
        """Of its first prompt: what follows is let out when there is room."""
        options = request.options
        usual = self._line(options.model).output_tokens
        asked = usual if options.max_tokens is None else float(options.max_tokens)
        outputs = asked if options.ignore_eos else min(asked, usual)
        return Work(_prompt_tokens(request), outputs * options.n)

    def overload(
        self, request: ChatRequest | CompletionRequest, tenant: Tenant, work: Work, rules: WaitRules, now: float
    ) -> Problem | None:
        """Why a request of this tenant may not join its model's line; None: it may. An unknown wait refuses nobody."""
        line = self._line(request.options.model)
        return self._overload_of_quota(line, tenant, request.options.n, rules) or self._overload_of_pools(
            line, request.options.model, tenant, work, rules, now
        )

    def _overload_of_quota(self, line: ModelLine, tenant: Tenant, at_once: int, rules: WaitRules) -> Problem | None:
        """A tenant at its quota waits for its own requests to end. It is told at once what it would be told after the
        longest wait: nobody else is in time because of that, so a line that stands is its own affair.
        """
        turns, known = self._admission.quota_turns(tenant, at_once), line.tenant(tenant.name)
        if not turns or known is None or known.mean_s is None:
            return None
        wait_s = turns * known.mean_s
        bound_s = self._admission.max_wait_s if rules.longest_s is None else rules.longest_s
        return errors.overloaded(wait_s, bound_s, retry_after_s(wait_s, bound_s)) if wait_s > bound_s else None

    def _overload_of_pools(
        self, line: ModelLine, model: str, tenant: Tenant, work: Work, rules: WaitRules, now: float
    ) -> Problem | None:
        views = self._table.views()
        prefill, decode = pool_services(views, model, line.output_tokens)
        at_most_s = predicted_wait_s(line.held, prefill, decode)
        least_bound_s = STANDING_SHARE * rules.ttft_s if rules.longest_s is None else rules.longest_s
        if at_most_s is None or at_most_s <= least_bound_s:
            return None
        prompts, outputs = line.ahead(tenant, work, prefill, decode, self._admission.startable)
        empty = prefill.empty(), decode.empty()
        fair_s = predicted_wait_s(Work(prompts.fair, outputs.fair), *empty)
        mine_s = predicted_wait_s(Work(prompts.own, outputs.own), *empty)
        crowd_s = predicted_wait_s(Work(prompts.crowd, outputs.crowd), *empty)
        wait_s = predicted_wait_s(Work(prompts.waiting, outputs.waiting), prefill, decode)
        if fair_s is None or mine_s is None or crowd_s is None or wait_s is None:
            return None
        alone_s = work.prompt_tokens * (prefill.token_s or 0.0)
        known = line.tenant(tenant.name)
        own_bound = WaitBound() if known is None else known.bound
        if line.is_light(tenant.name, num_prefill(views, model), now):
            # Late is a light tenant in a crowd, or for its own work. What one other has makes no line that stands.
            counted_s, bound_s = fair_s, line.bound.of(crowd_s, alone_s, rules, now)
            own_bound_s = own_bound.of(mine_s, alone_s, rules, now)
            if fair_s <= bound_s:
                counted_s, bound_s = mine_s, own_bound_s
        else:
            counted_s, bound_s = fair_s, own_bound.of(fair_s, alone_s, rules, now)
        if counted_s <= bound_s:
            return None
        wait_s = max(fair_s, wait_s)
        return errors.overloaded(wait_s, bound_s, retry_after_s(wait_s, bound_s))


def _prompt_tokens(request: ChatRequest | CompletionRequest) -> float:
    if isinstance(request, ChatRequest):
        return text_bytes(request) / CHARS_A_TOKEN
    first = request.prompts[0]
    return len(first) / CHARS_A_TOKEN if isinstance(first, str) else float(len(first))
