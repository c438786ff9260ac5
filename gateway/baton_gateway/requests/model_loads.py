"""The load of each served model: the work that a request brings, and whether its predicted wait is too long."""

from __future__ import annotations

from baton_gateway import errors
from baton_gateway.errors import Problem
from baton_gateway.openai_api.openai_types import ChatRequest, CompletionRequest
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.live_request import LiveRequest, text_bytes
from baton_gateway.requests.model_load import ModelLoad, OwnCapacity
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.wait_prediction import (
    STANDING_SHARE,
    WaitBound,
    WaitRules,
    Work,
    predict_wait_s,
    retry_after_s,
)
from baton_gateway.requests.waiting_line import STANDARD_PLACE, QueuePlace
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.pool_load import num_decode_slots, num_prefill, pool_services

CHARS_A_TOKEN = 4
"""Characters of untokenised text per token. Sizes wrong by a factor change only how fast a queue seems to grow."""


class ModelLoads:
    """The loads of served models; requests for other models share one, which is never measured."""

    def __init__(self, table: WorkerTable, admission: Admission) -> None:
        self._table = table
        self._admission = admission
        self._loads: dict[str, ModelLoad] = {}
        self._other = ModelLoad()

    def of(self, live: LiveRequest) -> ModelLoad:
        """The load that the request counts in."""
        if live.load is None:
            live.load = self._load(live.request.options.model)
        return live.load

    def _load(self, model: str) -> ModelLoad:
        load = self._loads.get(model)
        if load is not None:
            return load
        if model not in self._table.served_names():
            return self._other
        self._loads[model] = ModelLoad()  # one per name that a linked worker serves: bounded
        return self._loads[model]

    def expected(self, request: ChatRequest | CompletionRequest) -> Work:
        """The expected work of its first prompt; further prompts are released when there is room."""
        options = request.options
        usual = self._load(options.model).output_tokens
        asked = usual if options.max_tokens is None else float(options.max_tokens)
        outputs = asked if options.ignore_eos else min(asked, usual)
        return Work(_prompt_tokens(request), outputs * options.n)

    def overload(
        self,
        request: ChatRequest | CompletionRequest,
        tenant: Tenant,
        work: Work,
        rules: WaitRules,
        now: float,
        place: QueuePlace = STANDARD_PLACE,
    ) -> Problem | None:
        """Why a request of this tenant may not queue for its model; None: it may, also where its wait is unknown. The
        batch class waits as long as admission lets it."""
        load = self._load(request.options.model)
        turns = self._admission.quota_turns(tenant, request.options.n, place)
        problem = self._overload_of_quota(load, tenant, turns, rules)
        if problem is not None or place.is_batch:
            return problem
        return self._overload_of_pools(request.options.model, tenant, work, rules, now, place)

    def _overload_of_quota(self, load: ModelLoad, tenant: Tenant, turns: float, rules: WaitRules) -> Problem | None:
        """A tenant at its quota waits for its own requests to end, and is refused at once where that takes longer than
        the longest wait. Its standing queue delays no other tenant, so the shorter bound does not apply.
        """
        known = load.tenant(tenant.name)
        if not turns or known is None or known.mean_s is None:
            return None
        wait_s = turns * known.mean_s
        bound_s = self._admission.max_wait_s if rules.longest_s is None else rules.longest_s
        return errors.overloaded(wait_s, bound_s, retry_after_s(wait_s, bound_s)) if wait_s > bound_s else None

    def _overload_of_pools(
        self, model: str, tenant: Tenant, work: Work, rules: WaitRules, now: float, place: QueuePlace
    ) -> Problem | None:
        load, views = self._load(model), self._table.views()
        prefill, decode = pool_services(views, model, load.output_tokens)
        at_most_s = predict_wait_s(load.held, prefill, decode)
        least_bound_s = STANDING_SHARE * rules.ttft_s if rules.longest_s is None else rules.longest_s
        if at_most_s is None or at_most_s <= least_bound_s:
            return None

        def share_ahead(name: str) -> float:
            return self._admission.share_ahead(name, tenant.name, place)

        prompts, outputs = load.work_ahead(tenant, work, prefill, decode, share_ahead)
        empty = prefill.empty(), decode.empty()
        fair_s = predict_wait_s(Work(prompts.fair, outputs.fair), *empty)
        mine_s = predict_wait_s(Work(prompts.own, outputs.own), *empty)
        crowd_s = predict_wait_s(Work(prompts.crowd, outputs.crowd), *empty)
        wait_s = predict_wait_s(Work(prompts.waiting, outputs.waiting), prefill, decode)
        if fair_s is None or mine_s is None or crowd_s is None or wait_s is None:
            return None
        alone_s = work.prompt_tokens * (prefill.token_s or 0.0)
        known = load.tenant(tenant.name)
        own_bound = WaitBound() if known is None else known.bound
        if load.is_light(tenant.name, OwnCapacity(num_prefill(views, model), num_decode_slots(views, model)), now):
            # A light tenant is late in a crowd, or by its own work. One other tenant's work makes no standing queue.
            counted_s, bound_s = fair_s, load.bound.of(crowd_s, alone_s, rules, now)
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
