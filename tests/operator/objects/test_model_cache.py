"""Volumes of fetched models: claims that many nodes, one node or one worker mount, those of others, and images."""

from __future__ import annotations

import json
from typing import Any

import kubernetes_validate
import pytest

from baton_control.errors import ManifestError
from baton_control.hashes import content_hash
from baton_control.spec.api import LLMDeployment
from baton_operator.kube.kinds import CLAIMS, DEPLOYMENTS, JOBS
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.fetch import fetch_objects
from baton_operator.objects.model_cache import CLAIM_LABEL
from baton_operator.objects.pods import gateway_template, worker_template
from baton_operator.passes.fetch_problems import explain_single_node
from baton_operator.passes.problems import PassProblem
from baton_operator.passes.template_records import are_same_inputs, inputs
from baton_testing.kube.causes import HUB, clear
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.planted_causes import LOOSE, until
from baton_testing.kube.pod_security import violations
from baton_testing.kube.world import NAME, SPACE, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES, Role

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLATFORM, OWNER = Platform(IMAGE, IMAGE), Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
HF, OCI = "hf://org/name@" + "c" * 40, "oci://registry.example.com:5000/models/llama@sha256:" + "d" * 64
CACHES: dict[str, Json] = {
    "default": {},
    "once": {"accessMode": "ReadWriteOnce", "storageClassName": "gp3"},
    "clone": {"accessMode": "ReadOnlyMany"},
    "theirs": {"claimName": "models"},
    "theirs once": {"claimName": "models", "accessMode": "ReadWriteOnce"},
    "theirs filled": {"claimName": "models", "accessMode": "ReadOnlyMany"},
    "per worker": {"type": "PerWorker", "accessMode": "ReadWriteOnce", "size": "20Gi", "storageClassName": "gp3"},
    "image": {"type": "ImageVolume"},
}


def remote(cache: str, source: str = "", **fields: object) -> LLMDeployment:
    place = source or (OCI if cache == "image" else HF)
    return deployment(model__source=place, model__cache=CACHES[cache], **fields)


def made(cache: str, kind: str, **fields: object) -> list[Json]:
    manifests: list[Json] = json.loads(json.dumps(fetch_objects(remote(cache, **fields), PLATFORM, OWNER)))  # type: ignore[arg-type]
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def worker(cache: str, **fields: object) -> Json:
    pod: Json = json.loads(json.dumps(worker_template(remote(cache, **fields), Role.DECODE, PLATFORM).pod))  # type: ignore[arg-type]
    return pod


def model_volume(pod: Json) -> Json:
    [volume] = [dict(volume) for volume in pod["spec"]["volumes"] if volume["name"] in ("model", "cache")]
    del volume["name"]
    return volume


def claim(name: str, read_only: bool = False) -> Json:
    return {"persistentVolumeClaim": {"claimName": name} | ({"readOnly": True} if read_only else {})}


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("cache", CACHES)
def test_everything_is_valid_and_restricted(cache: str, version: str) -> None:
    for manifest in json.loads(json.dumps(fetch_objects(remote(cache), PLATFORM, OWNER))):
        kubernetes_validate.validate(manifest, version, strict=True)
    pod: Json = {"apiVersion": "v1", "kind": "Pod", **worker(cache)}
    kubernetes_validate.validate(pod, version, strict=True)
    assert violations(pod["spec"]) == ([] if cache != "image" else ["volumes.model"]), "an image is a volume of its own"


@pytest.mark.parametrize(
    ("cache", "modes", "of_job", "of_worker"),
    [
        ("default", {"chat-models": "ReadWriteMany"}, claim("chat-models"), claim("chat-models", True)),
        ("once", {"chat-models": "ReadWriteOnce"}, claim("chat-models"), claim("chat-models")),
        ("theirs", {}, claim("models"), claim("models", True)),
        ("theirs once", {}, claim("models"), claim("models")),
        ("theirs filled", {}, claim("models", True), claim("models", True)),
    ],
)
def test_the_job_writes_what_workers_only_read(cache: str, modes: Json, of_job: Json, of_worker: Json) -> None:
    assert {c["metadata"]["name"]: c["spec"]["accessModes"][0] for c in made(cache, "PersistentVolumeClaim")} == modes
    [job] = made(cache, "Job")
    assert model_volume(job["spec"]["template"]) == of_job
    pod = worker(cache)
    assert model_volume(pod) == of_worker
    assert {"name": "model", "mountPath": "/model", "readOnly": True} in pod["spec"]["containers"][0]["volumeMounts"]


def test_many_nodes_read_a_clone_of_what_the_job_wrote_and_each_source_has_its_own() -> None:
    own, clone = made("clone", "PersistentVolumeClaim")
    assert own["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert clone["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert clone["spec"]["dataSource"] == {"kind": "PersistentVolumeClaim", "name": "chat-models"}
    assert model_volume(worker("clone")) == claim(clone["metadata"]["name"], True)
    other = made("clone", "PersistentVolumeClaim", source="hf://org/other@" + "c" * 40)[1]
    assert other["metadata"]["name"] != clone["metadata"]["name"]
    assert len(clone["metadata"]["name"]) <= 63


def test_each_worker_has_a_clone_that_goes_with_it() -> None:
    [own] = made("per worker", "PersistentVolumeClaim")
    template = model_volume(worker("per worker"))["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert template == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "20Gi"}},
        "storageClassName": "gp3",
        "dataSource": {"kind": "PersistentVolumeClaim", "name": own["metadata"]["name"]},
    }
    assert CLAIM_LABEL not in worker("per worker")["metadata"]["labels"], "its workers may be on any node"


def test_an_image_is_mounted_by_the_kubelet_and_nothing_is_fetched() -> None:
    assert fetch_objects(remote("image"), PLATFORM, OWNER) == ()
    reference = OCI.removeprefix("oci://")
    assert model_volume(worker("image")) == {"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
    assert "--model=/model" in worker("image")["spec"]["containers"][0]["command"]


@pytest.mark.parametrize("cache", ["once", "theirs once"])
def test_a_claim_for_one_node_holds_all_pods_of_it_there(cache: str) -> None:
    name = "models" if cache.startswith("theirs") else "chat-models"
    [job] = made(cache, "Job")
    affine = {"podAffinity": [{"matchLabels": {"a": "b"}, "topologyKey": "zone"}]}
    for template in (job["spec"]["template"], worker(cache), worker(cache, decode__placement=affine)):
        terms = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        label = {CLAIM_LABEL: content_hash(name)}
        assert terms[-1] == {"labelSelector": {"matchLabels": label}, "topologyKey": "kubernetes.io/hostname"}
        assert label.items() <= template["metadata"]["labels"].items(), "so that the first Pod may choose"
    assert len(terms) == 2, "the user's own term stays"
    assert "affinity" not in gateway_template(remote(cache), PLATFORM)["spec"]  # type: ignore[operator]


@pytest.mark.parametrize("cache", ["once", "per worker", "clone", "theirs once"])
def test_a_volume_of_one_node_is_filled_where_workers_may_go(cache: str) -> None:
    """The first Pod of a volume chooses its node, or its zone: a Job on a node without GPUs would bind it there."""
    pools: dict[str, object] = {
        "prefill__placement": {"nodeSelector": {"pool": "gpu"}, "tolerations": [{"key": "nvidia.com/gpu"}]},
        "decode__placement": {
            "nodeSelector": {"zone": "a"},
            "tolerations": [{"key": "nvidia.com/gpu"}],
            "nodeAffinity": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}],
        },
    }
    [job] = made(cache, "Job", **pools)
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    assert [toleration["key"] for toleration in spec["tolerations"]] == ["nvidia.com/gpu"]
    assert "nodeAffinity" in spec["affinity"]
    [own] = made(cache, "Job", **pools, model__fetch={"placement": {"nodeSelector": {"pool": "cpu"}}})
    assert own["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "cpu"}
    [job] = made("default", "Job", **pools)
    assert "nodeSelector" not in job["spec"]["template"]["spec"], "a volume of many nodes needs none of it"


def test_deployments_of_one_claim_share_its_node() -> None:
    one, other = (worker("theirs once", source=source) for source in (HF, "hf://org/other@" + "c" * 40))
    assert one["metadata"]["labels"][CLAIM_LABEL] == other["metadata"]["labels"][CLAIM_LABEL]


@pytest.mark.parametrize("cache", sorted(CACHES.keys() - {"default", "image"}))
def test_another_volume_is_another_template_and_the_default_is_the_same(cache: str) -> None:
    for role in POOL_ROLES:
        assert worker_template(remote(cache), role, PLATFORM) != worker_template(remote("default"), role, PLATFORM)
        assert not are_same_inputs(inputs(remote("default"), role), inputs(remote(cache), role), {})
    assert CLAIM_LABEL not in worker("default")["metadata"]["labels"]
    assert "affinity" not in worker("default")["spec"]


@pytest.mark.parametrize(
    ("source", "cache", "says"),
    [
        (HF, {"claimName": "m", "storageClassName": "fast"}, "spec.model.cache.storageClassName: must be absent"),
        (OCI, {"claimName": "m", "type": "ImageVolume"}, "spec.model.cache.claimName: must be absent"),
        (HF, {"type": "PerWorker", "accessMode": "ReadOnlyMany"}, "spec.model.cache.accessMode: must be ReadWriteOnce"),
        (HF, {"type": "ImageVolume"}, "spec.model.cache.type: must be Shared or PerWorker"),
        (HF, {"accessMode": "ReadWriteOncePod"}, "spec.model.cache.accessMode: "),
        (HF, {"accessModes": ["ReadWriteOnce"]}, "spec.model.cache.accessModes: unknown field"),
        (HF, {"type": "PerNode"}, "spec.model.cache.type: "),
        (HF, {"claimName": "Models"}, "spec.model.cache.claimName: "),
    ],
)
def test_what_does_not_fit_together_is_named(source: str, cache: Json, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        deployment(model__source=source, model__cache=cache)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "decode worker: Multi-Attach error for volume pvc-1",
        "decode worker: no node takes it: 0/3 nodes are available: 3 node(s) didn't match pod affinity rules.",
        "decode worker: no node takes it: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ],
)
def test_a_pod_that_has_no_room_on_the_claims_node_is_told_of_it(message: str) -> None:
    problem = PassProblem("Unschedulable", message)
    explained = explain_single_node(problem, remote("once"))
    assert explained is not None
    assert "all workers have to be on the node of the claim chat-models" in explained.message
    for cache in ("default", "per worker", "clone"):
        assert explain_single_node(problem, remote(cache)) == problem
    assert explain_single_node(None, remote("once")) is None


def test_a_clone_is_made_once_the_model_is_there() -> None:
    async def main() -> None:
        world = World(promise=LOOSE)
        world.start()
        world.cluster.weather.job = Affliction({"active": 1})
        world.user_applies(**HUB, model__cache={"accessMode": "ReadOnlyMany"})
        await until(lambda: any(True for _ in world.store.all(JOBS, SPACE)), 30.0)
        await until(lambda: False, 20.0)
        assert [body["metadata"]["name"] for body in world.store.all(CLAIMS, SPACE)] == [f"{NAME}-models"]
        clear(world)
        world.cluster.nudge()
        await until(lambda: world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["summary"] == "Serving", 120.0)
        own, clone = sorted(world.store.all(CLAIMS, SPACE), key=lambda body: len(body["metadata"]["name"]))
        assert clone["spec"]["dataSource"]["name"] == own["metadata"]["name"]
        await world.end()

    run_virtual(main())


def test_a_claim_of_somebody_else_is_never_made_changed_or_deleted() -> None:
    async def main() -> None:
        world = World(promise=LOOSE)
        world.start()

        def version() -> str:
            return str(world.store.read(CLAIMS, SPACE, "models")["metadata"]["resourceVersion"])

        theirs: Json = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": {"accessModes": ["ReadWriteMany"]}}
        theirs["metadata"] = {"name": "models", "namespace": SPACE}
        world.store.create(CLAIMS, theirs, "somebody")
        before = version()
        world.user_applies(**HUB, model__cache={"claimName": "models"})
        await until(
            lambda: world.store.read(DEPLOYMENTS, SPACE, NAME).get("status", {}).get("summary") == "Serving", 120.0
        )
        assert version() == before
        assert [body["metadata"]["name"] for body in world.store.all(CLAIMS, SPACE)] == ["models"]
        world.user_deletes(DEPLOYMENTS, NAME)
        await until(lambda: False, 60.0)
        assert version() == before
        await world.end()

    run_virtual(main())
