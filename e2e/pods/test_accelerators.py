"""A pool changes its type of accelerator under load: mode SLO chooses it, and new workers come before old ones go.

Accelerators are represented by labels of the two nodes and by a resource added to them; workers keep a GPU's time
instead of computing (`paced/`), the same on both. A choice asks for half an hour of load. The status has it from the
beginning, as one of an operator that ended has, and an operator that starts goes on from there. All else is real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pytest

from baton_control.sizing.decision import sizing_state
from baton_control.sizing.inputs.deployment import sizing_spec, worker_prior
from baton_control.sizing.inputs.memory import HISTORY, Interval, SizingMemory, restore
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.spec.manifest import parse_object
from baton_testing.pods.generator import Load
from baton_testing.pods.kubectl import Json, is_ready, until
from baton_testing.pods.operator_release import ROOT
from baton_testing.pods.served import World
from baton_wire.messages.values import POOL_ROLES

pytestmark = pytest.mark.timeout(600)
NAME = "types"
OURS = f"baton.dev/deployment={NAME}"
LABEL, RESOURCE = "e2e.baton.dev/accelerator", "e2e.baton.dev/gpu"
FIRST, OTHER = "H200", "H100"
PRICES = {FIRST: 5, OTHER: 3}
WORKERS = 2
"""Workers of each pool, before and after the change."""
SURGE = 1
"""A rollout's default."""
LAG_S = 15.0
"""A rollout goes by gateways, which have a worker before a busy kubelet says that it is ready."""


@pytest.fixture
def nodes(world: World) -> Iterator[dict[str, str]]:
    """Which node has which type."""
    if world.local is None:
        pytest.skip("only nodes of the local cluster are said to have accelerators")
    names = [node["metadata"]["name"] for node in world.kubectl.all("nodes")]
    name_by_type = dict(zip((FIRST, OTHER), names, strict=True))
    for kind, name in name_by_type.items():
        world.kubectl.run("label", "node", name, f"{LABEL}={kind.lower()}", "--overwrite")
        have(world, name, "8")
    yield name_by_type
    for name in names:
        world.kubectl.run("label", "node", name, f"{LABEL}-")
        have(world, name, None)


def have(world: World, node: str, count: str | None) -> None:
    """Say how many accelerators a node has, as a device plugin would."""
    patch = json.dumps({"status": {"capacity": {RESOURCE: count}}})
    world.kubectl.run("patch", "node", node, "--subresource=status", "--type=merge", "-p", patch)


def wanted(world: World) -> Json:
    first, other = ({"resource": RESOURCE, "type": kind, "costPerHour": PRICES[kind]} for kind in (FIRST, OTHER))
    first["nodeSelector"], other["nodeSelector"] = {LABEL: FIRST.lower()}, {LABEL: OTHER.lower()}
    pool = {
        "replicas": {"min": WORKERS, "max": WORKERS + 1},
        "accelerator": {**first, "alternatives": [other]},
        "resources": {"cpu": "50m", "memory": "2Gi"},
        "engine": {"kvCacheMemory": "64Mi"},
    }
    manifest = world.deployment(
        model__servedName="paced",
        model__aliases=["tiny-llama"],  # the load's word for whatever it asks
        model__source="file:///models/paced",
        autoscaling={},
        slo={"ttft": {"target": "1s", "percentile": 90}, "tpot": {"target": "60ms", "percentile": 90}},
        prefill=pool,
        decode=pool,
    )
    manifest["metadata"]["name"] = NAME
    return manifest


@pytest.fixture
def load(world: World, nodes: dict[str, str]) -> Iterator[Load]:
    """Clients that ask all the time, of workers on the first type."""
    world.kubectl.apply(wanted(world))
    until("workers on the first type", lambda: is_whole(world, nodes[FIRST]), 180, every_s=1.0)
    new_load = Load(world.kubectl, "types-load", world.image, f"http://{NAME}-gateway.{world.kubectl.namespace}.svc", 6)
    new_load.start()
    new_load.wait_for(5)
    yield new_load
    world.kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)


def half_an_hour(deployment: Json) -> str:
    """The sizing memory that an operator keeps after half an hour in which each pool had 0.6 of a worker's work."""
    parsed = parse_object(deployment)
    spec = sizing_spec(parsed)
    config = (ROOT / "e2e" / "pods" / "paced" / "config.json").read_bytes()
    memory = SizingMemory(history=(Interval(4.0, 0.6, 0.6),) * HISTORY, shapes=(RequestShape(30, 24, 0),) * 8)
    state = replace(sizing_state.fresh(worker_prior(parsed, config), spec), memory=memory)
    text = sizing_state.save(state, 0.0, time.time() - 30)
    assert len(restore(json.loads(text)["m"], 0.0, time.time()).history) == HISTORY
    return text


def begin_anew(world: World, memory: str) -> None:
    """Another operator, from a status with that memory."""
    system = world.release.kubectl
    system.run("scale", "deployment/baton-operator", "--replicas=0")
    until("no operator", lambda: not system.all("pods"), 120)
    patch = json.dumps({"status": {"sizingMemory": memory}})
    world.kubectl.run("patch", "llm", NAME, "--subresource=status", "--type=merge", "-p", patch)
    system.run("scale", "deployment/baton-operator", f"--replicas={world.release.replicas}")
    world.release.wait_until_active()


@dataclass
class Seen:
    """One worker's Pod, by the API server's clock."""

    node: str
    ready_s: float | None = None
    stopping_s: float | None = None


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def workers(world: World, role: str) -> list[Json]:
    return world.kubectl.all("pods", f"{OURS},baton.dev/role={role}")


def look(world: World, seen: dict[str, dict[str, Seen]]) -> dict[str, tuple[int, int]]:
    """Note what became of each Pod; gives ready workers that stay, and all that stay, by pool."""
    counts = {}
    for role in POOL_ROLES:
        staying = []
        for pod in workers(world, role):
            meta = pod["metadata"]
            known = seen[role].setdefault(meta["uid"], Seen(str(pod["spec"]["nodeSelector"][LABEL])))
            for condition in pod["status"].get("conditions", []):
                if known.ready_s is None and condition["type"] == "Ready" and condition["status"] == "True":
                    known.ready_s = moment(condition["lastTransitionTime"])
            if "deletionTimestamp" in meta:
                known.stopping_s = moment(meta["deletionTimestamp"]) - meta["deletionGracePeriodSeconds"]
            else:
                staying.append(pod)
        counts[role.value] = (sum(map(is_ready, staying)), len(staying))
    return counts


def is_whole(world: World, node: str) -> bool:
    """Both pools are complete, ready and on that node alone, and no rollout goes on."""
    status = world.status(NAME)
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    for role in POOL_ROLES:
        pods = workers(world, role)
        if len(pods) < WORKERS or not all(is_ready(pod) and pod["spec"].get("nodeName") == node for pod in pods):
            return False
        pool = status.get(role, {})
        if not len(pods) == pool.get("desired") == pool.get("routable") or len(pool.get("revisions", [])) != 1:
            return False
    return conditions.get("Ready") == "True" and conditions.get("Progressing") == "False"


def test_pools_change_their_type_of_accelerator_under_load_and_no_request_is_lost(
    world: World, load: Load, nodes: dict[str, str]
) -> None:
    before = world.status(NAME)
    assert {before[role]["accelerator"] for role in POOL_ROLES} == {FIRST}
    begin_anew(world, half_an_hour(wanted(world)))
    began = time.monotonic()
    seen: dict[str, dict[str, Seen]] = {role: {} for role in POOL_ROLES}
    counts: list[dict[str, tuple[int, int]]] = []
    routable: dict[str, list[int]] = {role: [] for role in POOL_ROLES}
    chosen_s: float | None = None

    def is_over() -> bool:
        nonlocal chosen_s
        counts.append(look(world, seen))
        status = world.status(NAME)
        for role in POOL_ROLES:
            if (served := status[role].get("routable")) is not None:
                routable[role].append(served)
        if chosen_s is None and all(status[role]["accelerator"] == OTHER for role in POOL_ROLES):
            chosen_s = time.monotonic() - began
        return is_whole(world, nodes[OTHER])

    took_s = until("workers on the other type", is_over, 360, every_s=0.5)
    look(world, seen)
    load.wait_for(20)
    ended = load.stop()
    world.note(
        "another type of accelerator under load",
        operator_to_choice_s=round(chosen_s or 0.0, 1),
        operator_to_all_on_the_other_s=round(took_s, 1),
        looks=len(counts),
        routable_fewest={role: min(routable[role]) for role in POOL_ROLES},
        ready_fewest={role: min(count[role][0] for count in counts) for role in POOL_ROLES},
        lead_s={role: lead_s(seen[role]) for role in POOL_ROLES},
        most={role: max(count[role][1] for count in counts) for role in POOL_ROLES},
        ok=ended["ok"],
        failed=ended["failed"],
        said=[world.status(NAME)[role]["choice"] for role in POOL_ROLES],
    )
    assert ended["failed"] == 0, ended["failures"]
    for role in POOL_ROLES:
        assert min(routable[role]) >= WORKERS, (role, routable[role])
        assert max(count[role][1] for count in counts) <= WORKERS + 1 + SURGE, (role, counts)
        assert lead_s(seen[role]) >= -LAG_S, (role, seen[role])
    try:
        until("objects that say the same", lambda: not unlike(world, nodes[OTHER]), 120, every_s=2.0)
    except TimeoutError:
        pytest.fail(f"not so: {unlike(world, nodes[OTHER])}")


def lead_s(pods: dict[str, Seen]) -> float:
    """The shortest time that n of the other type had been ready when the n-th of the first began to stop.
    Negative: it began sooner.
    """
    ready = sorted(pod.ready_s for pod in pods.values() if pod.node == OTHER.lower() and pod.ready_s is not None)
    stopped = [pod.stopping_s for pod in pods.values() if pod.node == FIRST.lower()]
    known = sorted(stopping_s for stopping_s in stopped if stopping_s is not None)
    assert len(known) == len(stopped) >= WORKERS, "none of the first type is left"
    assert len(ready) >= WORKERS
    return min(at_s - since_s for at_s, since_s in zip(known[-WORKERS:], ready[:WORKERS], strict=True))


def unlike(world: World, node: str) -> list[str]:
    """Facts about the pools, in different objects, that are not true yet."""
    kubectl, status = world.kubectl, world.status(NAME)
    events = [event["reason"] for event in kubectl.all("events") if event["involvedObject"]["name"] == NAME]
    facts = {
        "the status follows the spec": status["observedGeneration"] == status["generation"],
        "events": {"AcceleratorChosen", "RolloutComplete"} <= set(events),
    }
    for role in POOL_ROLES:
        pods, pool_status = workers(world, role), status[role]
        own = [
            deployment
            for deployment in kubectl.all("deployments", f"{OURS},baton.dev/role={role}")
            if deployment["spec"]["replicas"]
        ]
        subsets = (kubectl.get("endpoints", f"{NAME}-{role}") or {}).get("subsets", [])
        addresses = {address["ip"] for subset in subsets for address in subset.get("addresses", [])}
        limits = [pod["spec"]["containers"][0]["resources"]["limits"][RESOURCE] for pod in pods]
        facts |= {
            f"{role}: one Deployment, on the other type's nodes": [
                deployment["spec"]["template"]["spec"]["nodeSelector"][LABEL] for deployment in own
            ]
            == [OTHER.lower()],
            f"{role}: its replicas": {deployment["spec"]["replicas"] for deployment in own}
            == {deployment["status"].get("readyReplicas") for deployment in own}
            == {len(pods)},
            f"{role}: Pods": [(pod["spec"].get("nodeName"), is_ready(pod)) for pod in pods]
            == [(node, True)] * len(pods),
            f"{role}: accelerators": limits == ["1"] * len(pods),
            f"{role}: endpoints": addresses == {pod["status"].get("podIP") for pod in pods},
            f"{role}: LLMPool": (kubectl.get("llmpool", f"{NAME}-{role}") or {})["status"]["replicas"] == len(pods),
            f"{role}: the status": pool_status["accelerator"] == OTHER
            and pool_status["choice"].startswith(f"{role} on {OTHER}: ")
            and pool_status["ready"] == pool_status["desired"] == pool_status["routable"] == len(pods),
        }
    return [fact for fact, is_so in facts.items() if not is_so]
