"""The cluster that these tests run on, the operator on it, and one served model that they change one after the other.

`run.sh` sets the environment: KUBECONFIG; BATON_E2E_IMAGE and BATON_E2E_IMAGE_2, two digests of the image with all
roles; BATON_E2E_LOCAL, the folder of the local cluster, if it is that one. With BATON_E2E_NAMES=WORD the namespaces are
named after it and kept, so that a later run goes on with what this one served.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_testing.pods.kubectl import Kubectl
from baton_testing.pods.operator_release import ROOT, Release
from baton_testing.pods.served import World


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """The operator, installed and active, in namespaces of this run's own."""
    image, second, helm = (os.environ.get(name) for name in ("BATON_E2E_IMAGE", "BATON_E2E_IMAGE_2", "HELM"))
    if not image or not second or helm is None:
        pytest.fail("run these tests with `make e2e`: they need a cluster, two images and Helm")
    local = os.environ.get("BATON_E2E_LOCAL")
    kept = os.environ.get("BATON_E2E_NAMES")
    token = kept or secrets.token_hex(3)
    kubectl, own = Kubectl(f"e2e-{token}"), Kubectl(f"e2e-{token}-system")
    release = Release(own, kubectl.namespace, helm, image, image, image, is_old=local is not None)
    # An old server knows no CEL rules: it refuses to apply them, and drops them where the client applies.
    sides = [] if release.is_old else ["--server-side", "--force-conflicts"]
    kubectl.run("apply", *sides, "--validate=false", "-f", str(ROOT / "crds"))
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kubectl.namespace}})
    release.prepare()
    release.install()
    release.wait_until_active()
    made = World(kubectl, release, image, second, Path(local) if local else None)
    try:
        yield made
    finally:
        if not kept:
            for each in (kubectl, own):
                each.run("delete", "namespace", each.namespace, "--wait=false")
