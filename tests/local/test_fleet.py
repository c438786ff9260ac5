"""From a manifest to the processes that should run."""

from __future__ import annotations

from pathlib import Path

from baton_local.fleet import PostSpec, new_posts, plan_fleet, roll, size
from baton_operator.names import Role
from baton_operator.workers import Device, Site
from baton_testing.manifests import deployment

SITE = Site("python3", "/model", "/keys", "file:/p", "file:/d", Device.CPU, Device.CPU)


def test_a_manifest_becomes_its_minimum_of_workers_with_names_that_tell_them_apart() -> None:
    wanted = deployment(prefill__replicas={"min": 2, "max": 4}, decode__replicas={"min": 3, "max": 3})
    fleet = plan_fleet(wanted, SITE)
    step = roll(fleet, size(wanted, ()), (), None)
    posts: list[PostSpec] = []
    for change in step.changes:
        posts += new_posts(fleet, change.role, change.revision, change.workers, frozenset(p.name for p in posts))
    hashes = {role: template.revision.template for role, template in fleet.templates.items()}
    assert [post.name for post in posts] == [
        *(f"chat-prefill-{hashes[Role.PREFILL]}-{ordinal}" for ordinal in range(2)),
        *(f"chat-decode-{hashes[Role.DECODE]}-{ordinal}" for ordinal in range(3)),
    ]
    assert roll(fleet, size(wanted, tuple(posts)), tuple(posts), None).changes == ()
    assert Path(fleet.gateway.name).name == "chat-gateway"


def test_a_missing_worker_gets_the_free_name() -> None:
    wanted = deployment(prefill__replicas={"min": 2, "max": 2})
    fleet = plan_fleet(wanted, SITE)
    revision = fleet.templates[Role.PREFILL].revision
    first, second = new_posts(fleet, Role.PREFILL, revision, 2, frozenset())
    assert new_posts(fleet, Role.PREFILL, revision, 1, frozenset({second.name})) == (first,)
