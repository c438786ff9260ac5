"""Unplanned mishaps on a real control plane: the deployment comes through, and its top line stays true."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS, RECORDS, SERVICES, WORKERS
from baton_operator.kube.kube_api import Resource
from baton_operator.objects.metadata import ROLE_LABEL
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.control_plane import ControlPlane
from baton_testing.kube.manifests import manifest
from baton_testing.kube.stage import LONG_S, Stage

Json = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CRDS = sorted((Path(__file__).parents[1] / "crds").glob("*.yaml"))
CHILDREN: tuple[Resource, ...] = (SERVICES, WORKERS, POOLS, RECORDS)


def summary(stage: Stage, name: str = "chat") -> str:
    return str(stage.read(DEPLOYMENTS, name)["status"]["summary"])


def pods(stage: Stage) -> set[str]:
    return {pod["metadata"]["uid"] for pod in stage.all(PODS)}


def is_created(stage: Stage, definition: Json) -> bool:
    return stage.api.send("POST", DEFINITIONS, definition).status == 201


async def test_a_status_that_somebody_wipes_is_the_same_again(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        await stage.settled()
        before = stage.read(DEPLOYMENTS, "chat")["status"]
        path = stage.path(DEPLOYMENTS, "chat") + "/status"
        assert stage.api.send("PATCH", path, {"status": None}, kind="merge-patch+json").status == 200
        await stage.until("reported again", lambda: summary(stage) == "Serving")
        after = stage.read(DEPLOYMENTS, "chat")["status"]
        assert {name: value for name, value in after.items() if name != "conditions"} == {
            name: value for name, value in before.items() if name != "conditions"
        }
        assert [condition["reason"] for condition in after["conditions"]] == [
            condition["reason"] for condition in before["conditions"]
        ]


@pytest.mark.parametrize(
    "marks",
    [{"labels": None}, {"annotations": None}, {"ownerReferences": None}, {"managedFields": [{}]}],
    ids=lambda marks: next(iter(marks)),
)
async def test_marks_that_somebody_takes_from_every_child_are_back_and_nothing_restarts(
    stage: Stage, marks: Json
) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        await stage.settled()
        workers, running = stage.workers(), pods(stage)
        before = {(resource, name): body for resource in CHILDREN for name, body in children(stage, resource).items()}
        for resource, name in before:
            reply = stage.api.send("PATCH", stage.path(resource, name), {"metadata": marks}, kind="merge-patch+json")
            assert reply.status == 200, reply.message
        if "ownerReferences" in marks:  # that could as well be a deployment of another operator
            await stage.until("NameTaken", lambda: summary(stage) == "NameTaken")
            stage.patch(DEPLOYMENTS, "chat", "metadata.annotations", {"baton.dev/adopt": "true"})
        [field] = marks
        if field != "managedFields":
            await stage.until("back", lambda: all(is_back(stage, *place, was, field) for place, was in before.items()))
        await stage.serves()
        assert (stage.workers(), pods(stage)) == (workers, running)
        # An annotation changes no generation: the status that says so may be of the pass before.
        await stage.until("ready", lambda: stage.condition("Ready")[0] == "True")


def children(stage: Stage, resource: Resource) -> dict[str, Json]:
    named = {child["metadata"]["name"]: child for child in stage.all(resource)}
    return {name: child for name, child in named.items() if name.startswith("chat")}


def is_back(stage: Stage, resource: Resource, name: str, was: Json, field: str) -> bool:
    """True if the part of a field that counts is back; what controllers of Kubernetes note is theirs."""
    before, now = was["metadata"].get(field, {}), stage.read(resource, name)["metadata"].get(field, {})
    if field == "annotations":
        return "baton.dev/applied" in now or name == "chat-keys"
    return bool(before == now)


async def test_edits_ten_times_a_second_end_at_the_last_and_never_take_all_workers(stage: Stage) -> None:
    two = {"prefill__replicas": {"min": 2, "max": 3}, "decode__replicas": {"min": 2, "max": 3}}
    async with stage.operator():
        stage.apply(**two)
        await stage.serves(2, 2)
        for number in range(100):
            stage.apply(**two, decode__resources={"memory": f"{2 + number % 3}Gi"})
            await asyncio.sleep(0.1)
            assert any("-decode-" in name and count for name, count in stage.workers().items())
        await stage.serves(2, 2)
        live = next(worker_set for worker_set in stage.all(WORKERS) if "-decode-" in worker_set["metadata"]["name"])
        assert live["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2Gi"
        await stage.until(
            "records go again",
            lambda: sum("-templates-" in record["metadata"]["name"] for record in stage.all(RECORDS)) <= 4,
        )


async def test_one_that_is_deleted_in_a_rollout_and_made_again_serves(stage: Stage) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        first = stage.read(DEPLOYMENTS, "chat")["metadata"]["uid"]
        stage.apply(decode__resources={"memory": "2Gi"})
        await stage.until("a rollout", lambda: len(stage.workers()) == 3)
        stage.delete(DEPLOYMENTS, "chat")
        stage.apply(decode__resources={"memory": "3Gi"})
        await stage.serves()
        assert stage.read(DEPLOYMENTS, "chat")["metadata"]["uid"] != first


async def test_a_service_that_a_finalizer_keeps_on_its_way_out_is_reported_and_holds_no_worker_up(stage: Stage) -> None:
    bounds = {"prefill__replicas": {"min": 1, "max": 3}, "decode__replicas": {"min": 1, "max": 3}}
    async with stage.operator():
        stage.apply(**bounds)
        await stage.serves()
        stage.patch(SERVICES, "chat-gateway", "metadata.finalizers", ["example.com/hold"])
        stage.delete(SERVICES, "chat-gateway")
        await stage.until("Replacing", lambda: summary(stage) == "Replacing")
        assert stage.condition("Ready")[:2] == ("True", "Serving"), "until it is gone, it works"
        stage.patch(POOLS, "chat-decode", "spec.replicas", 2, "/scale")
        await stage.serves(1, 2)
        stage.patch(SERVICES, "chat-gateway", "metadata.finalizers", None)
        await stage.until("a new one", lambda: "finalizers" not in stage.read(SERVICES, "chat-gateway")["metadata"])
        await stage.until("Serving", lambda: summary(stage) == "Serving")


async def test_a_service_that_somebody_else_took_is_no_way_to_the_gateways(stage: Stage) -> None:
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat-gateway"}}
    async with stage.operator():
        stage.apply()
        await stage.serves()
        for _ in range(200):  # the operator makes it anew within milliseconds
            stage.api.send("DELETE", stage.path(SERVICES, "chat-gateway"))
            if stage.api.send("POST", stage.path(SERVICES), theirs | {"spec": {"ports": [{"port": 80}]}}).status == 201:
                break
        await stage.until("NameTaken", lambda: summary(stage) == "NameTaken")
        await stage.until("not ready", lambda: stage.condition("Ready")[:2] == ("False", "NameTaken"))
        assert stage.condition("Available")[1] == "NoService"
        stage.delete(SERVICES, "chat-gateway")
        stage.apply(podMetadata={"labels": {"again": "now"}})
        await stage.serves()


async def test_definitions_that_are_deleted_and_come_back_are_served_again(stage: Stage) -> None:
    bodies: list[Json] = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in CRDS]
    async with stage.operator():
        stage.apply()
        await stage.serves()
        for definition in bodies:
            assert stage.api.send("DELETE", f"{DEFINITIONS}/{definition['metadata']['name']}").status == 200
        await stage.until("collected", lambda: not stage.workers())
        for definition in bodies:
            await stage.until("taken", functools.partial(is_created, stage, definition))
        stage.api.until_defined()
        stage.apply()
        await stage.serves()


async def test_the_longest_name_serves_and_a_longer_one_is_refused_by_its_field(stage: Stage) -> None:
    body: Json = manifest(model__source="pvc://models/a", autoscaling__mode="Off")
    longest, longer = "c" * 36, "c" * 63
    async with stage.operator():
        for name in (longest, longer):
            reply = stage.api.send("POST", stage.path(DEPLOYMENTS), body | {"metadata": {"name": name}})
            assert reply.status == 201, f"1.20 has no rules over fields: {reply.message}"
        await stage.until("served", lambda: summary(stage, longest) == "Serving")
        await stage.until("refused", lambda: summary(stage, longer) == "InvalidSpec")
        assert "metadata.name" in stage.read(DEPLOYMENTS, longer)["status"]["message"]


async def test_a_namespace_that_ends_while_a_deployment_is_made_is_named_and_ends(stage: Stage) -> None:
    space = f"/api/v1/namespaces/{stage.space}"
    held = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.com/hold"]}}
    assert stage.api.send("POST", f"{space}/configmaps", held).status == 201
    async with stage.operator(by_kopf=False) as runtime:
        stage.apply()
        stage.api.send("DELETE", space)
        summaries = set()
        for _ in range(int(LONG_S / 0.05)):
            reply = stage.api.send("GET", stage.path(DEPLOYMENTS, "chat"))
            if reply.status == 404:
                break
            live: Json = reply.body
            summaries.add(live.get("status", {}).get("summary", ""))
            await asyncio.sleep(0.05)
        assert reply.status == 404
        assert summaries <= {"", "NamespaceTerminating", "NoGateway", "StartingWorkers"}
        await stage.until("nothing left", lambda: not stage.workers() and runtime.is_idle)
        assert runtime.stalled() is None
        free = {"metadata": {"finalizers": None}}
        stage.api.send("PATCH", f"{space}/configmaps/held", free, kind="merge-patch+json")


@pytest.mark.parametrize("clock_off_s", [-300.0, 300.0])
async def test_a_clock_that_is_off_hides_no_cause_and_makes_nothing_look_old(stage: Stage, clock_off_s: float) -> None:
    creating: Json = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    creating["containerStatuses"] = [
        {
            "name": "worker",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }
    ]
    event = ("FailedMount", 'MountVolume.SetUp failed for volume "x" : secret "chat-keys" not found')

    def afflicts(pod: Json) -> Affliction | None:
        return Affliction(creating, event) if pod["metadata"]["labels"].get(ROLE_LABEL) == "decode" else None

    stage.afflicts = afflicts
    summaries: list[str] = []
    async with stage.operator(by_kopf=False, clock_off_s=clock_off_s):
        stage.apply()
        for _ in range(int(LONG_S / 0.2)):
            summaries.append(stage.read(DEPLOYMENTS, "chat").get("status", {}).get("summary", ""))
            if summaries[-1] == "MissingSecret":
                break
            await asyncio.sleep(0.2)
    assert summaries[-1] == "MissingSecret"
    assert "ContainerCreating" not in summaries, "which is reported for Pods that are a minute old"


@contextlib.contextmanager
def expired_webhook(plane: ControlPlane) -> Iterator[str]:
    """Its URL. Who asks it finds a certificate that was good until yesterday."""
    folder = plane.folder
    (folder / "hook.extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "hook.extensions", "-days", "-1")
    for command in (
        ("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=hook", "-keyout", "hook.key", "-out", "hook.csr"),
        ("x509", "-req", "-in", "hook.csr", "-out", "hook.crt", *signing),
    ):
        subprocess.run(("openssl", *command), cwd=folder, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler, bind_and_activate=True) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


async def test_a_webhook_whose_certificate_has_expired_is_reported_as_down(plane: ControlPlane, stage: Stage) -> None:
    name = f"{stage.space}.example.com"
    with expired_webhook(plane) as url:
        authority = base64.b64encode((plane.folder / "ca.crt").read_bytes()).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"], "operations": ["*"]}
        hook: Json = {"name": name, "rules": [rule], "clientConfig": {"url": url, "caBundle": authority}}
        hook |= {"sideEffects": "None", "failurePolicy": "Fail", "timeoutSeconds": 2, "admissionReviewVersions": ["v1"]}
        body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}
        assert stage.api.send("POST", HOOKS, body | {"metadata": {"name": name}, "webhooks": [hook]}).status == 201
        try:
            probe: Json = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"}}
            await stage.refuses(SERVICES, probe | {"spec": {"ports": [{"port": 80}]}}, "expired")
            async with stage.operator(by_kopf=False):
                stage.apply()
                await stage.until("WebhookDown", lambda: summary(stage) == "WebhookDown")
                assert "expired" in stage.condition("Ready")[2]
                stage.api.send("DELETE", f"{HOOKS}/{name}")
                await stage.serves()
        finally:
            stage.api.send("DELETE", f"{HOOKS}/{name}")
