"""Mode SLO, connected: decisions follow the gateways' reports, at their time, and are repeated in between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from baton_control.accelerator_types import in_force
from baton_control.names import Key
from baton_control.sizing.decision.budget import affordable_bounds
from baton_control.sizing.decision.scaling import PoolNow, Sized, SizingRequest
from baton_control.sizing.inputs.deployment import sizing_spec
from baton_control.sizing.inputs.memory import HISTORY
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.slo_sizing import SloSizing
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_testing.kube.manifests import deployment
from baton_testing.kube.rule_cases import two_types
from baton_testing.sizing.builders import ROUND_WORKER
from baton_wire.messages.measures import (
    ArrivalCounts,
    Backlog,
    RequestLengths,
    Served,
    SketchData,
    WorkerCondition,
    WorkerMeasures,
)
from baton_wire.messages.operator_link import GatewayHello, Summary
from baton_wire.messages.values import POOL_ROLES, Address, Role

KEY = Key("default", "chat")
GATEWAY = b"g" * 16
EMPTY = SketchData()
STARTED = WorkerMeasures(
    Role.PREFILL, b"w" * 16, "t", Address("127.0.0.1", 1), WorkerCondition.LIVE, True, 0, 0, 0, 16, 99, 99, 0, 20.0
)


def chat(minimum: int = 1, **fields: object) -> LLMDeployment:
    pool = {"min": minimum, "max": 20}
    return deployment(prefill__replicas=pool, decode__replicas=pool, **fields)


@dataclass
class Run:
    """A deployment whose pools become what is decided at once."""

    deployment: LLMDeployment
    now: float = 100.0
    workers: int = 1
    store: TelemetryStore = field(default_factory=TelemetryStore)
    memory: str | None = None
    number: int = 0
    placement_s: float | None = None
    linked: tuple[WorkerMeasures, ...] = ()
    served: Served = field(default_factory=lambda: Served(EMPTY, EMPTY, 0))
    gateways: int | None = None
    """Pods whose reports make a whole; None: as many as the spec says."""

    def __post_init__(self) -> None:
        self.sizing = SloSizing(lambda key: self.store, lambda: self.now, lambda each, config: ROUND_WORKER)
        self.store.linked(GATEWAY, GatewayHello("one", 1), self.now)

    def tell(self, count: int, parked: int = 0, seconds: float = 10.0, lengths: int | None = None) -> None:
        self.number += 1
        sample = (RequestLengths(1000, 100, 0),) * min(count if lengths is None else lengths, 8)
        arrived = ArrivalCounts(count, 0, 0, EMPTY, EMPTY, EMPTY, sample)
        backlog = Backlog(parked, parked, 0.0, 1000 * parked)
        summary = Summary(self.number, 1e9, seconds, arrived, self.served, backlog, self.linked, 0, "")
        self.store.add_summary(GATEWAY, summary, self.now)

    def decide(self) -> Sized:
        pools = {role: PoolNow(self.workers, self.workers, self.placement_s) for role in POOL_ROLES}
        request = SizingRequest(KEY, self.deployment, pools, self.memory, 1.7e9 + self.now, self.gateways)
        sized = self.sizing.decide(request)
        self.workers = max(sized.workers.values())
        return sized

    def step(self, count: int) -> Sized:
        self.now += 10.0
        self.tell(count)
        return self.decide()


def test_pools_follow_the_load_and_say_why() -> None:
    run = Run(chat())
    for _ in range(20):
        sized = run.step(40)
    assert not sized.holds
    few = sized.workers[Role.PREFILL]
    more = run.step(400)
    assert more.workers[Role.PREFILL] > 2 * few
    assert "prompt tokens/s at +" in more.reasons[Role.PREFILL]
    assert more.inputs is not None
    assert "arrivals_per_s 40" in more.inputs
    assert more.memory is not None
    assert len(more.memory) <= 4096


def test_who_has_to_wait_for_nodes_and_images_looks_further_ahead() -> None:
    run = Run(chat(), placement_s=100.0, linked=(STARTED,))
    run.step(40)
    assert "prefill_startup_s 123" in (run.step(40).inputs or ""), "1.15 times its own start behind what it waited for"
    run.placement_s = None
    sized = run.step(40)
    assert "prefill_startup_s 123" in (sized.inputs or ""), "an empty pool will need it, too"
    assert "at +133 s" in sized.reasons[Role.PREFILL]


def test_what_clients_saw_late_is_remembered_with_how_many_served() -> None:
    run = Run(chat(), workers=2)
    run.step(40)
    run.served = Served(SketchData(total=8.0, bins=((-100, 6), (200, 2))), SketchData(total=1.0, bins=((-300, 4),)), 1)
    run.step(40)
    state = run.sizing._deployments[KEY].known.state
    lateness = {role: pool.served[-1] for role, pool in state.memory.pools.items()}
    assert [(routable, seen.requests, round(seen.late, 6)) for routable, seen in lateness.values()] == [
        (2, 9, 3),
        (2, 5, 1),
    ]


def test_asked_again_with_nothing_new_it_answers_the_same() -> None:
    run = Run(chat())
    run.step(40)
    first = run.step(40)
    for _ in range(5):
        run.now += 1.0
        assert run.decide() is first


def test_a_due_decision_waits_for_the_gateways_and_then_holds() -> None:
    run = Run(chat())
    for _ in range(5):
        known = run.step(40)
    run.now += 11.0
    assert run.decide() is known
    run.now += 12.0
    held = run.decide()
    assert held.holds
    assert "hold" in held.reasons[Role.DECODE]
    assert held.workers == known.workers


@pytest.mark.parametrize(("fields", "gateways", "weighs"), [
    ({"replicas": 3}, None, False),
    ({"replicas": 3}, 1, True),
    ({"autoscaling": {"min": 1, "max": 4}}, 1, True),
    ({"autoscaling": {"min": 1, "max": 4}}, 2, False),
])  # fmt: skip
def test_demand_is_weighed_when_all_gateways_that_there_are_have_told(
    fields: dict[str, object], gateways: int | None, weighs: bool
) -> None:
    run = Run(chat(gateway=fields))
    run.gateways = gateways
    for _ in range(3):
        run.step(40)
        run.now += 12.0
    assert run.decide().holds is not weighs


def test_a_wake_is_answered_at_once_and_once() -> None:
    run = Run(chat(0, autoscaling__scaleToZeroAfter="60s"), workers=0)
    run.now += 1.0
    assert run.decide().workers == {Role.PREFILL: 0, Role.DECODE: 0}
    run.store.woken(1000)
    woken = run.decide()
    assert woken.workers == {Role.PREFILL: 1, Role.DECODE: 1}
    run.store.woken(1000)
    run.now += 1.0
    assert run.decide() is woken, "one pair is on its way"


def test_lengths_that_become_known_only_after_the_wake_are_learned_from() -> None:
    run = Run(chat(0, autoscaling__scaleToZeroAfter="60s"), workers=0)
    run.now += 10.0
    run.tell(1000, parked=1000, lengths=0)
    assert run.decide().workers == {Role.PREFILL: 1, Role.DECODE: 1}
    run.now += 10.0
    run.tell(0, parked=1000)
    assert "no request seen yet" in run.decide().reasons[Role.PREFILL]
    run.now += 10.0
    run.tell(0, lengths=8)
    assert "prompt tokens/s at +" in run.decide().reasons[Role.PREFILL]


def test_another_process_goes_on_from_the_memory() -> None:
    run = Run(chat())
    for _ in range(20):
        sized = run.step(100)
    again = Run(chat(), now=5.0, workers=run.workers, memory=sized.memory)
    after = again.step(100)
    assert after.workers[Role.PREFILL] == sized.workers[Role.PREFILL], "no shrinking before the window was seen anew"


def test_what_is_kept_over_a_restart_is_not_rewritten_every_interval() -> None:
    run = Run(chat())
    sized = [run.step(40) for _ in range(31)][1:]
    moves = sum(one.workers != other.workers for one, other in pairwise(sized))
    assert len({decision.memory for decision in sized}) <= 6 + moves, "once a minute, and when a pool moved"
    assert all(decision.memory for decision in sized)


def test_other_bounds_count_at_once() -> None:
    run = Run(chat())
    for _ in range(20):
        run.step(200)
    assert run.workers > 2
    pool = {"min": 1, "max": 2}
    run.deployment = deployment(prefill__replicas=pool, decode__replicas=pool)
    assert max(run.decide().workers.values()) <= 2


def test_what_stands_before_any_step_is_the_prior() -> None:
    run = Run(chat())
    run.step(1)
    model = run.sizing.model(KEY)
    assert model is not None
    assert model.prefill == ROUND_WORKER.prefill


def test_a_decision_says_what_its_workers_cost_an_hour() -> None:
    def priced(prefill: float | None, decode: float | None) -> Sized:
        costs = ({} if cost is None else {"costPerHour": cost} for cost in (prefill, decode))
        accelerators = [{"resource": "gpu.example/one", **cost} for cost in costs]
        run = Run(chat(prefill__accelerator=accelerators[0], decode__accelerator=accelerators[1]))
        run.step(1)
        return run.step(1)

    both = priced(prefill=4.0, decode=3.5)
    assert set(both.workers.values()) == {1}
    assert (both.inputs or "").startswith("cost_per_hour 7.5, ")
    assert "cost_per_hour" not in (priced(prefill=4.0, decode=None).inputs or ""), "half a price is none"


def test_a_type_whose_workers_the_budget_has_no_room_for_is_not_chosen() -> None:
    a_spec = sizing_spec(
        chat(
            prefill__accelerator={"resource": "nvidia.com/gpu"},
            decode__accelerator={"resource": "nvidia.com/gpu"},
            autoscaling__budget={"maxAccelerators": 15},
        )
    )
    assert affordable_bounds(a_spec, Role.PREFILL, 9).maximum == 6
    assert affordable_bounds(a_spec, Role.DECODE, 5).maximum == 10
    assert affordable_bounds(replace(a_spec, max_accelerators=None), Role.DECODE, 5).maximum == 20


def test_another_type_is_chosen_when_it_keeps_the_target_for_less_and_both_are_counted_while_it_comes() -> None:
    """An H200 does twice what an H100 does, for 5 to 1.5 an hour."""

    def prior(deployment: LLMDeployment, config: bytes | None) -> WorkerModel:
        accelerator = deployment.spec.prefill.accelerator
        assert accelerator is not None
        return ROUND_WORKER if accelerator.type == "H200" else ROUND_WORKER.slowed(2.0, 1.0)

    manifest = chat(prefill__accelerator=two_types(other__costPerHour=1.5))
    run = Run(manifest)
    run.sizing = SloSizing(lambda key: run.store, lambda: run.now, prior)

    def step(workers: int, others: dict[str, int], routable: int | None = None) -> Sized:
        run.now += 10.0
        run.tell(400)
        here = workers + sum(others.values())
        prefill = PoolNow(here, here if routable is None else routable, None, others, sum(others.values()))
        pools = {Role.PREFILL: prefill, Role.DECODE: PoolNow(9, 9)}
        return run.sizing.decide(SizingRequest(KEY, run.deployment, pools, run.memory, 1.7e9 + run.now))

    workers = 1
    for place in range(240):
        sized = step(workers, {})
        assert place > HISTORY or not sized.types, "the last half hour has to be known"
        workers = sized.workers[Role.PREFILL]
    assert sized.types[Role.PREFILL].type == "H100"
    assert "on H100: H200 5 at 25 an hour, H100 12 at 18 an hour," in sized.types[Role.PREFILL].why
    assert Role.DECODE not in sized.types, "it has no other"

    run.deployment = in_force(manifest, {Role.PREFILL: "H100"})
    step(0, {"H200": workers})
    first = step(0, {"H200": workers})
    assert workers <= first.workers[Role.PREFILL] <= workers + 1, "nobody goes before another is there"
    half = step(workers, {"H200": workers})
    assert first.workers[Role.PREFILL] < half.workers[Role.PREFILL] <= 2 * workers
    last = step(2 * workers, {})
    assert 2 * workers <= last.workers[Role.PREFILL] <= 2 * workers + 2
    assert not last.types, "a type stays for an hour"


@pytest.mark.parametrize("slower", [1.05, 2.0])
def test_a_pool_does_not_grow_by_itself_while_workers_of_another_type_are_on_their_way(slower: float) -> None:
    """Whoever is not there yet was once counted with those that were wanted: a pool grew by one each ten seconds, until
    it had the most, as nobody is sent away while it is unknown who serves.
    """

    def prior(deployment: LLMDeployment, config: bytes | None) -> WorkerModel:
        accelerator = deployment.spec.prefill.accelerator
        assert accelerator is not None
        return ROUND_WORKER if accelerator.type == "H200" else ROUND_WORKER.slowed(slower, 1.0)

    manifest = chat(prefill__accelerator=two_types(other__costPerHour=1.5))
    run = Run(manifest)
    run.sizing = SloSizing(lambda key: run.store, lambda: run.now, prior)

    def step(wanted: int, former: int) -> int:
        """One decision; all that serve are of the former type."""
        run.now += 10.0
        run.tell(400)
        others = {"H200": former} if former else {}
        pools = {
            Role.PREFILL: PoolNow(wanted, former or wanted, None, others, former),
            Role.DECODE: PoolNow(9, 9),
        }
        request = SizingRequest(KEY, run.deployment, pools, run.memory, 1.7e9 + run.now)
        return run.sizing.decide(request).workers[Role.PREFILL]

    workers = 1
    for _ in range(240):
        workers = step(workers, 0)
    former = workers
    run.deployment = in_force(manifest, {Role.PREFILL: "H100"})
    wanted = [former]
    for _ in range(12):
        wanted.append(step(wanted[-1], former))
    assert wanted[-1] <= former + 1, wanted
    assert len(set(wanted[2:])) == 1, wanted
