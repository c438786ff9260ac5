"""etcd restored from a backup under an operator that goes on: versions begin anew below those that it knows.

No watch reports that, and what is known looks newer than all that comes. The Lease shows it: the process ends, as all
components of Kubernetes have to be restarted then, and the next one works with what there is.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import LEASES
from baton_operator.kube.kubeconfig import from_kubeconfig
from baton_operator.kube.lease import Lease, LeaseLost, Times
from baton_testing.kube.control_plane import ControlPlane, control_plane, find_programs
from baton_testing.kube.stage import LONG_S, Stage


@pytest.fixture
def own_stage(plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """With a control plane of its own, which goes down and comes back."""
    programs = find_programs()
    assert programs is not None, "the other one runs"
    with control_plane(programs, tmp_path) as own_plane:
        for plural in ("llmdeployments", "llmpools"):
            definition = plane.api.send("GET", f"{DEFINITIONS}/{plural}.baton.dev").body
            body = {name: definition[name] for name in ("apiVersion", "kind", "spec")}
            assert (
                own_plane.api.send("POST", DEFINITIONS, body | {"metadata": {"name": f"{plural}.baton.dev"}}).status
                == 201
            )
        own_plane.api.until_defined()
        monkeypatch.setenv("KUBECONFIG", str(own_plane.kubeconfig))
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        assert own_plane.api.send("POST", "/api/v1/namespaces", namespace).status == 201
        yield Stage(own_plane, "team")


DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATIENT = Times(renew_s=1.0, give_up_s=LONG_S, retry_s=1.0)
"""A server that has just come back may be slow; a Lease lost for that alone would look like one lost for the restored
store."""


async def renewed_twice(stage: Stage, lease: Lease) -> None:
    """Until the answer to one renewal has been read for certain, as the next has reached the server."""

    def renew_time() -> str:
        return str(stage.read(LEASES, "baton-operator")["spec"]["renewTime"])

    keeping = asyncio.create_task(lease.keep())
    try:
        for _ in range(2):
            before = renew_time()
            await stage.until("renewed", lambda before=before: renew_time() != before)  # type: ignore[misc]
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def test_the_process_ends_and_the_next_one_works_with_what_there_is(own_stage: Stage) -> None:
    stage, plane = own_stage, own_stage.plane
    store, backup = plane.folder / "etcd", plane.folder / "backup"
    async with HttpKubeApi(from_kubeconfig()) as api:
        lease = Lease(api, "team", "baton-operator", "one", times=PATIENT)
        await lease.acquire()
        async with stage.operator(by_kopf=False):
            stage.apply()
            await stage.serves()
            plane.stop()
            shutil.copytree(store, backup)
            plane.start()
            plane.api.until_defined()
            for number in range(3):
                stage.apply(decode__resources={"memory": f"{2 + number}Gi"})
                await stage.serves()
            await renewed_twice(stage, lease)
            plane.stop()
            shutil.rmtree(store)
            shutil.copytree(backup, store)
            plane.start()
            plane.api.until_defined()
            with pytest.raises(LeaseLost, match="restored"):
                await asyncio.wait_for(lease.keep(), LONG_S)
    async with stage.operator():
        await stage.serves()
        stage.apply(decode__resources={"memory": "9Gi"})
        await stage.serves()
