"""Rollouts whose only memory is the worker Deployments: observe, plan, apply, again, on rendered objects."""

from __future__ import annotations

import copy
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.hashes import Revision
from baton_control.rollout import Limits, PoolChange, Step, Wanted, next_step
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.object_fields import Manifest, mapping
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import flexible_workers_of, standing_objects, worker_deployment, workers_of
from baton_operator.objects.pods import WorkerTemplate, worker_template
from baton_operator.passes.observe import WorkerSet, find_finished, replicas_after, rollout_groups, worker_sets
from baton_operator.passes.worker_pods import PodCounts
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role

OWNER = Owner("uid-1")
IMAGE = "registry.example.com/baton@sha256:" + "a" * 64
PLATFORM = Platform(IMAGE, IMAGE)
Live = dict[str, Manifest]


def build_deployment(memory: str = "1Gi", path: str = "a", replicas: int = 2) -> LLMDeployment:
    pool = {"replicas": {"min": replicas, "max": replicas}, "resources": {"memory": memory}}
    return deployment(model__source=f"pvc://models/{path}", prefill=pool, decode=pool)


def settled(live: Live) -> Live:
    """The Deployments once their controller has done what they ask for."""
    for deployment_of in live.values():
        spec = deployment_of["spec"]
        assert isinstance(spec, dict)
        deployment_of["status"] = (
            {"replicas": spec["replicas"], "readyReplicas": spec["replicas"]} if spec["replicas"] else {}
        )
    return live


def pass_over(live: Live, wanted: LLMDeployment) -> tuple[Live, bool]:
    """One pass: observe, plan, write; whether anything was to do."""
    sets = worker_sets(live.values(), OWNER)
    templates = {role: worker_template(wanted, role, PLATFORM) for role in POOL_ROLES}
    count = {role: Wanted(templates[role].spec.revision, wanted.spec.prefill.replicas.min) for role in POOL_ROLES}
    routable = {(worker_set.role, worker_set.revision.template): worker_set.ready for worker_set in sets}
    step = next_step(count, rollout_groups(sets, routable), Limits(1, 0))
    after = copy.deepcopy(live)
    for (role, revision), replicas in replicas_after(sets, step).items():
        write(after, sets, templates[role], wanted, role, revision, replicas)
    gone = find_finished(sets, {role: pool.revision for role, pool in count.items()})
    for worker_set in gone:
        del after[worker_set.name]
    return after, bool(step.changes or gone)


def write(
    live: Live,
    sets: tuple[WorkerSet, ...],
    template: WorkerTemplate,
    wanted: LLMDeployment,
    role: Role,
    revision: Revision,
    replicas: int,
) -> None:
    name = next(
        (worker_set.name for worker_set in sets if (worker_set.role, worker_set.revision) == (role, revision)), None
    )
    if name is None:
        assert template.spec.revision == revision
        new = worker_deployment(wanted, template, replicas, OWNER)
        metadata = new["metadata"]
        assert isinstance(metadata, dict)
        live[metadata["name"]] = new
    else:
        spec = live[name]["spec"]
        assert isinstance(spec, dict)
        pod = spec["template"]
        assert isinstance(pod, dict)
        spec |= mapping(workers_of(wanted, role, revision, pod, replicas, OWNER)["spec"])


def ready(live: Live, role: Role) -> int:
    return sum(worker_set.ready for worker_set in worker_sets(live.values(), OWNER) if worker_set.role is role)


@given(st.lists(st.tuples(st.sampled_from(["1Gi", "2Gi"]), st.sampled_from(["a", "b"]), st.integers(0, 4)), max_size=5))
def test_edits_in_the_middle_of_rollouts_end_as_a_fresh_create_does_and_never_stop_serving(
    edits: list[tuple[str, str, int]],
) -> None:
    live: Live = {}
    goal = build_deployment()
    has_served = False
    for memory, path, passes in [*edits, ("2Gi", "b", 60)]:
        goal = build_deployment(memory, path)
        for _ in range(passes):
            live, is_moving = pass_over(settled(live), goal)
            has_served = has_served or all(ready(live, role) >= 2 for role in POOL_ROLES)
            assert not has_served or all(ready(live, role) >= 2 for role in POOL_ROLES)
            if not is_moving:
                break
    fresh: Live = {}
    for _ in range(3):
        fresh, is_moving = pass_over(settled(fresh), goal)
    assert not is_moving
    assert settled(live) == settled(fresh)


@pytest.mark.parametrize("is_known", [True, False])
def test_ready_workers_that_no_gateway_can_link_hold_no_rollout_once_that_is_known(is_known: bool) -> None:
    """The old workers speak another wire version than the gateways, which were rolled out with the new ones."""
    live: Live = {}
    for _ in range(3):
        live, _ = pass_over(settled(live), build_deployment())
    wanted = build_deployment(memory="2Gi")
    new = {worker_template(wanted, role, PLATFORM).spec.revision.template for role in POOL_ROLES}
    for _ in range(20):
        sets = worker_sets(live.values(), OWNER)
        routable = {part.key: part.ready for part in sets if part.revision.template in new}
        linked = frozenset(routable) if is_known else None
        pods = {part.key: PodCounts(ready=part.ready) for part in sets}
        templates = {role: worker_template(wanted, role, PLATFORM) for role in POOL_ROLES}
        count = {role: Wanted(templates[role].spec.revision, 2) for role in POOL_ROLES}
        step = next_step(count, rollout_groups(sets, routable, pods, linked), Limits(1, 0))
        for (role, revision), replicas in replicas_after(sets, step).items():
            write(live, sets, templates[role], wanted, role, revision, replicas)
        settled(live)
    left = {(part.role, part.revision.template in new): part.wanted for part in worker_sets(live.values(), OWNER)}
    done = {(role, is_new): 2 * is_new for role in POOL_ROLES for is_new in (True, False)}
    assert (left == done) is is_known


def test_what_another_owner_made_is_not_seen() -> None:
    template = worker_template(build_deployment(), Role.DECODE, PLATFORM)
    ours, theirs = (worker_deployment(build_deployment(), template, 1, owner) for owner in (OWNER, Owner("uid-2")))
    orphan = copy.deepcopy(ours)
    metadata = orphan["metadata"]
    assert isinstance(metadata, dict)
    del metadata["ownerReferences"]
    assert len(worker_sets([ours], OWNER)) == 1
    assert worker_sets([theirs, orphan, {}, {"metadata": None}], OWNER) == ()


def test_the_gateway_is_no_worker() -> None:
    assert worker_sets(standing_objects(build_deployment(), PLATFORM, OWNER, {"k": b"m" * 32}), OWNER) == ()


REVISION = Revision("fit", "hash")
SET = WorkerSet("chat-decode-hash", Role.DECODE, REVISION, wanted=3, existing=3, ready=3, is_leaving=False)


def test_without_word_from_a_gateway_it_is_unknown_what_is_routable() -> None:
    assert rollout_groups([SET], None)[0].routable is None
    assert rollout_groups([SET], {})[0].routable == 0
    assert rollout_groups([SET], {(Role.DECODE, "hash"): 9})[0].routable == 3


def test_a_deployment_on_its_way_out_counts_for_nothing() -> None:
    leaving = dataclasses.replace(SET, is_leaving=True)
    assert rollout_groups([leaving], {}) == ()
    assert replicas_after([leaving], Step((PoolChange(Role.DECODE, REVISION, 2),), "")) == {(Role.DECODE, REVISION): 2}


def test_a_template_is_finished_when_its_last_pod_is_gone() -> None:
    empty = dataclasses.replace(SET, wanted=0, existing=1, ready=0)
    other = {role: Revision("fit", "other") for role in POOL_ROLES}
    assert find_finished([empty], other) == ()
    gone = dataclasses.replace(empty, existing=0)
    assert find_finished([gone], other) == (gone,)
    assert find_finished([gone], dict.fromkeys(POOL_ROLES, REVISION)) == ()


def test_no_step_goes_below_zero() -> None:
    with pytest.raises(ValueError, match="-1 workers"):
        replicas_after([SET], Step((PoolChange(Role.DECODE, REVISION, -4),), ""))


FLEXIBLE = Platform(IMAGE, IMAGE, operator_service="baton-operator")


def flexible_set(roles: dict[Role, int]) -> Manifest:
    pool = {"replicas": {"min": 2, "max": 2}}
    wanted = deployment(model__source="pvc://models/a", prefill=pool, decode=pool, autoscaling={"flips": True})
    template = worker_template(wanted, Role.PREFILL, FLEXIBLE)
    return flexible_workers_of(wanted, template.spec.revision, template.pod, roles, OWNER)


def counts_of(manifest: Manifest, prefill: int, decode: int) -> dict[tuple[Role, str], PodCounts]:
    labels = mapping(mapping(manifest["metadata"])["labels"])
    counts = {Role.PREFILL: prefill, Role.DECODE: decode}
    template = str(labels["baton.dev/template"])
    return {(role, template): PodCounts(existing=count, ready=count) for role, count in counts.items()}


def test_flexible_workers_are_two_sets_of_one_name() -> None:
    manifest = flexible_set({Role.PREFILL: 1, Role.DECODE: 3})
    prefill, decode = worker_sets([manifest], OWNER, counts_of(manifest, 2, 2))
    assert prefill.name == decode.name
    assert prefill.revision == decode.revision
    assert [(part.role, part.wanted, part.existing, part.ready) for part in (prefill, decode)] == [
        (Role.PREFILL, 1, 2, 2),
        (Role.DECODE, 3, 2, 2),
    ]


def test_what_somebody_took_from_them_is_what_their_pods_say() -> None:
    manifest = flexible_set({Role.PREFILL: 1, Role.DECODE: 3})
    mapping(manifest["metadata"]).pop("annotations")
    sizes = {part.role: part.wanted for part in worker_sets([manifest], OWNER, counts_of(manifest, 1, 2))}
    assert sizes == {Role.PREFILL: 2, Role.DECODE: 2}, "the one that is missing begins as its template says"


def test_flexible_workers_are_finished_when_neither_pool_has_any() -> None:
    other = {role: Revision("fit", "other") for role in POOL_ROLES}
    for roles, done in (({Role.PREFILL: 0, Role.DECODE: 1}, 0), ({Role.PREFILL: 0, Role.DECODE: 0}, 1)):
        manifest = flexible_set(roles)
        assert len(find_finished(worker_sets([manifest], OWNER, counts_of(manifest, 0, 0)), other)) == done
