"""The objects that fetch a model on a cluster: a way out, credentials, and a volume that workers only read."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from baton_control.spec.api import LLMDeployment
from baton_model_fetch import __main__ as program
from baton_model_fetch import progress
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects
from baton_operator.objects.fetch import REFUSED, fetch_job, fetch_objects
from baton_operator.objects.fetch_progress import progress_words, without_progress
from baton_operator.objects.fetch_state import fetch_state, find_former_jobs
from baton_operator.objects.pods import TEMPLATE_VERSION, gateway_template, worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_testing.kube.world import MASTERS
from baton_wire.messages.values import POOL_ROLES

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLATFORM, OWNER = Platform(IMAGE, IMAGE), Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
SOURCES = (
    "hf://meta/llama@" + "c" * 40,
    "s3://models/llama/8b",
    "oci://registry.example.com:5000/models/llama@sha256:" + "d" * 64,
)


def remote(source: str = SOURCES[0], **fields: object) -> LLMDeployment:
    return deployment(**{"model__source": source, **fields})


def objects(fetched: LLMDeployment, platform: Platform = PLATFORM) -> dict[str, Json]:
    return {
        str(manifest["kind"]): json.loads(json.dumps(manifest)) for manifest in fetch_objects(fetched, platform, OWNER)
    }


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("source", SOURCES)
def test_the_objects_are_valid_restricted_and_without_a_token(source: str, version: str) -> None:
    by_kind = objects(remote(source, model__credentialsSecret="hub"))
    for manifest in by_kind.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    pod = by_kind["Job"]["spec"]["template"]["spec"]
    assert violations(pod) == []
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_models_that_need_no_fetching_have_none_of_it() -> None:
    for source in ("pvc://models/llama", "file:///models/llama"):
        assert fetch_objects(deployment(model__source=source), PLATFORM, OWNER) == ()


@pytest.mark.parametrize("source", SOURCES)
def test_the_program_understands_the_jobs_arguments(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []

    async def remember(*given: object) -> None:
        seen.append(given)

    monkeypatch.setattr(program, "fetch", remember)
    container = objects(remote(source, model__credentialsSecret="hub"))["Job"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert program.main(container["args"]) == 0
    assert seen[0][0] == source
    watch: Any = seen[0][3]
    watch._path = tmp_path / "progress"
    watch.on_progress(3 << 30, 12 << 30, 1.0)
    assert progress.main([str(tmp_path / "progress")]) == 1
    assert REFUSED == program.REFUSED


def test_only_the_job_has_the_credentials() -> None:
    fetched = remote(model__credentialsSecret="hub")
    assert json.dumps(objects(fetched)["Job"]).count('"secretName": "hub"') == 1
    for role in POOL_ROLES:
        assert "hub" not in json.dumps(worker_template(fetched, role, PLATFORM).pod["spec"])
    assert "hub" not in json.dumps(gateway_template(fetched, PLATFORM)["spec"])


def test_workers_read_what_the_job_writes_and_cannot_write_it() -> None:
    fetched = remote()
    job = objects(fetched)["Job"]["spec"]["template"]["spec"]
    claim = objects(fetched)["PersistentVolumeClaim"]["metadata"]["name"]
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": claim}} in job["volumes"]
    key = next(argument for argument in job["containers"][0]["args"] if argument.startswith("--key=")).removeprefix(
        "--key="
    )
    for role in POOL_ROLES:
        template = worker_template(fetched, role, PLATFORM)
        pod = json.loads(json.dumps(template.pod["spec"]))
        volume = {"name": "model", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        assert volume in pod["volumes"]
        assert {"name": "model", "mountPath": "/model", "readOnly": True} in pod["containers"][0]["volumeMounts"]
        assert f"--model=/model/{key}" in template.spec.argv


def test_only_the_job_reaches_the_source_and_nobody_reaches_it() -> None:
    for source, ports in ((SOURCES[0], [443]), (SOURCES[2], [443, 5000])):
        policy = objects(remote(source))["NetworkPolicy"]["spec"]
        assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == ports
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert "ingress" not in policy
        labels = objects(remote(source))["Job"]["spec"]["template"]["metadata"]["labels"]
        assert policy["podSelector"]["matchLabels"].items() <= labels.items()
        assert policy["podSelector"]["matchLabels"]["baton.dev/role"] == "fetch"


def test_the_job_reaches_the_open_internet_and_the_networks_that_the_installation_names() -> None:
    def reached(platform: Platform) -> list[Any]:
        manifests = fetch_objects(remote(SOURCES[0]), platform, OWNER)
        (policy,) = (manifest for manifest in manifests if manifest["kind"] == "NetworkPolicy")
        return [peer["ipBlock"] for rule in policy["spec"]["egress"] for peer in rule["to"]]  # type: ignore[index]

    def allows(blocks: list[Any], address: str) -> bool:
        at = ipaddress.ip_address(address)
        return any(
            at in ipaddress.ip_network(block["cidr"])
            and not any(at in ipaddress.ip_network(left) for left in block.get("except", ()))
            for block in blocks
        )

    inside = (
        "10.96.0.1",
        "169.254.169.254",
        "172.20.0.1",
        "192.168.0.9",
        "100.64.0.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
    )
    blocks = reached(PLATFORM)
    assert not any(allows(blocks, address) for address in inside)
    assert all(allows(blocks, address) for address in ("8.8.8.8", "2606:4700::1111"))
    named = reached(replace(PLATFORM, fetch_cidrs=("10.20.0.0/16",)))
    assert allows(named, "10.20.3.4")
    assert not allows(named, "10.96.0.1")


def test_another_source_or_secret_is_another_job_and_the_same_is_the_same() -> None:
    names = {
        objects(fetched)["Job"]["metadata"]["name"]
        for fetched in (remote(), remote(SOURCES[1]), remote(model__credentialsSecret="hub"))
    }
    assert len(names) == 3
    same = remote(prefill__replicas={"min": 3, "max": 3}, slo__ttft={"target": "1s", "percentile": 95})
    assert objects(same)["Job"]["metadata"]["name"] in names


def test_the_cache_has_the_size_and_the_class_that_was_asked_for() -> None:
    fetched = remote(model__cache={"size": "20Gi", "storageClassName": "shared"})
    spec = objects(fetched)["PersistentVolumeClaim"]["spec"]
    assert spec["resources"]["requests"] == {"storage": "20Gi"}
    assert spec["storageClassName"] == "shared"
    assert "storageClassName" not in objects(remote())["PersistentVolumeClaim"]["spec"]


def test_a_job_tells_how_far_it_is() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "exit code 3"}
    assert not fetch_state(None).is_done
    assert not fetch_state({"status": {"active": 1}}).is_done
    assert fetch_state({"status": {"conditions": [{"type": "Complete", "status": "True"}]}}).is_done
    assert fetch_state({"status": {"conditions": [failed]}}).failure == "PodFailurePolicy: exit code 3"
    assert not fetch_state({"status": {"conditions": [failed | {"status": "False"}]}}).failure


def test_its_pod_tells_how_many_bytes_are_there_without_a_right_or_a_port() -> None:
    [container] = objects(remote())["Job"]["spec"]["template"]["spec"]["containers"]
    *_, module, path = container["readinessProbe"]["exec"]["command"]
    assert (module, f"--progress={path}" in container["args"]) == (progress.__name__, True)
    assert "ports" not in container
    manifests = fetch_objects(remote(), PLATFORM, OWNER, tells_progress=False)
    [old] = [manifest for manifest in json.loads(json.dumps(manifests)) if manifest["kind"] == "Job"]
    [container] = old["spec"]["template"]["spec"]["containers"]
    assert "progress" not in json.dumps(container), "images before it would end at an argument that they do not know"
    jobs = {
        version: next(manifest for manifest in standing_objects(remote(), PLATFORM, OWNER, MASTERS, version=version)
                      if manifest["kind"] == "Job")
        for version in (3, TEMPLATE_VERSION)
    }  # fmt: skip
    assert (jobs[3], jobs[TEMPLATE_VERSION]) == (
        fetch_job(remote(), PLATFORM, OWNER, False),
        fetch_job(remote(), PLATFORM, OWNER),
    )


@pytest.mark.parametrize(
    ("reported", "words"),
    [
        ((13_207_024_435, 64_961_380_352), ": 20 % (12.3 of 60.5 GiB)"),
        ((0, 64_961_380_352), ": under 1 % (0.0 of 60.5 GiB)"),
        ((5 << 20, 7 << 20), ": 71 % (5.0 of 7.0 MiB)"),
        ((7 << 20, 7 << 20), ": 100 % (7.0 of 7.0 MiB)"),
        ((13_207_024_435, 0), ": 12.3 GiB so far"),
    ],
)
def test_the_kubelets_event_becomes_percent_and_an_unknown_total_bytes(reported: tuple[int, int], words: str) -> None:
    event = f"Readiness probe failed: {progress.sentence(f'{reported[0]} {reported[1]}')}\n"
    assert progress_words(event) == words
    assert progress_words(f"(combined from similar events): {event}") == words
    assert (
        without_progress(f"the model is being fetched{words}, try 2 of 13") == "the model is being fetched, try 2 of 13"
    )


@pytest.mark.parametrize("text", ["", "1", "1 x", "-1 5", "1 2 3", "Started container fetch", "fetched many bytes"])
def test_what_says_nothing_of_it_is_no_progress(text: str, tmp_path: Path) -> None:
    assert progress.sentence(text) == ""
    assert progress_words(text) == ""
    (tmp_path / "progress").write_text(text, encoding="ascii")
    assert progress.main([str(tmp_path / "progress")]) == 0
    assert progress.main([str(tmp_path / "none")]) == 0


def test_jobs_of_earlier_sources_are_told_apart_from_other_jobs() -> None:
    current, former = objects(remote())["Job"], objects(remote(SOURCES[1]))["Job"]
    other: Json = {"metadata": {"name": "mine", "labels": {"baton.dev/deployment": "chat"}}}
    assert find_former_jobs((current,), (current, former, other)) == (former,)
    assert find_former_jobs((), (current, other)) == (current,)
