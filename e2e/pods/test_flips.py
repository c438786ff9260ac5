"""Workers that change their role under load: what clients, Kubernetes and the operator make of it.

What is asserted is that no request fails, that no process ends for it, and that every object says the same; how long it
takes is noted.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_testing.pods.generator import Load
from baton_testing.pods.kubectl import Json, until
from baton_testing.pods.served import World

pytestmark = pytest.mark.timeout(600)
NAME = "flips"
OURS = f"baton.dev/deployment={NAME}"
WORKERS = f"{OURS},baton.dev/role in (prefill, decode)"
TOOK = re.compile(rf"/{NAME}: flip \d+ to (\w+) took ([0-9.]+) s")


def wanted(world: World, prefill: int, decode: int) -> Json:
    sizes = {"prefill": prefill, "decode": decode}
    pools = {role: {"replicas": {"min": count, "max": count}} for role, count in sizes.items()}
    resources = {"resources": {"cpu": "100m", "memory": "2Gi"}, "engine": {"kvCacheMemory": "64Mi"}}
    fields = {"prefill": pools["prefill"] | resources, "decode": pools["decode"] | resources}
    manifest = world.deployment(autoscaling={"mode": "Off", "flips": True}, **fields)
    manifest["metadata"]["name"] = NAME
    return manifest


def roles(world: World) -> dict[str, str]:
    """Role labels of the Pods that stay, by uid."""
    staying = [pod for pod in world.kubectl.all("pods", WORKERS) if "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["uid"]: pod["metadata"]["labels"]["baton.dev/role"] for pod in staying}


def processes(world: World) -> dict[str, int]:
    """Restarts of each worker, by uid."""
    pods = world.kubectl.all("pods", WORKERS)
    return {pod["metadata"]["uid"]: sum(c["restartCount"] for c in pod["status"]["containerStatuses"]) for pod in pods}


@dataclass
class Objects:
    """Counts of workers by role, as different objects have them."""

    labelled: dict[str, int]
    ready: dict[str, int]
    in_service: dict[str, int]
    """Addresses of the pool's Service."""
    pools: dict[str, int]
    """Replicas in the LLMPool's status."""
    routable: dict[str, int | None]
    asked: str
    """The roles that the Deployment's annotation asks for."""
    must_stay: dict[str, int]
    """`minAvailable` of the PodDisruptionBudget."""

    @property
    def alike(self) -> tuple[dict[str, int] | dict[str, int | None], ...]:
        return self.labelled, self.ready, self.in_service, self.pools, self.routable


def objects(world: World) -> Objects:
    kubectl, status, both = world.kubectl, world.status(NAME), ("prefill", "decode")
    labelled = list(roles(world).values())
    in_service, pools, must_stay = {}, {}, {}
    for role in both:
        subsets = (kubectl.get("endpoints", f"{NAME}-{role}") or {}).get("subsets", [])
        addresses = {
            address["ip"] for s in subsets for kind in ("addresses", "notReadyAddresses") for address in s.get(kind, [])
        }
        in_service[role] = len(addresses)
        pools[role] = (kubectl.get("llmpool", f"{NAME}-{role}") or {}).get("status", {}).get("replicas", -1)
        must_stay[role] = (kubectl.get("pdb", f"{NAME}-{role}") or {}).get("spec", {}).get("minAvailable", -1)
    deployments = kubectl.all("deployments", OURS)
    asked = [deployment["metadata"].get("annotations", {}).get("baton.dev/roles") for deployment in deployments]
    return Objects(
        {role: labelled.count(role) for role in both},
        {role: len(kubectl.ready(f"{OURS},baton.dev/role={role}")) for role in both},
        in_service,
        pools,
        {role: status.get(role, {}).get("routable") for role in both},
        ";".join(sorted(roles_text for roles_text in asked if roles_text)),
        must_stay,
    )


def wait_until_right(world: World, prefill: int, decode: int, deadline_s: float = 180) -> float:
    sizes = {"prefill": prefill, "decode": decode}

    def is_right() -> bool:
        seen = objects(world)
        return all(counts == sizes for counts in seen.alike) and seen.asked == f"prefill={prefill},decode={decode}"

    try:
        return until(f"objects say {sizes}", is_right, deadline_s, every_s=0.2)
    except TimeoutError:
        pytest.fail(f"{sizes}: {objects(world)}")


def logged_flips(world: World) -> list[tuple[str, float]]:
    """Flips in the operator's log: the new role, and seconds from the order until a gateway reported it."""
    text = world.release.kubectl.run("logs", world.release.holder(), "--tail=-1")
    return [(role, float(seconds)) for role, seconds in TOOK.findall(text)]


@pytest.fixture(scope="module")
def load(world: World) -> Iterator[Load]:
    """Clients that ask all the time, of a deployment with two prefill workers and one decode worker."""
    world.kubectl.apply(wanted(world, 2, 1))
    wait_until_right(world, 2, 1, 300)
    new_load = Load(world.kubectl, "flips-load", world.image, f"http://{NAME}-gateway.{world.kubectl.namespace}.svc")
    new_load.start()
    new_load.wait_for(5)
    yield new_load
    world.kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)


def flip(world: World, load: Load, prefill: int, decode: int) -> str:
    """Have pools of other sizes; gives the uid of the Pod that flipped."""
    before, running, known = roles(world), processes(world), len(logged_flips(world))
    applied = time.monotonic()
    world.kubectl.apply(wanted(world, prefill, decode))
    until("another label", lambda: roles(world) != before, 30, every_s=0.05)
    labelled = time.monotonic()
    wait_until_right(world, prefill, decode)
    right = time.monotonic()
    until("the operator's word", lambda: len(logged_flips(world)) > known, 20)
    load.wait_for(5)
    after = roles(world)
    assert processes(world) == running, "no process was started, stopped or restarted"
    [flipped] = [uid for uid, role in after.items() if before[uid] != role]
    role, seconds = logged_flips(world)[-1]
    assert role == after[flipped]
    world.note(
        f"flip to {role}: {prefill} and {decode}",
        order_to_told_s=seconds,
        apply_to_label_s=round(labelled - applied, 2),
        apply_to_all_objects_s=round(right - applied, 2),
    )
    return flipped


def test_workers_flip_there_and_back_under_load(world: World, load: Load) -> None:
    for prefill, decode in ((1, 2), (2, 1), (1, 2)):
        flip(world, load, prefill, decode)
    assert objects(world).must_stay == {"prefill": 1, "decode": 1}
    assert not load.lines("FAIL"), load.lines("FAIL")


def test_a_pod_that_flipped_and_is_killed_is_replaced_in_the_role_it_had(world: World, load: Load) -> None:
    flip(world, load, 2, 1)
    killed = flip(world, load, 1, 2)
    name = next(p["metadata"]["name"] for p in world.kubectl.all("pods", WORKERS) if p["metadata"]["uid"] == killed)
    world.kubectl.run("delete", "pod", name, "--grace-period=0", "--force")
    until("it is gone", lambda: killed not in roles(world), 180)
    world.note("a flipped Pod killed", until_right_s=round(wait_until_right(world, 1, 2), 1))
    load.wait_for(5)
    assert not load.lines("FAIL"), load.lines("FAIL")


def test_a_process_that_ends_begins_again_as_what_its_pod_says(world: World, load: Load) -> None:
    if world.local is None:
        pytest.skip("only processes of the local cluster can be killed here")
    flip(world, load, 2, 1)
    flipped, known = flip(world, load, 1, 2), len(logged_flips(world))
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_its = flipped in (process / "cgroup").read_text(encoding="ascii")
            if is_its and b"python" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue  # it has ended
    until("another process", lambda: processes(world).get(flipped) == 1, 180)
    wait_until_right(world, 1, 2)
    load.wait_for(5)
    assert len(logged_flips(world)) == known, "it needed no order"
    assert not load.lines("FAIL"), load.lines("FAIL")


def test_an_operator_that_is_killed_while_a_worker_flips_is_followed_by_one_that_goes_on(
    world: World, load: Load
) -> None:
    before, holder = roles(world), world.release.holder()
    world.kubectl.apply(wanted(world, 2, 1))
    world.release.kubectl.run("delete", "pod", holder, "--grace-period=0", "--force")
    world.release.wait_until_active(other_than=holder)
    wait_until_right(world, 2, 1)
    assert roles(world).keys() == before.keys()
    load.wait_for(5)
    assert not load.lines("FAIL"), load.lines("FAIL")


def test_a_pool_that_shrinks_loses_one_of_its_own_and_no_request_is_lost(world: World, load: Load) -> None:
    before = roles(world)
    world.kubectl.apply(wanted(world, 1, 1))
    wait_until_right(world, 1, 1)
    remaining = roles(world)
    world.note(
        "one of two prefill workers stopped", kept_their_role=all(before[uid] == remaining[uid] for uid in remaining)
    )
    load.wait_for(5)
    ended = load.stop()
    world.note("flips: the load", ok=ended["ok"], failed=ended["failed"])
    assert ended["failed"] == 0, ended["failures"]
