"""A real control plane without nodes: etcd, kube-apiserver, controller manager, on free ports of loopback, no root.

Deployments make Pods, owners' deletion takes what they own along; nothing runs Pods: a test that needs them ready plays
the kubelet. The programs are found like those of `api_server`; they are of Kubernetes 1.20, the last that can be built
from a distribution's sources here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton_testing.kube.api_server import (
    ARCHIVE,
    CACHE,
    ETCD,
    ApiServer,
    HeldPorts,
    _certificates,
    _kubeconfig,
    _process,
)

SERVER, CONTROLLERS = "kube-apiserver", "kube-controller-manager"
START_S = 300.0
"""On a machine that others use too."""
HOW = f"no {SERVER}, {CONTROLLERS} and {ETCD}: name their folder in BATON_K8S_BIN"


@dataclass(frozen=True, slots=True)
class Programs:
    etcd: Path
    server: Path
    controllers: Path


def find_programs() -> Programs | None:
    """The programs; None when one is missing."""
    programs = {name: _find(name) for name in (ETCD, SERVER, CONTROLLERS)}
    etcd, server, controllers = programs[ETCD], programs[SERVER], programs[CONTROLLERS]
    return Programs(etcd, server, controllers) if etcd and server and controllers else None


def _find(name: str) -> Path | None:
    named, on_path = os.environ.get("BATON_K8S_BIN"), shutil.which(name)
    candidates = [Path(named) / name] if named else []
    candidates += [CACHE / name, *([Path(on_path)] if on_path else [])]
    return next((candidate for candidate in candidates if os.access(candidate, os.X_OK)), None) or _from_archive(name)


def _from_archive(name: str) -> Path | None:
    if name == ETCD or not ARCHIVE.is_file():  # it holds no etcd, and takes long to search
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE, "r:xz") as archive:
        member = next((entry for entry in archive if Path(entry.name).name == name and entry.isfile()), None)
        source = archive.extractfile(member) if member is not None else None
        if source is None:
            return None
        draft = CACHE / f".{name}.{os.getpid()}"
        with source, draft.open("wb") as file:
            shutil.copyfileobj(source, file)
    draft.chmod(0o755)
    return draft.rename(CACHE / name)


class ControlPlane:
    """A running one. `kubeconfig` is a cluster administrator's."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self._programs, self.folder = programs, folder
        """`folder` gets the server's certificate and key, among others."""
        self._held = HeldPorts(4)
        self._ports = self._held.numbers
        self._running = contextlib.ExitStack()
        self._server = contextlib.ExitStack()
        self.kubeconfig = folder / "kubeconfig"
        _certificates(folder)
        self.api = ApiServer(self._ports[2], folder)

    def start(self, controllers: bool = True) -> None:
        folder = self.folder
        _kubeconfig(folder, self._ports[2])
        for command in (("genrsa", "-out", "sa.key", "2048"), ("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")):
            subprocess.run(("openssl", *command), cwd=folder, check=True, capture_output=True, timeout=60)
        store, peers = (f"http://127.0.0.1:{port}" for port in self._ports[:2])
        etcd = (
            *(str(self._programs.etcd), "--name=t", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={store}", f"--advertise-client-urls={store}", f"--listen-peer-urls={peers}"),
            *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=t={peers}"),
        )
        self._running.enter_context(_process(etcd, folder / "etcd.log"))
        self.start_server()
        if controllers:
            self._start_controllers()

    def _start_controllers(self) -> None:
        config, folder = self.kubeconfig, self.folder
        command = (
            *(str(self._programs.controllers), f"--kubeconfig={config}", "--leader-elect=false"),
            *(f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}"),
            *(f"--service-account-private-key-file={folder / 'sa.key'}", f"--root-ca-file={folder / 'ca.crt'}"),
            *(f"--secure-port={self._ports[3]}", "--port=0", "--bind-address=127.0.0.1"),
            "--controllers=deployment,replicaset,garbagecollector,serviceaccount,serviceaccount-token,namespace,"
            "horizontalpodautoscaling",
            *("--horizontal-pod-autoscaler-sync-period=2s", "--horizontal-pod-autoscaler-downscale-stabilization=4s"),
        )
        self._running.enter_context(_process(command, folder / "controllers.log"))

    def start_server(self) -> None:
        """Start the API server, after `stop_server` on the same port with the same state."""
        folder = self.folder
        server = (
            *(str(self._programs.server), f"--etcd-servers=http://127.0.0.1:{self._ports[0]}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports[2]}", "--advertise-address=127.0.0.1"),
            *(f"--tls-cert-file={folder / 'server.crt'}", f"--tls-private-key-file={folder / 'server.key'}"),
            *(f"--client-ca-file={folder / 'ca.crt'}", f"--service-account-key-file={folder / 'sa.pub'}"),
            *(f"--service-account-signing-key-file={folder / 'sa.key'}", "--service-account-issuer=https://baton.test"),
            *("--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=RBAC"),
        )
        self._server.enter_context(_process(server, folder / "server.log"))
        self.api.until("GET", "/readyz", deadline_s=START_S)

    def client(self) -> ApiServer:
        """Another client, for another task or thread. Close it."""
        return ApiServer(self._ports[2], self.folder)

    def stop_server(self) -> None:
        self.api.close()
        self._server.close()

    def stop(self) -> None:
        """`start` starts it again."""
        self.stop_server()
        self._running.close()

    def close(self) -> None:
        """For good."""
        self.stop()
        self._held.close()


@contextlib.contextmanager
def control_plane(programs: Programs, folder: Path, controllers: bool = True) -> Iterator[ControlPlane]:
    """Run one while the block lasts."""
    plane = ControlPlane(programs, folder)
    try:
        plane.start(controllers)
        yield plane
    finally:
        plane.close()
