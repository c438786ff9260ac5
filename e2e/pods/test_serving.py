"""From `kubectl apply` to answers, and everything that happens to a deployment while it answers, in this order.

Each test leaves a serving deployment for the next. What is asserted is what users see (no failed request, whole
answers of one model) and what Kubernetes has (Pods, owners, the Lease); times are noted, never asserted.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from baton_operator.objects.cluster import KEYS_PATH
from baton_operator.passes.worker_pods import placement_s, worker_pods
from baton_testing.pods.kubectl import until
from baton_testing.pods.operator_release import ROOT
from baton_testing.pods.served import NAME, World, workers
from baton_testing.pods.serving import pods_of, serving
from baton_testing.pods.watches import floor, restarts, uid_of
from baton_wire.messages.values import Role

pytestmark = pytest.mark.timeout(1200)
ROUNDS = int(os.environ.get("BATON_E2E_ROUNDS", "1"))
"""How often each node is drained and everything restarted: what happens once in ten times needs many."""


def test_apply_gives_a_first_token_over_the_service(world: World) -> None:
    load = world.load("first", concurrency=1)
    load.start()
    applied = time.time()
    world.kubectl.apply(world.deployment())
    first = load.first_token_at(300)
    world.note("apply to first token", seconds=round(first - applied, 1))
    load.wait_for(5)
    assert load.stop()["failed"] == 0
    world.wait_until_settled(1, 1)


def test_a_drain_of_each_node_costs_no_request(world: World) -> None:
    """With one worker in each pool and one gateway: each has a successor before it is evicted."""
    kubectl = world.kubectl
    nodes = [node["metadata"]["name"] for node in kubectl.all("nodes") if not node["spec"].get("unschedulable")]
    if len(nodes) < 2:
        pytest.skip("one node: what runs there has nowhere to go")
    ours = f"baton.dev/deployment={NAME}"
    for count, node in itertools.product(range(1, ROUNDS + 1), nodes):
        began = time.monotonic()
        try:
            with serving(world, f"drain-{node}-{count}", is_ready_throughout=True):
                drain = ("drain", node, f"--pod-selector={ours}", "--ignore-daemonsets", "--delete-emptydir-data")
                kubectl.run(*drain, "--timeout=300s", timeout_s=320)
                world.note(f"drained {node}, {count}", seconds=round(time.monotonic() - began, 1))
            assert node not in {pod["spec"]["nodeName"] for pod in kubectl.pods(ours)}
        finally:
            kubectl.run("uncordon", node)
    world.wait_until_settled(1, 1)


def test_a_rolling_restart_of_one_of_each_costs_no_request(world: World) -> None:
    """One after the other, all at once, and by the annotation."""
    for count in range(1, ROUNDS + 1):
        before = pods_of(world)
        with serving(world, f"rollout-restart-{count}", is_ready_throughout=True):
            for name in running(world):
                world.kubectl.run("rollout", "restart", name)
                world.kubectl.run("rollout", "status", name, "--timeout=240s", timeout_s=250)
            world.wait_until_settled(1, 1)
        assert before.keys().isdisjoint(pods_of(world))
        with serving(world, f"restart-at-once-{count}", is_ready_throughout=True):
            names = running(world)
            world.kubectl.run("rollout", "restart", *names)
            for name in names:
                world.kubectl.run("rollout", "status", name, "--timeout=240s", timeout_s=250)
            world.wait_until_settled(1, 1)
        old = templates(world, "decode")
        with serving(world, f"restart-by-annotation-{count}", is_ready_throughout=True):
            world.kubectl.run("annotate", "llm", NAME, f"baton.dev/restart={time.time_ns()}", "--overwrite")
            until("a new template", lambda old=old: templates(world, "decode") - old, 120)  # type: ignore[misc]
            world.note(f"restart by annotation, {count}", seconds=round(world.wait_until_settled(1, 1), 1))


def test_a_refused_spec_and_lost_objects_leave_what_ran_running(world: World) -> None:
    """The key Secret, a worker Deployment and a Service are deleted by hand, while the newest spec is refused."""
    kubectl = world.kubectl
    kubectl.apply(world.deployment(model__source="file://relative"))
    until("refused", lambda: world.status().get("summary") == "Unsupported", 60)
    deployments = [
        deployment for deployment in kubectl.all("deployments", workers("decode")) if deployment["spec"]["replicas"]
    ]
    [workers_of_decode] = [deployment["metadata"]["name"] for deployment in deployments]
    lost = (("secret", f"{NAME}-keys"), ("service", f"{NAME}-decode"), ("deployment", workers_of_decode))
    uids = {place: uid_of(kubectl.get(*place) or {}) for place in lost}
    for place in lost:
        kubectl.run("delete", *place)
    until("back", lambda: all(uid_of(kubectl.get(*place) or {}) not in ("", uids[place]) for place in lost), 60)
    kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=2")
    world.note("lost objects: back, and scaled", seconds=round(world.wait_until_settled(1, 2), 1))
    conditions = {
        condition["type"]: (condition["status"], condition["reason"]) for condition in world.status()["conditions"]
    }
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["Stalled"] == ("True", "Unsupported")
    with serving(world, "refused-spec"):
        kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=1")
        world.wait_until_settled(1, 1)
    kubectl.apply(world.deployment())
    until("taken", lambda: world.status().get("summary") == "Serving", 60)


def test_a_watched_namespace_that_is_gone_holds_no_other_up(world: World) -> None:
    before, gone = world.release, f"{world.kubectl.namespace}-gone"
    world.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": gone}})
    world.release = replace(before, watched=f"{before.watched},{gone}")
    world.release.install()
    world.kubectl.run("delete", "namespace", gone, "--wait=true", timeout_s=120)
    world.release.kubectl.run("rollout", "restart", "deployment/baton-operator")
    world.release.wait_until_rolled_out()
    world.release.wait_until_active()
    with serving(world, "namespace-gone"):
        service = ("service", f"{NAME}-decode")
        uid = uid_of(world.kubectl.get(*service) or {})
        world.kubectl.run("delete", *service)
        took = until("back", lambda: uid_of(world.kubectl.get(*service) or {}) not in ("", uid), 60)
        world.kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=2")
        world.wait_until_settled(1, 2)
        world.kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=1")
        world.wait_until_settled(1, 1)
    world.note("namespace gone: a Service of another is back", seconds=round(took, 1))
    world.release = before
    before.install()
    before.wait_until_active()


def test_each_pool_scales_alone(world: World) -> None:
    with serving(world, "scaling"):
        for role, prefill, decode in (("prefill", 2, 1), ("decode", 2, 2)):
            world.kubectl.run("scale", f"llmpool/{NAME}-{role}", "--replicas=2")
            world.note(f"scale {role} to 2", seconds=round(world.wait_until_settled(prefill, decode), 1))


def test_pods_tell_what_they_waited_for(world: World) -> None:
    for role in (Role.PREFILL, Role.DECODE):
        seconds = placement_s(worker_pods(world.kubectl.pods(workers(role)), NAME), role)
        world.note(f"a {role} worker's node and image", seconds=seconds)
        assert seconds is not None, "or sizing would not know"


def test_a_new_template_rolls_without_a_failed_request(world: World) -> None:
    with serving(world, "template"), floor(world, "template", 2):
        world.kubectl.apply(world.deployment(decode__engine={"kvCacheMemory": "64Mi", "maxSequences": 12}))
        world.note("template rollout", seconds=round(world.wait_until_settled(2, 2), 1))


def test_a_new_model_rolls_without_a_mixed_answer(world: World) -> None:
    with serving(world, "model"), floor(world, "model", 2):
        world.kubectl.apply(world.deployment(model__source="file:///models/tiny-llama-2"))
        world.note("model rollout", seconds=round(world.wait_until_settled(2, 2), 1))


def test_the_operator_is_killed_in_the_middle_of_a_rollout(world: World) -> None:
    with serving(world, "killed"), floor(world, "killed", 2):
        world.kubectl.apply(world.deployment())
        until("both templates side by side", lambda: len(templates(world, "decode")) == 2, 120)
        holder = world.release.holder()
        world.release.kubectl.run("delete", "pod", holder, "--grace-period=0", "--force")
        killed = time.monotonic()
        world.release.wait_until_active(other_than=holder)
        world.note("operator killed: Lease taken over", seconds=round(time.monotonic() - killed, 1))
        world.wait_until_settled(2, 2)
        world.note("operator killed: rollout done", seconds=round(time.monotonic() - killed, 1))


def test_an_operator_that_stands_still_is_followed_by_the_other(world: World) -> None:
    if world.local is None:
        pytest.skip("only processes of the local cluster can be stopped here")
    before, holder = pods_of(world), world.release.holder()
    pod = world.release.kubectl.get("pod", holder)
    assert pod is not None
    with serving(world, "still"):
        processes = processes_of(uid_of(pod))
        assert processes
        try:
            for process in processes:
                os.kill(process, signal.SIGSTOP)
            stopped = time.monotonic()
            world.release.wait_until_active(other_than=holder)
            world.note("operator stopped dead: Lease taken over", seconds=round(time.monotonic() - stopped, 1))
        finally:
            for process in processes:
                os.kill(process, signal.SIGCONT)
        # It wakes up, finds the Lease with another process, and ends: its container starts anew.
        until(
            "the first one ends", lambda: restarts(world.release.kubectl.get("pod", holder) or pod) > restarts(pod), 60
        )
        assert world.release.holder() not in ("", holder)
    assert pods_of(world) == before


def test_master_keys_rotate_under_load(world: World) -> None:
    before = pods_of(world)
    with serving(world, "keys"):
        for keys in ({"first": "m" * 48, "second": "n" * 48}, {"second": "n" * 48}):
            world.release.set_keys(keys)
            names = sorted(keys)
            took = until(f"{names} in every Pod", lambda names=names: keys_read(world) == [names], 240, every_s=5)  # type: ignore[misc]
            world.note(f"link keys {names} in every Pod", seconds=round(took, 1))
        # Links are authenticated when they are made: new workers have to link with the new key alone.
        assert pods_of(world) == before
        world.kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=3")
        world.wait_until_settled(2, 3)
        world.kubectl.run("scale", f"llmpool/{NAME}-decode", "--replicas=2")
        world.wait_until_settled(2, 2)


def test_an_operator_upgrade_restarts_no_worker(world: World) -> None:
    before = pods_of(world)
    with serving(world, "upgrade"):
        world.release = world.release.upgraded(world.second_image, world.second_image)
        world.release.install()
        world.release.wait_until_active()
        world.kubectl.run("annotate", "llm", NAME, "example.com/touch=1", "--overwrite")
        time.sleep(20)
        world.wait_until_settled(2, 2)
    assert pods_of(world) == before
    world.kubectl.run("annotate", "llm", NAME, "baton.dev/upgrade=2", "--overwrite")
    with serving(world, "asked"), floor(world, "asked", 2):
        until("the new image", lambda: world.second_image in images(world, "decode"), 120)
        world.wait_until_settled(2, 2)
    assert images(world, "decode") == images(world, "prefill") == {world.second_image}


def test_the_api_server_is_away_for_two_minutes(world: World) -> None:
    if world.local is None:
        pytest.skip("only the local cluster's API server can be stopped here")
    before = pods_of(world)
    with serving(world, "outage") as load:
        cluster(world, "stop", "apiserver")
        time.sleep(120)
        cluster(world, "start", "apiserver")
        returned = time.monotonic()
        until("the API server", lambda: world.kubectl.get("llm", NAME), 60)
        world.kubectl.run("scale", f"llmpool/{NAME}-prefill", "--replicas=1")
        world.wait_until_settled(1, 2)
        world.note("API server back: scaled as asked", seconds=round(time.monotonic() - returned, 1))
        load.wait_for(20)
    assert {uid: started for uid, started in pods_of(world).items() if uid in before}.items() <= before.items()
    assert len(set(pods_of(world)) & set(before)) == len(before) - 1
    world.kubectl.run("scale", f"llmpool/{NAME}-prefill", "--replicas=2")
    world.wait_until_settled(2, 2)


def test_deleting_it_leaves_nothing(world: World) -> None:
    kinds = "pods,deployments,services,secrets,serviceaccounts,networkpolicies,controllerrevisions,llmpools,jobs,pvc"
    assert len(world.kubectl.all(kinds, f"baton.dev/deployment={NAME}")) > 10
    world.kubectl.run("delete", "llm", NAME, "--wait=true", timeout_s=120)
    took = until("nothing is left", lambda: not world.kubectl.all(kinds, f"baton.dev/deployment={NAME}"), 180)
    world.note("deleted", seconds=round(took, 1))


def running(world: World) -> list[str]:
    """Deployments of gateways and workers; that of a former template has no Pods, and goes when it is cleaned up."""
    deployments = world.kubectl.all("deployments", f"baton.dev/deployment={NAME}")
    return [
        f"deployment/{deployment['metadata']['name']}" for deployment in deployments if deployment["spec"]["replicas"]
    ]


def templates(world: World, role: str) -> set[str]:
    return {pod["metadata"]["labels"]["baton.dev/template"] for pod in world.kubectl.pods(workers(role))}


def images(world: World, role: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in world.kubectl.pods(workers(role))}


def keys_read(world: World) -> list[list[str]]:
    """The different sets of key files that Pods of the deployment see: one, when the kubelet has written everywhere."""
    look = f"import os, json; print(json.dumps(sorted(n for n in os.listdir('{KEYS_PATH}') if n[0] != '.')))"
    pods = world.kubectl.pods(f"baton.dev/deployment={NAME}")
    listings = {world.kubectl.run("exec", pod["metadata"]["name"], "--", "python", "-c", look) for pod in pods}
    return [json.loads(listing) for listing in sorted(listings)]


def processes_of(pod: str) -> list[int]:
    """Python processes of a Pod on this machine, by the Pod's uid."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_its = pod in (process / "cgroup").read_text(encoding="ascii")
            if is_its and b"python" in (process / "cmdline").read_bytes():
                pids.append(int(process.name))
        except OSError:
            continue  # it has ended
    return pids


def cluster(world: World, *arguments: str) -> None:
    environment = {"K": str(world.local), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    subprocess.run([ROOT / "e2e" / "cluster" / "cluster.sh", *arguments], check=True, timeout=60, env=environment)
