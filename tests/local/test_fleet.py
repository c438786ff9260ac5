"""From a manifest to the processes that should run."""

from __future__ import annotations

from pathlib import Path

from baton_control.rollout import PoolChange
from baton_control.worker_specs import Device, Site
from baton_local.fleet.desired_processes import SlotSpec, new_slots, plan_fleet, pools_now, roll, slots_to_stop
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

SITE = Site("python3", "/model", "/keys", "file:/p", "file:/d", Device.CPU, Device.CPU)


def test_a_manifest_becomes_its_minimum_of_workers_with_names_that_tell_them_apart() -> None:
    wanted = deployment(prefill__replicas={"min": 2, "max": 4}, decode__replicas={"min": 3, "max": 3})
    fleet = plan_fleet(wanted, SITE)
    sizes = {Role.PREFILL: 2, Role.DECODE: 3}
    step = roll(fleet, sizes, (), None)
    slots: list[SlotSpec] = []
    for change in step.changes:
        slots += new_slots(fleet, change.role, change.revision, change.workers, frozenset(p.name for p in slots))
    hashes = {role: template.revision.template for role, template in fleet.templates.items()}
    assert [slot.name for slot in slots] == [
        *(f"chat-prefill-{hashes[Role.PREFILL]}-{ordinal}" for ordinal in range(2)),
        *(f"chat-decode-{hashes[Role.DECODE]}-{ordinal}" for ordinal in range(3)),
    ]
    assert roll(fleet, sizes, tuple(slots), None).changes == ()
    assert Path(fleet.gateway.name).name == "chat-gateway"


def test_a_missing_worker_gets_the_free_name() -> None:
    wanted = deployment(prefill__replicas={"min": 2, "max": 2})
    fleet = plan_fleet(wanted, SITE)
    revision = fleet.templates[Role.PREFILL].revision
    first, second = new_slots(fleet, Role.PREFILL, revision, 2, frozenset())
    assert new_slots(fleet, Role.PREFILL, revision, 1, frozenset({second.name})) == (first,)


def test_surplus_workers_stop_once_it_is_known_what_is_routable() -> None:
    wanted = deployment(prefill__replicas={"min": 1, "max": 4}, decode__replicas={"min": 1, "max": 4})
    fleet = plan_fleet(wanted, SITE)
    revisions = {role: template.revision for role, template in fleet.templates.items()}
    slots = tuple(
        slot for role in (Role.PREFILL, Role.DECODE) for slot in new_slots(fleet, role, revisions[role], 3, frozenset())
    )
    one_each = {Role.PREFILL: 1, Role.DECODE: 1}
    assert roll(fleet, one_each, slots, None).changes == (), "unknown is never zero"
    all_routable = {(role, revision.template): 3 for role, revision in revisions.items()}
    changes = roll(fleet, one_each, slots, all_routable).changes
    assert [(change.role, change.workers) for change in changes] == [(Role.PREFILL, -2), (Role.DECODE, -2)]
    pools = pools_now(slots, all_routable)
    assert (pools[Role.PREFILL].workers, pools[Role.PREFILL].routable) == (3, 3)
    assert pools_now(slots, None)[Role.DECODE].routable is None


def test_workers_that_serve_nothing_leave_first_then_the_youngest() -> None:
    wanted = deployment(prefill__replicas={"min": 1, "max": 4})
    fleet = plan_fleet(wanted, SITE)
    revision = fleet.templates[Role.PREFILL].revision
    slots = new_slots(fleet, Role.PREFILL, revision, 4, frozenset())
    old, young, idle, middle = (slot.name for slot in slots)
    started = {old: 10.0, young: 40.0, idle: 5.0, middle: 20.0}
    change = PoolChange(Role.PREFILL, revision, -2)
    leaving = slots_to_stop(change, slots, frozenset({old, young, middle}), started)
    assert [slot.name for slot in leaving] == [idle, young]
