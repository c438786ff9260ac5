"""Where a prompt is computed: at the decode worker when that serves the targets better, and only so often."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.requests.request_events import Route
from baton_gateway.workers.affinity import PrefixAffinity, prefix_keys
from baton_gateway.workers.disaggregation import FULL_S, Costs, LatencyTargets, goes_to_decode, refilled, work_s
from baton_gateway.workers.route import RoutePolicy, RouteQuery, WorkerView, pick
from baton_wire.messages.values import Address, PairFingerprint, Role, pack_ids

TARGETS = LatencyTargets(ttft_s=0.5, tpot_s=0.05)
IDLE_P = Costs(token_s=1e-4, step_s=0.01, queued_tokens=0, missing_tokens=1000)
IDLE_D = Costs(token_s=1e-4, step_s=0.02, queued_tokens=0, missing_tokens=1000)
AMPLE = 0.5


def test_an_idle_prefill_worker_keeps_even_a_short_prompt() -> None:
    for tokens in (1, 10, 1000):
        there, here = (replace(each, missing_tokens=tokens) for each in (IDLE_P, IDLE_D))
        assert not goes_to_decode(there, here, AMPLE, TARGETS)


def test_a_prompt_that_the_decode_worker_has_mostly_goes_there_whatever_its_length() -> None:
    for tokens in (2_000, 20_000):
        there, here = replace(IDLE_P, missing_tokens=tokens), replace(IDLE_D, missing_tokens=50)
        assert goes_to_decode(there, here, AMPLE, TARGETS)


def test_a_line_at_the_prefill_worker_is_relieved_while_the_allowance_lasts() -> None:
    busy = replace(IDLE_P, queued_tokens=6_000)
    assert goes_to_decode(busy, IDLE_D, AMPLE, TARGETS)
    assert not goes_to_decode(busy, IDLE_D, 0.05, TARGETS), "the prompt takes 0.1 s of the decode worker"
    assert not goes_to_decode(busy, replace(IDLE_D, queued_tokens=9_000), AMPLE, TARGETS)


def test_what_is_not_known_stays_with_the_prefill_worker() -> None:
    assert not goes_to_decode(replace(IDLE_P, token_s=None, queued_tokens=10**6), IDLE_D, AMPLE, TARGETS)
    assert work_s(IDLE_P, replace(IDLE_D, token_s=None)) == work_s(IDLE_P, IDLE_D), "taken to be as fast"


def test_the_allowance_is_what_the_tpot_target_leaves() -> None:
    assert refilled(0.0, 1.0, step_s=0.02, targets=TARGETS) == 0.5 * (1 - 0.02 / 0.05)
    assert refilled(0.0, 10.0, step_s=0.05, targets=TARGETS) == 0.0, "steps take all that the target allows"
    assert refilled(0.2, 1000.0, step_s=0.0, targets=TARGETS) == FULL_S


@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(1, 8000), st.integers(0, 50_000)), max_size=200),
    st.floats(0.001, 0.049),
)
def test_prompts_never_take_more_of_a_decode_worker_than_its_target_leaves(
    arrivals: list[tuple[float, int, int]], step_s: float
) -> None:
    allowance_s, spent_s, elapsed_s = 0.0, 0.0, 0.0
    for gap_s, tokens, queued in arrivals:
        elapsed_s += gap_s
        allowance_s = refilled(allowance_s, gap_s, step_s, TARGETS)
        there = Costs(1e-4, step_s, queued, tokens)
        here = Costs(1e-4, step_s, 0, tokens)
        if goes_to_decode(there, here, allowance_s, TARGETS):
            allowance_s -= work_s(there, here)
            spent_s += work_s(there, here)
    assert spent_s <= elapsed_s * (1 - step_s / TARGETS.tpot_s) + 1e-9


def view(role: Role, **changes: object) -> WorkerView:
    print_ = PairFingerprint(1, "a" * 64, "float32", "float32", 2, 2, 8, "b" * 64, "c" * 64)
    whole = WorkerView(
        epoch=role.value.encode(),
        role=role,
        served_name="m",
        fingerprint=print_,
        pair_address=Address("h", 1) if role is Role.DECODE else None,
        max_context_tokens=20_000,
        max_choices=8,
        block_tokens=16,
        blocks_total=10_000,
        blocks_free=10_000,
        token_s=1e-4,
        step_s=0.01,
        allowance_s=AMPLE,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_routing_follows_only_when_it_may() -> None:
    pair = [view(Role.PREFILL, load_tokens=20_000), view(Role.DECODE)]
    tokens = list(range(1_000))
    query = RouteQuery(pair[0].fingerprint, 1_000, 1_100, 1, frozenset(), prefix_keys(pack_ids(list(tokens)), ""))

    def route(policy: RoutePolicy) -> Route:
        found = pick(query, pair, policy, PrefixAffinity(), 0.0)
        assert isinstance(found, Route)
        return found

    assert route(RoutePolicy()).prefill is not None, "always"
    local = route(RoutePolicy(targets=TARGETS))
    assert local.prefill is None
    assert local.local_s == 1_000 * 1e-4
