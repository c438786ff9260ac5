"""Workers that change their role: which ones, and whether each has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baton_local.fleet.desired_processes import Fleet, PostSpec
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role


def posts_to_flip(
    fleet: Fleet,
    wanted: Mapping[Role, int],
    running: Iterable[PostSpec],
    usable: frozenset[str],
    started_s: Mapping[str, float],
) -> tuple[tuple[PostSpec, Role], ...]:
    """Instead of a start in one pool and a stop in the other, the posts that go from one to the other, and whereto.

    Only workers that gateways can use flip (the others are stopped at no loss), the youngest first as when workers are
    stopped; and none while templates change, which is the rollout's business.
    """
    posts = tuple(running)
    templates = fleet.templates
    if not all(template.flips for template in templates.values()):
        return ()
    if any(post.worker.revision != templates[post.worker.role].revision for post in posts):
        return ()
    counts = Counter(post.worker.role for post in posts)
    surplus = {role: counts[role] - wanted[role] for role in POOL_ROLES}
    for short in POOL_ROLES:
        rich = short.partner
        if (number := min(-surplus[short], surplus[rich])) > 0:
            able = [post for post in posts if post.worker.role is rich and post.name in usable]
            able.sort(key=lambda post: (-started_s.get(post.name, 0.0), post.name))
            return tuple((post, short) for post in able[:number])
    return ()


@dataclass(frozen=True, slots=True)
class FlipUnderWay:
    """A post's process that was told to change its role."""

    post: str
    worker: bytes
    """The process's epoch: the next process of the post begins in the role that its arguments say."""
    number: int
    role: Role
    since_s: float

    @property
    def order(self) -> FlipOrder:
        return FlipOrder(self.worker, self.number, self.role)


@dataclass(slots=True)
class FlipsUnderWay:
    """The flips that are under way, at most one of each post. Later numbers of a worker are larger."""

    _open: dict[str, FlipUnderWay] = field(default_factory=dict)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def begin(self, post: str, worker: bytes, role: Role, carried_out: int, now: float) -> None:
        """`carried_out`: the number of the worker's last flip, as gateways tell; 0: none, or nobody tells."""
        number = self._numbers[worker] = max(carried_out, self._numbers.get(worker, 0)) + 1
        self._open[post] = FlipUnderWay(post, worker, number, role, now)

    def follow(self, workers: Mapping[str, bytes], carried_out: Mapping[bytes, int]) -> tuple[FlipUnderWay, ...]:
        """The flips that were carried out since. `workers`: the process of each post; a flip of one that is gone is
        over.
        """
        self._numbers = {epoch: last for epoch, last in self._numbers.items() if epoch in workers.values()}
        self._open = {post: flip for post, flip in self._open.items() if workers.get(post) == flip.worker}
        done = tuple(flip for flip in self._open.values() if carried_out.get(flip.worker, 0) >= flip.number)
        for flip in done:
            del self._open[flip.post]
        return done

    @property
    def orders(self) -> tuple[FlipOrder, ...]:
        """What gateways are to be told, again and again."""
        return tuple(flip.order for flip in self._open.values())
