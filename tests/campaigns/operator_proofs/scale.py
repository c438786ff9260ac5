"""Many LLMDeployments on a real API server: how long until all their objects exist, and what it costs.

On the server in KUBECONFIG, which has Baton's definitions and on which nothing runs Pods; without one, on an etcd and a
kube-apiserver of its own. The operator is its own process; this one creates at a steady rate, watches everything and
counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import yaml
from bench.machine import this_machine
from bench.results import Cell, percentile, publish

from baton_operator.kube.http_client import HttpKubeApi
from baton_operator.kube.kinds import (
    ACCOUNTS,
    DEPLOYMENTS,
    EVENTS,
    POLICIES,
    POOLS,
    RECORDS,
    SECRETS,
    SERVICES,
    WORKERS,
)
from baton_operator.kube.kube_api import Change, KubeApi, KubeError, Resource
from baton_operator.kube.kubeconfig import load
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_testing.kube.control_plane import HOW, control_plane, find_programs
from baton_testing.kube.manifests import manifest

ACCOUNT = "bench-operator"
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role")
BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
OWNED = (POOLS, WORKERS, RECORDS, SERVICES, ACCOUNTS, POLICIES, SECRETS)
LISTEN = "127.0.0.1:18089"
OLD_SERVER = Path(__file__).resolve().parents[3] / "e2e" / "old_server.py"
"""The operator for servers before 1.29, such as the one here: leaves out what they do not know."""
QUIET_S = 8.0
RESYNC_S = 60.0
UP_S = 600.0
DIGEST = "registry.example.com/baton@sha256:"
Json = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """Objects and times that the watches reported."""

    objects: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    """Kinds and names of the objects of each deployment."""
    complete_at: dict[str, float] = field(default_factory=dict)
    """When the last object of each deployment came."""
    added: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    last_at: float = 0.0
    _before: dict[str, object] = field(default_factory=dict)

    def note_change(self, resource: Resource, change: Change, body: Json, now: float) -> None:
        name = body["metadata"]["name"]
        self.last_at = now
        if resource == DEPLOYMENTS:
            if change is Change.MODIFIED and body.get("status") != self._before.get(name):
                self.statuses[name] += 1
            self._before[name] = body.get("status")
            return
        of = body["metadata"].get("labels", {}).get(DEPLOYMENT_LABEL)
        if of is not None and change is Change.ADDED:
            self.added[resource.plural] += 1
            self.objects[of].add((resource.plural, name))
            self.complete_at[of] = now


@dataclass(frozen=True, slots=True)
class Process:
    """The operator's."""

    handle: psutil.Popen

    @property
    def rss_mib(self) -> float:
        return float(self.handle.memory_info().rss) / 2**20

    @property
    def cpu_s(self) -> float:
        times = self.handle.cpu_times()
        return float(times.user + times.system)


def server_cpu_s() -> float | None:
    """CPU of the API server and its etcd so far; None: they are not of this process."""
    servers = [child for child in psutil.Process().children() if child.name() in ("kube-apiserver", "etcd")]
    times = [server.cpu_times() for server in servers]
    return sum(float(cpu_times.user + cpu_times.system) for cpu_times in times) if times else None


@contextlib.contextmanager
def operator(spaces: tuple[str, ...], keys: Path, calls_per_s: float, kubeconfig: Path | None = None) -> Any:
    """The operator's process, stopped at the end. `kubeconfig`: whose rights it has, None: this process's."""
    command = [sys.executable, str(OLD_SERVER), f"--namespaces={','.join(spaces)}", f"--own-namespace={spaces[0]}"]
    command += [f"--worker-image={DIGEST}{'a' * 64}", f"--gateway-image={DIGEST}{'b' * 64}", f"--master-keys={keys}"]
    command += [f"--listen={LISTEN}", "--gateway-listen=none", "--lease=none", "--routable-from=readiness"]
    command += [f"--resync-s={RESYNC_S:.0f}", "--log-level=WARNING", f"--calls-per-s={calls_per_s:g}"]
    environment = os.environ | ({} if kubeconfig is None else {"KUBECONFIG": str(kubeconfig)})
    process = Process(psutil.Popen(command, stdin=subprocess.DEVNULL, env=environment))
    try:
        yield process
    finally:
        process.handle.terminate()
        process.handle.wait(30)


def calls() -> Counter[str]:
    """The operator's calls to the API server so far, by verb; its passes under `passes`."""
    counts: Counter[str] = Counter()
    with urlopen(f"http://{LISTEN}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("baton_operator_api_calls_total{"):
                counts[line.split('verb="')[1].split('"')[0]] += int(float(line.split()[-1]))
            if line.startswith("baton_operator_passes_total{"):
                counts["passes"] += int(float(line.split()[-1]))
    return counts


async def _watch(api: KubeApi, resource: Resource, seen: Seen) -> None:
    version = (await api.list(resource, None)).resource_version
    while True:
        with contextlib.suppress(KubeError):
            async for event in api.watch(resource, None, version, timeout_s=300):
                metadata: Any = event.object["metadata"]
                version = str(metadata["resourceVersion"])
                if event.change is not Change.BOOKMARK:
                    seen.note_change(resource, event.change, dict(event.object), time.monotonic())


@contextlib.asynccontextmanager
async def watching(api: KubeApi) -> AsyncIterator[Seen]:
    seen = Seen()
    tasks = [asyncio.create_task(_watch(api, resource, seen)) for resource in (DEPLOYMENTS, *OWNED)]
    await asyncio.sleep(2)
    try:
        yield seen
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def quiet(seen: Seen, longest_s: float) -> None:
    """Wait until no watch has reported for a while, from now on at the earliest."""
    began = time.monotonic()
    await _until(lambda: time.monotonic() - max(seen.last_at, began) >= QUIET_S, longest_s)


async def create(api: KubeApi, namespace: str, name: str) -> None:
    body = manifest(model__source="pvc://models/a", autoscaling__mode="Off")
    body["metadata"] = {"name": name, "namespace": namespace}
    while True:
        try:
            await api.create(DEPLOYMENTS, body, manager="bench")
            return
        except KubeError:
            await asyncio.sleep(0.5)


async def _make_account(api: HttpKubeApi, spaces: tuple[str, ...]) -> str:
    """Make an account that may do all in these namespaces and nothing elsewhere; returns its token. Raises
    KubeError."""
    role: Json = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    allowed = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    account = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": spaces[0]}
    named = {"kind": "Role", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}
    account_body: Json = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": spaces[0]},
    }
    await api.create(ACCOUNTS, account_body, manager="bench")
    for space in spaces:
        metadata: Json = {"name": ACCOUNT, "namespace": space}
        await api.create(ROLES, {**role, "metadata": metadata, "rules": allowed}, manager="bench")
        binding = {**role, "kind": "RoleBinding", "metadata": metadata, "roleRef": named, "subjects": [account]}
        await api.create(BINDINGS, binding, manager="bench")
    request: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    url = f"{api.server}/api/v1/namespaces/{spaces[0]}/serviceaccounts/{ACCOUNT}/token"
    async with api.session() as session, session.post(url, json=request) as answer:
        return str((await answer.json())["status"]["token"])


def _kubeconfig(token: str, path: Path) -> Path:
    """KUBECONFIG's, with this token for its user; where it is."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    config["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path


async def _scale(count: int, per_s: float, calls_per_s: float, spaces: tuple[str, ...], is_namespaced: bool) -> int:
    machine, run = this_machine(), secrets.token_hex(2)
    rows: list[dict[str, Cell]] = []

    def row(what: str, value: float, goal: str = "") -> None:
        rows.append({"what": what, "value": value, "goal": goal})

    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as account:
        keys = Path(folder)
        (keys / "first").write_bytes(b"m" * 32)
        async with HttpKubeApi(load(), calls_per_s=500) as api, watching(api) as seen:
            token = await _make_account(api, spaces) if is_namespaced else ""
            rights = _kubeconfig(token, Path(account) / "kubeconfig") if is_namespaced else None
            with operator(spaces, keys, calls_per_s, rights) as process:
                await until_up()
                await asyncio.sleep(5)
                row("operator memory MiB, idle", process.rss_mib, "<= 80 with kopf")
                row("connections, idle", len(process.handle.net_connections()))
                await create(api, spaces[0], f"pilot-{run}")
                await asyncio.sleep(5)
                await quiet(seen, 120)
                expected = len(seen.objects[f"pilot-{run}"])
                began, created_at, cpu_before, own_before = time.monotonic(), {}, process.cpu_s, time.process_time()
                before, served_before = calls(), server_cpu_s()
                for number in range(count):
                    await asyncio.sleep(max(began + number / per_s - time.monotonic(), 0.0))
                    name = f"s{run}-{number}"
                    created_at[name] = time.monotonic()
                    await create(api, spaces[number % len(spaces)], name)
                created_s = time.monotonic() - began
                await quiet(seen, 1800)
                late = [name for name in created_at if len(seen.objects[name]) != expected]
                delays = [seen.complete_at[name] - at for name, at in created_at.items() if name in seen.complete_at]
                spent = calls() - before
                row("namespaces", len(spaces))
                row("deployments", count)
                row("created per second", count / created_s)
                row("objects of each", expected)
                row("deployments without exactly these", len(late), "0")
                row("created to all objects, p50 s", percentile(delays, 50))
                row("created to all objects, p99 s", percentile(delays, 99), "<= 30")
                row("writes of the operator per deployment", (spent["patch"] + spent["create"]) / count)
                row("reads of the operator per deployment", spent["get"] / count)
                row("status writes per deployment, most", max(seen.statuses[name] for name in created_at), "<= 6")
                events = (await api.list(EVENTS, None)).items
                events_by_name = Counter(str(_of(event)) for event in events)
                row(
                    "Events per deployment, most", max((events_by_name[name] for name in created_at), default=0), "<= 2"
                )
                last_s = max(seen.complete_at.values()) - began
                row("from the first create to the last object, s", last_s, "<= 60")
                row("from the last create to the last object, s", last_s - created_s)
                row("operator CPU s per deployment", (process.cpu_s - cpu_before) / count)
                row("this load's CPU s per deployment", (time.process_time() - own_before) / count)
                served = server_cpu_s()
                if served is not None and served_before is not None:
                    row("API server and etcd CPU s per deployment", (served - served_before) / count)
                row("operator memory MiB", process.rss_mib, "<= 256")
                await asyncio.sleep(5)
                idle_from, cpu_from = calls(), process.cpu_s
                await asyncio.sleep(RESYNC_S + 15)
                idle = calls() - idle_from
                row("passes in one resync", idle["passes"])
                row("calls in one resync, watches aside", sum(idle.values()) - idle["passes"] - idle["watch"], "0")
                row("operator CPU s of one resync", process.cpu_s - cpu_from)
            with operator(spaces, keys, calls_per_s, rights) as process:
                again = time.monotonic()
                await until_up()
                row("restart to the first pass, s", time.monotonic() - again)
                await _until(lambda: calls()["passes"] >= count, 600)
                row("restart to every deployment passed, s", time.monotonic() - again)
                row("writes after a restart", calls()["patch"] + calls()["create"], "0")
                row("operator memory MiB after a restart", process.rss_mib, "<= 256")
    notes = [
        f"campaign: operator_proofs scale --deployments {count} --namespaces {len(spaces)} --per-s {per_s:g}"
        f" --calls-per-s {calls_per_s:g}{' --namespaced-rights' if is_namespaced else ''}",
        "etcd and kube-apiserver 1.20.2 on the same machine, no controllers or Pods; budgets are made, not counted",
    ]
    publish(
        f"operator-scale-{per_s:g}"
        + (f"-{len(spaces)}" if len(spaces) > 1 else "")
        + ("-namespaced" if is_namespaced else ""),
        machine,
        notes,
        ["what", "value", "goal"],
        rows,
    )
    return len(late)


async def _until(is_so: Callable[[], bool], longest_s: float) -> None:
    end = time.monotonic() + longest_s
    for _ in iter(lambda: not is_so() and time.monotonic() < end, False):
        await asyncio.sleep(0.25)


async def until_up() -> None:
    end = time.monotonic() + UP_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if calls()["watch"] >= len(OWNED):
                return
        await asyncio.sleep(0.2)
    raise TimeoutError("the operator does not come up")


def _of(event: Json) -> object:
    return event.get("involvedObject", {}).get("name")


@contextlib.contextmanager
def api_server(spaces: tuple[str, ...]) -> Iterator[None]:
    """An API server with the definitions and these namespaces, in KUBECONFIG. Raises FileNotFoundError when it
    cannot be run here."""
    if "KUBECONFIG" in os.environ:
        yield
        return
    programs = find_programs()
    if programs is None:
        raise FileNotFoundError(HOW)
    with tempfile.TemporaryDirectory() as folder, control_plane(programs, Path(folder), controllers=False) as plane:
        for path in sorted((Path(__file__).resolve().parents[3] / "crds").glob("*.yaml")):
            body = yaml.safe_load(path.read_text(encoding="utf-8"))
            reply = plane.api.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
            assert reply.status == 201, reply.message
        plane.api.until("GET", "/apis/baton.dev/v1alpha1/namespaces/default/llmpools", deadline_s=UP_S)
        for space in spaces:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
            assert plane.api.send("POST", "/api/v1/namespaces", body).status in (201, 409)
        os.environ["KUBECONFIG"] = str(plane.kubeconfig)
        try:
            yield
        finally:
            del os.environ["KUBECONFIG"]


def scale(count: int, per_s: float, calls_per_s: float, spaces: tuple[str, ...], is_namespaced: bool = False) -> int:
    """Create this many at this rate, in these namespaces in turn; returns how many did not get their objects.
    `is_namespaced`: the operator has rights in these namespaces alone."""
    with api_server(spaces):
        return asyncio.run(_scale(count, per_s, calls_per_s, spaces, is_namespaced))
