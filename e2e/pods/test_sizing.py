"""The default mode SLO under a load that rises and falls, from pools that sleep and back to sleep, and awake again.

Workers keep time instead of computing (`paced/`): what is tried is who is sized by what, and no machine of two cores
computes for six workers. Everything else is real: Pods, gateway, links, hand-over, sizing, rollout. Nothing is set
about queues. A gateway that is too small for the moment answers 429 with Retry-After, and the client asks again when it
says, as clients of the API do. That no request is lost is asserted, and that pools grow, sleep and wake. Latencies are
reported.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton_testing.pods.generator import ChangingLoad
from baton_testing.pods.kubectl import Json, until
from baton_testing.pods.served import World

pytestmark = pytest.mark.timeout(420)
NAME = "paced"
TTFT_S, TPOT_S, PERCENTILE = 1.0, 0.06, 90
PHASES = (("woken", 20, 1.5), ("rising", 50, 5), ("falling", 25, 1.5))
"""Name, seconds, requests a second."""


@pytest.fixture
def asleep(world: World) -> Iterator[None]:
    """The deployment, with a gateway and no worker."""
    pool = {
        "replicas": {"min": 0, "max": 3},
        "resources": {"cpu": "50m", "memory": "2Gi"},
        "engine": {"kvCacheMemory": "64Mi"},
    }
    manifest = world.deployment(
        model__servedName=NAME,
        model__source="file:///models/paced",
        autoscaling={"scaleToZeroAfter": "60s"},
        slo={
            "ttft": {"target": f"{TTFT_S:g}s", "percentile": PERCENTILE},
            "tpot": {"target": f"{1000 * TPOT_S:g}ms", "percentile": PERCENTILE},
        },
        gateway={"limits": {"maxRequestDuration": "90s"}},
        prefill=pool,
        decode=pool,
    )
    manifest["metadata"]["name"] = NAME
    world.kubectl.apply(manifest)
    gateway = f"baton.dev/deployment={NAME},baton.dev/role=gateway"
    until("a gateway", lambda: world.kubectl.ready(gateway), 120)
    yield
    world.kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)


@pytest.mark.usefixtures("asleep")
def test_pools_follow_the_load_from_zero_and_back(world: World) -> None:
    assert workers(world) == []
    answers = run_load(world, "rise-and-fall", ",".join(f"{seconds}@{rate}" for _, seconds, rate in PHASES))
    until("both pools sleep", lambda: desired(world) == (0, 0), 150, every_s=2.0)
    until("no worker is left", lambda: not workers(world), 180)  # a busy kubelet takes over a minute to remove a Pod
    again = run_load(world, "again", "1@2")
    report(world, answers, again)
    decisions: list[Json] = world.status(NAME)["scalingDecisions"]
    sizes = {
        pool: [decision["to"] for decision in decisions if decision["pool"] == pool] for pool in ("prefill", "decode")
    }
    world.note("mode SLO: decisions", said=[f"{decision['time']} {decision['reason']}" for decision in decisions])
    lost = [request for request in (*answers, *again) if "lost" in request]
    assert not lost, lost[:10]
    assert all(pool[0] >= 1 and 0 in pool and pool[-1] >= 1 for pool in sizes.values()), sizes
    assert max(*sizes["prefill"], *sizes["decode"]) >= 2, "at the highest rate one worker of each is not enough"


def run_load(world: World, name: str, rates: str) -> list[Json]:
    """The outcome of every request of a load."""
    url = f"http://{NAME}-gateway.{world.kubectl.namespace}.svc"
    load = ChangingLoad(world.kubectl, name, world.image, url, rates=rates)
    load.start()
    answers: list[Json] = load.wait_until_sent(240)["requests"]
    return answers


def report(world: World, answers: list[Json], again: list[Json]) -> None:
    """Attainment as the clients saw it, for each part of the load."""
    begins_s = 0.0
    for name, seconds, _ in PHASES:
        part = [request for request in answers if begins_s <= request["at_s"] < begins_s + seconds]
        world.note(f"mode SLO: {name}", **attainment(part))
        begins_s += seconds
    world.note("mode SLO: all", **attainment(answers))
    world.note("mode SLO: woken again", **attainment(again))


def attainment(answers: list[Json]) -> Json:
    """Shares within the targets, of all that were sent. TTFT counts from the first try."""
    whole = [request for request in answers if "lost" not in request]
    return {
        "requests": len(answers),
        "lost": len(answers) - len(whole),
        "refused_before": sum(request["refused"] for request in answers),
        "within_ttft": round(sum(request["ttft_s"] <= TTFT_S for request in whole) / len(answers), 3),
        "within_tpot": round(sum(request["tpot_s"] <= TPOT_S for request in whole) / len(answers), 3),
        "slowest_ttft_s": max((request["ttft_s"] for request in whole), default=None),
    }


def workers(world: World) -> list[Json]:
    return world.kubectl.all("pods", f"baton.dev/deployment={NAME},baton.dev/role in (prefill, decode)")


def desired(world: World) -> tuple[object, object]:
    status = world.status(NAME)
    return status.get("prefill", {}).get("desired"), status.get("decode", {}).get("desired")
