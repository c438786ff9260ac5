"""Old charts, with the programs of their time, are upgraded to today's while a deployment answers requests.

No Pod of the deployment is restarted or replaced, no request is lost, and the master key stays. When the user asks for
the images of today, which speak another wire version, the rollout comes to its end. The images of old
programs come from `run.sh`, as `BATON_E2E_OLD_IMAGES`. `BATON_E2E_ALL_UPGRADES=1` tries each chart in each way.

The server of 1.20 lacks what the charts need today: each operator runs behind the adapter of its time, and copies of
the charts are without rules of CEL.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_testing.kube.old_charts import OLD_CHARTS, OldChart
from baton_testing.pods.kubectl import Kubectl, is_ready, until
from baton_testing.pods.old_installations import Installation, Way
from baton_testing.pods.operator_release import SELECTOR, Release
from baton_testing.pods.served import NAME, World
from baton_testing.pods.serving import pods_of, serving
from baton_testing.pods.watches import restarts

pytestmark = pytest.mark.timeout(900)
FIRST, SECOND, THIRD = OLD_CHARTS
USUAL = (
    (FIRST, Way.HELM),
    (SECOND, Way.REUSED_VALUES),
    (THIRD, Way.TEMPLATE),
    (SECOND, Way.SERVER_SIDE),
)
CELLS = tuple(itertools.product(OLD_CHARTS, Way)) if os.environ.get("BATON_E2E_ALL_UPGRADES") else USUAL
QUIET_S = 20.0
"""How long the new operator is watched after its first pass."""


def programs_image(commit: str) -> str:
    """The image of an old commit's programs; skips the test where there is none."""
    images = dict(part.split("=", 1) for part in os.environ.get("BATON_E2E_OLD_IMAGES", "").split() if part)
    if commit not in images:
        pytest.skip(f"no image of {commit}: BATON_E2E_OLD_IMAGES='COMMIT=IMAGE@DIGEST …', which run.sh sets")
    return images[commit]


def images(world: World) -> set[str]:
    """The images of all Pods of the deployment."""
    pods = world.kubectl.pods(f"baton.dev/deployment={NAME}")
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


@pytest.fixture(scope="module", autouse=True)
def _definitions_of_today() -> Iterator[None]:
    """Old charts bring their definitions; those of today are there again afterwards."""
    yield
    crds = Path(__file__).parents[2] / "crds"
    Kubectl("default").run("apply", "--validate=false", "--server-side=false", "-f", str(crds))


@pytest.mark.parametrize(("old", "way"), CELLS, ids=lambda part: part.commit if isinstance(part, OldChart) else part)
def test_an_upgrade_of_an_old_chart_costs_no_pod_and_no_request(
    world: World, old: OldChart, way: Way, tmp_path: Path
) -> None:
    if not world.release.is_old:
        pytest.skip("old charts are adapted to the local cluster")
    number = list(Way).index(way)
    kubectl = Kubectl(f"up-{number}-{old.commit}-{int(time.time()) % 10000}")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kubectl.namespace}})
    helm, programs = world.release.helm, programs_image(old.programs)
    installation = Installation(kubectl, helm, way, old, tmp_path, programs, world.image)
    release = Release(kubectl, kubectl.namespace, helm, world.image, world.image, world.image, is_old=True)
    own = World(kubectl, release, world.image, world.second_image, world.local)
    try:
        installation.install_old()
        release.wait_until_rolled_out()
        release.wait_until_active()
        kubectl.apply(own.deployment())
        own.wait_until_settled(1, 1)
        before, keys = pods_of(own), installation.master_keys()
        assert len(before) == 3
        with serving(own, f"upgrade-{number}-{old.commit}"):
            holder = release.holder()
            installation.upgrade()
            release.wait_until_rolled_out()
            release.wait_until_active(other_than=holder)
            kubectl.run("annotate", "llm", NAME, "example.com/touch=1", "--overwrite")
            time.sleep(QUIET_S)
            own.wait_until_settled(1, 1)
            until("Serving", lambda: own.status().get("summary") == "Serving", 60)
            (operator,) = kubectl.pods(SELECTOR)
            assert is_ready(operator)
            assert restarts(operator) == 0
        assert pods_of(own) == before
        assert installation.master_keys() == keys
        with serving(own, f"scaled-{number}-{old.commit}"):
            kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=2")
            own.wait_until_settled(1, 2)
        assert before.items() <= pods_of(own).items()
        kubectl.run("annotate", "llm", NAME, "baton.dev/upgrade=now", "--overwrite")
        until("the new images", lambda: images(own) == {world.image}, 300, every_s=1.0)
        own.wait_until_settled(1, 2)
        until("Serving", lambda: own.status().get("summary") == "Serving", 120)
        with serving(own, f"after-{number}-{old.commit}"):
            assert not before.keys() & pods_of(own).keys()
    finally:
        world.measured |= own.measured
        installation.remove()
