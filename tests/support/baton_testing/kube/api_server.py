"""A real API server for CustomResourceDefinitions: etcd and the apiextensions server, on loopback, without root.

The server is the one of Kubernetes ≥ 1.33 that evaluates CEL. It serves custom resources only, no Pods or Deployments.
Binaries are looked for in `BATON_K8S_BIN`, in the cache, and in `../shared/k8s-local`, from where they are copied into
the cache; etcd also on PATH.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from baton_wire.listening.sockets import bind

Json = dict[str, object]
SERVER, ETCD = "apiextensions-apiserver", "etcd"
ROOT = Path(__file__).resolve().parents[4]
ARCHIVE = ROOT.parent / "shared" / "k8s-local" / "bin.tar.xz"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "baton" / "k8s"
START_S = 180.0
"""On a machine that others use too."""
IDLE_S = 20.0
"""A connection that was idle for so long is not used again: servers end such, and what is sent just then is lost."""
HOW = (
    f"no {SERVER} and {ETCD}: name their folder in BATON_K8S_BIN, or run e2e/fetch_etcd.sh for etcd and build the "
    "server from k8s.io/apiextensions-apiserver"
)
_EXTENSIONS = (
    "keyUsage=critical,digitalSignature,keyEncipherment\nextendedKeyUsage=serverAuth,clientAuth\n"
    "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
)
_NOT_SERVED = (
    "MutatingAdmissionPolicy,ValidatingAdmissionPolicy,NamespaceLifecycle,MutatingAdmissionWebhook,"
    "ValidatingAdmissionWebhook"
)
"""Admission plugins that wait for resources of the core API server."""


@dataclass(frozen=True, slots=True)
class Binaries:
    server: Path
    etcd: Path


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the API server."""

    status: int
    body: Json

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))


def find_binaries() -> Binaries | None:
    """The paths of the two programs; None when one is missing."""
    named = os.environ.get("BATON_K8S_BIN")
    server = _first(*([Path(named) / SERVER] if named else []), CACHE / SERVER) or _from_archive()
    on_path = shutil.which(ETCD)
    etcd = _first(
        *([Path(named) / ETCD] if named else []), CACHE / ETCD, *([Path(on_path)] if on_path is not None else [])
    )
    return None if server is None or etcd is None else Binaries(server, etcd)


def _first(*candidates: Path) -> Path | None:
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def _from_archive() -> Path | None:
    if not ARCHIVE.is_file():
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE, "r:xz") as archive:
        member = next((entry for entry in archive if Path(entry.name).name == SERVER and entry.isfile()), None)
        source = archive.extractfile(member) if member is not None else None
        if source is None:
            return None
        draft = CACHE / f".{SERVER}.{os.getpid()}"
        with source, draft.open("wb") as file:
            shutil.copyfileobj(source, file)
    draft.chmod(0o755)
    return draft.rename(CACHE / SERVER)


class ApiServer:
    """A client of a running server, as a member of system:masters."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._context.load_cert_chain(folder / "client.crt", folder / "client.key")
        self._connection: http.client.HTTPSConnection | None = None
        self._used_at = 0.0

    def send(self, method: str, path: str, body: object = None, kind: str = "json", accept: str = "") -> Reply:
        """One request; `kind` is what follows `application/` in its content type."""
        headers = {"Content-Type": f"application/{kind}", "Accept": accept or "application/json"}
        content = None if body is None else json.dumps(body)
        if time.monotonic() - self._used_at > IDLE_S:
            self.close()
        try:
            connection = self._requested(method, path, content, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        self._used_at = time.monotonic()
        parsed = json.loads(data) if data.startswith(b"{") else {"message": data.decode(errors="replace")}
        return Reply(answer.status, parsed)

    def _requested(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> http.client.HTTPConnection:
        """The connection that a request was sent on. A server may end one that was used before, as it does behind an
        answer to a body that it did not read to its end: then the request goes out once more, on a fresh one.
        """
        before = self._connection
        if before is not None:
            try:
                before.request(method, path, body, headers)
                return before
            except OSError:
                self.close()
        self._connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._context, timeout=120)
        self._connection.request(method, path, body, headers)
        return self._connection

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def until(
        self,
        method: str,
        path: str,
        status: int = 200,
        deadline_s: float = START_S,
        holds: Callable[[Reply], bool] = lambda reply: True,
    ) -> Reply:
        """Repeat a request until it is answered with `status`, and the answer is such. Raises TimeoutError."""
        end = time.monotonic() + deadline_s
        last = "no answer"
        while time.monotonic() < end:
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = self.send(method, path)
                if reply.status == status and holds(reply):
                    return reply
                last = f"{reply.status} {reply.message}"
            time.sleep(0.05)
        raise TimeoutError(f"{method} {path}: {last}")

    def until_defined(self) -> None:
        """Wait until both of Baton's kinds are served and in discovery, which the server does one by one. Raises
        TimeoutError."""
        group, plurals = "/apis/baton.dev/v1alpha1", ("llmdeployments", "llmpools")
        for plural in plurals:
            self.until("GET", f"{group}/namespaces/default/{plural}")
        self.until("GET", group, holds=lambda reply: all(f"'{plural}'" in str(reply.body) for plural in plurals))


@contextlib.contextmanager
def running(binaries: Binaries, folder: Path) -> Iterator[ApiServer]:
    """Start both programs with their files in `folder`, stop them at the end."""
    _certificates(folder)
    ports = HeldPorts(3)
    client_port, peer_port, port = ports.numbers
    store, peers = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    _kubeconfig(folder, port)
    etcd = (
        *(str(binaries.etcd), "--name=t", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync"),
        *(f"--listen-client-urls={store}", f"--advertise-client-urls={store}", f"--listen-peer-urls={peers}"),
        *(f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=t={peers}"),
    )
    config = folder / "kubeconfig"
    server = (
        *(str(binaries.server), f"--etcd-servers={store}", "--bind-address=127.0.0.1", f"--secure-port={port}"),
        *(f"--tls-cert-file={folder / 'server.crt'}", f"--tls-private-key-file={folder / 'server.key'}"),
        *(f"--client-ca-file={folder / 'ca.crt'}", "--authentication-skip-lookup", f"--kubeconfig={config}"),
        *(f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}"),
        *(f"--disable-admission-plugins={_NOT_SERVED}", "--enable-priority-and-fairness=false"),
    )
    with ports, _process(etcd, folder / "etcd.log"), _process(server, folder / "server.log"):
        api = ApiServer(port, folder)
        try:
            api.until("GET", "/readyz/poststarthook/crd-informer-synced")
            yield api
        finally:
            api.close()


@contextlib.contextmanager
def _process(argv: tuple[str, ...], log: Path) -> Iterator[None]:
    with log.open("wb") as file, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file) as process:
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


class HeldPorts:
    """Ports that no other program gets until the end: programs bind them seconds later, and some once more after a
    while. The sockets that hold them do not listen, so that a program with SO_REUSEADDR can bind them too."""

    def __init__(self, count: int) -> None:
        self._held = [bind("127.0.0.1", 0) for _ in range(count)]
        self.numbers = [int(listener.getsockname()[1]) for listener in self._held]

    def __enter__(self) -> HeldPorts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for listener in self._held:
            listener.close()


def _certificates(folder: Path) -> None:
    (folder / "extensions").write_text(_EXTENSIONS)
    key = ("-newkey", "rsa:2048", "-nodes")
    authority = ("-addext", "keyUsage=critical,keyCertSign,digitalSignature")
    _openssl(
        folder, "req", "-x509", *key, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.crt", *authority
    )
    for name, subject in (("server", "/CN=server"), ("client", "/O=system:masters/CN=client")):
        _openssl(folder, "req", *key, "-subj", subject, "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signing = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "extensions")
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *signing)


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True, timeout=60)


def _kubeconfig(folder: Path, port: int) -> None:
    """The server asks itself where it would ask the core API server; members of system:masters need no answer."""
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(folder / "ca.crt")}
    user = {"client-certificate": str(folder / "client.crt"), "client-key": str(folder / "client.key")}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
