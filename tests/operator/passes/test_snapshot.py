"""The snapshot at the beginning of a pass, from the caches alone."""

from __future__ import annotations

from typing import Any

from baton_control.names import Key
from baton_operator.kube.cache import Cache
from baton_operator.kube.kinds import DEPLOYMENTS, OPTIONAL, PODS, WATCHED, WORKERS
from baton_operator.passes.snapshot import Snapshot, take_snapshot
from baton_testing.kube.world import NAME, SPACE, deployment_body


def seen(gateway: dict[str, Any], **of_pod: str) -> Snapshot:
    caches = {kind: Cache(kind, lambda key: None) for kind in (*WATCHED, *OPTIONAL)}
    live = deployment_body()
    live["metadata"] |= {"uid": "u1", "resourceVersion": "1", "generation": 1}
    caches[DEPLOYMENTS].store(live)
    metadata = {"name": f"{NAME}-gateway", "namespace": SPACE, "uid": "u2", "resourceVersion": "2"}
    labels = {"baton.dev/deployment": NAME, "baton.dev/role": "gateway"}
    owner = {"uid": "u1", "controller": True}
    caches[WORKERS].store({**gateway, "metadata": {**metadata, "labels": labels, "ownerReferences": [owner]}})
    pod: dict[str, Any] = {"metadata": {**metadata, "name": f"{NAME}-gateway-a-b", "uid": "u3", "labels": labels}}
    pod["metadata"] |= of_pod
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": f"{NAME}-gateway-a", "uid": "u4"}]
    caches[PODS].store({**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})
    snapshot = take_snapshot(Key(SPACE, NAME), caches)
    assert snapshot is not None
    return snapshot


def test_a_gateway_whose_new_pods_never_get_ready_is_noticed_while_the_old_ones_serve() -> None:
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    snapshot = seen({"status": {"conditions": [late]}})
    assert (snapshot.gateways_ready, snapshot.gateway_lateness) == (1, "new gateways do not get ready")
    fine = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
    assert seen({"status": {"conditions": [fine]}}).gateway_lateness == ""


def test_a_gateway_that_was_told_to_stop_is_not_ready_and_known_by_name() -> None:
    assert seen({}).leaving_gateways == frozenset()
    snapshot = seen({}, deletionTimestamp="2026-01-01T00:00:00Z")
    assert snapshot.gateways_ready == 0
    assert snapshot.leaving_gateways == {f"{NAME}-gateway-a-b"}
