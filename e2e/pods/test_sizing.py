"""The default mode SLO under a load that rises and falls, from pools that sleep and back to sleep, and awake again.

Workers keep time instead of computing (`paced/`): what is tried is who is sized by what, and no machine of two cores
computes for six workers. Everything else is real: Pods, gateway, links, hand-over, sizing, rollout. Nothing is set
about queues. A gateway that is too small for the moment answers 429 with Retry-After, and the client asks again when it
says, as clients of the API do. That no request is lost is asserted, and that pools grow, sleep and wake. Latencies are
told.
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
    made = world.deployment(
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
    made["metadata"]["name"] = NAME
    world.kubectl.apply(made)
    gateway = f"baton.dev/deployment={NAME},baton.dev/role=gateway"
    until("a gateway", lambda: world.kubectl.ready(gateway), 120)
    yield
    world.kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)


@pytest.mark.usefixtures("asleep")
def test_pools_follow_the_load_from_zero_and_back(world: World) -> None:
    assert workers(world) == []
    answers = sent(world, "rise-and-fall", ",".join(f"{seconds}@{rate}" for _, seconds, rate in PHASES))
    until("both pools sleep", lambda: desired(world) == (0, 0), 150, every_s=2.0)
    until("no worker is left", lambda: not workers(world), 180)  # a busy kubelet takes over a minute to remove a Pod
    again = sent(world, "again", "1@2")
    report(world, answers, again)
    decisions: list[Json] = world.status(NAME)["scalingDecisions"]
    sizes = {pool: [each["to"] for each in decisions if each["pool"] == pool] for pool in ("prefill", "decode")}
    world.note("mode SLO: decisions", said=[f"{each['time']} {each['reason']}" for each in decisions])
    lost = [each for each in (*answers, *again) if "lost" in each]
    assert not lost, lost[:10]
    assert all(pool[0] >= 1 and 0 in pool and pool[-1] >= 1 for pool in sizes.values()), sizes
    assert max(*sizes["prefill"], *sizes["decode"]) >= 2, "at the highest rate one worker of each is not enough"


def sent(world: World, name: str, rates: str) -> list[Json]:
    """What came of every request."""
    url = f"http://{NAME}-gateway.{world.kubectl.namespace}.svc"
    load = ChangingLoad(world.kubectl, name, world.image, url, rates=rates)
    load.start()
    answers: list[Json] = load.wait_until_sent(240)["requests"]
    return answers


def report(world: World, answers: list[Json], again: list[Json]) -> None:
    """Attainment as the clients saw it, for each part of the load."""
    begins_s = 0.0
    for name, seconds, _ in PHASES:
        part = [each for each in answers if begins_s <= each["at_s"] < begins_s + seconds]
        world.note(f"mode SLO: {name}", **attainment(part))
        begins_s += seconds
    world.note("mode SLO: all", **attainment(answers))
    world.note("mode SLO: woken again", **attainment(again))


def attainment(answers: list[Json]) -> Json:
    """Shares within the targets, of all that were sent. TTFT counts from the first try."""
    whole = [each for each in answers if "lost" not in each]
    return {
        "requests": len(answers),
        "lost": len(answers) - len(whole),
        "refused_before": sum(each["refused"] for each in answers),
        "within_ttft": round(sum(each["ttft_s"] <= TTFT_S for each in whole) / len(answers), 3),
        "within_tpot": round(sum(each["tpot_s"] <= TPOT_S for each in whole) / len(answers), 3),
        "slowest_ttft_s": max((each["ttft_s"] for each in whole), default=None),
    }


def workers(world: World) -> list[Json]:
    return world.kubectl.all("pods", f"baton.dev/deployment={NAME},baton.dev/role in (prefill, decode)")


def desired(world: World) -> tuple[object, object]:
    status = world.status(NAME)
    return status.get("prefill", {}).get("desired"), status.get("decode", {}).get("desired")
