"""From an LLMDeployment to the processes that should run here: sizing, rollout, WorkerSpec. Pure.

The same decisions as on a cluster, made by the same functions; a *post* stands for what would be a Pod there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from baton_operator.api import LLMDeployment
from baton_operator.hashes import Revision
from baton_operator.names import POOL_ROLES, Role, gateway_name, worker_name
from baton_operator.rollout import Group, Limits, Step, Wanted, next_step
from baton_operator.sizing.decide import decide
from baton_operator.sizing.decision import Decision, PoolState, Readings, Unknown
from baton_operator.workers import Site, WorkerSpec, gateway_spec, pool_spec, worker_spec


@dataclass(frozen=True, slots=True)
class PostSpec:
    """One process that should run: its name and what it is made from."""

    name: str
    worker: WorkerSpec


@dataclass(frozen=True, slots=True)
class Fleet:
    """The templates of one deployment on this machine."""

    deployment: LLMDeployment
    gateway: PostSpec
    templates: dict[Role, WorkerSpec]

    @property
    def name(self) -> str:
        return self.deployment.metadata.name


def plan_fleet(deployment: LLMDeployment, site: Site) -> Fleet:
    """All templates of a deployment. Raises UnsupportedError for what no worker can do yet."""
    gateway = PostSpec(gateway_name(deployment.metadata.name), gateway_spec(deployment, site))
    return Fleet(deployment, gateway, {role: worker_spec(deployment, role, site) for role in POOL_ROLES})


def size(deployment: LLMDeployment, running: tuple[PostSpec, ...]) -> Decision:
    """How many workers each pool should have now."""
    counts = Counter(post.worker.role for post in running)
    bounds = {role: pool_spec(deployment, role).replicas for role in POOL_ROLES}
    pools = {role: PoolState(bounds[role].min, bounds[role].max, counts[role]) for role in POOL_ROLES}
    return decide(pools, Readings(arrivals_per_s=Unknown("not measured here yet")))


def roll(fleet: Fleet, decision: Decision, running: tuple[PostSpec, ...], routable: int | None) -> Step:
    """The next step towards the decision. `routable`: how many workers of each group are routable, None if unknown."""
    groups = Counter((post.worker.role, post.worker.revision) for post in running)
    wanted = {role: Wanted(fleet.templates[role].revision, decision.workers[role]) for role in POOL_ROLES}
    rollout = fleet.deployment.spec.rollout
    return next_step(
        wanted,
        tuple(Group(role, revision, count, routable) for (role, revision), count in groups.items()),
        Limits(rollout.max_surge, rollout.max_unavailable),
        rollout.paused,
    )


def new_posts(fleet: Fleet, role: Role, revision: Revision, count: int, taken: frozenset[str]) -> tuple[PostSpec, ...]:
    """`count` posts with the lowest ordinals whose names are not taken."""
    template = fleet.templates[role]
    assert template.revision == revision, "only the current template starts new workers"
    assert count > 0, "nothing is stopped while it is unknown what is routable"
    posts: list[PostSpec] = []
    ordinal = 0
    while len(posts) < count:
        name = worker_name(fleet.name, role, revision.template, ordinal)
        if name not in taken:
            posts.append(PostSpec(name, template))
        ordinal += 1
    return tuple(posts)
