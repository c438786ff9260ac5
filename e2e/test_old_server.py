"""The disguise of the old API server: a status whose parts come and go is stored as the operator wrote it."""

from __future__ import annotations

import pytest

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.kube.kubeconfig import from_kubeconfig
from baton_operator.kube.object_fields import Manifest, mapping
from baton_testing.kube.control_plane import ControlPlane
from baton_testing.kube.stage import for_old_server

SPEC: Manifest = {"model": {"source": "file:///models/m", "servedName": "m", "maxContextTokens": 64}}
SERVING: Manifest = {
    "observedGeneration": 1,
    "slo": {"ttft": "p95 1ms/2ms", "tpot": "p95 1ms/2ms"},
    "kvTransfer": {"lane": "tcp"},
    "prefill": {"desired": 1, "revisions": [{"revision": "one", "workers": 1}]},
}
ASLEEP: Manifest = {"observedGeneration": 1, "prefill": {"desired": 0}}


async def test_a_status_that_loses_its_parts_and_gets_them_back_is_stored(
    plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    named: Manifest = {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": "sleeper", "namespace": "default"},
    }
    async with HttpKubeApi(from_kubeconfig()) as session:
        api = for_old_server(session)
        await api.create(DEPLOYMENTS, {**named, "spec": SPEC}, manager="test")
        for status in (SERVING, ASLEEP, SERVING, ASLEEP):
            applied: Manifest = {**named, "status": status}
            await api.apply(DEPLOYMENTS, applied, manager="test-status", force=True, subresource="status")
            assert (await session.get(DEPLOYMENTS, "default", "sleeper"))["status"] == status
        metadata = mapping((await session.get(DEPLOYMENTS, "default", "sleeper"))["metadata"])
        await session.delete(DEPLOYMENTS, "default", "sleeper", uid=str(metadata["uid"]))
