"""Requests that a deployment answers while something happens to it, and the Pods that answer them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from baton_testing.pods.generator import Load
from baton_testing.pods.served import NAME, World
from baton_testing.pods.watches import restarts, top_line, uid_of


@contextmanager
def serving(world: World, name: str, is_ready_throughout: bool = False) -> Iterator[Load]:
    """Load while the block runs: no request fails, and every answer is one that the model gives to that prompt. The
    status' top lines are noted, and with `is_ready_throughout` they may be nothing but Ready."""
    load = world.load(name)
    load.start()
    try:
        load.wait_for(5)
        with top_line(world, name) as top_lines:
            yield load
            load.wait_for(5)
    finally:
        outcome = load.stop()
        world.note(f"load: {name}", ok=outcome["ok"], failed=outcome["failed"], failures=outcome["failures"][:10])
    assert outcome["failed"] == 0, outcome["failures"][:10]
    assert not is_ready_throughout or top_lines.keys() == {"True"}, top_lines
    assert all(len(texts) == 1 for texts in outcome["answers"].values()), outcome["answers"]


def pods_of(world: World) -> dict[str, int]:
    """Restarts of each worker and gateway, by uid."""
    pods = world.kubectl.pods(f"baton.dev/deployment={NAME}")
    return {uid_of(pod): restarts(pod) for pod in pods}
