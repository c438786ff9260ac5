"""The cluster that these tests run on, the operator on it, and one served model that they change one after the other.

`run.sh` sets the environment: KUBECONFIG; BATON_E2E_IMAGE and BATON_E2E_IMAGE_2, two digests of the image with all
roles; BATON_E2E_LOCAL, the folder of the local cluster, if it is that one. With BATON_E2E_NAMES=WORD the namespaces are
named after it and kept, so that a later run goes on with what this one served.

A run of all tests is recorded by the server's version.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from bench.machine import this_machine

from baton_testing.pods.kubectl import Kubectl
from baton_testing.pods.operator_release import ROOT, Release
from baton_testing.pods.record import Record
from baton_testing.pods.served import RESULTS, World

RECORD = pytest.StashKey[Record]()


@pytest.fixture(scope="session")
def world(pytestconfig: pytest.Config) -> Iterator[World]:
    """The operator, installed and active, in namespaces of this run's own."""
    began = time.monotonic()

    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    assert capture is not None

    def say(what: str) -> None:
        """At once, and not only where a test fails."""
        with capture.global_and_fixture_disabled():
            print(f"set-up, {time.monotonic() - began:.0f} s: {what}", flush=True)

    image, second, helm = (os.environ.get(name) for name in ("BATON_E2E_IMAGE", "BATON_E2E_IMAGE_2", "HELM"))
    if not image or not second or helm is None:
        pytest.fail("run these tests with `make e2e`: they need a cluster, two images and Helm")
    local = os.environ.get("BATON_E2E_LOCAL")
    kept_token = os.environ.get("BATON_E2E_NAMES")
    token = kept_token or secrets.token_hex(3)
    kubectl, own = Kubectl(f"e2e-{token}"), Kubectl(f"e2e-{token}-system")
    folder = Path(local) if local else None
    release = Release(own, kubectl.namespace, helm, image, image, image, is_old=folder is not None, local=folder)
    say(f"definitions, {kubectl.namespace} and {own.namespace}")
    # An old server knows no CEL rules: it refuses to apply them, and drops them where the client applies.
    sides = [] if release.is_old else ["--server-side", "--force-conflicts"]
    kubectl.run("apply", *sides, "--validate=false", "-f", str(ROOT / "crds"))
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kubectl.namespace}})
    release.prepare()
    say("the operator")
    release.install(say)
    say("its Pods are ready; its Lease")
    release.wait_until_active()
    say("done")
    new_world = World(kubectl, release, image, second, folder)
    try:
        yield new_world
    finally:
        if not kept_token:
            for client in (kubectl, own):
                client.run("delete", "namespace", client.namespace, "--wait=false")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Only a run of everything is a result for a version."""
    if "KUBECONFIG" not in os.environ or session.config.getoption("keyword") or session.config.option.collectonly:
        return
    kubectl = Kubectl("default")
    server = json.loads(kubectl.run("version", "-o", "json"))["serverVersion"]["gitVersion"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    RESULTS.unlink(missing_ok=True)
    session.config.stash[RECORD] = Record(
        server, len(kubectl.all("nodes")), commit.stdout.strip() or "unknown", this_machine()
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record = item.config.stash.get(RECORD, None)
    if record is not None:
        record.ended(report.nodeid, report.when, report.outcome, report.duration)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    record = session.config.stash.get(RECORD, None)
    if record is not None and record.outcomes:
        measured = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        print(f"\nrecorded in {record.write(measured)}")
